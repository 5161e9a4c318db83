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
    """One work queue; times are seconds of the epoch."""

    queue: str
    paused: bool = False
    """By a person, whether or not that is over by now."""
    by: str = ""
    reason: str = ""
    since: float = 0.0
    until: float | None = None
    circuit: Circuit = CLOSED

    def held(self, now: float) -> bool:
        """Whether a person keeps it from being consumed."""
        return self.paused and (self.until is None or now < self.until)

    def state(self, now: float) -> str:
        """``flowing``, ``paused``, ``open`` (by its breaker) or ``probing``."""
        if self.held(now):
            return PAUSED
        if not self.circuit.opened:
            return FLOWING
        return PROBING if self.circuit.prober and now < self.circuit.probe_until else OPEN

    def goes_on_at(self, now: float) -> float | None:
        """When something happens by itself: the end of the pause, or the next probe."""
        state = self.state(now)
        return self.until if state == PAUSED else self.circuit.probe_at if state == OPEN else None

    def overdue(self, now: float) -> float:
        """Seconds since the next probe was due: of an open breaker whose queue is read that is a moment."""
        return now - max(self.circuit.probe_at, self.circuit.probe_until if self.circuit.prober else 0.0)

    def said(self, now: float) -> str:
        """Why it stands still, in a sentence for people; empty where it flows."""
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
    """The time of the day, with its date where that is another one."""
    at = timezone.localtime(datetime.fromtimestamp(epoch, UTC))
    form = "H:i:s" if at.date() == timezone.localdate() else "Y-m-d H:i:s"
    return date_format(at, form)


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
        if not self.circuit.opened:
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
        if not self.circuit.opened or self.probing:
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
