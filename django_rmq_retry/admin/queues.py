"""The admin of queues: their depth, consumers and state; pause and resume."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from django.contrib import admin, messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_POST

from django_rmq_retry import declared
from django_rmq_retry.admin import broker_look
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
from django_rmq_retry.health.problems import Judged, Limits, Queues, excused, in_halts
from django_rmq_retry.health.processes import late_handlers_now, lost_since_now, queues_read_now, readers_now
from django_rmq_retry.health.rules import Problem, Severity
from django_rmq_retry.markup import NOTHING
from django_rmq_retry.models import QueueControl
from django_rmq_retry.parked import queue_pauses
from django_rmq_retry.parked.four_eyes import SecondPersonNeeded
from django_rmq_retry.parked.operators import Actor, Refused
from django_rmq_retry.wording import number

SPANS: dict[str, tuple[Any, timedelta | None]] = {
    "1h": (gettext_lazy("for 1 hour"), timedelta(hours=1)),
    "15m": (gettext_lazy("for 15 minutes"), timedelta(minutes=15)),
    "4h": (gettext_lazy("for 4 hours"), timedelta(hours=4)),
    "12h": (gettext_lazy("for 12 hours"), timedelta(hours=12)),
    "": (gettext_lazy("until an operator resumes it"), None),
}
NOTHING_WAITS = WaitingMessages(count=0, delayed=0)
SEARCHED = 20
"""More queues than these have a search field."""
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


def read_if_open(states: Iterable[QueueState]) -> frozenset[str] | None:
    """Return the queues that living consumers read, by one query; without an open breaker nobody has to know."""
    return queues_read_now() if any(one.circuit.opened for one in states) else None


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

    @classmethod
    def of(
        cls,
        queue: str,
        stopped: StoppedBadge | None,
        found: Judged | None,
        *,
        waiting: WaitingMessages,
        parked: int,
        behind: int,
        readers: Mapping[str, int],
        halt: Problem | None,
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
        if found and condition is Condition.FAULTY:
            badges += [badge(condition, one.row) for one in found.errors]
        elif found and condition is Condition.NOTED:
            badges.append(badge(condition, found.remark))
        elif condition.word and not stopped:
            badges.append(badge(condition))
        explanation = stopped.explanation if stopped else halt.text if halt else ""
        return cls(
            queue=queue,
            level=level,
            badges=badges,
            explanation=explanation,
            waiting=waiting,
            parked=parked,
            behind=behind,
            consumers=consumers_of(level, readers) if level else NOTHING,
        )


@admin.register(QueueControl)
class QueueControlAdmin(Pages):
    sees = "view_queue"
    one_page = True

    def own_urls(self) -> list[URLPattern]:
        return [self.own_url("change_state/", "change_state", require_POST(self.change_state))]

    def list_page(self, request: HttpRequest, **more: Any) -> HttpResponse:
        asked, now, states = request.GET.get("q", "").strip(), table.now(), queue_pauses.queue_states()
        broker_look.remember(declared.rows())
        seen = broker_look.look()
        known = seen.last or seen
        queues = Queues(levels=known.levels, excused=excused(states, now), late=late_handlers_now())
        judged = {one.level.queue: one for one in queues.judged()}
        current, at = not (seen.unreachable or seen.late), datetime.fromtimestamp(now, UTC)
        # Without one in a waiting queue, nobody has to know which are retries.
        asks = waiting_by_home(known.levels).total() or kept_elsewhere()
        waiting = waiting_messages(known.levels, at)[1] if asks else {}
        lost = lost_since_now() if seen.unreachable else None
        halts = {one.subject: one for one in in_halts(halted(at, lost=lost), at, Limits())}
        read = read_if_open(states)
        shown = [one for one in states if asked.casefold() in one.queue.casefold()]
        names = [one.queue for one in shown]
        parked, behind = parked_in(names), behind_keys()
        readers = readers_now() if single_active(known.levels) else {}
        return self.page(
            request,
            "queuecontrol/queues.html",
            part="parts/queues.html",
            title=_("Queues"),
            look=seen,
            as_of=known.at if known.levels and not current else None,
            finds=not refusal(request, "view"),
            unacked=any(one.unacked is not None for one in known.levels),
            waits=any(waiting[name].count for name in names if name in waiting),
            shared=waiting[""].count if "" in waiting else 0,
            behind=any(name in behind for name in names),
            sees_keys=not refusal(request, "view_key"),
            rows=[
                QueueRow.of(
                    one.queue,
                    StoppedBadge.of(one, now, read),
                    judged.get(one.queue),
                    waiting=waiting.get(one.queue, NOTHING_WAITS),
                    parked=parked[one.queue],
                    behind=behind.get(one.queue, 0),
                    readers=readers,
                    current=current,
                    halt=halts.get(one.queue),
                )
                for one in shown
            ],
            may_send=not refusal(request, "view_run", "send_waiting"),
            abandoned=[(one.level, one.problems) for one in judged.values() if one.level.abandoned],
            asked=asked,
            searched=len(states) > SEARCHED,
            why_not=refusal(request, "pause_queue"),
            spans=[(value, label) for value, (label, _span) in SPANS.items()],
            **more,
        )

    @requires("view_queue", "pause_queue")
    def change_state(self, request: HttpRequest) -> HttpResponse:
        queues, action = request.POST.getlist("queue"), request.POST.get("action", "")
        reason, span = request.POST.get("reason", ""), request.POST.get("span", "")
        wrong = "" if queues else _("Tick the queues first.")
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
