"""A survey of all tables for status pages and commands."""

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from operator import attrgetter
from typing import NamedTuple

from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, DatabaseError, Error, connections, router
from django.db.models import (
    BooleanField,
    Case,
    Count,
    Exists,
    F,
    IntegerField,
    Max,
    Min,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    Sum,
    When,
)

from django_rmq_retry import database_clock
from django_rmq_retry.breakers.halts import halted
from django_rmq_retry.conf import settings
from django_rmq_retry.database_connections import Unanswered
from django_rmq_retry.declared import rows
from django_rmq_retry.health.processes import lost_since
from django_rmq_retry.health.rules import RETRY_OVERDUE
from django_rmq_retry.health.time_limit import in_time
from django_rmq_retry.messages.texts import one_line
from django_rmq_retry.models import (
    ApprovalRequest,
    Attempt,
    BlockedKey,
    BlockedMessage,
    ConsumerProcess,
    Declared,
    ErrorGroup,
    GatedAct,
    OutboxMessage,
    ParkedMessage,
    ParkedMinute,
    ParkedOrigin,
    QueueControl,
    RequeueRun,
    RunState,
    State,
)
from django_rmq_retry.models.boxes import PendingRows
from django_rmq_retry.models.parked import cause_name
from django_rmq_retry.models.runs import ACTIVE
from django_rmq_retry.ordering.keys import blocked_figures
from django_rmq_retry.parked.approvals import counted_in_open_requests
from django_rmq_retry.parked.database import records_alias
from django_rmq_retry.parked.groups import growth_began
from django_rmq_retry.parked.items import (
    OUTCOME_LIMIT,
    LeftBehind,
    counted_elsewhere,
    left_behind_lately,
    parked_to_send,
)
from django_rmq_retry.parked.unsent_edits import edited_unsent
from django_rmq_retry.policies.verdict import Kind
from django_rmq_retry.publishing import outbox_rows

