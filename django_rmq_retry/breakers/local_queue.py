"""A queue's pause and breaker in one process: they decide whether it consumes all messages, one to probe, or none."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from django_rmq_retry.breakers.queue_state import CLOCK_SKEW_SECONDS, QueueState
from django_rmq_retry.handlers.subscription import WorkQueue
from django_rmq_retry.policies.breaker import CLOSED, JITTER, Circuit, FailureTally

LONGEST_PROBE_SECONDS = 600.0
"""The most seconds between two probes, if no handler of the queue has a breaker."""


class PauseControl(Protocol):
    """An object that pauses and resumes queues: a consumer, or the driver of a test."""

    def pause(self, queue: str) -> None: ...

    def resume(self, queue: str) -> None: ...

    def probe(self, queue: str) -> None:
        """Take one message at a time."""

    def able(self) -> bool:
        """Return True if messages can arrive: False without a broker connection and during shutdown."""


class NoPauseControl:
    """A placeholder that does nothing, used until a consumer starts."""

    def pause(self, queue: str) -> None: ...

    def resume(self, queue: str) -> None: ...

    def probe(self, queue: str) -> None: ...

    def able(self) -> bool:
        return True


class Consuming(Enum):
    ALL = "all"
    ONE = "one message at a time"
    NONE = "nothing"


@dataclass(slots=True, kw_only=True, eq=False)
class LocalQueue:
    """The state of one queue here. Its fields change under its lock; the effects are applied outside the lock.

    ``circuit`` is the breaker as this process knows it: the row's, except while ``pending``, when it is ahead of the
    row. ``probing`` implies an opened circuit and no pause. ``mode`` follows from ``wanted`` as soon as it is applied.
    """

    queue: str
    in_place: bool
    """True if a message must return to its place: a copy would break an order, or a count by the queue itself."""
    tallies: Mapping[str, FailureTally]
    most: float
    """The most seconds that the next probe may be ahead, with an allowance for clocks that differ."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    applying: threading.Lock = field(default_factory=threading.Lock)
    """Held while a thread pauses or resumes the queue, because the state may change at the same time."""
    stored: QueueState
    """The queue's row as of the last read of the database."""
    circuit: Circuit = CLOSED
    probing: bool = False
    """True while this process probes with a message."""
    pending: bool = False
    """True if the circuit has changed here and the database does not have the change yet."""
    mode: Consuming = Consuming.ALL
    known: bool = True
    """False until the queue's row was read once: an operator may have paused it before this process started."""

    @classmethod
    def of(cls, work_queue: WorkQueue) -> "LocalQueue":
        subscriptions = work_queue.subscriptions
        queue = work_queue.queue.name
        longest = max(
            (one.breaker.longest for one in subscriptions if one.breaker is not None), default=LONGEST_PROBE_SECONDS
        )
        return cls(
            queue=queue,
            in_place=work_queue.in_place,
            most=longest * (1 + JITTER) + CLOCK_SKEW_SECONDS,
            tallies={one.name: FailureTally(one.breaker) for one in subscriptions if one.breaker is not None},
            stored=QueueState(queue=queue),
        )

    def wanted(self, now: float) -> Consuming:
        if not self.known or self.stored.is_paused(now):
            return Consuming.NONE
        if not self.circuit.opened:
            return Consuming.ALL
        return Consuming.ONE if self.probing else Consuming.NONE

    def clear_tallies(self) -> None:
        """Clear the counts of earlier attempts: attempts before an outage are no evidence for the time after it."""
        for tally in self.tallies.values():
            tally.clear()

    def next_due(self, now: float) -> float | None:
        """Return the time at which the queue may change without an outside event, or None."""
        if self.stored.is_paused(now):
            return self.stored.until
        if not self.circuit.opened or self.probing:
            return None
        return max(self.circuit.probe_at, self.circuit.probe_until if self.circuit.prober else 0.0)


def apply(local: LocalQueue, now: float, control: PauseControl) -> Consuming:
    """Apply the mode that the known state demands, unless it is already in effect; return the previous mode."""
    with local.applying:
        before, mode = local.mode, local.wanted(now)
        if mode is before:
            return before
        local.mode = mode
        if mode is Consuming.NONE:
            control.pause(local.queue)
        elif mode is Consuming.ONE:
            control.probe(local.queue)
        else:
            control.resume(local.queue)
        return before
