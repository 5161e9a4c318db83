"""The admin of queues: their depth, consumers and state; pause and resume."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from django.contrib import admin, messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_POST

from django_rmq_retry import declared
from django_rmq_retry.admin import broker_look
from django_rmq_retry.admin.halted_first import halted_first
from django_rmq_retry.admin.pages import Pages, refusal, requires
from django_rmq_retry.amqp.levels import Level
from django_rmq_retry.breakers import table
from django_rmq_retry.breakers.halts import halted
from django_rmq_retry.breakers.queue_state import Flow, QueueState
from django_rmq_retry.health.condition import (
    STOPPED_BY,
    Condition,
    WaitingMessages,
    kept_elsewhere,
    standby,
    waiting_by_home,
    waiting_messages,
)
from django_rmq_retry.health.facts import behind_keys, parked_in
from django_rmq_retry.health.problems import Judged, Limits, Queues, excused, in_halts, without_need
from django_rmq_retry.health.processes import (
    begun_and_waiting,
    late_handlers_now,
    read_if_open,
    read_since_now,
    readers_now,
)
from django_rmq_retry.health.rules import Code, Problem, Severity
from django_rmq_retry.markup import NOTHING
from django_rmq_retry.models import ApprovalRequest, GatedAct, QueueControl
from django_rmq_retry.parked import approvals, queue_pauses
from django_rmq_retry.parked.four_eyes import SecondPersonNeeded
from django_rmq_retry.parked.operators import Actor, Refused
from django_rmq_retry.topology.declarations import Role, work_queue
from django_rmq_retry.wording import number

SPANS: dict[str, tuple[Any, timedelta | None]] = {
    "1h": (gettext_lazy("for 1 hour"), timedelta(hours=1)),
    "15m": (gettext_lazy("for 15 minutes"), timedelta(minutes=15)),
    "4h": (gettext_lazy("for 4 hours"), timedelta(hours=4)),
    "12h": (gettext_lazy("for 12 hours"), timedelta(hours=12)),
    "": (gettext_lazy("until an operator resumes it"), None),
}
NOTHING_WAITS = WaitingMessages(count=0, unrecorded=0)
ALWAYS_SHOWN = ("queue", "ready", "parked", "consumers", "state")
"""The columns of every table; the others are shown if they hold something."""
SEARCHED = 20
"""More queues than these have a search field."""
FOLDED_FROM = 6
"""So many queues that hold nothing, and of which nothing is to be told, are one line below the others."""
KINDS = {Severity.ERROR: "parked", Severity.WARNING: "on-hold", Severity.INFORMATION: "processed"}
"""The class of the style sheet that has the colour of a badge."""
KINDS_OF_STOPPED = {Flow.PAUSED: "on-hold", Flow.OPEN: "parked", Flow.PROBING: "requeued"}


def badge(condition: Condition, text: Any = None) -> tuple[str, str, Any]:
    """Return kind, sign and text of a badge, which is the condition's word or that of one of its problems."""
    kind = "waiting" if condition is Condition.WAITING else KINDS[condition.severity]
    return kind, condition.sign, condition.word if text is None else text


def consumers_of(level: Level, readers: Mapping[str, int]) -> str:
    """Return the number of a queue's consumers; of one with a single active consumer, it and those on standby."""
    waits = standby(level, readers)
    if not waits:
        return NOTHING if level.consumers is None else number(level.consumers)
    return _("1 active, %(number)s standby") % {"number": number(waits)}


def single_active(levels: Iterable[Level]) -> bool:
    """True if it has to be known how many processes read each queue."""
    return any(one.arguments.get("x-single-active-consumer") is True for one in levels)


