"""The condition of a queue, with its sign and its word: pages and commands show the same ones."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from django_rmq_retry.amqp.inspection import LAG_SECONDS
from django_rmq_retry.amqp.levels import Level
from django_rmq_retry.attempts.history import waiting
from django_rmq_retry.breakers.queue_state import Flow
from django_rmq_retry.conf import settings
from django_rmq_retry.handlers import registry
from django_rmq_retry.handlers.layout import homes_of, waiting_queues_of
from django_rmq_retry.health.facts import MOST_SURVEYED_MESSAGES
from django_rmq_retry.health.problems import Judged
from django_rmq_retry.health.rules import Problem, Severity
from django_rmq_retry.policies.verdict import Kind
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
    PARKED = "parked", Severity.WARNING
    """The database has messages that failed in it, whatever is known of the queue itself."""
    UNKNOWN = "unknown", Severity.INFORMATION
    WAITING = "waiting", Severity.INFORMATION
    """Messages wait until they are due: retries, or what was published with a delay; the broker does not tell which."""
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
        cls,
        queues: Sequence[Judged],
        *,
        stopped: bool,
        halt: Problem | None,
        waiting: float = 0,
        parked: float = 0,
        current: bool = True,
    ) -> "Condition":
        """Return the condition of a queue with its other queues; without any, the broker has not told of them.

        ``parked`` is the number of its parked messages. Without ``current`` the queues are those of an earlier look
        at the broker: of what it alone knows, only problems are told.
        """
        holds = {
            cls.FAULTY: any(one.errors for one in queues),
            cls.STOPPED: stopped,
            cls.HALTED_LONG: halt is not None and halt.severity is Severity.ERROR,
            cls.HALTED: halt is not None,
            cls.NOTED: any(one.milder for one in queues),
            cls.PARKED: parked > 0,
            cls.UNKNOWN: not current or all(one.level.consumers is None for one in queues),
            cls.WAITING: waiting > 0,
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
    Condition.WAITING: ("…", pgettext_lazy("queue", "waiting")),
    Condition.RUNNING: ("✓", _("OK")),
}
"""The sign of each condition, by its severity where somebody may have to act, and its word."""
STOPPED_BY: Mapping[Flow, tuple[str, Any]] = {
    Flow.PAUSED: _SHOWN[Condition.STOPPED],
    Flow.OPEN: ("✕", pgettext_lazy("queue", "breaker open")),
    Flow.PROBING: ("…", pgettext_lazy("queue", "breaker half-open, probe in flight")),
}
"""The same for a queue that is stopped, by what stops it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingMessages:
    """The messages that wait until they are due: retries, and what was published with a delay."""

    count: int | None
    """None if the broker has not told of its queues, and no retry is recorded."""
    unrecorded: int | None
    """Those that no recorded attempt explains; None if attempts are not known, or some are still to be written.

    They were published with a delay, or a killed process took the rows of their attempts with it.
    """
    at_least: bool = False
    """True if more wait than were counted."""
    next: datetime | None = None
    """When the next retry is due."""
    kept: bool = False
    """True if they wait where nobody can send them early: in a consumer, or delayed by the broker in the work queue."""

    @property
    def retries(self) -> int:
        """The number of recorded retries; if it is not known, of all."""
        return (self.count or 0) - (self.unrecorded or 0)

    @property
    def unknown(self) -> bool:
        """True if it is not known how many of them are retries."""
        return self.unrecorded != 0


def waiting_messages(levels: Sequence[Level], now: datetime) -> tuple[WaitingMessages, Mapping[str, WaitingMessages]]:
    """Return how many messages wait until they are due: all, and in the waiting queues of each work queue; one query.

    The broker counts what is in waiting queues, and the attempts tell how many of these are retries. Some carriers
    keep retries elsewhere, and those are counted by their attempts: not halts, which wait in a consumer, nor retries
    that were attempted meanwhile because an operator sent them early.
    """
    queued = waiting_by_home(levels)
    seen = {level.queue for level in levels if level.role is Role.WAITING}
    counted = queued.keys() | {one.queue.name for one in registry.work_queues() if seen & waiting_queues_of(one)}
    # The broker's counts may be some seconds old: what was due since is still among them.
    lately = waiting(now, overdue=timedelta(seconds=LAG_SECONDS)).filter(verdict=Kind.RETRY.value)
    known = list(lately.values_list("queue", "next_at", "started_at", "seconds")[: MOST_SURVEYED_MESSAGES + 1])
    ends = [
        (queue if queue in queued else "", began + timedelta(seconds=seconds))
        for queue, _at, began, seconds in known
        if queue in counted
    ]
    failed = Counter(home for home, _end in ends)
    told = settings().records and len(known) <= MOST_SURVEYED_MESSAGES
    # While attempts fail, some retries are in the waiting queue, and their attempts not yet in the database.
    settled = now - timedelta(seconds=LAG_SECONDS)
    failing = {home for home, end in ends if end > settled}
    others = {queue: max(count - failed[queue], 0) for queue, count in queued.items()}
    of_queues = {
        queue: WaitingMessages(
            count=count, unrecorded=others[queue] if told and not (others[queue] and queue in failing) else None
        )
        for queue, count in queued.items()
    }
    due = [(queue, at) for queue, at, *_rest in known if at is not None and at > now]
    kept = Counter(queue for queue, _at in due if queue in kept_elsewhere() - counted)
    of_queues |= {queue: WaitingMessages(count=count, unrecorded=0, kept=True) for queue, count in kept.items()}
    elsewhere = sum(queue not in counted for queue, _at in due)
    count = queued.total() + elsewhere if levels or elsewhere else None
    every = WaitingMessages(
        count=count,
        unrecorded=sum(one.unrecorded or 0 for one in of_queues.values()) if told else None,
        at_least=elsewhere > MOST_SURVEYED_MESSAGES,
        # One that was sent early, or that somebody took from its queue, is due no more.
        next=due[0][1] if due and count != 0 else None,
    )
    return every, of_queues


def kept_elsewhere() -> frozenset[str]:
    """Return the work queues whose retries wait in no waiting queue."""
    return frozenset(one.queue.name for one in registry.work_queues() if not waiting_queues_of(one))


def standby(level: Level, readers: Mapping[str, int]) -> int:
    """Return how many consumers of a queue get nothing while another one is its single active consumer.

    A quorum queue tells only the active one, a classic queue all: ``readers`` has the connected processes by queue.
    """
    if level.arguments.get("x-single-active-consumer") is not True or not level.consumers:
        return 0
    return max(level.consumers, readers.get(level.queue, 0)) - 1


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
