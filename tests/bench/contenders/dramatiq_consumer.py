"""Dramatiq: one actor, which inserts its row in a transaction."""

import signal
from threading import Event
from typing import Any

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker

from django_rmq_retry.messages.message import Message
from django_rmq_retry.messages.properties import Properties
from tests.bench.task import Task, payload

NAME = "row"


class Broker(RabbitmqBroker):  # type: ignore[misc, unused-ignore]
    """Declares its queues like its base, with the type of the task."""

    def __init__(self, task: Task) -> None:
        super().__init__(url=task.url, confirm_delivery=True)
        self._kind = task.kind

    def _build_queue_arguments(self, queue_name: str) -> dict[str, Any]:
        usual: dict[str, Any] = super()._build_queue_arguments(queue_name)  # type: ignore[no-untyped-call, unused-ignore]
        return {**usual, "x-queue-type": self._kind}


def queues(task: Task) -> dict[str, dict[str, Any]]:
    """Return the queue that the worker consumes, with the arguments with which it declares it."""
    return {task.queue: Broker(task)._build_queue_arguments(task.queue)}


def message(task: Task, number: int) -> Message:
    sent: dramatiq.Message[None] = dramatiq.Message(
        queue_name=task.queue, actor_name=NAME, args=(payload(number),), kwargs={}, options={}
    )
    return Message(body=sent.encode(), routing_key=task.queue, properties=Properties(delivery_mode=2))


def main() -> None:
    from tests.bench.contenders.peers import inserting_in  # noqa: PLC0415 - Django is set up for the measured process only

    task = Task.given()
    insert = inserting_in(task)
    broker = Broker(task)
    dramatiq.set_broker(broker)

    @dramatiq.actor(queue_name=task.queue, actor_name=NAME)  # type: ignore[untyped-decorator, unused-ignore]
    def row(_payload: dict[str, Any]) -> None:
        insert()

    ended = Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    worker = dramatiq.Worker(broker, worker_threads=task.threads)
    worker.start()
    ended.wait()
    worker.stop()


if __name__ == "__main__":
    main()