RECENT = timedelta(minutes=10)
ENDING = (GatedAct.DISCARD, GatedAct.REQUEUE)
"""The acts after which a message is no longer parked."""
MOST_RECENT = 2000
"""The most messages parked lately that are counted: an incident may park a million in ten minutes."""
MOST_SURVEYED_MESSAGES = 1000
"""The most messages that are counted where no counter has their number."""
MOST_PLACES = 3
"""The most queues of the largest cause that are named."""
MOST_SURVEYED_PROCESSES = 1000
"""The most processes that are examined: those with the latest heartbeats."""
MOST_SURVEYED_ITEMS = 500
"""The most unsent messages of a paused run that are examined: those that are sent next."""
MOST_RETRIES = 500
"""The most retries that are examined: those that were due last."""
TWICE_REPORTED_FOR = timedelta(days=1)
"""The time after the end of a run for which it is reported that messages of it were handled twice."""
OVERDUE_REPORTED_FOR = timedelta(days=1)
"""The time for which a retry that never returned is reported: an attempt that a killed process made has no row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedCounts:
    """Messages that wait for an operator."""

    count: int = 0
    handled: int = 0
    """Those of them of which a copy was handled already."""
    edited: int = 0
    """Those of them that were edited and not sent since, as far as ``edited_unsent`` looks for them."""
    recent: int = 0
    """Messages parked in the last ten minutes, whatever became of them since; counted up to MOST_RECENT."""
    recent_at_least: bool = False
    """True if more of them were parked than are counted."""
    recent_again: int = 0
    """Those of them that were parked again after a requeue; the others are new."""
    recent_gone: int = 0
    """Those of them that are parked no longer."""
    oldest: datetime | None = None
    groups: int = 0
    """The error groups that have some of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestCause:
    """The largest cause of parked messages: the error groups of one error, wherever it was raised."""

    title: str
    count: int
    places: Mapping[str, int]
    """Its messages by queue, of the queues with the most."""
    only: int | None
    """Its error group, if there is only one."""
    newest: int
    """New messages of the last minutes, by which a cause grows or not."""
    newest_since: datetime | None
    """The minute of the first of them."""
    again: int
    """Messages that failed again after a requeue in the same minutes, if the last failure was one of them."""
    last_new: datetime | None
    """The time of its last new message's failure; None if that is not known."""
    last_seen: datetime
    """The time of its last failure, of a new message or of one that was requeued."""
    others: int
    """The number of further error groups, as the page of error groups counts them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockedCounts:
    """Messages that wait behind a failed message with the same ordering key."""

    keys: int = 0
    messages: int = 0
    most: int = 0
    """Largest number of messages that wait behind one key."""
    oldest: datetime | None = None
    by_queue: Mapping[str, int] = field(default_factory=dict)
    """The messages by the queue from which they came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalCounts:
    """Requests that wait for a second person."""

    count: int = 0
    oldest: datetime | None = None
    only: int | None = None
    """The number of the request if it is the only one."""
    of_parked: tuple[tuple[ApprovalRequest, int], ...] = ()
    """The requests to requeue or discard parked messages, the oldest first, each with how many it is for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SilentCopies:
    """Messages that were requeued, have no outcome for longer than a run waits for one, and wait for no retry."""

    count: int = 0
    """Up to MOST_SURVEYED_MESSAGES and one more."""
    oldest: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OverdueRetries:
    """Retries of one queue that were due some time ago and have not been attempted again."""

    queue: str
    count: int
    oldest: datetime
    """The time at which the first of them was due."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    alias: str
    at: datetime
    """The time of the survey, by the database's clock."""
    seconds: float
    """Seconds until the database's first answer."""
    parked: ParkedCounts
    parked_in: Mapping[str, int] = field(default_factory=dict)
    """The parked messages by the queue in which they failed; they add up to the number of all."""
    cause: LargestCause | None = None
    causes: tuple[str, ...] = ()
    """Each error of parked messages, with its queue."""
    runs: tuple[RequeueRun, ...] = ()
    """The active ones."""
    to_send: int = 0
    """The parked messages that those of them are to send that are sending; no more than are parked."""
    twice: tuple[RequeueRun, ...] = ()
    """Those of the active ones, and of the lately ended ones, of whose messages some were handled twice."""
    elsewhere: Mapping[int, int] = field(default_factory=dict)
    """The unsent messages of paused runs that are counted with an earlier run, or were sent or changed meanwhile."""
    left_behind: tuple[LeftBehind, ...] = ()
    """What lately stopped runs have not sent of what is parked, the newest run first."""
    processes: tuple[ConsumerProcess, ...] = ()
    outbox: PendingRows
    """In all databases that have an outbox."""
    outbox_answers: bool = True
    """False if one of these databases does not answer."""
    blocked: BlockedCounts
    apart: timedelta = timedelta()
    """Time by which the database's clock is ahead of this host's."""
    stopped: tuple[QueueControl, ...] = ()
    """Queues that a pause or a breaker stops; a pause may have ended while the breaker is still open."""
    halted: tuple[QueueControl, ...] = ()
    """Strict-order queues that are stopped because their first message fails, or were when the broker was lost."""
    approvals: ApprovalCounts = ApprovalCounts()
    silent: SilentCopies = SilentCopies()
    overdue: tuple[OverdueRetries, ...] = ()
    declared: tuple[Declared, ...] = ()
    """Queues and exchanges that this project has declared, on all brokers."""

    @property
    def sending(self) -> list[RequeueRun]:
        """The runs that are to send parked messages at present; none if none of these is still parked."""
        return _sending(self.runs) if self.to_send else []


class Unmigrated(Exception):
    """The database answers, but its tables are missing."""

    def __init__(self, alias: str) -> None:
        self.alias = alias
        option = "" if alias == DEFAULT_DB_ALIAS else f" --database {alias}"
        super().__init__(f"the tables are missing in {alias!r}: manage.py migrate{option}")


