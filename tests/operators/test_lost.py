"""Requeued messages whose copies somebody purged, or another program took: an operator closes their records."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry.models import Attempt, ItemState, OperatorAction, ParkedMessage, RequeueItem, RequeueRun, State
from django_rmq_retry.parked.actions import Done, discard, restore
from django_rmq_retry.parked.approvals import approve
from django_rmq_retry.parked.operators import Actor
from django_rmq_retry.parked.selection import Selection
from tests.admin import made
from tests.operators.invariants import check_books, check_counters
from tests.operators.made import ANN, again, drive_run, record, requeue_run
from tests.parked.arrivals import by_us, store
from tests.parked.made import copy_failed, copy_succeeded

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database, pytest.mark.usefixtures("wired")]


def chosen(*messages: ParkedMessage) -> Selection:
    return Selection.of_ids([one.pk for one in messages])


def requeued(*, hours: float = 2, **fields: Any) -> ParkedMessage:
    """A message that a run has sent so long ago, and of which nothing was heard since."""
    one = record(**fields)
    drive_run(requeue_run([one.pk], reason="INC-553", include=["unhandled"]))
    ago = timezone.now() - timedelta(hours=hours)
    ParkedMessage.objects.filter(pk=one.pk).update(requeued_at=ago)
    RequeueItem.objects.filter(message=one.pk).update(sent_at=ago)
    return again(one)


def item_of(message: ParkedMessage) -> tuple[str, int, int]:
    """The state of its item, and how many of its run were processed and have failed."""
    item = RequeueItem.objects.get(message=message.pk)
    run = RequeueRun.objects.get(pk=item.run_id)
    return item.state, run.processed, run.failed


def test_a_requeued_message_without_an_outcome_is_discarded_with_a_reason() -> None:
    """It stayed requeued for good: nothing could close it."""
    one = requeued()

    assert discard(chosen(one), ANN, category="handled elsewhere", text="paid by hand") == Done(changed=1)
    assert (again(one).state, again(one).resolution) == (State.DISCARDED, "handled elsewhere: paid by hand")
    [act] = OperatorAction.objects.filter(action="discard")
    assert (act.actor_name, act.reason, act.count) == ("ann", "handled elsewhere: paid by hand", 1)
    check_counters()
    check_books()


def test_only_an_overdue_one_is_discarded() -> None:
    lately, retried = requeued(hours=0.5), requeued()
    facts = {"queue": retried.queue, "number": 1, "host": "h", "pid": 1, "thread": "t", "verdict": "retry"}
    now = timezone.now()
    times = {"started_at": now, "seconds": 0.1, "next_at": now + timedelta(minutes=9), "wait": 540}
    Attempt.objects.create(identity=retried.identity, **facts, **times)

    assert discard(chosen(lately, retried), ANN, category="duplicate") == Done(left=2)
    assert {again(one).state for one in (lately, retried)} == {State.REQUEUED}


def test_a_copy_that_succeeds_after_the_discard_is_recorded() -> None:
    one = requeued()
    discard(chosen(one), ANN, category="cancelled")
    copy_succeeded(one.pk, one.cycle)

    assert item_of(one) == (ItemState.PROCESSED, 1, 0)
    assert (again(one).state, again(one).handled_anyway) == (State.DISCARDED, True)
    check_counters()


@pytest.mark.parametrize(("seconds", "state"), [(1, State.PARKED), (-60, State.DISCARDED)])
def test_a_copy_that_failed_counts_in_its_run_and_is_parked_if_that_was_after_the_discard(
    wired: BlockingChannel, seconds: int, state: State
) -> None:
    wired.queue_declare("payments")
    one = requeued(queue="payments", parked_in="payments.parked", message_id="m-1", body=b"{}")
    discard(chosen(one), ANN, category="cancelled")
    at = timezone.now() + timedelta(seconds=seconds)
    store(by_us(ticket=(one.pk, one.cycle), at=int(at.timestamp() * 1000)))

    assert item_of(one) == (ItemState.FAILED, 0, 1)
    assert (again(one).state, again(one).unconfirmed) == (state, state == State.DISCARDED)
    check_counters()


def test_a_copy_that_fails_unparked_after_the_discard_counts_in_its_run() -> None:
    one = requeued()
    discard(chosen(one), ANN, category="cancelled")
    copy_failed(one.pk, one.cycle)

    assert (item_of(one), again(one).state) == ((ItemState.FAILED, 0, 1), State.DISCARDED)
    check_counters()


def test_a_restored_one_may_have_been_delivered_so_no_requeue_sends_it() -> None:
    one = requeued()
    discard(chosen(one), ANN, category="bad data")
    restore(chosen(one), ANN)
    second = drive_run(requeue_run([one.pk]))

    assert (again(one).state, second.sent, second.skipped) == (State.PARKED, 0, 1)
    copy_succeeded(one.pk, one.cycle)
    assert again(one).state == State.PROCESSED


@pytest.mark.usefixtures("four_eyes")
def test_a_second_person_approves_it_and_what_has_an_outcome_by_then_is_left_out(ann: Actor, bob: Actor) -> None:
    lost, came = requeued(), requeued()
    request = made.asked(lambda by: discard(chosen(lost, came), by, category="duplicate"), ann)
    copy_succeeded(came.pk, came.cycle)
    approve(request.pk, bob)

    assert (again(lost).state, again(came).state) == (State.DISCARDED, State.PROCESSED)
