"""``rmq_queue send-waiting``: what waits is shown, sent now, followed to its end and kept in the audit log."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry import Delivery, NackRequeue, Queue, RetryThenPark, handler
from django_rmq_retry.amqp import withdrawal
from django_rmq_retry.handlers import registry
from django_rmq_retry.messages import Properties, encode_properties
from django_rmq_retry.messages.identity import attempt_identity
from django_rmq_retry.messages.stamp import Stamp
from django_rmq_retry.models import Attempt, EarlyRetry, OperatorAction, RequeueRun, RunState
from django_rmq_retry.parked import early_runs, operators
from django_rmq_retry.parked.early_sender import EarlySender
from django_rmq_retry.parked.operators import Actor
from django_rmq_retry.parked.requeue_options import RequeueOptions
from django_rmq_retry.parked.run_steps import send_run
from django_rmq_retry.policies.carriers import Hop
from tests.amqp.declared import has
from tests.commands.running import Exit, run
from tests.tooling.brokers import disconnect, publish_exactly

pytestmark = [pytest.mark.django_db(transaction=True)]
QUEUE = "payments.charge"
WAITING = f"{QUEUE}.retry.30s"


@pytest.fixture
def waiting(declared: None, amqp: BlockingChannel) -> Any:  # noqa: ARG001 - in this order
    """Three retries wait, two of them because the bank did not answer."""
    disconnect()
    subscription = registry.subscriptions()[0]
    for name, error in (("a", "GatewayTimeout"), ("b", "GatewayTimeout"), ("c", "AccountClosed")):
        raw = encode_properties(Properties(message_id=name, delivery_mode=2))
        delivery = Delivery(queue=QUEUE, body=b"{}", raw=raw, exchange="payments", routing_key="charge.card")
        stamp = Stamp(attempts=1, since=1, exchange="payments", routing_key="charge.card", queue=QUEUE)
        copy = subscription.policy.via.carry(subscription.route, delivery, Hop(delay=30, stamp=stamp)).copy
        assert copy is not None
        publish_exactly(copy)
        now = timezone.now()
        Attempt.objects.create(
            identity=attempt_identity(QUEUE, name, b"{}"), queue=QUEUE, handler=subscription.name, message_id=name,
            number=1, started_at=now - timedelta(seconds=1), seconds=0.1, verdict="retry", wait=600,
            next_at=now + timedelta(seconds=600), error=error, host="h", pid=1, thread="t",
        )  # fmt: skip
    has(amqp, WAITING, 3)
    yield amqp
    disconnect()


def test_a_dry_run_names_the_causes_and_sends_nothing(waiting: BlockingChannel) -> None:
    told = run("rmq_queue", "send-waiting", QUEUE, "--dry-run")

    assert told.code == Exit.DONE
    assert "  2 GatewayTimeout, due " in told.out
    assert "  1 AccountClosed, due " in told.out
    assert told.out.endswith(f"Would send 3 waiting messages of {QUEUE} before they are due.\n")
    assert (RequeueRun.objects.count(), OperatorAction.objects.count()) == (0, 0)
    has(waiting, WAITING, 3)


def test_all_that_wait_are_sent_and_the_audit_log_tells_who_and_why(waiting: BlockingChannel) -> None:
    told = run("rmq_queue", "send-waiting", QUEUE, "--yes", "--wait", "0", "--rate", "100", "--reason", "bank is back")

    assert told.code == Exit.DONE
    number = RequeueRun.objects.get().pk
    assert f"Requeue run {number} (waiting for outcomes): 3 waiting for outcome." in told.out
    assert f"No consumer reads {QUEUE!r}" in told.err
    has(waiting, WAITING, 0)
    has(waiting, QUEUE, 3)
    act = OperatorAction.objects.get()
    assert (act.get_action_display(), act.subject, act.count, act.reason) == (
        "Send waiting retries",
        QUEUE,
        3,
        "bank is back",
    )


def test_one_is_sent_by_its_id_without_a_question_and_a_run_is_left_to_the_consumers(waiting: BlockingChannel) -> None:
    told = run("rmq_queue", "send-waiting", QUEUE, "--key", "b", "--no-wait", "--json")

    found = json.loads(told.out)["run"]
    assert (told.code, found["retries_of"], found["total"], found["sent"]) == (Exit.DONE, QUEUE, 1, 0)
    assert run("rmq_parked", "requeue-run", str(found["id"]), "--wait", "0").code == Exit.DONE
    has(waiting, QUEUE, 1)
    has(waiting, WAITING, 2)


def test_what_a_file_names_is_left_out_and_said(waiting: BlockingChannel, tmp_path: Path) -> None:
    paid = tmp_path / "paid.csv"
    paid.write_text("b\ngone\n")
    words = ("rmq_queue", "send-waiting", QUEUE, "--except-from", str(paid))
    shown = json.loads(run(*words, "--dry-run", "--json").out)
    told = run(*words, "--yes", "--wait", "0", "--rate", "100")

    assert (shown["waiting"], shown["left_out"]["count"], shown["left_out"]["missing"]) == (2, 1, ["gone"])
    assert "No waiting retry has 1 key: gone." in told.err
    assert "1 waiting message left out. RabbitMQ delivers what is left out when it is due, the first at" in told.err
    has(waiting, QUEUE, 2)
    has(waiting, WAITING, 1)


def test_many_need_a_reason(waiting: BlockingChannel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "REASON_FROM", 2)
    told = run("rmq_queue", "send-waiting", QUEUE, "--yes", "--wait", "0", "--reason", " ")

    assert "Enter a reason: it is required for more than 2 messages." in told.err
    assert (told.code == Exit.DONE, RequeueRun.objects.count()) == (False, 0)
    has(waiting, WAITING, 3)


def test_nothing_that_fits_is_no_run(waiting: BlockingChannel) -> None:
    told = run("rmq_queue", "send-waiting", QUEUE, "--key", "\x00\x1b[2J'; --", "--yes")

    assert (told.code, RequeueRun.objects.count()) == (Exit.NOTHING, 0)
    has(waiting, WAITING, 3)


def test_a_look_ends_at_its_size_and_what_is_behind_it_waits(
    waiting: BlockingChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(withdrawal, "FIRST_FETCHED", 1)
    monkeypatch.setattr(withdrawal, "MOST_LOOKED_AT_BYTES", 2 * len(b"{}"))
    behind = run("rmq_queue", "send-waiting", QUEUE, "--key", "c", "--yes", "--wait", "0")
    has(waiting, WAITING, 3)
    monkeypatch.setattr(withdrawal, "MOST_LOOKED_AT_BYTES", 4 * len(b"{}"))
    within = run("rmq_queue", "send-waiting", QUEUE, "--key", "c", "--yes", "--wait", "0")

    assert (behind.code, within.code) == (Exit.NOTHING, Exit.DONE)
    has(waiting, QUEUE, 1)
    has(waiting, WAITING, 2)


@pytest.mark.parametrize("meanwhile", [{"state": RunState.PAUSED}, {"driver": "another"}])
def test_a_run_that_is_paused_or_taken_over_while_its_driver_looks_sends_nothing(
    waiting: BlockingChannel, monkeypatch: pytest.MonkeyPatch, meanwhile: dict[str, Any]
) -> None:
    one = early_runs.start(QUEUE, Actor(name="ann"), RequeueOptions(rate=100, stop_at=None), count=3)
    later = timezone.now() + timedelta(minutes=1)
    looking = EarlySender._take

    def take(sender: EarlySender, of: RequeueRun) -> Any:
        RequeueRun.objects.update(leased_until=later, **meanwhile)
        return looking(sender, of)

    monkeypatch.setattr(EarlySender, "_take", take)
    send_run(one.pk, "driver", for_seconds=20, outcomes=False)

    assert EarlyRetry.objects.count() == 0
    has(waiting, QUEUE, 0)
    has(waiting, WAITING, 3)


@pytest.mark.usefixtures("project")
def test_retries_that_wait_in_their_consumer_are_refused_with_the_reason() -> None:
    @handler(Queue("cache.warm"), policy=RetryThenPark(attempts=2, via=NackRequeue()))
    def warm(message: Delivery) -> None:
        """Nothing."""

    told = run("rmq_queue", "send-waiting", "cache.warm", "--yes")

    assert told.code != Exit.DONE
    assert "Retries of cache.warm wait unacked in its consumer, not in a queue" in told.err
