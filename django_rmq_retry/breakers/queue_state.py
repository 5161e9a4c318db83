"""The pause, the breaker and the halt of a queue as all processes see them, with their explanation for users."""

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from django.utils import timezone
from django.utils.formats import date_format
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_rmq_retry.policies.breaker import CLOSED, Circuit
from django_rmq_retry.wording import zone_beside_utc

CLOCK_SKEW_SECONDS = 60.0
"""Seconds by which the clocks of hosts may differ, before a time further ahead is ignored."""


class Flow(StrEnum):
    """Whether the messages of a queue flow, and what stops them if they do not."""

    FLOWING = "flowing"
    PAUSED = "paused"
    OPEN = "open"
    """Stopped by its breaker."""
    PROBING = "probing"
    """Stopped by its breaker, which lets one message through to find out whether it can close."""


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
    halted: bool = False
    """True if its first message failed, and none was settled since, as far as it is known."""

    def is_paused(self, now: float) -> bool:
        """Return True while an operator's pause keeps the queue from being consumed."""
        return self.paused and (self.until is None or now < self.until)

    def state(self, now: float) -> Flow:
        if self.is_paused(now):
            return Flow.PAUSED
        if not self.circuit.opened:
            return Flow.FLOWING
        return Flow.PROBING if self.circuit.prober and now < self.circuit.probe_until else Flow.OPEN

    def resumes_at(self, now: float) -> float | None:
        """Return the time of the next automatic change, the end of the pause or the next probe; None without one."""
        state = self.state(now)
        return self.until if state is Flow.PAUSED else self.circuit.probe_at if state is Flow.OPEN else None

    def overdue(self, now: float) -> float:
        """Return the seconds since the next probe was due; near 0 while a consumer reads an open breaker's queue."""
        return now - max(self.circuit.probe_at, self.circuit.probe_until if self.circuit.prober else 0.0)

    def explanation(self, now: float, *, read: bool = True) -> str:
        """Return sentences for users with the reason that the queue is stopped; empty if it is not.

        Without ``read`` no living consumer reads the queue, so nobody probes its breaker.
        """
        state = self.state(now)
        if state is Flow.PAUSED:
            return self._why_paused()
        return "" if state is Flow.FLOWING else f"{self._why_open()} {self.next_probe(now, read=read)}"

    def next_probe(self, now: float, *, read: bool = True) -> str:
        """Return a sentence on the probe of an open breaker: when it is, or that nobody makes one."""
        if not read:
            return _("Nobody probes it: no consumer of this queue is alive.")
        if self.state(now) is Flow.PROBING:
            return _("A probe is in flight now.")
        at = self.circuit.probe_at
        text = _("Next probe at %(time)s.") if now <= at else _("The next probe has been due since %(time)s.")
        return text % {"time": clock(at)}

    def _why_paused(self) -> str:
        text = _("Paused by %(name)s since %(time)s.") % {"name": self.by or "?", "time": clock(self.since)}
        if self.reason:
            text += " " + _("Reason: %(reason)s.") % {"reason": self.reason.rstrip(".")}
        if self.until is not None:
            text += " " + _("It resumes automatically at %(time)s.") % {"time": clock(self.until)}
        if self.circuit.opened:
            text += " " + _("Its breaker is open as well.")
        return text

    def _why_open(self) -> str:
        circuit = self.circuit
        facts = {"handler": circuit.handler, "cause": circuit.cause.rstrip("."), "time": clock(circuit.since)}
        text = _("The breaker of %(handler)s is open since %(time)s: %(cause)s.") % facts
        if circuit.failed:
            failed = ngettext("%(count)d probe has failed.", "%(count)d probes have failed.", circuit.failed)
            text += " " + failed % {"count": circuit.failed}
        return text


def clock(epoch: float) -> str:
    """Return the time of day, with the date if it is not today."""
    at = timezone.localtime(datetime.fromtimestamp(epoch, UTC))
    form = "H:i:s" if at.date() == timezone.localdate() else "Y-m-d H:i:s"
    return date_format(at, form) + zone_beside_utc(at)


@dataclass(frozen=True, slots=True, kw_only=True)
class Halt:
    queue: str
    since: float
    attempt: int
    error: str
    message_id: str | None
    key: str = ""
    """The first business key of the message."""
