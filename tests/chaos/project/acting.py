"""Handlers follow the plan in the message name, and write start, failure and end to the ledger."""

import asyncio
import os
import random
import signal
from pathlib import Path
from threading import Event

from django_rmq_retry import Delivery
from tests.chaos import naming
from tests.chaos.lanes import AWAITED, SLOWNESS
from tests.chaos.ledger import BEGAN, DID, DOWN, FAILED, Ledger, now
from tests.chaos.steering import Dependency

FOLDER = Path(os.environ["CHAOS_FOLDER"])
ledger = Ledger(FOLDER, f"{os.environ['CHAOS_NAME']}.{os.getpid()}")
dependency = Dependency(FOLDER)


class Broken(Exception):
    """Raised for a failure that may succeed at another attempt."""


class Down(Exception):
    """Raised while the dependency is down, which is no fault of the message."""


class Hopeless(Exception):
    """Raised for a failure that no attempt resolves until an operator has repaired the cause."""


def act(message: Delivery, *, noted: bool = False) -> None:
    """Fail, crash or wait according to the plan; without one, an attempt is noted only in counted lanes."""
    follow(message.data["id"], message.attempt, noted=noted)


def follow(name: str, attempt: int, *, noted: bool = False) -> None:
    """Follow the plan of a message by its name and the number of the attempt."""
    if naming.plain(name) and not noted:
        return
    ledger.note(BEGAN, name, attempt, now())
    plan = naming.read(name)
    obey(plan, attempt)


def obey(plan: naming.Name, attempt: int) -> None:
    """End the process, wait or fail if it is planned."""
    if plan.plan == naming.POISON:
        os.kill(os.getpid(), signal.SIGKILL)
    if plan.plan == naming.SLOW:
        Event().wait(SLOWNESS)
    fail_as_planned(plan, attempt)


async def wait_and_follow(name: str, attempt: int, *, endless: float = 0.5) -> None:
    """Wait at random, and follow the plan; this share of the failures are waits that only a timeout ends."""
    ledger.note(BEGAN, name, attempt, now())
    chance, plan = random.Random(f"{name}/{attempt}"), naming.read(name)
    await asyncio.sleep(SLOWNESS if plan.plan == naming.SLOW else chance.uniform(0, AWAITED))
    try:
        fail_as_planned(plan, attempt)
    except Broken:
        if chance.random() < endless:
            await asyncio.Event().wait()
        raise


def fail_as_planned(plan: naming.Name, attempt: int) -> None:
    name = str(plan)
    if plan.plan == naming.HOPELESS and not repaired(name):
        raise Hopeless("the account is closed")
    if attempt <= plan.fails or (plan.plan == naming.STUBBORN and not repaired(name)):
        ledger.note(FAILED, name, attempt, now())
        raise Broken("not yet")


def lean(message: Delivery) -> None:
    """Use the dependency that goes down and up."""
    if dependency.down:
        ledger.note(DOWN, message.data["id"], message.attempt, now())
        raise Down("the dependency does not answer")


def did(message: Delivery) -> None:
    """Note a completed attempt of a lane without a database."""
    ledger.note(DID, message.data["id"], message.attempt, now())


def repaired(name: str) -> bool:
    """Return True if the operator has repaired the cause."""
    return (FOLDER / "repaired" / name).exists()