def closing_asked_for(states: Iterable[QueueState]) -> dict[str, ApprovalRequest]:
    """Return the open requests to close a breaker by their queues, by one query if a breaker is open."""
    stopped = [one.queue for one in states if one.circuit.opened]
    waiting = approvals.open_requests().filter(act=GatedAct.CLOSE_BREAKER, subject__in=stopped)
    return {one.subject: one for one in waiting} if stopped else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppedBadge:
    """How an operator or a breaker has stopped a queue, as a page shows it."""

    kind: str
    sign: str
    label: Any
    explanation: str

    @classmethod
    def of(cls, one: QueueState, now: float, read: frozenset[str] | None) -> "StoppedBadge | None":
        """Return the badge of a queue; None while nothing has stopped it. ``read`` has the queues with consumers."""
        if (state := one.state(now)) is Flow.FLOWING:
            return None
        sign, label = STOPPED_BY[state]
        why = one.explanation(now, read=read is None or one.queue in read)
        return cls(kind=KINDS_OF_STOPPED[state], sign=sign, label=label, explanation=why)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppedQueues:
    """The queues that an operator or a breaker has stopped, and those of them that need no consumer for that reason."""

    badges: Mapping[str, StoppedBadge]
    excused: frozenset[str]

    @classmethod
    def among(cls, queues: Iterable[str]) -> "StoppedQueues":
        """Read which of these queues are stopped, by one query."""
        now = table.now()
        states = table.stopped(queues, now)
        return cls.of_states(states, now, read_if_open(states))

    @classmethod
    def of_states(cls, states: Sequence[QueueState], now: float, read: frozenset[str] | None) -> "StoppedQueues":
        badges = {one.queue: shown for one in states if (shown := StoppedBadge.of(one, now, read))}
        for one in states:
            if one.state(now) is Flow.PAUSED:
                by = _("paused by %(name)s") % {"name": one.by or "?"}
                badges[one.queue] = replace(badges[one.queue], label=by)
        return cls(badges=badges, excused=excused(states, now))

    def judged(self, levels: Sequence[Level]) -> list[Judged]:
        return Queues(levels=levels, excused=self.excused).judged()


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRow:
    """A queue of the page: what the broker counts, and its condition, which is OK only if a consumer reads it."""

    queue: str
    level: Level | None
    badges: Sequence[tuple[str, str, Any]]
    """Each with its kind, sign and label; none if nothing is known."""
    explanation: str
    waiting: WaitingMessages
    """The messages that wait until they are due."""
    parked: int
    behind: int
    """The messages that wait behind blocked keys."""
    consumers: str
    severity: Severity
    quarantined: int | None = None
    """The messages that are tried one by one, because each may have killed its worker."""
    first: str = ""
    """The key or the id of the message that halts it."""
    is_fine: bool = False
    """True if it holds nothing, and there is nothing to say about it."""
    asked: ApprovalRequest | None = None
    """The open request to close its breaker."""

    @classmethod
    def of(
        cls,
        queue: str,
        stopped: StoppedBadge | None,
        found: Judged | None,
        *,
        begun: str,
        waiting: WaitingMessages,
        parked: int,
        behind: int,
        readers: Mapping[str, int],
        halt: Problem | None,
        quarantined: int | None,
        asked: ApprovalRequest | None,
        current: bool,
    ) -> "QueueRow":
        level, known = found.level if found else None, [found] if found else []
        condition = Condition.of(
            known,
            stopped=stopped is not None,
            halt=halt,
            current=current,
            waiting=(waiting.count or 0) + behind,
            parked=parked,
        )
        badges = [(stopped.kind, stopped.sign, stopped.label)] if stopped else []
        milder = [found.milder] if found and found.milder and condition is Condition.NOTED else []
        shown = found.errors if found and condition is Condition.FAULTY else milder
        badges += [badge(condition, one.rule.word) for one in shown]
        if not shown and condition.word and not stopped:
            badges.append(badge(condition))
        told = [stopped.explanation, begun] if stopped else []
        told += [halt.text, halt.last_known] if halt else []
        # Beside "no consumer" the sentence says nothing more.
        told += [f"{capfirst(one.row)}." for one in shown if one.rule.row != Code.NO_CONSUMER.value.row]
        is_error = any(kind == KINDS[Severity.ERROR] for kind, *_words in badges)
        holds = (waiting.count, parked, behind, quarantined, level and level.unacked)
        empty = level is not None and level.ready == 0 and not any(holds)
        return cls(
            queue=queue,
            level=level,
            badges=badges,
            explanation=" ".join(filter(None, told)),
            waiting=waiting,
            parked=parked,
            behind=behind,
            consumers=consumers_of(level, readers) if level else NOTHING,
            severity=Severity.ERROR if is_error else condition.severity,
            quarantined=quarantined,
            asked=asked,
            first=str(halt.values.get("first", "")) if halt else "",
            is_fine=empty and condition in (Condition.RUNNING, Condition.UNKNOWN),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueTable:
    rows: Sequence[QueueRow]
    folded: bool = False
    ticked: bool = False
    """True if one of its rows was ticked in a form that comes back."""


def tables_of(rows: Sequence[QueueRow], ticked: Collection[str]) -> list[QueueTable]:
    """Return the rows that are shown, and in a fold those of which there is nothing to tell, if they are many."""
    fine = [row for row in rows if row.is_fine]
    if len(fine) < FOLDED_FROM:
        return [QueueTable(rows=rows)]
    busy = [row for row in rows if not row.is_fine]
    fold = QueueTable(rows=fine, folded=True, ticked=any(row.queue in ticked for row in fine))
    return [QueueTable(rows=busy), fold] if busy else [fold]


@admin.register(QueueControl)
class QueueControlAdmin(Pages):
    sees = "view_queue"
    one_page = True

    def own_urls(self) -> list[URLPattern]:
        return [
            self.own_url("change_state/", "change_state", require_POST(self.change_state)),
            self.own_url("first/", "first", partial(halted_first, self)),
        ]

    def list_page(self, request: HttpRequest, **more: Any) -> HttpResponse:
        asked, now, states = request.GET.get("q", "").strip(), table.now(), queue_pauses.queue_states()
        broker_look.remember(declared.rows())
        seen = broker_look.look()
        known = seen.last or seen
        without = without_need(known.levels, states, now, partial(read_since_now, known.at))
        queues = Queues(levels=known.levels, excused=without, late=late_handlers_now())
        judged = {one.level.queue: one for one in queues.judged()}
        current, at = not (seen.unreachable or seen.late), datetime.fromtimestamp(now, UTC)
        # Without one in a waiting queue, nobody has to know which are retries.
        asks = waiting_by_home(known.levels).total() or kept_elsewhere()
        waiting = waiting_messages(known.levels, at)[1] if asks else {}
        halts = {one.subject: one for one in in_halts(halted(at), at, Limits(), known.levels if current else ())}
        read, asked_for = read_if_open(states), closing_asked_for(states)
        begun = begun_and_waiting({one.queue for one in states if one.state(now) is not Flow.FLOWING}, at)
        shown = [one for one in states if asked.casefold() in one.queue.casefold()]
        names = [one.queue for one in shown]
        unread = [one for one in judged.values() if one.level.abandoned or one.of(Code.UNREAD)]
        parked, behind = parked_in([*names, *(one.level.queue for one in unread)]), behind_keys()
        readers = readers_now() if single_active(known.levels) else {}
        aside = {work_queue(one.queue): one.ready for one in known.levels if one.role is Role.QUARANTINE}
        rows = [
            QueueRow.of(
                one.queue,
                StoppedBadge.of(one, now, read),
                judged.get(one.queue),
                begun=begun.get(one.queue, ""),
                waiting=waiting.get(one.queue, NOTHING_WAITS),
                parked=parked[one.queue],
                behind=behind.get(one.queue, 0),
                readers=readers,
                current=current,
                halt=halts.get(one.queue),
                quarantined=aside.get(one.queue),
                asked=asked_for.get(one.queue),
            )
            for one in shown
        ]
        # What needs somebody stands first, however many queues there are.
        rows.sort(key=lambda row: -row.severity)
        columns = {
            "unacked": any(one.unacked is not None for one in known.levels),
            "waits": any(waiting[name].count for name in names if name in waiting),
            "behind": any(name in behind for name in names),
            "quarantined": any(aside.values()),
        }
        why_not = refusal(request, "pause_queue")
        return self.page(
            request,
            "queuecontrol/queues.html",
            part="parts/queues.html",
            title=_("Queues"),
            look=seen,
            as_of=known.at if known.levels and not current else None,
            finds=not refusal(request, "view"),
            **columns,
            width=len(ALWAYS_SHOWN) + (not why_not) + sum(columns.values()),
            shared=waiting[""].count if "" in waiting else 0,
            sees_requests=not refusal(request, "view_request"),
            sees_keys=not refusal(request, "view_key"),
            current=current,
            rows=rows,
            # Whoever searches wants to see what was found.
            tables=[QueueTable(rows=rows)] if asked else tables_of(rows, more.get("typed", {}).get("queues", ())),
            may_send=not refusal(request, "view_run", "send_waiting"),
            unread=[(one.level, one.problems, parked[one.level.queue]) for one in unread],
            asked=asked,
            searched=len(states) > SEARCHED,
            why_not=why_not,
            spans=[(value, label) for value, (label, _span) in SPANS.items()],
            **more,
        )

    @requires("view_queue", "pause_queue")
    def change_state(self, request: HttpRequest) -> HttpResponse:
        queues, action = request.POST.getlist("queue"), request.POST.get("action", "")
        reason, span = request.POST.get("reason", ""), request.POST.get("span", "")
        wrong = "" if queues else _("Tick the queues first.")
        if action == "resume" and not reason.strip():
            wrong = wrong or _("Enter a reason: the audit log keeps why the queue was resumed.")
        wrong = wrong or (queue_pauses.pause_lacks_reason(reason) if action == "pause" else "")
        if wrong:
            typed = {"reason": reason, "span": span, "queues": queues}
            return self.list_page(request, status=422, wrong={"all": wrong}, typed=typed)
        actor, there = Actor.of_request(request), HttpResponseRedirect(self.address("queuecontrol_changelist"))
        for queue in queues:
            try:
                if action == "pause":
                    until = queue_pauses.pause_end(SPANS.get(span, SPANS[""])[1])
                    queue_pauses.pause_queue(queue, actor, reason=reason, until=until)
                    messages.success(request, _("Queue %(queue)s is paused.") % {"queue": queue})
                elif action == "resume":
                    queue_pauses.resume_queue(queue, actor, reason=reason)
                    messages.success(request, _("Queue %(queue)s is resumed.") % {"queue": queue})
            except SecondPersonNeeded as needed:
                there = self.ask(request, needed)
            except Refused as refusal:
                messages.warning(request, str(refusal))
        return there if len(queues) == 1 else HttpResponseRedirect(self.address("queuecontrol_changelist"))
