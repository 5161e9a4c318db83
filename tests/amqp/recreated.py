"""One queue with old arguments that shall have new ones, and its messages."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from threading import Event
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry import Exchange, Queue
from django_rmq_retry.amqp.declarer import Declarer
from django_rmq_retry.amqp.recreation import Recreated, Recreation
from django_rmq_retry.amqp.session import Session
from tests.amqp.declared import ready
from tests.handlers.factories import topology_of
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


@contextmanager
def publishing(url: str, routing_key: str, *, exchange: str = "") -> Iterator[list[bytes]]:
    """Publish until the end, mandatory and with confirms; give the bodies that are confirmed so far."""
    confirmed: list[bytes] = []
    stop = Event()

    def publish() -> None:
        connection = pika.BlockingConnection(pika.URLParameters(url))
        channel = connection.channel()
        channel.confirm_delivery()
        properties = pika.BasicProperties(delivery_mode=2)
        for number in count():
            if stop.wait(0.005):
                break
            channel.basic_publish(exchange, routing_key, b"%d" % number, properties, mandatory=True)
            confirmed.append(b"%d" % number)
        connection.close()

    with ThreadPoolExecutor(max_workers=1) as threads:
        publisher = threads.submit(publish)
        try:
            yield confirmed
        finally:
            stop.set()
        publisher.result()


def bodies(channel: BlockingChannel, queue: str = "orders") -> list[bytes]:
    found = []
    while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
        found.append(got[2] or b"")
    return found
