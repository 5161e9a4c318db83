"""One queue with old arguments that shall have new ones, and its messages."""

from typing import Any

from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry import Exchange, Queue
from django_rmq_retry.amqp.declarer import Declarer
from django_rmq_retry.amqp.recreation import Recreated, Recreation
from django_rmq_retry.amqp.session import Session
from tests.broker.declared import ready
from tests.core.made import topology_of
from tests.tooling.waiting import wait_until

SHOP = Exchange("shop", "fanout")
OLD = topology_of(extra=[Queue("orders", message_ttl=600, bindings=[SHOP.bind()])])
NEW = topology_of(extra=[Queue("orders", message_ttl=900, bindings=[SHOP.bind()])])


def yes(_: str) -> None:
    """Whatever is asked."""


def recreate(session: Session, **options: Any) -> Recreated:
    return Recreation(Declarer(session), NEW, "orders", **options).run(yes)


def fill(channel: BlockingChannel, count: int = 3) -> None:
    for number in range(count):
        channel.basic_publish("shop", "k", b"%d" % number)
    wait_until(lambda: ready(channel, "orders") == count)


def bodies(channel: BlockingChannel, queue: str = "orders") -> list[bytes]:
    found = []
    while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
        found.append(got[2] or b"")
    return found
