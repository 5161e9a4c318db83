"""Handlers that run until the file BANK_FOLDER/go exists."""

import json
import os
import time
from contextlib import suppress
from pathlib import Path

from django_rmq_retry import Delivery, Fixed, RetryThenPark, handler
from django_rmq_retry.errors import DeadlineExceeded
from tests.tooling.waiting import wait_until

FOLDER = Path(os.environ["BANK_FOLDER"])
GO = FOLDER / "go"
HANGS = "PAY-HANGS"
"""The payment whose business key is not known before ``GO`` exists."""
POLICY = RetryThenPark(attempts=2, backoff=Fixed(1))


def note(word: str, message: Delivery) -> None:
    entry = {"word": word, "at": time.time(), "of": message.data}
    with (FOLDER / "diary").open("a") as diary:
        diary.write(json.dumps(entry) + "\n")


def key_of(message: Delivery) -> str:
    found: str = message.data["payment"]
    if found == HANGS:
        note("asked", message)
        wait_until(GO.exists, 120)
    return found


def wait(message: Delivery) -> None:
    note("began", message)
    wait_until(GO.exists, 120)
    note("did", message)


@handler("payments", policy=POLICY, keys=key_of, name="bank.pay")
def pay(message: Delivery) -> None:
    wait(message)


@handler("reports", policy=POLICY, timeout=2.0, name="bank.report")
def report(message: Delivery) -> None:
    """Ignore the deadline, like code that catches every exception."""
    note("began", message)
    end = time.monotonic() + 60
    while time.monotonic() < end and not GO.exists():
        with suppress(DeadlineExceeded):
            wait_until(GO.exists, 60)


@handler("rates", ack="auto", name="bank.rate")
def rate(message: Delivery) -> None:
    wait(message)
