"""The retries that wait on the broker for their next attempt: where they are, how many, and which of them are chosen.

The broker has the messages; the attempts know why they failed and until when they wait.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, Max, Min, QuerySet
from django.utils.translation import gettext as _

from django_rmq_retry import database_clock
from django_rmq_retry.amqp.inspection import counted
from django_rmq_retry.amqp.session import Session
from django_rmq_retry.amqp.withdrawal import WayBack, Withdrawal, Withdrawn
from django_rmq_retry.attempts.history import waiting
from django_rmq_retry.conf import settings
from django_rmq_retry.handlers import registry
from django_rmq_retry.handlers.business_keys import readable_keys
from django_rmq_retry.handlers.layout import waiting_queues_of
from django_rmq_retry.handlers.subscription import WorkQueue
from django_rmq_retry.messages.identity import attempt_identity
from django_rmq_retry.messages.message import message_id
from django_rmq_retry.messages.stamp import at_origin
from django_rmq_retry.models import Attempt, ErrorGroup
from django_rmq_retry.parked.database import records_alias
from django_rmq_retry.parked.operators import NothingChosen, Refused
from django_rmq_retry.policies.carriers import Carrier, Native
from django_rmq_retry.policies.verdict import Kind
from django_rmq_retry.statements import in_slices
from django_rmq_retry.topology.declarations import QueueDeclaration, Role
from django_rmq_retry.wording import number

READ_AT_ONCE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryFilter:
    """The conditions on waiting retries of one work queue; without any, all of them."""

    key: tuple[str, ...] = ()
    """Business keys or message ids."""
    handler: tuple[str, ...] = ()
    error: tuple[str, ...] = ()
    group: tuple[int, ...] = ()
    """The error groups that their last attempts belong to."""

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> "RetryFilter":
        """Return the filter that a run has stored."""
        return cls(**{one.name: tuple(facts.get(one.name) or ()) for one in fields(cls)})

    def facts(self) -> dict[str, list[Any]]:
        given = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: list(values) for name, values in given.items() if values}

    def __bool__(self) -> bool:
        return bool(self.facts())


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingRetry:
    """A waiting retry as an operator knows it."""

    withdrawn: Withdrawn
    identity: str
    message_id: str
    handler: str
    keys: tuple[str, ...]

    @property
    def shown(self) -> str:
        return next(iter(self.keys), self.message_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryCause:
    """The retries that wait because of one error, and when the first and the last of them are due."""

    error: str
    count: int
    first: datetime
    last: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingReport:
    """The waiting retries of a work queue."""

    queue: str
    count: int
    causes: tuple[RetryCause, ...]
    """By their last attempts; empty if no attempts are recorded."""
    delayed: int | None = None
    """The other messages of their waiting queues, which were published with a delay; None if that is not known."""
    not_seen: str = ""
    """A sentence if others wait behind those that were looked at."""

    @property
    def first(self) -> datetime | None:
        return min((cause.first for cause in self.causes), default=None)

    @property
    def last(self) -> datetime | None:
        return max((cause.last for cause in self.causes), default=None)


def ways_back(queue: str) -> tuple[WayBack, ...]:
    """Return the waiting queues of a work queue, the one with the shortest wait first; Refused if it has none."""
    work_queue = work_queue_of(queue)
    declared = registry.topology().queues
    names: dict[str, QueueDeclaration] = {}
    for one in work_queue.subscriptions:
        added = one.policy.via.additions(one.route).topology.queues
        names |= {name: declared[name] for name, found in added.items() if found.role is Role.WAITING}
    if not names:
        raise Refused(_kept_elsewhere(queue, work_queue.subscriptions[0].policy.via))
    for name, declaration in names.items():
        if declaration.existing:
            text = _("Another program declares queue %(waiting)s, so its messages are not taken out of it.")
            raise Refused(text % {"waiting": name})
    return tuple(_way(queue, one) for one in sorted(names.values(), key=_ttl))


def report(session: Session, queue: str, wanted: RetryFilter) -> WaitingReport:
    """Return how many retries wait, and why. With conditions that only the messages show, it looks at them."""
    ways = ways_back(queue)
    now = database_clock.now(records_alias())
    rows = waiting(now, overdue=timedelta(0)).filter(queue=queue, verdict=Kind.RETRY.value)
    if wanted.key:
        identities, not_seen = _looked_for(session, ways, wanted)
        known = [row for some in in_slices(list(identities), READ_AT_ONCE) for row in rows.filter(identity__in=some)]
        return WaitingReport(queue=queue, count=len(identities), causes=_causes_of(known), not_seen=not_seen)
    causes = _counted(_narrowed(rows, wanted))
    recorded = sum(cause.count for cause in causes)
    if wanted:
        return WaitingReport(queue=queue, count=recorded, causes=causes)
    counts = [counted(session, None, way.queue) for way in ways]
    held = sum(one.ready for one in counts if one is not None)
    if not settings().records:
        return WaitingReport(queue=queue, count=held, causes=causes)
    retries = min(held, recorded)
    return WaitingReport(
        queue=queue, count=retries, causes=causes, delayed=None if _shared(queue, ways) else held - retries
    )


def waiting_for(group: ErrorGroup) -> list[tuple[str, int]]:
    """Return how many retries wait because of a cause, by work queue; only of queues that can send them early."""
    rows = waiting(database_clock.now(records_alias()), overdue=timedelta(0)).filter(fingerprint=group.fingerprint)
    found = rows.order_by().values_list("queue").annotate(count=Count("pk")).order_by("-count", "queue")
    return [(queue, count) for queue, count in found if _can_send(queue)]


def _shared(queue: str, ways: Sequence[WayBack]) -> bool:
    """True if retries of another work queue wait in the same waiting queues."""
    names = {way.queue for way in ways}
    return any(names & waiting_queues_of(one) for one in registry.work_queues() if one.queue.name != queue)


def _can_send(queue: str) -> bool:
    try:
        return bool(ways_back(queue))
    except Refused:
        return False


def recognized(work_queue: WorkQueue, seen: Iterable[Withdrawn]) -> Iterator[WaitingRetry]:
    for one in seen:
        delivery = at_origin(one.delivery, came_by=one.delivery)
        subscription = work_queue.presumed(delivery)
        known = message_id(delivery) or ""
        yield WaitingRetry(
            withdrawn=one,
            identity=attempt_identity(delivery.queue, known, delivery.body),
            message_id=known,
            handler=subscription.name if subscription else "",
            keys=tuple(readable_keys(subscription, delivery)),
        )


def chosen(retries: Sequence[WaitingRetry], wanted: RetryFilter) -> list[WaitingRetry]:
    """Return those of the retries that meet all conditions."""
    fit = [one for one in retries if _fits(one, wanted)]
    if not (wanted.error or wanted.group):
        return fit
    rows = _narrowed(waiting(database_clock.now(records_alias())), wanted)
    known: set[str] = set()
    for some in in_slices([one.identity for one in fit], READ_AT_ONCE):
        known.update(rows.filter(identity__in=some).values_list("identity", flat=True))
    return [one for one in fit if one.identity in known]


def unseen(behind: Mapping[str, int]) -> str:
    """Return which messages were not looked at, and how to send them; empty if all were."""
    if not behind:
        return ""
    text = _(
        "Only the first %(count)s messages of %(queues)s were looked at. To send those behind them, choose all that "
        "wait, or start again when the first ones have left."
    )
    return text % {"count": number(sum(behind.values())), "queues": ", ".join(behind)}


def work_queue_of(queue: str) -> WorkQueue:
    known = {one.queue.name: one for one in registry.work_queues()}
    if queue not in known:
        text = _("No handler reads a queue %(queue)s. Queues with handlers: %(known)s.")
        raise NothingChosen(text % {"queue": queue, "known": ", ".join(known) or "-"})
    return known[queue]


def _kept_elsewhere(queue: str, via: Carrier) -> str:
    if isinstance(via, Native):
        text = _("Retries of %(queue)s wait in the queue itself. RabbitMQ gives them to nobody before they are due.")
    else:
        text = _("Retries of %(queue)s wait unacked in its consumer, not in a queue, so they cannot be sent earlier.")
    return text % {"queue": queue}


def _ttl(declaration: QueueDeclaration) -> tuple[float, str]:
    ttl = declaration.arguments.get("x-message-ttl")
    return (ttl if isinstance(ttl, int) else float("inf")), declaration.name


def _way(queue: str, waiting_queue: QueueDeclaration) -> WayBack:
    key = waiting_queue.arguments.get("x-dead-letter-routing-key")
    exchange = str(waiting_queue.arguments.get("x-dead-letter-exchange", ""))
    return WayBack(queue=waiting_queue.name, work=queue, exchange=exchange, key=None if key is None else str(key))


def _fits(retry: WaitingRetry, wanted: RetryFilter) -> bool:
    named = not wanted.key or not set(wanted.key).isdisjoint((retry.message_id, *retry.keys))
    return named and (not wanted.handler or retry.handler in wanted.handler)


def _narrowed(rows: QuerySet[Attempt], wanted: RetryFilter) -> QuerySet[Attempt]:
    rows = rows.filter(handler__in=wanted.handler) if wanted.handler else rows
    rows = rows.filter(error__in=wanted.error) if wanted.error else rows
    groups = ErrorGroup.objects.filter(pk__in=wanted.group).values("fingerprint")
    return rows.filter(fingerprint__in=groups) if wanted.group else rows


def _counted(rows: QuerySet[Attempt]) -> tuple[RetryCause, ...]:
    found = rows.order_by().values("error").annotate(count=Count("pk"), first=Min("next_at"), last=Max("next_at"))
    return tuple(RetryCause(**row) for row in found.order_by("-count", "error"))


def _causes_of(rows: Sequence[Attempt]) -> tuple[RetryCause, ...]:
    found: dict[str, list[datetime]] = {}
    for row in rows:
        if row.next_at is not None:
            found.setdefault(row.error, []).append(row.next_at)
    causes = [RetryCause(error=error, count=len(at), first=min(at), last=max(at)) for error, at in found.items()]
    return tuple(sorted(causes, key=lambda cause: (-cause.count, cause.error)))


def _looked_for(session: Session, ways: Sequence[WayBack], wanted: RetryFilter) -> tuple[Collection[str], str]:
    """Return the identities of the retries that are found, and a sentence if not all could be looked at."""
    found: dict[str, None] = {}
    work_queue = work_queue_of(ways[0].work)

    def note(seen: Sequence[Withdrawn]) -> None:
        found.update(dict.fromkeys(one.identity for one in chosen(list(recognized(work_queue, seen)), wanted)))

    withdrawal = Withdrawal(session)
    try:
        for way in ways:
            withdrawal.look(way, note)
    finally:
        withdrawal.end()
    return found, unseen(withdrawal.unseen_behind)
