"""The rows of the live status: one for each queue that handlers read, with all that its other queues hold."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext_lazy

from django_rmq_retry.admin import labels
from django_rmq_retry.admin.queues import NOTHING_WAITS, StoppedBadge, badge, consumers_of
from django_rmq_retry.amqp.levels import Level
from django_rmq_retry.handlers import registry
from django_rmq_retry.handlers.layout import homes_of
from django_rmq_retry.health.condition import Condition, WaitingMessages
from django_rmq_retry.health.problems import Judged
from django_rmq_retry.health.rules import Problem
from django_rmq_retry.markup import NOTHING
from django_rmq_retry.topology.declarations import Role
from django_rmq_retry.wording import decimal, number

Amounts = Mapping[str, float | None]
"""By the name of a column; None is unknown."""
BASIC = ("ready", "consumers")
"""The columns that are shown even if they hold nothing."""
RATES = ("arriving", "leaving")
COLUMNS = {
    "ready": gettext_lazy("Ready"),
    "waiting": gettext_lazy("Waiting until due"),
    "behind": gettext_lazy("Behind blocked keys"),
    "quarantine": gettext_lazy("In quarantine"),
    "parked": gettext_lazy("Parked"),
    "unacked": gettext_lazy("Unacked"),
    "consumers": gettext_lazy("Consumers"),
    "arriving": gettext_lazy("In/s"),
    "leaving": gettext_lazy("Out/s"),
}
FOLDED = {Role.WAITING: "waiting", Role.QUARANTINE: "quarantine", Role.PARKED: "parked"}
"""The columns of queues that are part of another one's row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerRow:
    queue: str
    role: Any
    """The role of a queue that no handler reads; empty for a work queue."""
    handlers: Sequence[str]
    """The functions that read the queue, but for one that has the last word of the queue's name."""
    amounts: Amounts
    condition: Condition
    retries: int
    """How many of the messages that wait until they are due are retries that can be sent early, as far as known."""
    readers: str
    """The number of its consumers, with those on standby."""
    badges: Sequence[tuple[str, str, Any, str]]
    """Kind, sign, a word or two, and the queue of a problem if that is another one; sentences stand above the table."""

    @property
    def is_fine(self) -> bool:
        """True if the handler has nothing to do, and there is nothing to say about it."""
        held = any(self.amounts[name] for name in ("waiting", "behind", "quarantine", "parked", "unacked"))
        return self.amounts["ready"] == 0 and not held and self.condition in (Condition.RUNNING, Condition.UNKNOWN)

    def cells(self, shown: Iterable[str]) -> list[tuple[str, Any, str]]:
        """Return the name, the label and the text of each shown column."""
        texts = {name: _text(name, self.amounts[name]) for name in shown} | {"consumers": self.readers}
        return [(name, COLUMNS[name], texts[name]) for name in shown]


def _text(name: str, amount: float | None) -> str:
    if amount is None:
        return NOTHING
    if name in RATES:
        return decimal(amount, 1)
    return number(int(amount))


def columns(rows: Iterable[HandlerRow]) -> list[str]:
    """Return the columns that hold something in one of the rows."""
    amounts = [row.amounts for row in rows]
    return [name for name in COLUMNS if name in BASIC or any(one[name] for one in amounts)]


def homes(judged: Iterable[Judged]) -> dict[str, list[Judged]]:
    """Return the queues of each row, by the queue after which it is named; one that several share is its own row."""
    known, found = homes_of(registry.work_queues()), dict[str, list[Judged]]()
    for one in judged:
        queue = one.level.queue
        found.setdefault(one.level.home or known.get(queue, queue), []).append(one)
    return found


def unseen() -> list[Judged]:
    """Return the queues of all handlers while the broker has not told of any."""
    return [Judged(level=Level(queue=one.queue.name, role=Role.WORK), problems=()) for one in registry.work_queues()]


def handler_rows(
    found: Mapping[str, Sequence[Judged]],
    *,
    recorded: Mapping[str, int],
    stopped: Mapping[str, StoppedBadge],
    halts: Mapping[str, Problem],
    waiting: Mapping[str, WaitingMessages],
    behind: Mapping[str, int],
    read: Mapping[str, int],
    current: bool,
) -> list[HandlerRow]:
    """Return the rows; ``recorded`` has the parked messages of the database, by the queue in which they failed.

    ``read`` has the number of processes that read each queue. Without ``current`` the queues are those of an earlier
    look.
    """
    readers = {one.queue.name: [_last(sub.name) for sub in one.subscriptions] for one in registry.work_queues()}
    rows = []
    for home, queues in found.items():
        due, stopping = waiting.get(home, NOTHING_WAITS), stopped.get(home)
        of_database = {"behind": behind.get(home, 0)} | ({"waiting": due.count or 0} if due.kept else {})
        amounts = {**_amounts(home, queues, recorded.get(home, 0)), **of_database}
        condition = Condition.of(
            queues,
            stopped=stopping is not None,
            halt=halts.get(home),
            parked=(amounts["parked"] or 0) if current else recorded.get(home, 0),
            waiting=(amounts["waiting"] or 0) + behind.get(home, 0),
            current=current,
        )
        rows.append(
            HandlerRow(
                queue=home,
                role="" if home in readers else labels.ROLES[_first(home, queues).level.role],
                handlers=[name for name in readers.get(home, ()) if name != _last(home)],
                amounts=amounts,
                condition=condition,
                retries=0 if due.kept else due.retries,
                readers=consumers_of(_first(home, queues).level, read),
                badges=_badges(home, queues, condition, stopping),
            )
        )
    return rows


def _badges(
    home: str, queues: Sequence[Judged], condition: Condition, stopped: StoppedBadge | None
) -> list[tuple[str, str, Any, str]]:
    badges: list[tuple[str, str, Any, str]] = []
    if stopped:
        badges.append((stopped.kind, stopped.sign, stopped.label, ""))
    if condition is Condition.FAULTY:
        problems = [problem for one in queues for problem in one.errors]
        badges += [(*badge(condition, one.rule.word), _elsewhere(home, one)) for one in problems]
    elif condition is Condition.NOTED:
        milder = next(one.milder for one in queues if one.milder)
        badges.append((*badge(condition, milder.rule.word), _elsewhere(home, milder)))
    elif condition.word and not stopped:
        badges.append((*badge(condition), ""))
    return badges


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _first(home: str, queues: Sequence[Judged]) -> Judged:
    return next((one for one in queues if one.level.queue == home), queues[0])


def _elsewhere(home: str, problem: Problem) -> str:
    """Return the queue of a problem if the row is named after another one."""
    return "" if problem.subject == home else problem.subject


def _amounts(home: str, queues: Sequence[Judged], recorded: int) -> Amounts:
    main = _first(home, queues).level
    amounts: dict[str, float | None] = {name: getattr(main, name) for name in ("ready", "consumers", *RATES)}
    unacked = [one.level.unacked for one in queues if one.level.unacked is not None]
    amounts["unacked"] = sum(unacked) if unacked else None
    for role, name in FOLDED.items():
        others = [one.level.ready for one in queues if one.level.role is role and one.level is not main]
        known = [ready for ready in others if ready is not None]
        amounts[name] = sum(known) if known or (main.ready is not None and not others) else None
    amounts["parked"] = (amounts["parked"] or 0) + recorded
    return amounts
