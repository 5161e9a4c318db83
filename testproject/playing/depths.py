"""The number of messages in the queues."""

from collections import Counter
from collections.abc import Callable
from typing import Any

from django_rmq_retry.amqp.session import Session
from django_rmq_retry.conf import settings
from django_rmq_retry.handlers import registry
from django_rmq_retry.topology.declarations import Role


def depths() -> Counter[Role]:
    """Count the messages by the role of their queue."""
    found: Counter[Role] = Counter()
    registry.autodiscover()
    with Session(settings().access(), purpose="demo") as session:
        for queue in registry.topology().queues.values():
            found[queue.role] += session.ask(_declared(queue.name)).method.message_count
    return found


def _declared(name: str) -> Callable[[Any, Any], object]:
    return lambda channel, done: channel.queue_declare(name, passive=True, callback=done)
