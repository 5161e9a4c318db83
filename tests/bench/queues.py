"""A fresh queue for each trial: declared like by the product, filled, and deleted afterwards."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pika

from django_rmq_retry import Json, Message, Queue
from django_rmq_retry.handlers import Subscription
from django_rmq_retry.messages import Properties
from tests.amqp.live import publishing
from tests.bench.policy import POLICY
from tests.bench.task import RETRY_DELAY, Task, payload
from tests.handlers.factories import topology_of

if TYPE_CHECKING:
    from pika.adapters.blocking_connection import BlockingChannel

WINDOW = 2000
PATIENCE = 60.0


@contextmanager
def prepared(task: Task, *, bare_loop: bool, filled: bool) -> Iterator[None]:
    """Declare the task's queues, with its messages if `filled`; with `bare_loop`, a dead-letter loop."""
    arguments = _bare_loop(task) if bare_loop else _made_by(task, "queues", _ours)(task)
    parameters = pika.URLParameters(task.url)
    # It is idle for minutes, and answers no heartbeat meanwhile.
    parameters.heartbeat = 0
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        for name, of_queue in arguments.items():
            channel.queue_declare(name, durable=True, arguments=of_queue)
        try:
            if filled:
                fill(task)
            yield
        finally:
            _delete(channel, list(arguments))


def _ours(task: Task) -> dict[str, dict[str, object]]:
    queue = Queue(task.queue, type=task.kind)
    order_by = (lambda _: "key") if task.does.endswith(" keyed") else None
    handler = Subscription(
        name="bench",
        run=lambda _: None,
        queue=queue,
        policy=POLICY,
        park=f"{task.queue}.parked",
        order_by=order_by,
    )
    topology = topology_of(handler)
    return {queue.name: dict(queue.arguments) for queue in topology.queues.values()}


def _bare_loop(task: Task) -> dict[str, dict[str, object]]:
    back: dict[str, object] = {"x-queue-type": task.kind, "x-dead-letter-exchange": ""}
    return {
        task.queue: {**back, "x-dead-letter-routing-key": task.wait_queue},
        task.wait_queue: {
            **back,
            "x-dead-letter-routing-key": task.queue,
            "x-message-ttl": int(RETRY_DELAY * 1000),
        },
    }


def fill(task: Task) -> int:
    """Publish the task's messages, each confirmed; return the total bytes of their bodies."""
    made = _made_by(task, "message", message)
    with publishing(task.url) as publisher:
        publisher.publish_many((made(task, n) for n in range(task.total)), window=WINDOW, timeout=PATIENCE)
    return sum(len(made(task, n).body) for n in range(task.total))


def _made_by(task: Task, name: str, usual: Any) -> Any:
    """Return the function of this name of the module that makes the task's messages, if it has one."""
    return getattr(import_module(task.messages_by), name, usual) if task.messages_by else usual


def message(task: Task, number: int) -> Message:
    properties = Properties(content_type=Json().content_type, delivery_mode=2, message_id=f"{number:032x}")
    return Message(body=Json().encode(payload(number)), routing_key=task.queue, properties=properties)


def _delete(channel: "BlockingChannel", names: list[str]) -> None:
    for name in names:
        channel.queue_delete(name)
