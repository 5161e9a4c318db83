"""The lanes of the load: each queue with what the judge holds its messages to. A new feature is one lane more."""

import os
import random
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec

from tests.chaos.naming import HOPELESS, POISON, SLOW, STUBBORN, Name

ATTEMPTS = 4
WAITS = (0.5, 2.0)
"""Seconds before the second attempt, and before each later one."""
LINE_WAIT = 0.2
SLOWNESS = 3.0
KEYS = 40
METERED = 20.0
"""Runs a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One queue of the load."""

    name: str
    share: int
    """Messages a second; the flood takes what is left of the machine."""
    database: bool = False
    """Handled is what has an effect in the database; else what the ledger has."""
    once: bool = False
    """No effect may be there twice."""
    by_life: bool = False
    """The messages of one life of a producer take effect in their order."""
    by_key: bool = False
    """The messages of one key take effect in their order, those that a person discards left out."""
    attempts: int | None = ATTEMPTS
    innocent: bool = True
    """Only what was made to fail may be parked."""
    counted: bool = False
    """Every run is noted, and no attempt may be counted without a handler that failed."""
    leans: bool = False
    """Its handler needs something that goes down and up, and has a breaker."""
    gated: bool = False
    """Operators pause and resume its queue."""
    rate: float | None = None
    """The most runs a second of all processes together."""
    needs: str = ""
    """The module of the product that must be there."""

    @property
    def queue(self) -> str:
        return f"chaos.{self.name}"

    @property
    def waits(self) -> bool:
        """Whether a retry may wait for something else than its time."""
        return self.leans or self.gated or self.rate is not None


ALL = (
    Lane(name="flood", share=0, counted=True),
    Lane(name="line", share=10, by_life=True, attempts=None),
    Lane(name="hostile", share=1, attempts=1),
    Lane(name="poison", share=0),
    Lane(name="idle", share=0),
    Lane(name="once", share=20, database=True, once=True, innocent=False, needs="inbox"),
    Lane(name="sale", share=20, database=True, innocent=False, needs="publishing.outbox"),
    Lane(name="keyed", share=20, database=True, by_key=True, innocent=False, needs="ordering"),
    Lane(name="fragile", share=10, counted=True, leans=True, needs="breakers"),
    Lane(name="gated", share=10, counted=True, gated=True, needs="breakers"),
    Lane(name="metered", share=0, counted=True, rate=METERED, needs="breakers"),
)


def landed(module: str) -> bool:
    """Whether the product has it."""
    return not module or find_spec(f"django_rmq_retry.{module}") is not None


def lanes() -> Mapping[str, Lane]:
    """Those that this product can do, and this part of the run wants."""
    wanted = os.environ.get("CHAOS_LANES", "").split(",")
    return {lane.name: lane for lane in ALL if landed(lane.needs) and (wanted == [""] or lane.name in wanted)}


def planted(word: str) -> bool:
    """Whether this run is to have that bug, to see that it is caught."""
    return word in os.environ.get("CHAOS_PLANT", "").split(",")


def plan_for(lane: Lane, chance: random.Random) -> str:
    """What its handler shall do with the next message of a lane."""
    roll = chance.random()
    if lane.name == "poison":
        return POISON
    if lane.name == "flood":
        return _of_the_flood(roll, chance)
    if lane.name == "line":
        return f"f{chance.randint(1, 2)}" if roll < 0.02 else ""
    if roll < 0.05:
        return f"f{chance.randint(1, 2)}"
    if roll < 0.06:
        return chance.choice((HOPELESS, STUBBORN))
    return SLOW if roll < 0.062 and not lane.by_key else ""


def _of_the_flood(roll: float, chance: random.Random) -> str:
    """Most are cheap: a million of them go through two cores beside everything else."""
    share = 0.5 if planted("ack_first") else 0.002
    if roll < share:
        return f"f{chance.randint(1, 2)}"
    return chance.choice((HOPELESS, STUBBORN)) if roll < share * 1.1 else ""


def named(lane: Lane, life: str, number: int, chance: random.Random) -> Name:
    """The next message of a lane."""
    plan = plan_for(lane, chance)
    return Name(lane.name, life, number, plan, f"k{chance.randrange(KEYS)}" if lane.by_key else "")
