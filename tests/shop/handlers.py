"""Handlers that follow the message, such as ``{"do": "fail"}``. Each attempt writes a line to the file SHOP_NOTES.

With SHOP_ASYNC they are async functions, which wait in the event loop.
"""

import asyncio
import functools
import logging
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from asgiref.sync import sync_to_async

from django_rmq_retry import Discard, Fixed, Ladder, Park, RetryThenPark, StopTheLine, handler
from tests.shop.notes import note

log = logging.getLogger("shop")
PAUSE = threading.Event()


class OutOfStock(Exception):
    """Raised for a failing order."""


def wait_for(path: str) -> None:
    while not Path(path).exists():
        PAUSE.wait(0.02)


def act(data: dict[str, Any]) -> None:
    doing = {**RAISING, **DOING}.get(data["do"])
    if doing is not None:
        doing(data)


def throw(error: BaseException) -> None:
    raise error


def fail_until(path: str) -> None:
    if not Path(path).exists():
        raise OutOfStock("not yet")


def warn_and_fail() -> None:
    log.warning("stock is low")
    raise OutOfStock("none left")


RAISING: dict[str, Callable[[dict[str, Any]], object]] = {
    "fail": lambda data: throw(OutOfStock(data.get("why", "none left"))),
    "park": lambda _: throw(Park("the customer is unknown")),
    "discard": lambda _: throw(Discard("too old")),
    "exit": lambda _: throw(SystemExit(3)),
    "fail until": lambda data: fail_until(data["for"]),
}
DOING: dict[str, Callable[[dict[str, Any]], object]] = {
    "wait": lambda data: wait_for(data["for"]),
    "die": lambda _: os.kill(os.getpid(), signal.SIGKILL),
    "leave": lambda _: os._exit(0),
    "warn": lambda _: log.warning("stock is low"),
    "warn and fail": lambda _: warn_and_fail(),
    "eat": lambda data: EATEN.append(os.urandom(1) * (data["mb"] << 20)),
}
EATEN: list[bytes] = []


def in_its_way(function: Callable[[Any], None]) -> Callable[[Any], Any]:
    """Return the handler itself, or an async one that does the same."""
    if not os.environ.get("SHOP_ASYNC"):
        return function

    @functools.wraps(function)
    async def handle(message: Any) -> None:
        if message.data["do"] != "wait":
            await sync_to_async(function)(message)
            return
        note("begin wait")
        exists = Path(message.data["for"]).exists
        while not exists():  # noqa: ASYNC110 - another process makes the file
            await asyncio.sleep(0.02)
        note("end wait")

    return handle


@handler("shop.orders", policy=RetryThenPark(attempts=2, backoff=Fixed(0.2), via=Ladder()))
@in_its_way
def order(message: Any) -> None:
    note(f"begin {message.data['do']}")
    act(message.data)
    note(f"end {message.data['do']}")


@handler("shop.ledger", policy=StopTheLine(backoff=Fixed(0.1)))
@in_its_way
def post(message: Any) -> None:
    note(f"post {message.data['do']}")
    act(message.data)
