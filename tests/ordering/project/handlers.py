"""Handlers that post, fail, wait or park as the message demands. Each run writes two lines to the notes."""

import os
import threading
from pathlib import Path
from typing import Any

from django_rmq_retry import Fixed, Queue, RetryThenPark, handler

PAUSE = threading.Event()


class BankDown(Exception):
    """Raised for a failure that may succeed at another attempt."""


class Closed(Exception):
    """Raised for a failure that no attempt resolves."""


def note(text: str) -> None:
    file = os.open(os.environ["SHOP_NOTES"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, f"{os.getpid()} {text}\n".encode())
    os.close(file)


def account(message: Any) -> object:
    """Return the ordering key; for some messages it never ends, in C code that no exception can interrupt."""
    if message.data.get("endless"):
        note(f"key {message.data['account']} {message.data['number']}")
        endless = threading.Lock()
        endless.acquire()
        endless.acquire()
    return message.data["account"]


@handler(
    Queue("ledger.post", type="quorum"),
    policy=RetryThenPark(attempts=3, backoff=Fixed(0.3), park_on=Closed),
    order_by=account,
    name="ledger.post",
)
def post(message: Any) -> None:
    data = message.data
    name = f"{data['account']} {data['number']}"
    note(f"begin {name}")
    if data.get("closed"):
        raise Closed(name)
    if message.attempt <= data.get("fails", 0):
        raise BankDown(name)
    while "holds" in data and not Path(data["holds"]).exists():
        PAUSE.wait(0.02)
    note(f"end {name}")


@handler(Queue("ledger.report", type="quorum"), policy=RetryThenPark(attempts=1), name="ledger.report")
def report(message: Any) -> None:
    note(f"report {message.data['account']} 0")
