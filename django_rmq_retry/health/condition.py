"""The condition of a queue, with its sign and its word: pages and commands show the same ones."""

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from django_rmq_retry.amqp.levels import Level
from django_rmq_retry.breakers.queue_state import OPEN, PAUSED, PROBING
from django_rmq_retry.handlers import registry
from django_rmq_retry.handlers.layout import homes_of
from django_rmq_retry.health.problems import Judged
from django_rmq_retry.health.rules import Problem, Severity
from django_rmq_retry.topology.declarations import Role


class Condition(Enum):
    """What a queue does, with how much that matters; of several, the first one holds."""

    FAULTY = "faulty", Severity.ERROR
    """It has problems that are errors."""
    STOPPED = "stopped", Severity.WARNING
    """An operator has paused it, or its breaker is open."""
    HALTED_LONG = "halted for long", Severity.ERROR
    HALTED = "halted", Severity.WARNING
    NOTED = "noted", Severity.WARNING
    """It has a milder problem, such as no consumer while it is empty."""
    UNKNOWN = "unknown", Severity.INFORMATION
    PARKED = "parked", Severity.WARNING
    RETRYING = "retrying", Severity.WARNING
    RUNNING = "running", Severity.INFORMATION

    @property
    def severity(self) -> Severity:
        return self.value[1]

    @property
    def sign(self) -> str:
        return _SHOWN[self][0]

    @property
    def word(self) -> Any:
        """One word for it, translated; empty where something else has the words: its problems, or nothing is known."""
        return _SHOWN[self][1]

    @classmethod
    def of(
        cls, queues: Sequence[Judged], *, stopped: bool, halt: Problem | None, waiting: float = 0, parked: float = 0
    ) -> "Condition":
        """Return the condition of a queue with its other queues; without any, the broker has not told of them.

        ``parked`` is given where the records are counted for each queue.
        """
        holds = {
            cls.FAULTY: any(one.errors for one in queues),
            cls.STOPPED: stopped,
            cls.HALTED_LONG: halt is not None and halt.severity is Severity.ERROR,
            cls.HALTED: halt is not None,
            cls.NOTED: any(one.milder for one in queues),
            cls.UNKNOWN: all(one.level.consumers is None for one in queues),
            cls.PARKED: parked > 0,
            cls.RETRYING: waiting > 0,
        }
        return next((condition for condition, held in holds.items() if held), cls.RUNNING)


_SHOWN: Mapping[Condition, tuple[str, Any]] = {
    Condition.FAULTY: ("✕", ""),
    Condition.STOPPED: ("‖", pgettext_lazy("queue", "paused")),
    Condition.HALTED_LONG: ("✕", _("halted")),
    Condition.HALTED: ("!", _("halted")),
    Condition.NOTED: ("!", ""),
    Condition.UNKNOWN: ("\N{EN DASH}", ""),
    Condition.PARKED: ("!", _("parked")),
    Condition.RETRYING: ("!", pgettext_lazy("queue", "retrying")),
    Condition.RUNNING: ("✓", _("OK")),
}
"""The sign of each condition, by its severity where somebody may have to act, and its word."""
STOPPED_BY: Mapping[str, tuple[str, Any]] = {
    PAUSED: _SHOWN[Condition.STOPPED],
    OPEN: ("✕", pgettext_lazy("queue", "breaker open")),
    PROBING: ("…", pgettext_lazy("queue", "breaker half-open, probe in flight")),
}
"""The same for a queue that is stopped, by what stops it."""


def waiting_by_home(levels: Sequence[Level]) -> Counter[str]:
    """Return the number of messages that wait for each work queue, abandoned waiting queues included.

    Those in waiting queues that several work queues share are counted under the empty name.
    """
    homes = homes_of(registry.work_queues())
    counts: Counter[str] = Counter()
    for level in levels:
        if level.role is Role.WAITING:
            counts[level.home or homes.get(level.queue, "")] += level.ready or 0
    return counts
