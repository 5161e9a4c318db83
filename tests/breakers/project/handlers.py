"""Found by itself, as every project's. Each run leaves a line in the file BANK_FOLDER/diary."""

import json
import os
import time
from pathlib import Path

from django_rmq_retry import Breaker, Delivery, Fixed, RetryThenPark, StopTheLine, handler
from django_rmq_retry.breakers import gate
from tests.tooling.waiting import wait_until

FOLDER = Path(os.environ["BANK_FOLDER"])
PROBE = float(os.environ.get("BANK_PROBE", "0.5"))
gate.LEASE_SECONDS = float(os.environ.get("BANK_LEASE", "20"))
POLICY = RetryThenPark(attempts=2, backoff=Fixed(1))


class BankDown(Exception): ...


def note(word: str, message: Delivery) -> None:
    entry = {"word": word, "pid": os.getpid(), "at": time.time(), "of": message.data, "attempt": message.attempt}
    file = os.open(FOLDER / "diary", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(file, (json.dumps(entry) + "\n").encode())
    finally:
        os.close(file)


def begin(message: Delivery) -> None:
    note("began", message)
    if (FOLDER / "hangs").exists():
        wait_until(lambda: not (FOLDER / "hangs").exists(), 60)


def ask_the_bank(message: Delivery) -> None:
    begin(message)
    if (FOLDER / "down").exists():
        raise BankDown("timeout")
    note("did", message)


@handler("payments", policy=POLICY, breaker=Breaker(on=BankDown, probe_after=PROBE, longest=max(PROBE, 1.0)))
def charge(message: Delivery) -> None:
    ask_the_bank(message)


@handler("ledger", policy=StopTheLine(backoff=Fixed(1)), breaker=Breaker(on=BankDown, probe_after=PROBE))
def post(message: Delivery) -> None:
    ask_the_bank(message)


@handler("orders", policy=StopTheLine(backoff=Fixed(0.3)))
def order(message: Delivery) -> None:
    ask_the_bank(message)


@handler("mails", policy=POLICY)
def mail(message: Delivery) -> None:
    begin(message)
    note("did", message)


@handler("quotes", policy=POLICY, rate=20)
def quote(message: Delivery) -> None:
    note("did", message)
