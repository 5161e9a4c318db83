"""A survey of all tables for status pages and commands."""

import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any, NamedTuple

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
from django_rmq_retry.breakers.halts import halted_among
from django_rmq_retry.breakers.queue_state import Flow, QueueState
from django_rmq_retry.breakers.table import controls_alias, state_of
from django_rmq_retry.conf import settings
from django_rmq_retry.database_connections import Unanswered
from django_rmq_retry.declared import rows
from django_rmq_retry.errors import ConfigurationError
from django_rmq_retry.health.handled_again import TWICE_REPORTED_FOR, HandledAgain, handled_again, named
from django_rmq_retry.health.held import leave_out_unfounded, lost_a_consumer
from django_rmq_retry.health.processes import (
    MOST_SURVEYED_PROCESSES,
    Dead,
    GivenAgain,
    Process,
    dead_processes,
    left_by_the_lost,
    read_in_flight,
)
from django_rmq_retry.health.time_limit import in_time
from django_rmq_retry.messages.reasons import MAY_HAVE_RUN
from django_rmq_retry.messages.texts import one_line
from django_rmq_retry.models import (
    Action,
    ApprovalRequest,
    Attempt,
    BlockedKey,
    BlockedMessage,
    ConsumerProcess,
    Declared,
    ErrorGroup,
    GatedAct,
    OperatorAction,
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
from django_rmq_retry.parked.checked import checked, mark
from django_rmq_retry.parked.database import records_alias
from django_rmq_retry.parked.early_outcomes import HANDLED_TWICE, PERHAPS_TWICE
from django_rmq_retry.parked.findings import PERMANENT_REASONS
from django_rmq_retry.parked.groups import (
    BURST_TOLD,
    FAILED_AGAIN,
    GROWTH_SPAN,
    OF_LAST_TIME,
    burst_of,
    grows,
    minute_of,
    settled_at,
)
from django_rmq_retry.parked.held_up import held_up, stands
from django_rmq_retry.parked.items import (
    LeftBehind,
    counted_elsewhere,
    left_behind_lately,
    parked_to_send,
)
from django_rmq_retry.parked.may_have_run import queues_with_once
from django_rmq_retry.parked.overdue import RETRY_OVERDUE, overdue
from django_rmq_retry.parked.unsent_edits import edited_unsent
from django_rmq_retry.policies.verdict import Kind
from django_rmq_retry.publishing import outbox_rows
from django_rmq_retry.statements import missing_tables
from django_rmq_retry.wording import MOST_IN_A_TEXT

RECENT = timedelta(minutes=10)
ENDING = (GatedAct.DISCARD, GatedAct.REQUEUE)
"""The acts after which a message is no longer parked."""
MOST_RECENT = 2000
"""The most messages of the last minutes that are counted: an incident may park a million in ten."""
MOST_SURVEYED_MESSAGES = 1000
"""The most messages that are counted where no counter has their number."""
MOST_PLACES = 3
"""The most queues of the largest cause that are named."""
MOST_RECENT_CAUSES = 10
"""The most causes with new messages of which it is counted how many."""
MOST_SURVEYED_ITEMS = 500
"""The most unsent messages of a paused run that are examined: those that are sent next."""
KILLERS_TOLD_FOR, MOST_KILLERS = timedelta(hours=1), 100
"""The time after its parking in which a message may be named as what killed consumers, and the most of them."""
MOST_HELD_RUNS = 5
"""The latest active runs of which is told for which stopped queue they wait."""
MOST_NAMED_RUNS = 5
"""The most runs of which a survey names the first messages that were handled twice, each by one query."""
MOST_RETRIES = 500
"""The most retries that are examined: those that were due last."""
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
    """How often a message was parked in the last ten minutes, whatever became of it since."""
    recent_again: int = 0
    """How often it was one that had been parked before; the others were new."""
    recent_still: int | None = 0
    """The messages parked in these minutes that are parked now; None if they are more than ``MOST_RECENT``."""
    oldest: datetime | None = None
    groups: int = 0
    """The error groups that have some of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestCause:
    """The cause of parked messages to look at first: the error groups of one error, wherever it was raised."""

    title: str
    count: int
    places: Mapping[str, int]
    """Its messages by queue, of the queues with the most."""
    only: int | None
    """Its error group, if there is only one."""
    permanent: bool
    """True if each of its messages will fail the same way until the cause is fixed."""
    perhaps_done: bool = False
    """True if each of its messages may have been handled, because its workers died: they are looked at first."""
    newest: int
    """New messages of its last burst, by which a cause grows or not."""
    newest_since: datetime | None
    """The minute of the first of them."""
    last_new: datetime
    """The time of its last new message's failure."""
    last_handled: datetime | None = None
    """The time at which one of its messages was last handled after it had been parked."""
    again_at: datetime | None
    """The time of its last failure if that was one of a requeued message that is still parked, a few minutes ago."""
    last_seen: datetime
    """The time of its last failure, of a new message or of one that was requeued."""
    others_seen: datetime | None = None
    """The time of the last failure of the others."""
    others: int
    """The number of further error groups, as the page of error groups counts them."""
    second: tuple[str, int, Mapping[str, int]] | None = None
    """Another cause to name, the number of its messages, and their queues: one that has more, or the only other one."""


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
class HandledAnyway:
    """Discarded messages of which a copy was handled lately, after the discard."""

    count: int = 0
    """Up to MOST_SURVEYED_MESSAGES."""
    last: int = 0
    """The one that was handled last."""
    at: datetime | None = None
    """When that was."""
    doubts: Mapping[str, int] = field(default_factory=dict, compare=False)
    """The number of each message, by the digest of the doubt."""

    @classmethod
    def of(cls, found: Iterable[tuple[int, datetime]], checked: Collection[str]) -> "HandledAnyway":
        """Return those that nobody has checked; the one that was handled last comes first."""
        each = ((pk, at, mark("anyway", pk, at)) for pk, at in found)
        new = [one for one in each if one[2] not in checked]
        doubts = {digest: pk for pk, _at, digest in new}
        return cls(count=len(new), last=new[0][0], at=new[0][1], doubts=doubts) if new else cls()


@dataclass(frozen=True, slots=True, kw_only=True)
class OverdueRetries:
    """Retries of one queue that were due some time ago and have not been attempted again."""

    queue: str
    count: int
    oldest: datetime
    """The time at which the first of them was due."""


_KILLER = ("business_key", "message_id", "queue", "published_at", "parked_at", "group_id", "state")


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
    held: Mapping[int, Sequence[QueueState]] = field(default_factory=dict)
    """The stopped queues for which the latest of them wait, by the number of the run."""
    paused_by: Mapping[int, str] = field(default_factory=dict)
    """Who paused a run, of those that an operator did."""
    twice: tuple[RequeueRun, ...] = ()
    """Those of the active ones, and of the lately ended ones, of whose messages some were handled twice, or perhaps."""
    twice_names: Mapping[int, Sequence[str]] = field(default_factory=dict)
    """The first of these messages, of the first of these runs."""
    elsewhere: Mapping[int, int] = field(default_factory=dict)
    """The unsent messages of paused runs that are counted with an earlier run, or were sent or changed meanwhile."""
    left_behind: tuple[LeftBehind, ...] = ()
    """What lately stopped runs have not sent of what is parked, the newest run first."""
    processes: tuple[ConsumerProcess, ...] = ()
    dead: Sequence[Dead] = ()
    """Those of them that vanished, each with what follows from it."""
    by_dead_workers: tuple[ParkedMessage, ...] = ()
    """The parked messages that may have been handled because their workers died: up to one more than
    MOST_SURVEYED_MESSAGES, the last one first."""
    killers: tuple[ParkedMessage, ...] = ()
    """What was parked lately because its workers died, if a process vanished."""
    overtaken: tuple[Process, ...] = ()
    """Those that may be frozen with messages that others got since."""
    given_again: Mapping[str, GivenAgain] = field(default_factory=dict)
    """What else of lost processes others are given, by queue."""
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
    """Strict-order queues that are stopped because their first message fails, or failed when it was tried last."""
    approvals: ApprovalCounts = ApprovalCounts()
    silent: SilentCopies = SilentCopies()
    anyway: HandledAnyway = HandledAnyway()
    handled_again: tuple[HandledAgain, ...] = ()
    """What was handled lately after another consumer may have handled it, the certain ones first."""
    checked: Mapping[str, int] = field(default_factory=dict)
    """The doubts that operators have checked, with the numbers of these actions; only looked for if there are some."""
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
    missing = set() if page else missing_tables((ParkedMessage, QueueControl, Declared), alias)
    if missing - {Declared}:
        raise Unmigrated(alias)
    apart, now = database_clock.ahead(alias), database_clock.now(alias)
    controls = list(QueueControl.objects.using(controls_alias()).not_flowing().order_by("queue"))
    stopped = tuple(one for one in controls if state_of(one).state(now.timestamp()) is not Flow.FLOWING)
    harmful = Q(handled_twice__gt=0) | Q(perhaps_twice__gt=0)
    lately = harmful & Q(finished_at__gt=now - TWICE_REPORTED_FOR)
    known = list(RequeueRun.objects.filter(Q(state__in=ACTIVE) | lately).order_by("pk"))
    runs = tuple(run for run in known if run.state in ACTIVE)
    # Before the parked messages are counted: of those that are sent meanwhile nobody would seem to send any.
    sends = to_send(runs)
    origins = parked_origins()
    of_causes = _facts_of_causes() if origins.total else {}
    groups = sum(one["groups"] for one in of_causes.values())
    parked_now, silent = parked(now, [one.queue for one in stopped], origins, groups)
    pending = outbox_if_read() if page else outbox()
    processes = tuple(ConsumerProcess.objects.defer("in_flight").order_by("-beat_at")[:MOST_SURVEYED_PROCESSES])
    dead = dead_processes(processes, now)
    read_in_flight(processes, now)
    again, anyway = handled_again(now, processes), _handled_anyway(now)
    in_doubt = [run for run in known if lost_a_consumer(run, processes, now)]
    leave_out_unfounded(in_doubt)
    twice = tuple(run for run in known if run.handled_twice or (run.perhaps_twice and run in in_doubt))
    said = any(one.ended_by for one in processes) or any(one.loop for one in dead)
    killers = by_dead_workers() if origins.by_dead_workers else ()
    marks = checked() if again or anyway or twice or said else {}
    frozen, given_again = left_by_the_lost(processes, now, dead)
    return Survey(
        alias=alias,
        at=now,
        seconds=seconds,
        parked=parked_now,
        parked_in=origins.by_queue,
        cause=largest_cause(now, origins, of_causes),
        causes=origins.causes,
        runs=runs,
        to_send=min(sends, parked_now.count),
        held=held_up(filter(stands, runs[-MOST_HELD_RUNS:]), [state_of(one) for one in stopped]),
        paused_by=_paused_by([run.pk for run in runs if run.state == RunState.PAUSED and not run.wait]),
        twice=twice,
        twice_names={run.pk: _names_in_doubt(run) for run in twice[:MOST_NAMED_RUNS]},
        elsewhere={
            run.pk: counted_elsewhere(run, active=runs, most=MOST_SURVEYED_ITEMS)
            for run in runs
            if run.state == RunState.PAUSED and not run.retries_of
        },
        left_behind=tuple(left_behind_lately()),
        processes=processes,
        dead=dead,
        by_dead_workers=killers,
        killers=killers or (_dealt_with(now) if any(one.vanished(now) for one in processes) else ()),
        overtaken=tuple(frozen),
        given_again=given_again,
        outbox=pending or PendingRows(),
        outbox_answers=pending is not None,
        blocked=blocked(),
        apart=apart,
        stopped=stopped,
        halted=halted_among(controls, now),
        approvals=approvals(),
        silent=silent,
        anyway=HandledAnyway.of(anyway, marks),
        handled_again=again and named(again, processes, now),
        checked=marks,
        overdue=overdue_retries(now),
        declared=() if Declared in missing else tuple(rows()),
    )


def _paused_by(runs: Collection[int]) -> dict[int, str]:
    """Return who paused each of these runs last; no query if there is none."""
    acts = OperatorAction.objects.filter(run__in=runs, action=Action.PAUSE).order_by("number")
    return {act.run: act.who for act in acts if act.run is not None} if runs else {}


def _handled_anyway(now: datetime) -> list[tuple[int, datetime]]:
    """Read an index: of discarded messages few were handled."""
    rows = ParkedMessage.objects.filter(state=State.DISCARDED, succeeded_at__gt=now - TWICE_REPORTED_FOR)
    after = rows.filter(succeeded_at__gt=F("resolved_at")).order_by("-succeeded_at")
    return [(pk, at) for pk, at in after.values_list("pk", "succeeded_at")[:MOST_SURVEYED_MESSAGES] if at]


def _names_in_doubt(run: RequeueRun) -> list[str]:
    parts = run.parts.filter(HANDLED_TWICE if run.handled_twice else PERHAPS_TWICE).order_by("-handled", "pk")
    if not run.retries_of:
        parts = parts.select_related("message").only("run", "message__business_key", "message__message_id")
    return [str(one.shown if run.retries_of else one.message) for one in parts[:MOST_IN_A_TEXT]]


def _sending(runs: Iterable[RequeueRun]) -> list[RequeueRun]:
    started = [run for run in runs if run.state in (RunState.PLANNED, RunState.RUNNING)]
    return [run for run in started if run.unsent and not run.retries_of]


def to_send(runs: Iterable[RequeueRun]) -> int:
    """Return how many parked messages runs are to send; of very many as many as the runs count."""
    sending = _sending(runs)
    counted = parked_to_send(sending) if sending else 0
    return sum(run.unsent for run in sending) if counted is None else counted


class AlarmCause(NamedTuple):
    """The error groups that an alarm names as one: those with one title, muted or not."""

    heard: bool
    title: str
    reasoned: bool
    """True if it has no error: the title is the reason, as of an expired message."""

    def __str__(self) -> str:
        return cause_name(self.title, reasoned=self.reasoned)

    @property
    def perhaps_done(self) -> bool:
        """True if its messages may have been handled because their workers died."""
        return self.reasoned and self.title in MAY_HAVE_RUN


def _reasoned(group: str = "") -> Case:
    """Return ``reasoned`` of a cause as a column, of groups or of rows that have one."""
    same = Q(**{f"{group}title": F(f"{group}reason")})
    return Case(When(same, then=True), default=False, output_field=BooleanField())


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedByOrigin:
    """The parked messages of each cause in each queue."""

    counts: Mapping[tuple[AlarmCause, str], int]
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
    def by_cause(self) -> Counter[AlarmCause]:
        found = Counter[AlarmCause]()
        for (cause, _queue), number in self.counts.items():
            found[cause] += number
        return found

    @property
    def by_dead_workers(self) -> bool:
        """True if some may have been handled because their workers died."""
        return any(cause.perhaps_done for cause, _queue in self.counts)

    @property
    def causes(self) -> tuple[str, ...]:
        """Return each error that is not muted, with its queue."""
        return tuple(sorted({f"{cause} in {queue}" for cause, queue in self.counts if cause.heard}))

    def places(self, cause: AlarmCause) -> dict[str, int]:
        """Return the queues with the most messages of a cause, each with their number."""
        found = Counter({queue: number for (of, queue), number in self.counts.items() if of == cause})
        return dict(found.most_common(MOST_PLACES))


def by_dead_workers() -> tuple[ParkedMessage, ...]:
    """Return the parked messages that may have been handled because their workers died; one query of an index."""
    try:
        safe = queues_with_once()
    except ConfigurationError:
        # A check reports handlers that are invalid.
        safe = set()
    rows = ParkedMessage.objects.filter(state=State.PARKED, reason__in=MAY_HAVE_RUN).exclude(queue__in=sorted(safe))
    return tuple(rows.order_by("-parked_at").only(*_KILLER)[: MOST_SURVEYED_MESSAGES + 1])


def killers_lately(now: datetime) -> tuple[ParkedMessage, ...]:
    """Return the messages that were parked because their workers died: those that are, else those of the last hour.

    One query, and one or two more if none is parked any more.
    """
    return by_dead_workers() or _dealt_with(now)


def _dealt_with(now: datetime) -> tuple[ParkedMessage, ...]:
    since = now - KILLERS_TOLD_FOR
    # Mostly there is no such group; in one query a database reads all that was parked in that time.
    groups = ErrorGroup.objects.filter(reason__in=MAY_HAVE_RUN, last_seen__gte=since).order_by("-last_seen")
    named = list(groups.values_list("pk", flat=True)[:MOST_KILLERS])
    if not named:
        return ()
    rows = ParkedMessage.objects.filter(group__in=named, parked_at__gte=since).order_by("-parked_at")
    return tuple(rows.only(*_KILLER)[:MOST_KILLERS])


def parked_origins() -> ParkedByOrigin:
    """Count the parked messages by the counters of origins, because an open page repeats this every few seconds.

    One statement counts all that a page shows of them, by queue, by cause and in total: in an incident, the parts that
    several statements counted would exceed the whole. The database adds up the groups of a cause, of which an incident
    may have thousands.
    """
    facts = {"muted": F("group__muted"), "title": F("group__title")}
    rows = ParkedOrigin.objects.filter(count__gt=0).order_by().values("queue", **facts, reasoned=_reasoned("group__"))
    handled = Sum("count", filter=Q(handled=True), default=0)
    counted = rows.annotate(n=Sum("count"), done=handled)
    found = list(counted.values_list("muted", "title", "reasoned", "queue", "n", "done"))
    return ParkedByOrigin(
        counts={
            (AlarmCause(not muted, title, bool(reasoned)), queue): number
            for muted, title, reasoned, queue, number, _done in found
        },
        handled=sum(done for *_origin, done in found),
    )


def parked(
    now: datetime, stopped: Iterable[str], origins: ParkedByOrigin, groups: int
) -> tuple[ParkedCounts, SilentCopies]:
    """Return what else is known of the parked messages, and those that were requeued and have no outcome.

    Two queries: those without an outcome are mostly none, and Django takes long to make one that also counts them.
    """
    rows, first = ParkedMessage.objects.filter(state=State.PARKED), minute_of(now - RECENT)
    # Of all minutes an index has only those of one group: few groups have had messages.
    minutes = ParkedMinute.objects.filter(minute__gte=first, group__last_seen__gte=first)
    totals = minutes.aggregate(
        oldest=_Beside(rows.order_by("parked_at").values("parked_at")[:1]),
        all=Sum("count", default=0),
        again=Sum("count", filter=Q(new=False), default=0),
        still=_Counted(rows.filter(parked_at__gte=first).order_by().values("pk")[: MOST_RECENT + 1]),
    )
    remaining = totals["still"]
    silent = _silent(now, stopped).order_by("requeued_at")[: MOST_SURVEYED_MESSAGES + 1]
    since = list(silent.values_list("requeued_at", flat=True))
    return (
        ParkedCounts(
            count=origins.total,
            handled=origins.handled,
            edited=edited_unsent().total() if origins.total else 0,
            recent=totals["all"],
            recent_again=totals["again"],
            recent_still=remaining if remaining <= MOST_RECENT else None,
            oldest=totals["oldest"],
            groups=groups,
        ),
        SilentCopies(count=len(since), oldest=since[0] if since else None),
    )


def _silent(now: datetime, stopped: Iterable[str]) -> "QuerySet[ParkedMessage]":
    """Return the requeued messages without an outcome, but for those that wait in a stopped queue."""
    sent, names = ParkedMessage.objects.filter(overdue(now)).order_by(), list(stopped)
    return sent.exclude(queue__in=names) if names else sent


def overdue_retries(now: datetime) -> tuple[OverdueRetries, ...]:
    """Return the queues whose retries were due and have not come, of those due last; one query, as mostly all came."""
    later = Attempt.objects.filter(identity=OuterRef("identity"), started_at__gt=OuterRef("started_at"))
    # The broker parks a message that expires, or that its queue rejects, without an attempt.
    recorded = ParkedMessage.objects.filter(identity=OuterRef("identity"), parked_at__gt=OuterRef("started_at"))
    due = Attempt.objects.filter(
        verdict=Kind.RETRY.value, next_at__gt=now - OVERDUE_REPORTED_FOR, next_at__lt=now - RETRY_OVERDUE
    )
    # In this order: of nearly all the next attempt is known, and then no record is looked up.
    rows = due.order_by("-next_at").annotate(came=Exists(later) | Exists(recorded))[:MOST_RETRIES]
    if all(rows.values_list("came", flat=True)):
        return ()
    found: dict[str, list[datetime]] = {}
    for queue, at, known in rows.values_list("queue", "next_at", "came"):
        if at is not None and not known:
            found.setdefault(queue, []).append(at)
    return tuple(
        OverdueRetries(queue=queue, count=len(dues), oldest=min(dues)) for queue, dues in sorted(found.items())
    )


class _Beside(Subquery):
    """A value of its own beside sums of other rows, also if there are none: it depends on none of them."""

    contains_aggregate = True


class _Counted(_Beside):
    """The number of rows of a query, which may have a limit."""

    template = "(SELECT COUNT(*) FROM (%(subquery)s) rmq_counted)"
    output_field = IntegerField()


def parked_in(queues: Iterable[str]) -> dict[str, int]:
    """Count the parked messages that failed in each of these queues; one query."""
    counts = dict.fromkeys(queues, 0)
    origins = ParkedOrigin.objects.filter(queue__in=list(counts), count__gt=0).order_by()
    return {**counts, **dict(origins.values_list("queue").annotate(n=Sum("count")))}


def largest_cause(
    now: datetime, origins: ParkedByOrigin, of_causes: Mapping[AlarmCause, Mapping[str, Any]]
) -> LargestCause | None:
    """Return the error to look at first; one query.

    It is the one that grows most; if none grows now, the one with the most parked messages. Those of muted groups come
    last.
    """
    counts = origins.by_cause
    facts = {cause: known for cause, known in of_causes.items() if cause in counts}
    if not facts:
        # All messages were decided on since they were counted, if any was.
        return None

    def rank(one: AlarmCause) -> tuple[bool, int, str]:
        return one.heard, counts[one], str(one)

    most = max(facts, key=rank)
    recent = [one for one, of in facts.items() if now - (of["new"] or of["seen"]) < GROWTH_SPAN]
    candidates = {most, *sorted(recent, key=rank)[-MOST_RECENT_CAUSES:]}
    bursts = _bursts(candidates, now)

    def grown(one: AlarmCause) -> int:
        newest, parked_now, last = bursts[one].newest, counts[one], facts[one]["new"] or facts[one]["seen"]
        settled = settled_at(facts[one]["handled"])
        return min(newest, parked_now) if one in recent and grows(newest, last, now, settled=settled) else 0

    cause = max(candidates, key=lambda one: (one.heard, grown(one), *rank(one)))
    known, burst = facts[cause], bursts[cause]
    others = [one for one in counts if one != cause]
    second = others[0] if len(others) == 1 else most
    tells = second.heard and (len(others) == 1 or counts[second] > counts[cause])
    last_new = known["new"] or known["seen"]
    # A copy that was parked twice is seen later too, which is no proof of a requeue.
    repeated = known["again"] and last_new < known["seen"] and now - known["seen"] < GROWTH_SPAN
    return LargestCause(
        title=str(cause),
        count=counts[cause],
        places=origins.places(cause),
        only=known["first"] if known["groups"] == 1 else None,
        permanent=known["curable"] == 0,
        perhaps_done=cause.perhaps_done,
        newest=burst.newest,
        newest_since=burst.since,
        last_new=last_new,
        last_handled=known["handled"],
        again_at=_failed_again_at(cause, after=max(last_new, now - GROWTH_SPAN)) if repeated else None,
        last_seen=known["seen"],
        others_seen=max((of["seen"] for one, of in facts.items() if one.heard and one != cause), default=None),
        # Both were counted a moment apart, and each cause is a group at least.
        others=max(sum(one["groups"] for one in of_causes.values()) - known["groups"], len(counts) - 1),
        second=(str(second), counts[second], origins.places(second)) if tells else None,
    )


def _failed_again_at(cause: AlarmCause, *, after: datetime) -> datetime | None:
    """Return when the last of its parked messages failed again; what was decided on since is none."""
    rows = ParkedMessage.objects.filter(FAILED_AGAIN, state=State.PARKED, parked_at__gt=after)
    of_cause = rows.filter(group__title=cause.title, group__muted=not cause.heard)
    known = of_cause.annotate(reasoned=_reasoned("group__")).filter(reasoned=cause.reasoned)
    return known.order_by("-parked_at").values_list("parked_at", flat=True).first()


def _facts_of_causes() -> dict[AlarmCause, dict[str, Any]]:
    """Return what the groups with parked messages have in common, by their causes."""
    parked = ParkedOrigin.objects.filter(count__gt=0).values("group")
    groups = ErrorGroup.objects.filter(pk__in=parked).order_by().annotate(reasoned=_reasoned())
    rows = groups.values("muted", "title", "reasoned").annotate(
        groups=Count("pk"),
        curable=Count("pk", filter=~Q(reason__in=PERMANENT_REASONS)),
        first=Min("pk"),
        seen=Max("last_seen"),
        new=Max("last_new"),
        handled=Max("last_handled"),
        again=Sum("failed_again"),
    )
    return {AlarmCause(not row["muted"], row["title"], bool(row["reasoned"])): dict(row) for row in rows}


class _Burst(NamedTuple):
    """The last burst of new messages of a cause, and its first minute."""

    newest: int
    since: datetime | None


def _bursts(causes: Collection[AlarmCause], now: datetime) -> dict[AlarmCause, _Burst]:
    minutes = ParkedMinute.objects.filter(
        group__title__in=[one.title for one in causes],
        group__in=ParkedOrigin.objects.filter(count__gt=0).values("group"),
        minute__gte=now - BURST_TOLD,
        new=True,
        count__gt=0,
    )
    of = ("group__muted", "group__title", "reasoned", "minute")
    rows = minutes.filter(OF_LAST_TIME).order_by().annotate(reasoned=_reasoned("group__")).values(*of)
    new_ones: dict[AlarmCause, dict[datetime, int]] = {one: {} for one in causes}
    for muted, title, reason, minute, count in rows.annotate(n=Sum("count")).values_list(*of, "n"):
        cause = AlarmCause(not muted, title, bool(reason))
        if cause in new_ones:
            new_ones[cause][minute] = count
    return {one: _Burst(*burst_of(new_ones[one])) for one in causes}


def outbox() -> PendingRows:
    """Count the unpublished messages of all databases that have an outbox; one query each."""
    pending = [
        OutboxMessage.objects.using(alias).pending()
        for alias in outbox_rows.served()
        if outbox_rows.table_exists(alias)
    ]
    failing = (one for one in pending if one.failed_since)
    first = min(failing, key=attrgetter("failed_since"), default=PendingRows())
    answered = next((one for one in pending if one.answer), PendingRows())
    return replace(
        first,
        waiting=sum(one.waiting for one in pending),
        failed=sum(one.failed for one in pending),
        untaken=sum(one.untaken for one in pending),
        behind=sum(one.behind for one in pending),
        oldest=min((one.oldest for one in pending if one.oldest), default=None),
        refused=sum(one.refused for one in pending),
        answer=answered.answer,
        answer_exchange=answered.answer_exchange,
        answer_key=answered.answer_key,
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
        return in_time(survey, router.db_for_read(ParkedMessage), timeout, purpose="survey"), ""
    except (Unmigrated, ImproperlyConfigured) as error:
        return None, one_line(error) if settings().records else ""
    except (DatabaseError, Unanswered) as error:
        return None, one_line(error)
