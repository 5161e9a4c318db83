"""The work queues of one process, each with what is known of it, and how far it is open here."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from django_rmq_retry.core.breaking import CLOSED, JITTER, Circuit, Tally
from django_rmq_retry.core.subscription import Intake
from django_rmq_retry.switching.standing import QueueState

AMISS = 60.0
"""Seconds by which clocks of hosts may differ."""
LONGEST = 600.0
"""Between two trials, where nobody says it."""


class Hands(Protocol):
    """Who shuts and opens queues: a consumer, or the driver of a test."""

    def shut(self, queue: str) -> None: ...

    def open(self, queue: str) -> None: ...

    def try_one(self, queue: str) -> None:
        """Take one message at a time."""

    def able(self) -> bool:
        """Whether messages can come at all: not while there is no broker, nor at the end."""


class NoHands:
    """Before anybody consumes."""

    def shut(self, queue: str) -> None: ...

    def open(self, queue: str) -> None: ...

    def try_one(self, queue: str) -> None: ...

    def able(self) -> bool:
        return True


class Mode(Enum):
    """How far a queue is open in this process."""

    OPEN = "all"
    ONE = "one message at a time"
    SHUT = "nothing"


@dataclass(slots=True, kw_only=True, eq=False)
class Valve:
    """One queue. Its fields change under its lock, and what follows from them is done outside of it."""

    queue: str
    in_place: bool
    """Whether what goes back must go where it was, or cannot be copied without being counted."""
    tallies: Mapping[str, Tally]
    most: float
    """Seconds by which a trial may be ahead; clocks may differ a little as well."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    turning: threading.Lock = field(default_factory=threading.Lock)
    """Held by whoever opens or shuts it: what is known may change while somebody does."""
    known: QueueState
    """As the project's database had it when it was looked at last."""
    circuit: Circuit = CLOSED
    probing: bool = False
    """Whether this process tries a message."""
    pending: bool = False
    """Whether the circuit has changed here, and the database does not know yet."""
    mode: Mode = Mode.OPEN

    @classmethod
    def of(cls, intake: Intake) -> "Valve":
        subscriptions = intake.subscriptions
        queue = intake.queue.name
        longest = max((one.breaker.longest for one in subscriptions if one.breaker is not None), default=LONGEST)
        return cls(
            queue=queue,
            in_place=intake.in_place,
            most=longest * (1 + JITTER) + AMISS,
            tallies={one.name: Tally(one.breaker) for one in subscriptions if one.breaker is not None},
            known=QueueState(queue=queue),
        )

    def turned(self, now: float) -> Mode:
        """How far it is to be open by what is known."""
        if self.known.held(now):
            return Mode.SHUT
        if not self.circuit.tripped:
            return Mode.OPEN
        return Mode.ONE if self.probing else Mode.SHUT

    def forget_runs(self) -> None:
        """Those of before an outage tell nothing of what comes after it."""
        for tally in self.tallies.values():
            tally.clear()

    def next_due(self, now: float) -> float | None:
        """When something may happen by itself."""
        if self.known.held(now):
            return self.known.until
        if not self.circuit.tripped or self.probing:
            return None
        return max(self.circuit.probe_at, self.circuit.probe_until if self.circuit.prober else 0.0)


def turn(valve: Valve, now: float, hands: Hands) -> Mode:
    """Open or shut it as it is to be; what is so already is left alone. How it was before."""
    with valve.turning:
        before, mode = valve.mode, valve.turned(now)
        if mode is before:
            return before
        valve.mode = mode
        if mode is Mode.SHUT:
            hands.shut(valve.queue)
        elif mode is Mode.ONE:
            hands.try_one(valve.queue)
        else:
            hands.open(valve.queue)
        return before
