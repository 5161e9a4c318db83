"""The retry history of a message, in headers of our own that other clients cannot break."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_rmq_retry import RetryThenPark
from django_rmq_retry.handlers.settlement import Case, copied_to, parked_copy, parked_headers
from django_rmq_retry.messages import ErrorNote, Headers, Reason, Stamp
from django_rmq_retry.messages.header_names import BROKERS, DEATHS
from django_rmq_retry.messages.stamp import OURS
from django_rmq_retry.policies import park, retry
from tests.handlers.factories import delivery, settled, subscription
from tests.messages.parked_copies import copy_of, read_back, requeued_copy

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
        unacked=st.integers(0, 1),
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


def test_every_written_header_is_in_the_list_of_retry_headers() -> None:
    full = Stamp(**CARRIED)
    verdict = replace(park(Reason.REQUESTED, "d", TIMEOUT), fingerprint="f", culprit="c")
    why = parked_headers(verdict, handler="h", now=NOW, nonce=1)

    assert {*full.headers(), *why, BROKERS, DEATHS} == OURS


CARRIED: dict[str, Any] = {
    name: "payments"
    if name == "queue"
    else "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    if name == "traceparent"
    else 7
    if isinstance(default, int)
    else "text"
    for name, default in Stamp._field_defaults.items()
}
"""A value for each field of the stamp, also for one that is yet to come."""
CHANGED = {
    "retry": {"attempts": 8, "wait": 0, "summary": "text\n#8 BankDown: timeout, waits 10 s"},
    "park": {"attempts": 8, "wait": 0, "summary": "text\n#8 BankDown: timeout"},
    # Parked as bytes, because the stamp itself may be what cannot be settled.
    "park as bytes": {
        "attempts": 8,
        "since": 0,
        "wait": 0,
        "routing_key": "payments",
        "exchange": "",
        "summary": "",
        "traceparent": "",
    },
    "quarantine": {},
    # A requeue begins a new series of attempts, with the trace of the requeue, and with the rest from the record.
    "requeue": {
        "attempts": 0,
        "since": 0,
        "wait": 0,
        "exchange": "main",
        "routing_key": "pay.cash",
        "summary": "",
        "traceparent": "",
        "unacked": 0,
    },
}
"""The fields that a copy does not carry on as they are, with their values on that copy."""


def carried(by: str) -> Stamp:
    """The stamp of a copy of a message with a whole stamp."""
    failed = replace(delivery(headers=Stamp(**CARRIED).headers()), attempt=8)
    handler = subscription(RetryThenPark())
    if by == "retry":
        return Stamp.read(copy_of(settled(retry(10, error=TIMEOUT), failed, handler)).headers)
    if by == "quarantine":
        return Stamp.read(copy_of(copied_to(failed, "payments.quarantine", handler)).headers)
    verdict = park(Reason.EXHAUSTED, "", TIMEOUT)
    case = Case(delivery=failed, subscription=handler, parked_queue="parked", now=NOW, as_bytes=by == "park as bytes")
    parked = parked_copy(verdict, case)
    if by != "requeue":
        return Stamp.read(parked.headers)
    original = read_back(parked)
    return Stamp.read(
        requeued_copy(body=original.body, raw=original.raw, exchange="main", routing_key="pay.cash").headers
    )


@pytest.mark.parametrize("field", Stamp._fields)
@pytest.mark.parametrize("by", CHANGED)
def test_each_field_of_the_stamp_is_carried_on(field: str, by: str) -> None:
    assert getattr(carried(by), field) == CHANGED[by].get(field, CARRIED[field])
