"""Where one queue stands, as a value with its sentence. It knows no tables: the test kit uses it without settings."""

from dataclasses import dataclass
from datetime import UTC, datetime

from django.utils import timezone
from django.utils.formats import date_format
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_rmq_retry.core.breaking import CLOSED, Circuit

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
        if not self.circuit.tripped:
            return FLOWING
        return PROBING if self.circuit.prober and now < self.circuit.probe_until else OPEN

    def goes_on_at(self, now: float) -> float | None:
        """When something happens by itself: the end of the pause, or the next probe."""
        state = self.state(now)
        return self.until if state == PAUSED else self.circuit.probe_at if state == OPEN else None

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
        if self.circuit.tripped:
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
