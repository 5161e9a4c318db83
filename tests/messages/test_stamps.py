"""The retry history of a message, in headers of our own that other clients cannot break."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_rmq_retry.handlers.settlement import parked_headers
from django_rmq_retry.messages import ErrorNote, Headers, Reason, Stamp
from django_rmq_retry.messages.header_names import BROKERS, DEATHS, OURS
from django_rmq_retry.policies import park

NOW = 1_700_000_000_000
TIMEOUT = ErrorNote(kind="BankDown", text="timeout")
NAMES = st.binary(max_size=60).map(lambda raw: raw.decode("utf-8", "surrogateescape"))


def test_a_new_message_has_no_retry_headers() -> None:
    assert Stamp().headers() == {}
    assert Stamp.read(Headers()) == Stamp()


@given(
    st.builds(
        Stamp,
        attempts=st.integers(0, 2**31 - 1),
        since=st.integers(0, 2**62),
        wait=st.integers(0, 315_360_000_000),
        exchange=NAMES,
        routing_key=NAMES,
        queue=NAMES,
        summary=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
        traceparent=st.just(""),
    )
)
def test_a_stamp_survives_a_round_trip_with_names_that_are_not_utf_8(stamp: Stamp) -> None:
    assert Stamp.read(Headers.of(stamp.headers())) == stamp


@pytest.mark.parametrize("value", [-1, 2**31, 2**40, True, "3", 3.0, b"3", None, [3], {"n": 3}])
def test_an_invalid_attempts_count_is_read_as_zero(value: object) -> None:
    assert Stamp.read(Headers.of({"rmq-retry-attempts": value})).attempts == 0


@pytest.mark.parametrize("value", [-1, 315_360_000_001, 2**62, "60000"])
def test_a_wait_above_the_limit_is_read_as_zero(value: object) -> None:
    assert Stamp.read(Headers.of({"rmq-retry-wait": value})).wait == 0


def test_the_summary_grows_by_a_line_per_attempt() -> None:
    stamp = Stamp().after("BankDown: timeout, waits 30 s", attempt=1, now=NOW)
    stamp = stamp.after("BankDown: timeout", attempt=2, now=NOW + 40_000)

    assert (stamp.attempts, stamp.since) == (2, NOW)
    assert stamp.summary == "#1 BankDown: timeout, waits 30 s\n#2 BankDown: timeout"


def test_an_error_of_several_lines_is_one_line_of_the_summary() -> None:
    stamp = Stamp().after("OperationalError: server closed\n\tbefore or while\n, waits 1 s", attempt=1, now=NOW)

    assert stamp.summary == "#1 OperationalError: server closed \tbefore or while , waits 1 s"


def test_a_long_summary_keeps_its_latest_lines() -> None:
    stamp = Stamp()
    for attempt in range(1, 101):
        stamp = stamp.after("BankDown: timeout, waits 30 s", attempt=attempt, now=NOW)

    lines = stamp.summary.split("\n")
    assert len(stamp.summary) <= 1000
    assert len(lines) == 29
    assert lines[0] == "#72 BankDown: timeout, waits 30 s"
    assert lines[-1] == "#100 BankDown: timeout, waits 30 s"


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=3000))
def test_a_forged_summary_is_cut_to_a_thousand_bytes(forged: str) -> None:
    stamp = Stamp(summary=forged).after("BankDown: timeout, waits 30 s", attempt=1, now=NOW)

    assert len(stamp.summary.encode()) <= 1000
    assert stamp.summary.endswith("#1 BankDown: timeout, waits 30 s")


def test_a_forged_summary_of_a_hundred_thousand_lines_is_cut_at_once() -> None:
    stamp = Stamp(summary="\n" * 100_000).after("BankDown: timeout, waits 30 s", attempt=1, now=NOW)

    assert stamp.summary.strip() == "#1 BankDown: timeout, waits 30 s"


def test_parked_headers_give_reason_error_and_handler() -> None:
    verdict = park(Reason.EXHAUSTED, "Gave up after 5 attempts: BankDown: timeout", TIMEOUT)

    assert parked_headers(verdict, handler="payments.handlers.charge", now=NOW, nonce=0) == {
        "rmq-retry-reason": "retries_exhausted",
        "rmq-retry-detail": "Gave up after 5 attempts: BankDown: timeout",
        "rmq-retry-error": "BankDown",
        "rmq-retry-message": "timeout",
        "rmq-retry-handler": "payments.handlers.charge",
        "rmq-retry-parked-at": NOW,
    }


def test_every_written_header_is_in_the_list_of_retry_headers() -> None:
    full = Stamp(attempts=1, since=1, wait=1, exchange="e", routing_key="k", queue="q", summary="s", traceparent="t")
    verdict = replace(park(Reason.REQUESTED, "d", TIMEOUT), fingerprint="f", culprit="c")
    why = parked_headers(verdict, handler="h", now=NOW, nonce=1)

    assert {*full.headers(), *why, BROKERS, DEATHS} == OURS
