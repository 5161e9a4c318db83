"""The records of queues that StopTheLine has halted, whatever their messages contain."""

import logging
import time
from typing import Any

import pytest

from django_rmq_retry.breakers.halts import AWAY_SECONDS, Halts, halted
from django_rmq_retry.breakers.queue_state import Halt
from django_rmq_retry.models import QueueControl
from tests.tooling.filled import Own
from tests.tooling.owned import routed

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]


def halt(queue: str, message_id: str, attempt: int = 3) -> Halt:
    return Halt(queue=queue, since=time.time(), attempt=attempt, error="BankDown: timeout\0", message_id=message_id)


@pytest.fixture
def own(own_database: Own, settings: Any) -> Own:
    """Threads of a test work on one database, whichever it is."""
    routed(settings)
    return own_database


@pytest.mark.usefixtures("own")
def test_a_halted_queue_is_reported_whatever_its_message_id() -> None:
    Halts(lambda: [halt("a", "\udcff"), halt("b", "null\0"), halt("c", "1")], "me").report()

    told = [(row.queue, row.halted_message, row.halted_error) for row in halted()]
    assert told == [
        ("a", "\\udcff", "BankDown: timeout\\x00"),
        ("b", "null\\x00", "BankDown: timeout\\x00"),
        ("c", "1", "BankDown: timeout\\x00"),
    ]


@pytest.mark.usefixtures("own")
def test_a_halt_reported_again_keeps_its_time_with_any_message_id() -> None:
    Halts(lambda: [halt("a", "\udcff")], "one").report()
    since = halted()[0].halted_at
    Halts(lambda: [halt("a", "\udcff", attempt=4)], "two").report()

    assert [(row.halted_at, row.halted_by, row.halted_attempt) for row in halted()] == [(since, "two", 4)]


@pytest.mark.usefixtures("own")
def test_a_halt_that_cannot_be_written_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    halts = Halts(lambda: [halt("\udcff", "1"), halt("b", "2")], "me")
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
    now[0] += AWAY_SECONDS
    halts.report()
    assert (halted(), known) == ((), [])

    Halts(lambda: [halt("a", "1", attempt=1)], "two").report()
    halts.end()
    assert [(row.halted_at, row.halted_by) for row in halted()] == [(since, "two")]
