"""The state of each queue in this process: consumed, paused or probing."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import Protocol

from django.utils import timezone
from django.utils.formats import date_format
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_rmq_retry.handlers.subscription import Intake
from django_rmq_retry.policies.breaker import CLOSED, JITTER, Circuit, Tally

FLOWING, PAUSED, OPEN, PROBING = "flowing", "paused", "open", "probing"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueState:
    """The pause and breaker of one work queue; times are seconds since the epoch."""

    queue: str
    paused: bool = False
    """True if an operator paused it, even if the pause has ended since."""
    by: str = ""
    reason: str = ""
    since: float = 0.0
    until: float | None = None
    circuit: Circuit = CLOSED

    def held(self, now: float) -> bool:
        """Return True while an operator's pause keeps the queue from being consumed."""
        return self.paused and (self.until is None or now < self.until)

    def state(self, now: float) -> str:
        """Return ``flowing``, ``paused``, ``open`` (by its breaker) or ``probing``."""
        if self.held(now):
            return PAUSED
        if not self.circuit.opened:
            return FLOWING
        return PROBING if self.circuit.prober and now < self.circuit.probe_until else OPEN

    def goes_on_at(self, now: float) -> float | None:
        """Return the time of the next automatic change, the end of the pause or the next probe; None without one."""
        state = self.state(now)
        return self.until if state == PAUSED else self.circuit.probe_at if state == OPEN else None

    def overdue(self, now: float) -> float:
        """Return the seconds since the next probe was due; near 0 while a consumer reads an open breaker's queue."""
        return now - max(self.circuit.probe_at, self.circuit.probe_until if self.circuit.prober else 0.0)

    def said(self, now: float) -> str:
        """Return a sentence for users with the reason that the queue does not flow; empty if it flows."""
        state = self.state(now)
        if state == PAUSED:
            return self._paused_said()
        return "" if state == FLOWING else self._open_said(probing=state == PROBING)

    def _paused_said(self) -> str:
        said = _("Paused by %(name)s since %(time)s.") % {"name": self.by or "?", "time": _clock(self.since)}
        if self.reason:
            said += " " + _("Reason: %(reason)s.") % {"reason": self.reason.rstrip(".")}
        if self.until is not None:
            said += " " + _("It goes on by itself at %(time)s.") % {"time": _clock(self.until)}
        if self.circuit.opened:
            said += " " + _("Its breaker is open as well.")
        return said

    def _open_said(self, *, probing: bool) -> str:
        circuit = self.circuit
        told = {"handler": circuit.handler, "cause": circuit.cause.rstrip("."), "time": _clock(circuit.since)}
        said = _("The breaker of %(handler)s is open since %(time)s: %(cause)s.") % told
        if circuit.failed:
            failed = ngettext("%(count)d probe has failed.", "%(count)d probes have failed.", circuit.failed)
            said += " " + failed % {"count": circuit.failed}
        if probing:
            return said + " " + _("One message is tried now.")
        return said + " " + _("Next probe at %(time)s.") % {"time": _clock(circuit.probe_at)}


def _clock(epoch: float) -> str:
    """Return the time of day, with the date if it is not today."""
    at = timezone.localtime(datetime.fromtimestamp(epoch, UTC))
    form = "H:i:s" if at.date() == timezone.localdate() else "Y-m-d H:i:s"
    return date_format(at, form)


AMISS = 60.0
"""Seconds by which the clocks of hosts may differ."""
LONGEST = 600.0
"""The most seconds between two probes, if no handler of the queue has a breaker."""


class Hands(Protocol):
    """An object that pauses and resumes queues: a consumer, or the driver of a test."""

    def shut(self, queue: str) -> None: ...

    def open(self, queue: str) -> None: ...

    def try_one(self, queue: str) -> None:
        """Take one message at a time."""

    def able(self) -> bool:
        """Return True if messages can arrive: False without a broker connection and during shutdown."""


class NoHands:
    """A placeholder that does nothing, used until a consumer starts."""

    def shut(self, queue: str) -> None: ...

    def open(self, queue: str) -> None: ...

    def try_one(self, queue: str) -> None: ...

    def able(self) -> bool:
        return True


class Mode(Enum):
    """The degree to which this process consumes a queue."""

    OPEN = "all"
    ONE = "one message at a time"
    SHUT = "nothing"


@dataclass(slots=True, kw_only=True, eq=False)
class Valve:
    """The state of one queue here. Its fields change under its lock; the effects are applied outside the lock."""

    queue: str
    in_place: bool
    """True if a message must return to its place in the queue, or if a copy would escape the queue's own count."""
    tallies: Mapping[str, Tally]
    most: float
    """The most seconds that the next probe may be ahead, with an allowance for clocks that differ."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    turning: threading.Lock = field(default_factory=threading.Lock)
    """Held while a thread pauses or resumes the queue, because ``known`` may change at the same time."""
    known: QueueState
    """The queue's row as of the last read of the database."""
    circuit: Circuit = CLOSED
    probing: bool = False
    """True while this process probes with a message."""
    pending: bool = False
    """True if the circuit has changed here and the database does not have the change yet."""
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
        """Return the mode that follows from the known state."""
        if self.known.held(now):
            return Mode.SHUT
        if not self.circuit.opened:
            return Mode.OPEN
        return Mode.ONE if self.probing else Mode.SHUT

    def forget_runs(self) -> None:
        """Clear the counts of earlier attempts: attempts before an outage are no evidence for the time after it."""
        for tally in self.tallies.values():
            tally.clear()

    def next_due(self, now: float) -> float | None:
        """Return the time at which the queue may change without an outside event, or None."""
        if self.known.held(now):
            return self.known.until
        if not self.circuit.opened or self.probing:
            return None
        return max(self.circuit.probe_at, self.circuit.probe_until if self.circuit.prober else 0.0)


def turn(valve: Valve, now: float, hands: Hands) -> Mode:
    """Apply the mode that the known state demands, unless it is already in effect; return the previous mode."""
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
