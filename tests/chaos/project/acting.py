"""A handler does what the name of its message says, and notes when it began, failed, and came to its end."""

import os
import signal
from pathlib import Path
from threading import Event

from django_rmq_retry import Delivery
from tests.chaos import naming
from tests.chaos.lanes import SLOWNESS
from tests.chaos.ledger import BEGAN, DID, DOWN, FAILED, Ledger, now
from tests.chaos.steering import Dependency

FOLDER = Path(os.environ["CHAOS_FOLDER"])
ledger = Ledger(FOLDER, f"{os.environ['CHAOS_NAME']}.{os.getpid()}")
dependency = Dependency(FOLDER)


class Broken(Exception):
    """Another attempt may help."""


class Down(Exception):
    """What the handler needs is down: it is no fault of the message."""


class Hopeless(Exception):
    """No attempt will help, until a person has mended the cause."""


def act(message: Delivery, *, noted: bool = False) -> None:
    """Fail, die or dawdle, as the name says; most say nothing, and then a run is noted only where it is asked for."""
    name = message.data["id"]
    if naming.plain(name) and not noted:
        return
    ledger.note(BEGAN, name, message.attempt, now())
    plan = naming.read(name)
    if plan.plan == naming.POISON:
        os.kill(os.getpid(), signal.SIGKILL)
    if plan.plan == naming.SLOW:
        Event().wait(SLOWNESS)
    if plan.plan == naming.HOPELESS and not mended(name):
        raise Hopeless("the account is closed")
    if message.attempt <= plan.fails or (plan.plan == naming.STUBBORN and not mended(name)):
        ledger.note(FAILED, name, message.attempt, now())
        raise Broken("not yet")


def lean(message: Delivery) -> None:
    """Use what goes down and up."""
    if dependency.down:
        ledger.note(DOWN, message.data["id"], message.attempt, now())
        raise Down("nobody answers")


def did(message: Delivery) -> None:
    """It came to its end, where no database is asked."""
    ledger.note(DID, message.data["id"], message.attempt, now())


def mended(name: str) -> bool:
    """Whether the operator has put right what stood in its way."""
    return (FOLDER / "mended" / name).exists()
