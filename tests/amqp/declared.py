"""Declares a topology in a test's virtual host, and asks the broker what it has."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry.amqp import Access
from django_rmq_retry.amqp.declarer import Declarer
from django_rmq_retry.amqp.session import Session
from django_rmq_retry.topology import Topology
from tests.tooling.vhosts import Vhost
from tests.tooling.waiting import wait_until

Queues = Mapping[str, Mapping[str, object]]


def session_on(url: str) -> Session:
    """A session with the broker; open it with `with`."""
    return Session(Access.parse(url))


@contextmanager
def declaring(vhost: Vhost) -> Iterator[Declarer]:
    """A declarer on this virtual host."""
    with session_on(vhost.url) as session:
        yield Declarer(session)


def declare(vhost: Vhost, topology: Topology) -> None:
    with declaring(vhost) as declarer:
        plan = declarer.declare(topology)
        assert plan.possible, [item.text for item in plan.items]


def arguments(vhost: Vhost) -> dict[str, dict[str, object]]:
    # RabbitMQ 4 writes the type down for a queue that was declared without one.
    return {
        name: {key: value for key, value in row["arguments"].items() if (key, value) != ("x-queue-type", "classic")}
        for name, row in vhost.queues().items()
    }


def redeclare(channel: BlockingChannel, queues: Queues) -> None:
    """The broker's own comparison: 406 closes the channel if an argument differs."""
    for name, expected in queues.items():
        channel.queue_declare(name, durable=True, arguments=dict(expected))


def ready(channel: BlockingChannel, queue: str) -> int:
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def has(channel: BlockingChannel, queue: str, count: int) -> None:
    wait_until(lambda: ready(channel, queue) == count, what=f"{count} messages in {queue}")
