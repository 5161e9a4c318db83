"""What is late by the records: retries that did not come, and requeued messages that nobody heard of again."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_rmq_retry.health import facts
from django_rmq_retry.health.facts import OverdueRetries, SilentCopies, overdue_retries, survey
from django_rmq_retry.models import Attempt, ParkedMessage, QueueControl, State
from tests.admin.made import attempt
from tests.operators.made import QUEUE, record

pytestmark = [pytest.mark.django_db, pytest.mark.database]


def failed(identity: str = "message:a", *, due: float, verdict: str = "retry", **fields: Any) -> Attempt:
    """An attempt whose retry is due so many minutes from now."""
    now = timezone.now()
    at = now + timedelta(minutes=due)
    values = {"queue": QUEUE, "handler": "charge", "number": 1, "seconds": 0.1, "host": "h", "pid": 1, "thread": "t"}
    times = {"started_at": at - timedelta(minutes=5), "next_at": at}
    return Attempt.objects.create(identity=identity, verdict=verdict, **(values | times | fields))


def counts() -> dict[str, int]:
    return {one.queue: one.count for one in overdue_retries(timezone.now())}


def test_a_retry_is_overdue_ten_minutes_after_it_was_due() -> None:
    failed("message:a", due=-9)
    failed("message:b", due=5)
    assert counts() == {}
    oldest = failed("message:c", due=-30).next_at
    assert oldest is not None
    failed("message:d", due=-15)
    failed("message:e", due=-15, queue="other")

    assert counts() == {QUEUE: 2, "other": 1}
    assert overdue_retries(timezone.now())[1] == OverdueRetries(queue=QUEUE, count=2, oldest=oldest)


def test_a_retry_that_was_attempted_parked_or_forgotten_is_not_overdue() -> None:
    failed("message:again", due=-15)
    failed("message:again", due=-8, number=2)
    failed("message:done", due=-15)
    failed("message:done", due=-14, verdict="ack", number=2, next_at=None)
    broker = failed("message:expired", due=-15)
    record(identity="message:expired", parked_at=broker.started_at + timedelta(minutes=1))
    failed("message:halted", due=-15, verdict="halt")
    failed("message:old", due=-60 * 25)

    assert counts() == {}


def test_a_message_that_was_parked_and_requeued_before_may_be_overdue_again() -> None:
    again = failed("message:a", due=-15)
    record(identity="message:a", parked_at=again.started_at - timedelta(hours=1))

    assert counts() == {QUEUE: 1}


def test_only_the_retries_that_were_due_last_are_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "MOST_RETRIES", 2)
    for number in range(5):
        failed(f"message:{number}", due=-15 - number)

    assert counts() == {QUEUE: 2}


def requeued(minutes: float, **fields: Any) -> ParkedMessage:
    return record(state=State.REQUEUED, requeued_at=timezone.now() - timedelta(minutes=minutes), **fields)


def test_a_requeued_message_without_an_outcome_is_told_after_an_hour() -> None:
    requeued(50)
    assert survey().silent == SilentCopies()
    oldest = requeued(90)
    requeued(70)
    record(state=State.PROCESSED, requeued_at=timezone.now() - timedelta(hours=3))

    assert survey().silent == SilentCopies(count=2, oldest=oldest.requeued_at)


def test_a_requeued_message_that_failed_and_waits_or_whose_queue_is_paused_is_not_told() -> None:
    waits, gone = requeued(90), requeued(90)
    attempt(waits, 1, verdict="retry", next_at=timezone.now() + timedelta(hours=2))
    attempt(gone, 1, verdict="retry", next_at=timezone.now() - timedelta(minutes=30))
    requeued(90, queue="still")
    QueueControl.objects.create(queue="still", paused=True, since=timezone.now())

    assert survey().silent.count == 1


def test_many_requeued_messages_are_counted_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "MOST_SURVEYED_MESSAGES", 2)
    for minutes in range(5):
        requeued(90 + minutes)

    assert survey().silent.count == 3


def test_both_are_found_by_indexes() -> None:
    with CaptureQueriesContext(connection) as queries:
        survey()
    late = [one["sql"] for one in queries if "next_at" in one["sql"]]
    assert len(late) == 2, "one for retries, and one for requeued messages"
    if connection.vendor != "sqlite":
        return
    with connection.cursor() as cursor:
        plans = []
        for sql in late:
            cursor.execute(f"EXPLAIN QUERY PLAN {sql}")
            plans.append("\n".join(str(row[-1]) for row in cursor.fetchall()))
    assert any("rmq_attempt_next" in plan and "rmq_attempt_identity" in plan for plan in plans), plans
    assert any("rmq_msg_requeued" in plan and "rmq_attempt_identity" in plan for plan in plans), plans