def survey(*, page: bool = False) -> Survey:
    """Survey the database with about 20 queries; raise its errors.

    With ``page`` missing tables are not looked for, and no error of the outbox is raised: a page says so itself.
    """
    alias = router.db_for_read(ParkedMessage)
    began = time.monotonic()
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT 1")
        cursor.fetchone()
    seconds = time.monotonic() - began
    tables = set() if page else set(connections[alias].introspection.table_names())
    if not page and not {model._meta.db_table for model in (ParkedMessage, QueueControl)} <= tables:  # noqa: SLF001 - documented
        raise Unmigrated(alias)
    apart, now = database_clock.ahead(alias), database_clock.now(alias)
    stopped = tuple(QueueControl.objects.stopped(now).order_by("queue"))
    origins = parked_origins()
    parked_now, silent = parked(now, [one.queue for one in stopped], origins)
    pending = outbox_if_read() if page else outbox()
    harmful = Q(handled_twice__gt=0, finished_at__gt=now - TWICE_REPORTED_FOR)
    known = list(RequeueRun.objects.filter(Q(state__in=ACTIVE) | harmful).order_by("pk"))
    runs = tuple(run for run in known if run.state in ACTIVE)
    processes = tuple(ConsumerProcess.objects.defer("in_flight").order_by("-beat_at")[:MOST_SURVEYED_PROCESSES])
    return Survey(
        alias=alias,
        at=now,
        seconds=seconds,
        parked=parked_now,
        parked_in=origins.by_queue,
        cause=largest_cause(now, origins, parked_now.groups) if parked_now.count else None,
        causes=origins.causes,
        runs=runs,
        to_send=to_send(runs, parked_now.count),
        twice=tuple(run for run in known if run.handled_twice),
        elsewhere={
            run.pk: counted_elsewhere(run, active=runs, most=MOST_SURVEYED_ITEMS)
            for run in runs
            if run.state == RunState.PAUSED and not run.retries_of
        },
        left_behind=tuple(left_behind_lately()),
        processes=processes,
        outbox=pending or PendingRows(),
        outbox_answers=pending is not None,
        blocked=blocked(),
        apart=apart,
        stopped=stopped,
        halted=halted(now, lost=lost_since(processes, now)),
        approvals=approvals(),
        silent=silent,
        overdue=overdue_retries(now),
        declared=tuple(rows()) if page or Declared._meta.db_table in tables else (),  # noqa: SLF001 - documented
    )


def _sending(runs: Iterable[RequeueRun]) -> list[RequeueRun]:
    started = [run for run in runs if run.state in (RunState.PLANNED, RunState.RUNNING)]
    return [run for run in started if run.unsent and not run.retries_of]


def to_send(runs: Iterable[RequeueRun], parked_now: int) -> int:
    """Return how many of the parked messages runs are to send; of very many as many as the runs count, if parked."""
    sending = _sending(runs)
    if not sending or not parked_now:
        return 0
    counted = parked_to_send(sending)
    return min(sum(run.unsent for run in sending) if counted is None else counted, parked_now)


class Cause(NamedTuple):
    """The error groups that an alarm names as one: those with one title, muted or not."""

    heard: bool
    title: str
    reasoned: bool
    """True if it has no error: the title is the reason, as of an expired message."""

    def __str__(self) -> str:
        return cause_name(self.title, reasoned=self.reasoned)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedByOrigin:
    """The parked messages of each cause in each queue."""

    counts: Mapping[tuple[Cause, str], int]
    handled: int = 0
    """Those of all of which a copy was handled already."""

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    @property
    def by_queue(self) -> Counter[str]:
        found = Counter[str]()
        for (_cause, queue), number in self.counts.items():
            found[queue] += number
        return found

    @property
    def by_cause(self) -> Counter[Cause]:
        found = Counter[Cause]()
        for (cause, _queue), number in self.counts.items():
            found[cause] += number
        return found

    @property
    def causes(self) -> tuple[str, ...]:
        """Return each error that is not muted, with its queue."""
        return tuple(sorted({f"{cause} in {queue}" for cause, queue in self.counts if cause.heard}))

    def places(self, cause: Cause) -> Counter[str]:
        """Return the queues of a cause, each with its number of messages."""
        return Counter({queue: number for (of, queue), number in self.counts.items() if of == cause})


def parked_origins() -> ParkedByOrigin:
    """Count the parked messages by the counters of origins, because an open page repeats this every few seconds.

    One statement counts all that a page shows of them, by queue, by cause and in total: in an incident, the parts that
    several statements counted would exceed the whole. The database adds up the groups of a cause, of which an incident
    may have thousands.
    """
    facts = {"muted": F("group__muted"), "title": F("group__title")}
    reasoned = Case(When(group__title=F("group__reason"), then=True), default=False, output_field=BooleanField())
    rows = ParkedOrigin.objects.filter(count__gt=0).order_by().values("queue", **facts, reasoned=reasoned)
    handled = Sum("count", filter=Q(handled=True), default=0)
    counted = rows.annotate(n=Sum("count"), done=handled)
    found = list(counted.values_list("muted", "title", "reasoned", "queue", "n", "done"))
    return ParkedByOrigin(
        counts={
            (Cause(not muted, title, bool(reasoned)), queue): number
            for muted, title, reasoned, queue, number, _done in found
        },
        handled=sum(done for *_origin, done in found),
    )


