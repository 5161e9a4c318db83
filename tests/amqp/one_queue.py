"""One queue on a real broker: declared, filled, counted."""

from queue import Empty

import pika
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry.amqp import Line
from tests.amqp.live import Seen

LINE = Line(queue="q", prefetch=10)


def queue(amqp: BlockingChannel, name: str = "q", *, kind: str = "quorum", ordered: bool = False) -> None:
    arguments: dict[str, object] = {"x-queue-type": kind}
    if kind == "quorum":
        arguments["x-delivery-limit"] = 1_000_000
    if ordered:
        arguments["x-single-active-consumer"] = True
    amqp.queue_declare(name, durable=True, arguments=arguments)


def fill(amqp: BlockingChannel, *bodies: bytes, name: str = "q") -> None:
    amqp.confirm_delivery()
    for body in bodies:
        amqp.basic_publish("", name, body, pika.BasicProperties(delivery_mode=2), mandatory=True)


def depth(amqp: BlockingChannel, name: str = "q") -> int:
    return amqp.queue_declare(name, passive=True).method.message_count or 0


def quiet(seen: Seen, seconds: float = 0.3) -> bool:
    """True if nothing arrives for a while."""
    try:
        seen.next(seconds)
    except Empty:
        return True
    return False
