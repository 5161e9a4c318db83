"""The lanes of the load: each is a queue with the invariants that the judge checks. A new feature gets a new lane."""

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
LONGEST = 4.0
"""The timeout of the lane awaited, in seconds."""
AWAITED = 0.4
"""The longest wait of its handler, in seconds, unless the plan makes it wait for longer."""
KEYS = 40
METERED = 20.0
"""Attempts per second."""
TOGETHER = 20
"""The most messages of a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One queue of the load."""

    name: str
    share: int
    """Messages per second, or groups of them; the lane flood uses the rest of the machine."""
    database: bool = False
    """True if a message counts as handled by its effect in the database, else by the ledger."""
    once: bool = False
    """True if no message may have two effects."""
    by_life: bool = False
    """True if the messages of one producer process take effect in the order of publishing."""
    by_key: bool = False
    """True if the messages of an ordering key take effect in their order, except discarded ones."""
    attempts: int | None = ATTEMPTS
    innocent: bool = True
    """True if only messages that are meant to fail may be parked."""
    counted: bool = False
    """True if every attempt is written to the ledger, and only attempts of failed handlers may be counted."""
    leans: bool = False
    """True if its handler needs a dependency that goes down and up, and has a breaker."""
    gated: bool = False
    """True if operators pause and resume its queue."""
    rate: float | None = None
    """The most attempts per second, over all processes."""
    in_batches: bool = False
    """True if its handler gets several messages in one call."""
    results: bool = False
    """True if its messages are tasks whose results are stored."""
    needs: str = ""
    """The module of the product that this lane requires."""

    @property
    def queue(self) -> str:
        return f"chaos.{self.name}"

    @property
    def waits(self) -> bool:
        """True if a retry may wait for more than its delay."""
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
    Lane(name="awaited", share=15, database=True, once=True, innocent=False, needs="handlers.loop"),
    Lane(name="task", share=10, database=True, innocent=False, results=True, needs="tasks"),
    *(
        Lane(name=name, share=1, database=True, once=once, counted=True, innocent=False, in_batches=True, needs=needs)
        for name, once, needs in (("batch", False, "handlers.batch"), ("batchonce", True, "inbox.once_batch"))
    ),
    Lane(name="metered", share=0, counted=True, rate=METERED, needs="breakers"),
)


def landed(module: str) -> bool:
    """Return True if the product has this module."""
    return not module or find_spec(f"django_rmq_retry.{module}") is not None


def lanes() -> Mapping[str, Lane]:
    """Return the lanes that this product supports and this part of the run uses."""
    wanted = os.environ.get("CHAOS_LANES", "").split(",")
    return {lane.name: lane for lane in ALL if landed(lane.needs) and (wanted == [""] or lane.name in wanted)}


def planted(word: str) -> bool:
    """Return True if this bug is planted in the run, to check that it is found."""
    return word in os.environ.get("CHAOS_PLANT", "").split(",")


def plan_for(lane: Lane, chance: random.Random) -> str:
    """Return the plan of the next message of a lane: how its handler behaves."""
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
    """Return the plan of a message of the lane flood; most succeed at once, because there are a million of them."""
    share = 0.5 if planted("ack_first") else 0.002
    if roll < share:
        return f"f{chance.randint(1, 2)}"
    return chance.choice((HOPELESS, STUBBORN)) if roll < share * 1.1 else ""


def named(lane: Lane, life: str, number: int, chance: random.Random) -> Name:
    """Return the name of the next message of a lane."""
    plan = plan_for(lane, chance)
    return Name(lane.name, life, number, plan, f"k{chance.randrange(KEYS)}" if lane.by_key else "")