def parked(now: datetime, stopped: Iterable[str], origins: ParkedByOrigin) -> tuple[ParkedCounts, SilentCopies]:
    """Return what else is known of the parked messages, and those that were requeued and have no outcome.

    Two queries: those without an outcome are mostly none, and Django takes long to make one that also counts them.
    """
    rows = ParkedMessage.objects.filter(state=State.PARKED)
    again = Q(published_again=False) & (Q(cycle__gt=2) | Q(cycle=2) & ~Q(requeued_at__gt=F("parked_at")))
    marks = {
        "again": Case(When(again, then=1), default=0, output_field=IntegerField()),
        "gone": Case(When(state=State.PARKED, then=0), default=1, output_field=IntegerField()),
    }
    recent = ParkedMessage.objects.filter(parked_at__gte=now - RECENT).order_by().annotate(**marks)
    some = recent.values(*marks)[: MOST_RECENT + 1]
    groups = ParkedOrigin.objects.filter(count__gt=0).order_by().values("group").distinct()
    totals = ErrorGroup.objects.aggregate(
        oldest=Min(Subquery(rows.order_by("parked_at").values("parked_at")[:1])),
        recent=Max(_Counted(some)),
        again=Max(_Summed(some, column="again")),
        gone=Max(_Summed(some, column="gone")),
        groups=Max(_Counted(groups)),
    )
    lately = totals["recent"] or 0
    silent = _silent(now, stopped).order_by("requeued_at")[: MOST_SURVEYED_MESSAGES + 1]
    since = list(silent.values_list("requeued_at", flat=True))
    return (
        ParkedCounts(
            count=origins.total,
            handled=origins.handled,
            edited=edited_unsent().total() if origins.total else 0,
            recent=min(lately, MOST_RECENT),
            recent_at_least=lately > MOST_RECENT,
            recent_again=totals["again"] or 0,
            recent_gone=totals["gone"] or 0,
            oldest=totals["oldest"],
            groups=totals["groups"] or 0,
        ),
        SilentCopies(count=len(since), oldest=since[0] if since else None),
    )


def _silent(now: datetime, stopped: Iterable[str]) -> "QuerySet[ParkedMessage]":
    """Return the requeued messages without an outcome; a copy that failed and waits for its next attempt has one."""
    waiting = Attempt.objects.filter(identity=OuterRef("identity"), next_at__gt=now - RETRY_OVERDUE)
    sent = ParkedMessage.objects.filter(state=State.REQUEUED, requeued_at__lt=now - OUTCOME_LIMIT).order_by()
    names = list(stopped)
    return (sent.exclude(queue__in=names) if names else sent).exclude(Exists(waiting))


def overdue_retries(now: datetime) -> tuple[OverdueRetries, ...]:
    """Return the queues whose retries were due and have not come, of those due last; one query, as mostly all came."""
    later = Attempt.objects.filter(identity=OuterRef("identity"), started_at__gt=OuterRef("started_at"))
    # The broker parks a message that expires, or that its queue rejects, without an attempt.
    recorded = ParkedMessage.objects.filter(identity=OuterRef("identity"), parked_at__gt=OuterRef("started_at"))
    due = Attempt.objects.filter(
        verdict=Kind.RETRY.value, next_at__gt=now - OVERDUE_REPORTED_FOR, next_at__lt=now - RETRY_OVERDUE
    )
    # In this order: of nearly all the next attempt is known, and then no record is looked up.
    came = Case(When(Exists(later), then=True), When(Exists(recorded), then=True), default=False)
    rows = due.order_by("-next_at").annotate(came=came)[:MOST_RETRIES]
    if not rows.aggregate(n=Count("pk", filter=Q(came=False)))["n"]:
        return ()
    found: dict[str, list[datetime]] = {}
    for queue, at, known in rows.values_list("queue", "next_at", "came"):
        if at is not None and not known:
            found.setdefault(queue, []).append(at)
    return tuple(
        OverdueRetries(queue=queue, count=len(dues), oldest=min(dues)) for queue, dues in sorted(found.items())
    )


class _Counted(Subquery):
    """The number of rows of a query, which may have a limit."""

    template = "(SELECT COUNT(*) FROM (%(subquery)s) rmq_counted)"
    output_field = IntegerField()


class _Summed(Subquery):
    """The sum of a column of such rows."""

    template = "(SELECT SUM(rmq_summed.%(column)s) FROM (%(subquery)s) rmq_summed)"
    output_field = IntegerField()


def parked_in(queues: Iterable[str]) -> dict[str, int]:
    """Count the parked messages that failed in each of these queues; one query."""
    counts = dict.fromkeys(queues, 0)
    origins = ParkedOrigin.objects.filter(queue__in=list(counts), count__gt=0).order_by()
    return {**counts, **dict(origins.values_list("queue").annotate(n=Sum("count")))}


