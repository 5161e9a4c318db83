"""Queue depths and headers of parked messages, read from the broker."""

from typing import Any

from pika.adapters.blocking_connection import BlockingChannel
from pika.spec import BasicProperties

from tests.tooling.waiting import wait_until


def depth(amqp: BlockingChannel, queue: str) -> int:
    return amqp.queue_declare(queue, passive=True).method.message_count


def taken(amqp: BlockingChannel, queue: str) -> tuple[BasicProperties, bytes]:
    """Wait for the next message of a queue and return it."""
    found: list[Any] = wait_until(
        lambda: [part for part in amqp.basic_get(queue, auto_ack=True) if part is not None],
        timeout=30,
        what=f"a message in {queue}",
    )
    return found[1], found[2]


def told(amqp: BlockingChannel, queue: str) -> dict[str, Any]:
    """Return the package's headers of the next parked message, without their prefix."""
    headers = taken(amqp, queue)[0].headers or {}
    return {name.removeprefix("rmq-retry-"): value for name, value in headers.items()}
