"""How the messages of a requeue are sent, as an operator has chosen it."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any

from django.utils.translation import gettext as _

from django_rmq_retry.handlers import registry
from django_rmq_retry.parked.findings import INCLUDABLE, RequeueTerms
from django_rmq_retry.parked.operators import Refused
from django_rmq_retry.topology.declarations import Role

FASTEST_RUN_RATE = 10_000.0
DEFAULT_RATE = 20.0
"""Messages per second, unless the operator chooses another rate."""
STOP_AT = 20.0
"""Percent of failed outcomes above which the guard pauses a requeue run, unless the operator chooses another limit."""
GUARD_OFF = 100.0
"""No share of outcomes is above this limit, so it switches the guard off."""
NO_TARGETS = (Role.PARKED, Role.WAITING, Role.QUARANTINE)
"""Roles of queues from which no handler receives new messages: only this app sends to them, by its own rules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequeueOptions:
    """What an operator decides about a requeue, besides the choice of messages and the reason."""

    rate: float = DEFAULT_RATE
    """Messages per second."""
    max_depth: int | None = None
    """The run waits while the target queue has more messages."""
    stop_at: float | None = STOP_AT
    """The guard pauses the run when more percent of the outcomes failed again; None or 100 switches it off."""
    target: str = ""
    """A queue to use in place of the one that each message failed in."""
    one_by_one: bool = False
    """Messages that share a business key are sent one after another, also if "duplicates" is included."""
    canary: bool = False
    """One message is sent first, and the others after it was processed."""
    include: Collection[str] = ()
    """Names of findings whose messages are sent nevertheless."""
    confirmed_permanent: bool = False
    """The cause is fixed: messages with a permanent error are sent too."""
    planned: bool = False
    """The run begins when the broker is back."""

    @property
    def terms(self) -> RequeueTerms:
        return RequeueTerms(target=self.target, include=self.include, confirmed_permanent=self.confirmed_permanent)

    @property
    def guard(self) -> float | None:
        return None if self.stop_at is None or self.stop_at >= GUARD_OFF else self.stop_at

    @property
    def limit_shown(self) -> float:
        """The limit of the guard in a form, where it stands ready also while the guard is off."""
        return STOP_AT if self.stop_at is None else self.stop_at

    def facts(self) -> dict[str, Any]:
        """Return the options as JSON values."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return {**values, "rate": float(self.rate), "include": sorted(self.include)}

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> "RequeueOptions":
        return cls(**facts)

    def check(self) -> None:
        """Refuse what no run can have."""
        checked_target(self.target)
        checked_rate(self.rate)
        unknown = sorted(set(self.include) - set(INCLUDABLE))
        if unknown:
            text = _("%(name)s cannot be included. Valid names: %(known)s.")
            raise Refused(text % {"name": ", ".join(unknown), "known": ", ".join(INCLUDABLE)})


DEFAULT_OPTIONS = RequeueOptions()


def checked_rate(rate: float) -> float:
    if not 0 < rate <= FASTEST_RUN_RATE:
        text = _("The rate must be a number above 0 and at most %(most)s messages per second.")
        raise Refused(text % {"most": f"{FASTEST_RUN_RATE:g}"})
    return float(rate)


def checked_target(target: str) -> str:
    """Return a queue that the project declares for messages to handle; refuse any other."""
    if not target:
        return ""
    declared = registry.topology().lasting.queues
    if target not in declared or declared[target].role in NO_TARGETS:
        fit = [name for name, one in declared.items() if one.role not in NO_TARGETS]
        text = _("%(queue)r is not a declared queue. Declared queues: %(known)s.")
        raise Refused(text % {"queue": target, "known": ", ".join(fit) or "-"})
    return target