def largest_cause(now: datetime, origins: ParkedByOrigin, among: int) -> LargestCause | None:
    """Return the error with the most parked messages, those of muted groups last, among so many groups; two queries."""
    counts = origins.by_cause
    if not counts:
        return None
    cause = max(counts, key=lambda one: (one.heard, counts[one], str(one)))
    parked = ParkedOrigin.objects.filter(count__gt=0).values("group")
    alike = ErrorGroup.objects.filter(title=cause.title, muted=not cause.heard, pk__in=parked)
    groups = alike.filter(title=F("reason")) if cause.reasoned else alike.exclude(title=F("reason"))
    facts = groups.aggregate(
        count=Count("pk"),
        first=Min("pk"),
        last_seen=Max("last_seen"),
        last_new=Max("last_new"),
        failed_again=Sum("failed_again"),
    )
    if not facts["count"]:
        # All its messages were decided on since they were counted.
        return None
    minutes = ParkedMinute.objects.filter(group__in=groups.values("pk"), minute__gte=growth_began(now), count__gt=0)
    lately = minutes.aggregate(
        newest=Sum("count", filter=Q(new=True)),
        since=Min("minute", filter=Q(new=True)),
        again=Sum("count", filter=Q(new=False)),
    )
    new_was_last = facts["last_new"] is None or facts["last_new"] >= facts["last_seen"]
    return LargestCause(
        title=str(cause),
        count=counts[cause],
        places=dict(origins.places(cause).most_common(MOST_PLACES)),
        only=facts["first"] if facts["count"] == 1 else None,
        newest=lately["newest"] or 0,
        newest_since=lately["since"],
        # A copy that was parked twice is seen later too, which is no proof of a requeue.
        again=0 if new_was_last or not facts["failed_again"] else lately["again"] or 0,
        last_new=facts["last_new"],
        last_seen=facts["last_seen"],
        # Both were counted a moment apart, and each cause is a group at least.
        others=max(among - facts["count"], len(counts) - 1),
    )


def outbox() -> PendingRows:
    """Count the unpublished messages of all databases that have an outbox; one query each."""
    pending = [
        OutboxMessage.objects.using(alias).pending()
        for alias in outbox_rows.served()
        if outbox_rows.table_exists(alias)
    ]
    failing = (one for one in pending if one.failed_since)
    first = min(failing, key=attrgetter("failed_since"), default=PendingRows())
    return replace(
        first,
        waiting=sum(one.waiting for one in pending),
        failed=sum(one.failed for one in pending),
        untaken=sum(one.untaken for one in pending),
        oldest=min((one.oldest for one in pending if one.oldest), default=None),
        answer=next((one.answer for one in pending if one.answer), ""),
    )


def approvals() -> ApprovalCounts:
    """Count the requests that wait for a second person."""
    found = counted_in_open_requests(ParkedMessage.objects.using(records_alias()).filter(state=State.PARKED))
    return ApprovalCounts(
        count=len(found),
        oldest=min((one.asked_at for one, _count in found), default=None),
        only=found[0][0].pk if len(found) == 1 else None,
        of_parked=tuple((one, count) for one, count in found if count and one.act in ENDING),
    )


def outbox_if_read() -> PendingRows | None:
    try:
        return outbox()
    except Error:
        return None


def blocked() -> BlockedCounts:
    """Count the messages that wait behind blocked keys."""
    figures = blocked_figures()
    oldest = BlockedMessage.objects.aggregate(oldest=Min("waiting_since"))["oldest"] if figures.waiting else None
    by_queue = behind_keys() if figures.waiting else {}
    return BlockedCounts(
        keys=figures.keys, messages=figures.waiting, most=figures.most, oldest=oldest, by_queue=by_queue
    )


def behind_keys() -> dict[str, int]:
    """Return how many messages wait behind blocked keys, by queue; one query."""
    rows = BlockedKey.objects.filter(waiting__gt=0).order_by()
    return dict(rows.values_list("queue").annotate(n=Sum("waiting")))


def surveyed(timeout: float) -> tuple[Survey | None, str]:
    """Return the figures from the database, or None and the reason in one line; without records there may be none."""
    try:
        return in_time(survey, router.db_for_read(ParkedMessage), timeout), ""
    except (Unmigrated, ImproperlyConfigured) as error:
        return None, one_line(error) if settings().records else ""
    except (DatabaseError, Unanswered) as error:
        return None, one_line(error)
