"""The records of queues that StopTheLine has halted, whatever their messages contain."""

import logging
import time
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connections

from django_rmq_retry import database_clock, handler
from django_rmq_retry.breakers.halts import ELSEWHERE_SECONDS, Halts, halted, known_last
from django_rmq_retry.breakers.queue_state import Halt
from django_rmq_retry.breakers.table import controls_alias
from django_rmq_retry.consumer.events import Events
from django_rmq_retry.handlers import registry
from django_rmq_retry.models import QueueControl
from django_rmq_retry.policies import ACK
from tests.consumer.attempts import finished
from tests.handlers.factories import delivery
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
    [row] = halted()

    assert (row.halted_seen_at, known_last(row, seen + timedelta(minutes=12))) == (seen, seen)


@pytest.mark.usefixtures("own")
def test_a_halt_that_cannot_be_written_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    halts = halts_of("me", halt("\udcff", "1"), halt("b", "2"))
    with caplog.at_level(logging.WARNING):
        halts.report()
        halts.report()

    assert list(QueueControl.objects.values_list("queue", "halted_message")) == [("b", "2")]
    assert [record.__dict__["event"] for record in caplog.records] == ["halts"]


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
    assert ([row.queue for row in halted()], known) == (["a"], []), "nobody has handled it"

    halts_of("two", halt("a", "1", attempt=1)).report()
    assert [(row.halted_at, row.halted_by) for row in halted()] == [(since, "two")]


@pytest.mark.usefixtures("own")
def test_a_halt_ends_with_a_message_that_any_process_settles() -> None:
    halts_of("killed", halt("a", "1"), halt("b", "2")).report()
    events, queues = Events(time.time), {"a", "b"}
    later = Halts(
        lambda: events.halts,
        "later",
        holds=lambda _queue: True,
        let_go=lambda _queue: None,
        moved_on=lambda: events.moved_on(queues),
    )
    later.report()
    assert [row.queue for row in halted()] == ["a", "b"]
    events.note(finished(ACK, delivery(queue="a")))

    def away(*_query: object) -> None:
        raise OperationalError("away")

    with connections[controls_alias()].execute_wrapper(away):
        later.report()
    assert len(halted()) == 2
    later.report()
    assert [row.queue for row in halted()] == ["b"]


@pytest.mark.usefixtures("own")
def test_a_halt_of_the_next_message_lasts_though_the_one_before_it_was_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was settled between two reports; then the next message goes to another process."""
    held, known, moved, now = {"a"}, [halt("a", "1")], {"a"}, [1000.0]
    monkeypatch.setattr("django_rmq_retry.breakers.halts.time.monotonic", lambda: now[0])
    halts = Halts(
        lambda: tuple(known),
        "one",
        holds=held.__contains__,
        let_go=lambda _queue: known.clear(),
        moved_on=lambda: [moved.pop()] if moved and known[0].message_id == "2" else [],
    )
    halts.report()
    known[0] = halt("a", "2")
    halts.report()
    assert [row.halted_message for row in halted()] == ["2"]
    held.clear()
    halts.report()
    now[0] += ELSEWHERE_SECONDS
    for _turn in range(2):
        halts.report()

    assert ([row.halted_message for row in halted()], known) == (["2"], [])


@pytest.mark.usefixtures("own")
def test_a_halt_lasts_while_a_handler_reads_its_queue_whether_or_not_a_consumer_reports_it() -> None:
    halts_of("killed", halt("handled", "1"), halt("renamed", "2")).report()
    later = database_clock.now(controls_alias()) + timedelta(minutes=12)
    with registry.isolated():
        handler("handled")(print)
        found = halted(later)

    assert [(row.queue, known_last(row, later)) for row in found] == [("handled", found[0].halted_seen_at)]
