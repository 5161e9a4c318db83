"""The log of verdicts: one line for each, and never what a sender wrote as it is."""

import logging
import threading
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import pytest

from django_rmq_retry import Delivery, RetryThenPark, StopTheLine
from django_rmq_retry.consumer.events import Events, pattern_of
from django_rmq_retry.handlers.subscription import Keys
from django_rmq_retry.messages import ErrorNote, Reason
from django_rmq_retry.policies import ACK, Kind, Verdict, discard, halt, park, retry
from tests.consumer.attempts import finished
from tests.handlers.factories import delivery, subscription

NOTE = ErrorNote(kind="BankDown", text="timeout")


def attempt(
    verdict: Verdict, arrival: Delivery | None = None, *, handled: bool = True, keys: Keys | None = None
) -> Any:
    made = replace(subscription(RetryThenPark(attempts=5)), keys=keys) if handled else None
    return finished(verdict, arrival, handler=made, seconds=0.012)


@pytest.mark.parametrize(
    ("verdict", "level", "said"),
    [
        (ACK, "INFO", "ack payments.handlers.charge id='m-1' attempt=1/5 ms=12.0"),
        (
            retry(30, NOTE),
            "INFO",
            "retry payments.handlers.charge id='m-1' attempt=1/5 ms=12.0 after=30s 'BankDown: timeout'",
        ),
        (
            park(Reason.EXHAUSTED, "Gave up."),
            "ERROR",
            "park payments.handlers.charge id='m-1' attempt=1/5 ms=12.0 'Gave up.'",
        ),
        (discard("Old."), "WARNING", "discard payments.handlers.charge id='m-1' attempt=1/5 ms=12.0 'Old.'"),
    ],
    ids=lambda value: value.kind.value if isinstance(value, Verdict) else "",
)
def test_each_verdict_is_one_line(verdict: Verdict, level: str, said: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        Events(lambda: 1.0).note(attempt(verdict))
    (record,) = caplog.records

    assert (record.levelname, record.getMessage()) == (level, said)
    assert record.event == verdict.kind.value  # type: ignore[attr-defined]  # from extra


def test_a_senders_control_characters_are_escaped_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    arrival = delivery(message_id="a\nERROR forged\x1b[31m")
    with caplog.at_level(logging.INFO):
        Events(lambda: 1.0).note(attempt(park(Reason.PERMANENT, "x\ny\x1b[0m"), arrival))

    assert "\n" not in caplog.records[0].getMessage()
    assert "\x1b" not in caplog.records[0].getMessage()


def test_a_message_with_undecodable_properties_gets_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    broken = delivery(raw=b"\x00\x01")
    Events(lambda: 1.0).note(attempt(park(Reason.UNDECODABLE_HEADERS, "x"), broken, handled=False))

    assert caplog.records[0].getMessage() == "park payments id=None attempt=0/∞ ms=12.0 'x'"


def test_a_body_is_never_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        Events(lambda: 1.0).note(attempt(retry(1, NOTE), delivery(body=b"card 4111222233334444")))

    assert "4111222233334444" not in caplog.text


def test_a_function_for_keys_that_waits_keeps_no_other_thread_from_its_counts() -> None:
    """It ran under the lock that each settled message needs: one that asked a hanging database stopped the process."""
    events, waits, goes_on = Events(lambda: 1.0), threading.Event(), threading.Event()

    def keys(_arguments: object) -> list[str]:
        waits.set()
        goes_on.wait(20)
        return ["PAY-1"]

    halted = threading.Thread(target=events.note, args=(attempt(halt(1, NOTE), keys=keys),))
    halted.start()
    try:
        assert waits.wait(20)
        other = threading.Thread(target=events.note, args=(attempt(ACK),), daemon=True)
        other.start()
        other.join(10)
        assert events.counts[Kind.ACK] == 1
    finally:
        goes_on.set()
        halted.join(20)
    assert events.counts[Kind.HALT] == 1


def test_a_halted_line_is_listed_until_it_continues(caplog: pytest.LogCaptureFixture) -> None:
    clock = iter([10.0, 20.0])
    events = Events(lambda: next(clock))
    line = replace(subscription(StopTheLine()), keys=lambda _message: "PAY-1")

    def note(verdict: Verdict, number: int) -> None:
        arrival = delivery(message_id="m", attempt=number)
        events.note(finished(verdict, arrival, handler=line, seconds=0.0))

    note(halt(1, NOTE), 1)
    note(halt(2, NOTE), 2)
    (halted,) = events.halts
    assert (halted.queue, halted.since, halted.attempt) == ("payments", 10.0, 2)
    assert (halted.error, halted.message_id, halted.key) == ("BankDown: timeout", "m", "PAY-1")
    assert events.notes_acks
    note(ACK, 3)

    assert events.halts == ()
    assert "has resumed" in caplog.text


def test_successes_are_noted_only_for_logs_or_observers() -> None:
    logging.getLogger("django_rmq_retry").setLevel(logging.WARNING)
    try:
        assert not Events(lambda: 1.0).notes_acks
        assert Events(lambda: 1.0, [lambda _: None]).notes_acks
    finally:
        logging.getLogger("django_rmq_retry").setLevel(logging.NOTSET)


def failing(_delivery: Delivery) -> str:
    raise KeyError("payment")


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        (lambda delivery: delivery.data["payment"], "PAY-7"),
        (lambda delivery: ["", delivery.data["payment"], "A-1"], "PAY-7"),
        (lambda _: [], ""),
        (failing, ""),
    ],
)
def test_a_log_line_shows_the_first_business_key(keys: Keys, key: str, caplog: pytest.LogCaptureFixture) -> None:
    arrival = replace(delivery(message_id="m-1"), data={"payment": "PAY-7"})
    with caplog.at_level("INFO", "django_rmq_retry"):
        Events(lambda: 1.0).note(attempt(ACK, arrival, keys=keys))

    said = f" key={key!r}" if key else ""
    assert vars(caplog.records[0])["key"] == key
    assert caplog.records[0].getMessage() == f"ack payments.handlers.charge{said} id='m-1' attempt=1/5 ms=12.0"


