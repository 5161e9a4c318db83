"""Requeue: what is sent, what is left out and why, and what the records say afterwards."""

from typing import Any

import pytest
from django.utils import timezone
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry import Queue
from django_rmq_retry.models import ItemReason, ItemState, OperatorAction, ParkedMessage, RunState, RunWait, State
from django_rmq_retry.parked.operators import NothingChosen, Outdated, Refused
from django_rmq_retry.parked.requeue import requeue
from django_rmq_retry.parked.selection import Selection
from tests.operators.made import QUEUE, again, drive_run, group_of, record, requeue_run
from tests.parked.arrivals import ticket_in

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]


def depth(amqp: BlockingChannel, queue: str = QUEUE) -> int:
    return int(amqp.queue_declare(queue, passive=True).method.message_count)


def taken(amqp: BlockingChannel, queue: str = QUEUE) -> tuple[Any, bytes]:
    """The next message of a queue."""
    _method, properties, body = amqp.basic_get(queue, auto_ack=True)
    assert body is not None
    return properties, body


def test_a_requeued_message_is_in_its_queue_and_awaits_its_outcome(wired: BlockingChannel) -> None:
    one = record(body=b'{"amount": 100.00}', headers={"tenant": "acme", "rmq-retry-attempts": 5})
    run = requeue([one], by="nightly", reason="the bank is back")
    properties, body = taken(wired)
    now = again(one)

    assert body == b'{"amount": 100.00}'
    assert (properties.message_id, properties.delivery_mode) == (one.message_id, 2)
    assert properties.headers["tenant"] == "acme"
    assert "rmq-retry-attempts" not in properties.headers
    assert properties.headers["rmq-retry-routing-key"] == "charge.card"
    assert ticket_in(properties.headers, queue=QUEUE, id=one.message_id, body=body) == (one.pk, 2)
    assert (now.state, now.cycle, now.requeued_by, now.claimed_until) == (State.REQUEUED, 2, "nightly", None)
    assert (run.state, run.sent, run.total, run.stop_at) == (RunState.WAITING, 1, 1, 20)
    assert (group_of(one).parked, group_of(one).requeued) == (0, 1)


@pytest.mark.usefixtures("wired")
def test_the_audit_log_names_the_operator_and_the_reason() -> None:
    one = record(key="payment:7")
    run = requeue([one], by="nightly", reason="the bank is back")
    act = OperatorAction.objects.get()

    assert (act.action, act.actor_name, act.reason) == ("requeue", "nightly", "the bank is back")
    assert (act.message, act.run, act.subject, act.count) == (one.pk, run.pk, "payment:7", 1)


@pytest.mark.usefixtures("wired")
def test_the_audit_log_counts_what_a_run_was_to_send_and_not_what_it_left_out() -> None:
    """An auditor read "20 messages" of a run that left one out from the start, and sent 19."""
    requeue([record(), record(), record(succeeded_at=timezone.now())], by="ann")
    act = OperatorAction.objects.get()

    assert (act.count, act.details["left_out"]) == (2, 1)


def test_requeueing_an_in_flight_message_sends_nothing(wired: BlockingChannel) -> None:
    one = record()
    requeue([one], by="ann")
    run = requeue([one], by="bob")

    assert depth(wired) == 1
    assert [(item.state, item.skip_code) for item in run.items.all()] == [(ItemState.SKIPPED, ItemReason.RESOLVED)]
    assert run.state == RunState.FINISHED


def test_a_message_changed_after_the_preview_is_not_sent(wired: BlockingChannel) -> None:
    one, two = record(), record()
    selection = Selection.of_ids([one.pk, two.pk])
    ParkedMessage.objects.filter(pk=one.pk).update(revision=9)
    run = drive_run(requeue_run(selection))

    assert [item.skip_code for item in run.items.order_by("place")] == [ItemReason.CHANGED, ""]
    assert depth(wired) == 1


@pytest.mark.usefixtures("wired")
def test_a_message_changed_after_the_start_is_not_sent() -> None:
    one = record()
    run = requeue_run([one.pk])
    ParkedMessage.objects.filter(pk=one.pk).update(revision=9)
    run = drive_run(run)

    assert [(item.state, item.skip_code) for item in run.items.all()] == [(ItemState.SKIPPED, ItemReason.CHANGED)]
    assert (run.state, run.skipped, again(one).state) == (RunState.FINISHED, 1, State.PARKED)


def test_a_missing_queue_leaves_the_message_parked_unchanged(wired: BlockingChannel) -> None:
    one, two = record(queue="gone"), record()
    run = requeue([one, two], by="ann", include=["unhandled"])
    now = again(one)

    assert (now.state, now.cycle, now.unconfirmed, now.claimed_until) == (State.PARKED, 1, False, None)
    assert next((item.state, item.skip_code) for item in run.items.order_by("place")) == (
        ItemState.SKIPPED,
        ItemReason.UNROUTABLE,
    )
    assert depth(wired) == 1
    assert (group_of(one).parked, group_of(one).requeued) == (1, 1)


@pytest.mark.usefixtures("away")
def test_without_a_broker_messages_stay_parked_and_the_run_reports_it() -> None:
    one = record()
    run = requeue([one], by="ann", wait=1)
    now = again(one)

    assert (run.state, run.wait, run.sent) == (RunState.RUNNING, RunWait.BROKER_AWAY, 0)
    assert (now.state, now.cycle, now.unconfirmed) == (State.PARKED, 1, False)
    assert [(item.state, item.skip_code) for item in run.items.all()] == [(ItemState.PENDING, ItemReason.NOT_SENT)]


def test_another_declared_queue_can_be_the_target(wired: BlockingChannel, settings: Any) -> None:
    settings.RMQ_RETRY = {**settings.RMQ_RETRY, "TOPOLOGY": [Queue("payments.slow")]}
    wired.queue_declare("payments.slow")
    run = requeue([record()], by="ann", target="payments.slow", include=["other_handler"])

    assert (depth(wired), depth(wired, "payments.slow"), run.sent) == (0, 1, 1)
    with pytest.raises(Refused, match="'made-up' is not a declared queue"):
        requeue([record()], by="ann", target="made-up")


@pytest.mark.usefixtures("wired")
def test_a_selection_that_has_grown_is_refused() -> None:
    one, two = record(), record(state=State.PROCESSED)
    selection = Selection.of_filter({"state": ["parked"]})
    ParkedMessage.objects.filter(pk__in=[one.pk, two.pk]).update(state=State.PARKED)
    grown = Selection(filter=selection.filter, max_id=two.pk, as_of=selection.as_of, count=1)

    with pytest.raises(Outdated, match="2 messages match now, but 1 matched in your preview"):
        requeue_run(grown)


@pytest.mark.usefixtures("wired")
def test_an_empty_selection_is_refused() -> None:
    with pytest.raises(NothingChosen):
        requeue([10**9], by="ann")
