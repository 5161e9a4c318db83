"""What the messages ask for: ``{"do": "turn"}``. Each run leaves a line in the file SHOP_NOTES."""

import asyncio
import threading
import uuid
from collections.abc import Callable, Mapping

from django.contrib.auth.models import Group

from django_rmq_retry import Delivery, Fixed, Queue, RetryThenPark, handler
from tests.shop.notes import note

POLICY = RetryThenPark(attempts=2, backoff=Fixed(0.1))
LONG = 60.0
DEADLINE = 0.5


def turn() -> None:
    """Without an end, one bytecode after the other."""
    while True:
        pass


def stand() -> None:
    """In C, where no bytecode is run."""
    held = threading.Lock()
    held.acquire()
    held.acquire(timeout=LONG)


def swallow() -> None:
    try:
        turn()
    except Exception:  # noqa: BLE001 - the mistake that a deadline must outlive
        note("swallowed")


DOING: Mapping[str, Callable[[], None]] = {"turn": turn, "stand": stand, "swallow": swallow}


def act(message: Delivery) -> None:
    note(f"begin {message.data['do']} {message.attempt}")
    DOING.get(message.data["do"], lambda: None)()
    note(f"end {message.data['do']}")


@handler("deadlines.plain", policy=POLICY, timeout=DEADLINE)
def plain(message: Delivery) -> None:
    act(message)


@handler(Queue("deadlines.line", type="quorum"), policy=POLICY, timeout=DEADLINE, order_by=lambda m: m.data["key"])
def in_order(message: Delivery) -> None:
    act(message)


@handler("deadlines.once", policy=POLICY, timeout=DEADLINE, once=lambda message: message.data["n"])
def once(message: Delivery) -> None:
    Group.objects.create(name=f"{message.data['n']} {uuid.uuid4()}")
    act(message)


@handler("deadlines.async", policy=POLICY, timeout=DEADLINE)
async def asynchronous(message: Delivery) -> None:
    note(f"begin async {message.attempt}")
    try:
        await asyncio.Event().wait()
    finally:
        note("cancelled")