def test_successes_are_noted_when_counts_are_shown() -> None:
    logging.getLogger("django_rmq_retry").setLevel(logging.WARNING)
    without, shown = Events(lambda: 1.0).notes_acks, Events(lambda: 1.0, counts_acks=True).notes_acks
    logging.getLogger("django_rmq_retry").setLevel(logging.NOTSET)

    assert (without, shown) == (False, True)


@pytest.mark.parametrize(
    ("address", "pattern"),
    [
        ("my.replies", "my.replies"),
        ("bank.answers.7f3a", "bank.answers.*"),
        ("bank.answers.7f3a-0012-4c", "bank.answers.*"),
        ("worker-12.replies.web", "worker-*.replies.web"),
        ("odd[1]?*", "*"),
        ("odd[a]?", "odd[[]a][?]"),
        ("", ""),
    ],
)
def test_a_suggested_pattern_matches_its_address(address: str, pattern: str) -> None:
    assert pattern_of(address) == pattern
    assert fnmatchcase(address, pattern)


def test_an_answer_that_is_not_allowed_is_logged_once_for_each_pattern(caplog: pytest.LogCaptureFixture) -> None:
    events = Events(lambda: 1.0)
    for address in ("bank.answers.1", "bank.answers.2", "my.replies", "bank.answers.3"):
        events.refuse_answer(address)

    assert events.unanswered == 4
    assert [message.split(" was not")[0] for message in caplog.messages] == [
        "The answer to 'bank.answers.1'",
        "The answer to 'my.replies'",
    ]
    assert caplog.messages[0] == (
        "The answer to 'bank.answers.1' was not sent: the setting REPLY_TO does not allow this queue. If callers of "
        "this project wait there, add 'bank.answers.*' to RMQ_RETRY['REPLY_TO']. Further answers to such addresses are "
        "counted, not logged."
    )


@pytest.mark.parametrize("address", ["4711", "x0.y", "1.charge"])
def test_a_suggested_reply_to_allows_the_exact_queue_only(caplog: pytest.LogCaptureFixture, address: str) -> None:
    Events(lambda: 1.0).refuse_answer(address)

    assert f"add '{address}' to RMQ_RETRY['REPLY_TO']" in caplog.text


def test_invented_addresses_fill_neither_log_nor_memory(caplog: pytest.LogCaptureFixture) -> None:
    events = Events(lambda: 1.0)
    for number in range(500):
        events.refuse_answer("x" * number)

    assert (events.unanswered, len(caplog.messages), len(events._patterns)) == (500, 100, 100)


def test_a_failing_log_filter_stops_neither_observers_nor_counts(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(_record: logging.LogRecord) -> bool:
        raise AttributeError("request_id")

    told: list[object] = []
    events, one = Events(lambda: 1.0, [told.append]), attempt(ACK)
    caplog.set_level(logging.INFO)
    caplog.handler.addFilter(refuse)
    try:
        events.note(one)
    finally:
        caplog.handler.removeFilter(refuse)

    assert (told, events.counts[Kind.ACK]) == ([one], 1)
