"""Operators who act at the same moment, and the copies that they make."""

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from django.db import connections
from pika.adapters.blocking_connection import BlockingChannel

from tests.operators.made import QUEUE
from tests.parked.arrivals import ticket_in

PEOPLE = 6


def copies(amqp: BlockingChannel) -> Counter[int]:
    """The number of copies of each record in the queue."""
    found: Counter[int] = Counter()
    while True:
        _method, properties, body = amqp.basic_get(QUEUE, auto_ack=True)
        if properties is None or body is None:
            return found
        record_pk, _cycle = ticket_in(properties.headers or {}, queue=QUEUE, id=properties.message_id, body=body)
        found[record_pk] += 1


def together(act: Callable[[int], object], count: int = PEOPLE) -> list[object]:
    """The result of the action in each thread; all threads begin at the same moment."""
    gate = threading.Barrier(count)

    def one(number: int) -> object:
        gate.wait(30)
        try:
            return act(number)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))
