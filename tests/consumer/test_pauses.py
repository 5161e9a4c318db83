"""Unacked messages of a consumer when one of its queues is paused."""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from django_rmq_retry import Delivery, Queue, RetryThenPark
from django_rmq_retry.consumer.lines import QueuePauses
from django_rmq_retry.consumer.sequencer import Sequencer
from django_rmq_retry.consumer.workers import Workers
from django_rmq_retry.handlers import Subscription, work_queues_of

QUEUE = "ledger"


class Source:
    """Keeps the paused queues and the returned messages."""

    def __init__(self) -> None:
        self.paused: list[str] = []
        self.returned: list[Delivery] = []

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)

    def pause(self, queue: str) -> None:
        self.paused.append(queue)

    def give_back(self, deliveries: Iterable[Delivery]) -> None:
        self.returned += deliveries


def test_a_message_redelivered_during_a_pause_still_gets_a_thread() -> None:
    line = SimpleNamespace(stale=False)
    first, second = (Delivery(queue=QUEUE, body=b"%d" % number, token=(line, number)) for number in (1, 2))
    handler = Subscription(
        name="post",
        run=print,
        queue=Queue(QUEUE),
        policy=RetryThenPark(),
        park="ledger.parked",
        order_by=lambda message: message.body,
    )
    turns = Sequencer(lambda delivery: delivery.body)
    workers: Workers[Delivery] = Workers(0, lambda _delivery: None)
    source = Source()
    pauses = QueuePauses(work_queues_of([handler]), source, workers, turns)
    turns.add(first)
    turns.take(first)
    turns.keep(first)
    for one in (first, second):
        turns.add(one)
        workers.add(one)

    pauses.pause(QUEUE)

    assert (source.paused, source.returned) == ([QUEUE], [second])
    assert workers.waiting >= 1
    assert [turns.take(first), turns.take(first)] == [first, None]
