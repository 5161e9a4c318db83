"""Async handlers, and the lifespan that opens what they share. Each writes lines to the file SHOP_NOTES."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from django_rmq_retry import Delivery, Fixed, Queue, RetryThenPark, handler
from tests.shop.notes import note

POLICY = RetryThenPark(attempts=2, backoff=Fixed(0.1))
PAUSE = threading.Event()
here: set[int] = set()
"""The numbers of the messages that are in a handler."""
changed = asyncio.Condition()


@asynccontextmanager
async def lifespan() -> AsyncIterator[dict[str, object]]:
    note("opened")
    yield {"pid": os.getpid(), "loop": asyncio.get_running_loop()}
    note("closed")


@asynccontextmanager
async def failing() -> AsyncIterator[None]:
    fail()
    yield


@asynccontextmanager
async def crashing() -> AsyncIterator[None]:
    """Open, and fail as soon as the process works: as a client whose background task ends."""
    async with asyncio.TaskGroup() as group:
        group.create_task(background())
        yield


async def background() -> None:
    fail()


def fail() -> None:
    raise ConnectionError("the bank is away")


@handler(Queue("loop.together"), policy=POLICY)
async def together(message: Delivery) -> None:
    """Return once ``of`` messages are here at the same time."""
    note(f"came {message.data['n']}")
    async with changed:
        here.add(message.data["n"])
        changed.notify_all()
        await changed.wait_for(lambda: len(here) >= message.data["of"])
    note(f"met {message.data['n']}")


@handler(Queue("loop.counted"), policy=POLICY)
async def counted(message: Delivery) -> None:
    """Note how many are here."""
    here.add(message.data["n"])
    note(f"here {len(here)}")
    await asyncio.sleep(0.05)
    here.discard(message.data["n"])


@handler(Queue("loop.state"), policy=POLICY)
async def with_state(message: Delivery) -> None:
    same = message.state["pid"] == os.getpid() and message.state["loop"] is asyncio.get_running_loop()
    note(f"handled {message.data['n']} {same}")


@handler(Queue("loop.blocking"), policy=POLICY)
async def blocking(message: Delivery) -> None:
    """Let nobody else go on until the file is there."""
    note("begin")
    while not Path(message.data["for"]).exists():  # noqa: ASYNC240 - the mistake
        PAUSE.wait(0.02)
    note("end")


@handler(Queue("loop.late"), policy=POLICY, timeout=2)
async def late(message: Delivery) -> None:
    """Wait for ever, in the one way or in the other."""
    note(f"late {message.data['n']}")
    if message.data["blocks"]:
        PAUSE.wait()
    try:
        await asyncio.Event().wait()
    finally:
        note(f"cancelled {message.data['n']}")


@handler(Queue("loop.line"), policy=POLICY, order_by=lambda message: message.data["key"])
async def in_order(message: Delivery) -> None:
    """Take longer for earlier messages, so that later ones overtake them if they can."""
    key, number = message.data["key"], message.data["n"]
    await asyncio.sleep(0.02 / (number + 1))
    if number == 1 and message.attempt == 1:
        fail()
    note(f"line {key} {number}")
