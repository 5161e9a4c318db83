"""A requeue to a queue that nobody reads says so, and numbers agree with their nouns."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.utils import timezone
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry.management.commands.rmq_declare import _moved
from django_rmq_retry.models import QueueControl
from django_rmq_retry.publishing import broker_connections
from tests.commands.running import Exit, run
from tests.operators.made import record
from tests.tooling.brokers import using_broker

SAID = "No consumer reads 'payments.charge', so messages to it wait. Start manage.py rmq_consume.\n"


@pytest.fixture
def live(project: Any, broker_url: str, declared: None) -> Iterator[None]:  # noqa: ARG001 - in this order
    with using_broker(project, broker_url):
        yield


@pytest.mark.contract
@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("live")
def test_a_requeue_to_an_unread_queue_says_so_before_and_after(amqp: BlockingChannel) -> None:
    one = record(queue="payments.charge")
    told = run("rmq_parked", "requeue", str(one.pk), "--yes", "--wait", "0")

    QueueControl.objects.create(queue="payments.charge", paused=True, by="bob", since=timezone.now())
    paused = run("rmq_parked", "requeue", str(record(queue="payments.charge").pk), "--yes", "--wait", "0")
    QueueControl.objects.update(paused=False)

    assert (told.code, told.err.count(SAID)) == (Exit.DONE, 2), told.err
    # A paused queue has no consumer by design.
    assert (SAID in paused.err, "1 to payments.charge, where messages wait: paused by bob" in paused.err) == (
        False,
        True,
    )
    assert "What was sent to payments.charge waits. Paused by bob since" in paused.err
    assert "1 waiting for outcome" in told.out
    amqp.basic_consume("payments.charge", lambda *_: None)
    assert SAID not in run("rmq_parked", "requeue", str(record(queue="payments.charge").pk), "--yes", "--wait", "0").err


@pytest.mark.contract
@pytest.mark.django_db
@pytest.mark.usefixtures("live")
def test_an_unknown_queue_is_not_called_unread() -> None:
    broker = broker_connections.connections.target_queues(5.0)
    assert broker.lacks_consumers("payments.charge")
    assert not broker.lacks_consumers("nowhere")
    broker.close()


def test_numbers_agree_with_their_nouns() -> None:
    assert [_moved(number) for number in (0, 1, 2)] == [
        "0 messages were moved",
        "1 message was moved",
        "2 messages were moved",
    ]
    assert _moved(1, " of the abandoned queue 'q'") == "1 message of the abandoned queue 'q' was moved"
