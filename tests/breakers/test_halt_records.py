"""The records of queues that StopTheLine has halted, whatever their messages contain."""

import logging
import time
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connections

from django_rmq_retry.breakers.halts import ELSEWHERE_SECONDS, Halts, halted
from django_rmq_retry.breakers.queue_state import Halt
from django_rmq_retry.breakers.table import controls_alias
from django_rmq_retry.models import QueueControl
from tests.tooling.filled import Own
from tests.tooling.owned import routed

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]


def halt(queue: str, message_id: str, attempt: int = 3) -> Halt:
    facts = {"error": "BankDown: timeout\0", "message_id": message_id, "key": "PAY-1"}
    return Halt(queue=queue, since=time.time(), attempt=attempt, **facts)


def halts_of(who: str, *halts: Halt) -> Halts:
    """A process that holds the messages of these halts."""
    return Halts(lambda: halts, who, holds=lambda _queue: True, let_go=lambda _queue: None)


@pytest.fixture
def own(own_database: Own, settings: Any) -> Own:
    """Threads of a test work on one database, whichever it is."""
    routed(settings)
    return own_database


@pytest.mark.usefixtures("own")
def test_a_halted_queue_is_reported_whatever_its_message_id() -> None:
    halts_of("me", halt("a", "\udcff"), halt("b", "null\0"), halt("c", "1")).report()

    told = [(row.queue, row.halted_message, row.halted_key, row.halted_error) for row in halted()]
    assert told == [
        ("a", "\\udcff", "PAY-1", "BankDown: timeout\\x00"),
        ("b", "null\\x00", "PAY-1", "BankDown: timeout\\x00"),
        ("c", "1", "PAY-1", "BankDown: timeout\\x00"),
    ]


@pytest.mark.usefixtures("own")
def test_a_halt_reported_again_keeps_its_time_with_any_message_id() -> None:
    halts_of("one", halt("a", "\udcff")).report()
    since = halted()[0].halted_at
    halts_of("two", halt("a", "\udcff", attempt=4)).report()

    assert [(row.halted_at, row.halted_by, row.halted_attempt) for row in halted()] == [(since, "two", 7)]


@pytest.mark.usefixtures("own")
def test_the_attempts_of_a_halt_are_counted_over_restarts_and_reconnects() -> None:
    """A queue was halted for 12 minutes, "attempt 9", after 31 attempts."""
    known = [halt("a", "1", attempt=20)]
    one = Halts(lambda: tuple(known), "one", holds=lambda _queue: True, let_go=lambda _queue: None)
    counts = []
    for attempt in (21, 22, 1, 2):  # After a reconnect this process may count from 1 again.
        known[0] = halt("a", "1", attempt=attempt)
        one.report()
        counts += [row.halted_attempt for row in halted()]
    one.end()
    halts_of("restarted", halt("a", "1", attempt=1)).report()
    counts += [row.halted_attempt for row in halted()]
    halts_of("restarted", halt("a", "2", attempt=1)).report()
    counts += [row.halted_attempt for row in halted()]

    assert counts == [21, 22, 23, 24, 25, 1], "the last one is of another message"


@pytest.mark.usefixtures("own")
def test_a_halted_queue_stays_known_while_no_consumer_reaches_the_broker() -> None:
    held, known, online = {"a"}, [halt("a", "1")], [True]
    halts = Halts(
        lambda: tuple(known),
        "one",
        holds=held.__contains__,
        let_go=lambda _queue: known.clear(),
        connected=lambda: online[0],
    )
    halts.report()
    seen = halted()[0].halted_seen_at
    assert seen is not None
    held.clear()
    online[0] = False
    for _turn in range(2):
        halts.report()
    halts.end()
    later = seen + timedelta(minutes=12)

    assert [row.halted_seen_at for row in halted()] == [seen]
    assert halted(later) == ()
    assert [row.queue for row in halted(later, lost=seen + timedelta(seconds=5))] == ["a"]


@pytest.mark.usefixtures("own")
def test_a_halt_that_cannot_be_written_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    halts = halts_of("me", halt("\udcff", "1"), halt("b", "2"))
    with caplog.at_level(logging.WARNING):
        halts.report()
        halts.report()
    halts.end()

    assert list(QueueControl.objects.values_list("queue", "halted_message")) == [("b", "2")]
    assert [record.__dict__["event"] for record in caplog.records] == ["halts"]
    assert halted() == ()


@pytest.mark.usefixtures("own")
def test_a_halt_is_reported_by_the_process_that_holds_the_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer that waits for long gives its message back, and another one may get it."""
    held, known, now = {"a"}, [halt("a", "1")], [1000.0]
    monkeypatch.setattr("django_rmq_retry.breakers.halts.time.monotonic", lambda: now[0])
    halts = Halts(lambda: tuple(known), "one", holds=held.__contains__, let_go=lambda _queue: known.clear())
    halts.report()
    since = halted()[0].halted_at
    held.clear()
    halts.report()
    assert len(halted()) == 1, "the message may come again at once"
    now[0] += ELSEWHERE_SECONDS
    halts.report()
    assert (halted(), known) == ((), [])

    halts_of("two", halt("a", "1", attempt=1)).report()
    halts.end()
    assert [(row.halted_at, row.halted_by) for row in halted()] == [(since, "two")]


@pytest.mark.usefixtures("own")
def test_a_halt_that_the_database_did_not_end_is_ended_at_the_next_look(monkeypatch: pytest.MonkeyPatch) -> None:
    held, known, now = {"a"}, [halt("a", "1")], [1000.0]
    monkeypatch.setattr("django_rmq_retry.breakers.halts.time.monotonic", lambda: now[0])
    halts = Halts(lambda: tuple(known), "me", holds=held.__contains__, let_go=lambda _queue: known.clear())
    halts.report()
    held.clear()
    halts.report()
    now[0] += ELSEWHERE_SECONDS

    def away(*_query: object) -> None:
        raise OperationalError("away")

    with connections[controls_alias()].execute_wrapper(away):
        halts.report()
    assert (len(halted()), len(known)) == (1, 1)
    halts.report()
    assert (halted(), known) == ((), [])
