"""The retries that wait on the broker for their next attempt: where they are, how many, and which of them are chosen.

The broker has the messages; the attempts know why they failed and until when they wait.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.db.models import Count, Exists, Max, Min, OuterRef, QuerySet
from django.utils.translation import gettext as _

from django_rmq_retry import database_clock
from django_rmq_retry.amqp.inspection import counted
from django_rmq_retry.amqp.session import Session
from django_rmq_retry.amqp.withdrawal import WayBack, Withdrawal
from django_rmq_retry.attempts.history import first_keys, waiting
from django_rmq_retry.conf import settings
from django_rmq_retry.handlers import registry
from django_rmq_retry.handlers.layout import waiting_queues_of
from django_rmq_retry.handlers.subscription import WorkQueue
from django_rmq_retry.models import Attempt, AttemptName, BlockedKey, EarlyRetry, ErrorGroup, ItemState, RequeueRun
from django_rmq_retry.models.parked import folded
from django_rmq_retry.ordering.keys import keys_alias
from django_rmq_retry.parked.database import records_alias
from django_rmq_retry.parked.early_choice import READ_AT_ONCE, RetryChoice, RetryFilter, narrowed
from django_rmq_retry.parked.operators import NothingChosen, Refused
from django_rmq_retry.parked.released import Released, Waiting
from django_rmq_retry.policies.carriers import Carrier, Native
from django_rmq_retry.policies.verdict import Kind
from django_rmq_retry.statements import in_slices, with_one_of
from django_rmq_retry.topology.declarations import QueueDeclaration, Role
from django_rmq_retry.wording import number

MOST_SHOWN = 50
"""The most retries that a preview names, those that are due first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryCause:
    """The retries that wait because of one error, and when the first and the last of them are due."""

    error: str
    count: int
    first: datetime
    last: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class DueRetry:
    """One retry that would be sent."""

    key: str
    message_id: str
    error: str
    number: int
    """The number of its last attempt."""
    at: datetime | None
    """When it is due."""
    behind: int = 0
    """How many messages wait behind it by its ordering key."""

    @property
    def name(self) -> str:
        """What leaves it out: its id, because several may have its key."""
        return self.message_id or self.key


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOutRetries:
    """What is left out of a run, and what of its list of keys was not found."""

    count: int = 0
    """Those that the keys name."""
    nameless: int = 0
    """Those whose keys cannot be read: one may be on the list."""
    in_front: tuple[tuple[str, Waiting], ...] = ()
    """Those behind which one to leave out waits: their names, and what waits."""
    missing: tuple[str, ...] = ()
    """The keys that no waiting retry has."""
    alike: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Of these, those that differ from the key of a waiting retry in upper and lower case only."""
    first: datetime | None = None
    """When the first one of them is due: the broker delivers it then."""

    @property
    def total(self) -> int:
        return self.count + self.nameless + len(self.in_front)


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
    due: tuple[DueRetry, ...] = ()
    """Some of them, those that are due first."""
    released: Released = Released()
    """The messages that wait behind some of them by their ordering keys."""
    left: LeftOutRetries = LeftOutRetries()

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
    rows = _still_waiting(now).filter(queue=queue, verdict=Kind.RETRY.value)
    if wanted.looks:
        return _seen_report(session, ways, wanted, rows)
    rows = narrowed(rows, wanted)
    blocked = _blocked(queue)
    due = _due(rows[:MOST_SHOWN], blocked)
    released = _released(blocked, (row for some in _those(rows, blocked) for row in some))
    causes = _counted(rows)
    recorded = sum(cause.count for cause in causes)
    if wanted:
        return WaitingReport(queue=queue, count=recorded, causes=causes, due=due, released=released)
    counts = [counted(session, None, way.queue) for way in ways]
    held = sum(one.ready for one in counts if one is not None)
    if not settings().records:
        return WaitingReport(queue=queue, count=held, causes=causes)
    retries = min(held, recorded)
    delayed = None if _shared(queue, ways) else held - retries
    return WaitingReport(queue=queue, count=retries, causes=causes, delayed=delayed, due=due, released=released)


def waiting_for(group: ErrorGroup) -> list[tuple[str, int]]:
    """Return how many retries wait because of a cause, by work queue; only of queues that can send them early."""
    rows = _still_waiting(database_clock.now(records_alias())).filter(fingerprint=group.fingerprint)
    found = rows.order_by().values_list("queue").annotate(count=Count("pk")).order_by("-count", "queue")
    return [(queue, count) for queue, count in found if _can_send(queue)]


def still_to_send(run: RequeueRun, wanted: RetryFilter | None = None) -> int:
    """Return how many retries a run can still send: those that have neither become due nor failed again since it began.

    With ``wanted`` only those that meet other conditions, too. Their attempts tell it, and nothing is asked of the
    broker; without attempts no retry counts as gone.
    """
    if not settings().records:
        return run.unsent
    own = RetryFilter.of(run.selection.get("filter", {}))
    rows = _still_waiting(database_clock.now(records_alias())).filter(queue=run.retries_of, verdict=Kind.RETRY.value)
    rows = rows.filter(started_at__lte=run.created_at)
    rows = rows.exclude(Exists(EarlyRetry.objects.filter(run=run.pk, identity=OuterRef("identity")))).order_by()
    chosen: set[str] | None = None
    without: set[str] = set()
    for one in (own, wanted or RetryFilter()):
        rows = narrowed(rows, one)
        without |= _named(one.without)
        if one.key:
            chosen = _named(one.key) if chosen is None else chosen & _named(one.key)
    if chosen is not None:
        return sum(some.count() for some in _those(rows, chosen - without))
    return rows.count() - sum(some.count() for some in _those(rows, without))


def _named(names: Collection[str]) -> set[str]:
    """Return the identities of messages that were tried, by their business keys and ids."""
    rows, asked = AttemptName.objects.using(records_alias()).order_by(), set(names)
    known = (some.values_list("identity", "value") for some in with_one_of(rows, "folded", {*map(folded, names)}))
    return {identity for some in known for identity, value in some if value in asked}


def _still_waiting(now: datetime) -> QuerySet[Attempt]:
    """Return the last attempts of the retries that wait, without those that a run has sent since."""
    sent = EarlyRetry.objects.filter(identity=OuterRef("identity"), state=ItemState.SENT)
    return waiting(now, overdue=timedelta(0)).exclude(Exists(sent.filter(sent_at__gt=OuterRef("started_at"))))


def _shared(queue: str, ways: Sequence[WayBack]) -> bool:
    """True if retries of another work queue wait in the same waiting queues."""
    names = {way.queue for way in ways}
    return any(names & waiting_queues_of(one) for one in registry.work_queues() if one.queue.name != queue)


def _can_send(queue: str) -> bool:
    try:
        return bool(ways_back(queue))
    except Refused:
        return False


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


def _seen_report(
    session: Session, ways: Sequence[WayBack], wanted: RetryFilter, rows: QuerySet[Attempt]
) -> WaitingReport:
    """Return the report of retries that only the messages tell: all that wait are looked at."""
    queue, found = ways[0].work, dict[str, None]()
    choice = RetryChoice(work_queue_of(queue), wanted)
    withdrawal = Withdrawal(session)
    try:
        for way in ways:
            withdrawal.look(way, lambda seen: found.update(dict.fromkeys(one.identity for one in choice.of(seen))))
    finally:
        withdrawal.end()
    known = sorted((row for some in _those(rows, found) for row in some), key=lambda row: (row.next_at, row.pk))
    blocked = _blocked(queue)
    return WaitingReport(
        queue=queue,
        count=len(found),
        causes=_causes_of(known),
        not_seen=unseen(withdrawal.unseen_behind),
        due=_due(known[:MOST_SHOWN], blocked),
        released=_released(blocked, known),
        left=_left(choice, wanted, rows),
    )


def _left(choice: RetryChoice, wanted: RetryFilter, rows: QuerySet[Attempt]) -> LeftOutRetries:
    folded: dict[str, list[str]] = {}
    missing = tuple(key for key in wanted.without if key not in choice.names)
    for name in choice.names if missing else ():
        folded.setdefault(name.casefold(), []).append(name)
    left = (*choice.left_out, *choice.nameless, *choice.in_front)
    return LeftOutRetries(
        count=len(choice.left_out),
        nameless=len(choice.nameless),
        in_front=tuple(choice.in_front.values()),
        missing=missing,
        alike={key: sorted(folded[key.casefold()]) for key in missing if key.casefold() in folded},
        first=min((row.next_at for some in _those(rows, left) for row in some if row.next_at), default=None),
    )


def _those(rows: QuerySet[Attempt], identities: Collection[str]) -> Iterator[QuerySet[Attempt]]:
    return (rows.filter(identity__in=some) for some in in_slices(list(identities), READ_AT_ONCE))


def _blocked(queue: str) -> dict[str, BlockedKey]:
    """Return the blocked keys behind whose first message others wait, by that message's identity."""
    if not work_queue_of(queue).keyed:
        return {}
    return {row.identity: row for row in BlockedKey.objects.using(keys_alias()).filter(queue=queue, waiting__gt=0)}


def _released(blocked: Mapping[str, BlockedKey], rows: Iterable[Attempt]) -> Released:
    counts = {row.identity: blocked[row.identity].waiting for row in rows if row.identity in blocked}
    return Released(messages=sum(counts.values()), blockers=len(counts))


def _due(rows: Iterable[Attempt], blocked: Mapping[str, BlockedKey]) -> tuple[DueRetry, ...]:
    known = list(rows)
    keys = first_keys({row.identity: row.message_id for row in known})
    return tuple(
        DueRetry(
            key=keys.get(row.identity, ""),
            message_id=row.message_id,
            error=row.error,
            number=row.number,
            at=row.next_at,
            behind=blocked[row.identity].waiting if row.identity in blocked else 0,
        )
        for row in known
    )
