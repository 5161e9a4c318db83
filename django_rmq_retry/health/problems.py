"""Finds what is wrong: applies the rules to the facts about queues and database."""

import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from types import MappingProxyType
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_rmq_retry import conf, database_clock
from django_rmq_retry.amqp.declarer import MOVING
from django_rmq_retry.amqp.levels import Gauged, Level
from django_rmq_retry.arguments import plural
from django_rmq_retry.breakers.halts import known_last
from django_rmq_retry.breakers.queue_state import Flow, QueueState
from django_rmq_retry.breakers.table import state_of
from django_rmq_retry.embedded.place import NotRunning
from django_rmq_retry.errors import BrokerRefused, BrokerUnreachable
from django_rmq_retry.handlers import registry
from django_rmq_retry.handlers.layout import homes_of
from django_rmq_retry.health.begun import time_in
from django_rmq_retry.health.facts import (
    MOST_SURVEYED_ITEMS,
    MOST_SURVEYED_MESSAGES,
    ApprovalCounts,
    BlockedCounts,
    LargestCause,
    OverdueRetries,
    ParkedCounts,
    SilentCopies,
    Survey,
)
from django_rmq_retry.health.handled_again import (
    TWICE_REPORTED_FOR,
    HandledAgain,
    handled_at_once,
    named,
)
from django_rmq_retry.health.processes import (
    KILLS_AT_ONCE,
    LIVED,
    LOOP_OVER_AFTER,
    LOOP_OVER_BY,
    MAY_GO_ON_FOR,
    CrashLoop,
    Dead,
    GivenAgain,
    LateHandlers,
    Process,
    ProcessState,
    begun_in_stopped,
    dead_processes,
    late_handlers,
    mark_of,
    queues_read,
    unreplaced,
)
from django_rmq_retry.health.rules import (
    CLOCKS_APART_AFTER,
    HALTED_TOO_LONG,
    LOGIN,
    NEARLY_FULL,
    OUTBOX_OVERDUE_AFTER,
    PARKED_TOO_LONG,
    PARKED_TOO_MANY,
    PAUSED_TOO_LONG,
    PROBE_OVERDUE,
    RUN_IDLE_AFTER,
    STUCK_FOR,
    Code,
    Problem,
    Severity,
)
from django_rmq_retry.messages.texts import one_line
from django_rmq_retry.models import ConsumerProcess, ErrorGroup, GatedAct, ParkedMessage, QueueControl, RequeueRun
from django_rmq_retry.models.boxes import PendingRows
from django_rmq_retry.models.controls import SILENT_AFTER
from django_rmq_retry.models.parked import State
from django_rmq_retry.models.runs import PACED, RunState, RunWait
from django_rmq_retry.parked.checked import mark_of_run
from django_rmq_retry.parked.groups import BURST_TOLD, STILL_GROWS, Lately, grows, has_grown, settled_at
from django_rmq_retry.parked.held_up import in_few_words
from django_rmq_retry.parked.run_steering import resuming
from django_rmq_retry.topology.declarations import QueueDeclaration, Role, work_queue
from django_rmq_retry.topology.plan import Item, Plan, PlanState
from django_rmq_retry.wording import MOST_IN_A_TEXT, duration, listed, minute, number, span

MOST_REQUESTS_NAMED = 3
NEARLY_ALL = 0.8
"""The share of all parked messages from which the page of their largest cause is where to begin."""
USUAL_WAITS = ("", RunWait.LISTING, *PACED, RunWait.CANARY_WAITS, RunWait.OUTCOMES_WAIT)
"""The reasons for which a requeue run waits without a problem."""
DIED_TOGETHER = timedelta(hours=1)
"""If no consumer is alive, those are named that died within this time before the last one, not those of last week."""
RESTARTED_WITHIN = timedelta(seconds=40)
"""For so long after the last death of a crash loop the next process is awaited: a supervisor takes half a minute."""
ENDED_AS: Mapping[State, Any] = {
    State.DISCARDED: gettext_lazy("discarded"),
    State.PROCESSED: gettext_lazy("processed"),
    State.REQUEUEING: gettext_lazy("requeued"),
    State.REQUEUED: gettext_lazy("requeued"),
}
NO_API = gettext_lazy('Unacked messages and rates are shown only with RMQ_RETRY["OPERATORS"]["MANAGEMENT_URL"].')


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits that a command may set; None turns a rule off."""

    min_consumers: int = 0
    max_ready: int | None = None
    max_parked: int | None = None
    """The limit that a command has set; without one, ``PARKED_TOO_MANY`` holds."""
    parked_age: timedelta | None = PARKED_TOO_LONG
    outbox_age: timedelta = OUTBOX_OVERDUE_AFTER
    halted_age: timedelta | None = HALTED_TOO_LONG


def excused(states: Iterable[QueueState], now: float) -> frozenset[str]:
    """Return the queues that need no consumer: paused ones, and those whose breaker is probed in time."""
    late = PROBE_OVERDUE.total_seconds()
    return frozenset(
        one.queue for one in states if one.state(now) is Flow.PAUSED or (one.circuit.opened and one.overdue(now) < late)
    )


def without_need(
    levels: Iterable[Level], states: Iterable[QueueState], now: float, read: Callable[[], frozenset[str]]
) -> frozenset[str]:
    """Return the same, and those that ``read`` knows to have a consumer, of which the broker has not told yet."""
    known = list(states)
    unread = {one.queue for one in levels if one.role is Role.WORK and one.consumers == 0}
    unread -= {one.queue for one in known if one.state(now) is not Flow.FLOWING}
    return excused(known, now) | (unread & read() if unread else frozenset())


def blind(gauged: Gauged) -> object:
    """Return why unacked messages and rates are unknown, in the reader's language; empty if they are known."""
    return gauged.api_error or ("" if gauged.api_set else NO_API)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    level: Level
    problems: tuple[Problem, ...]

    @property
    def errors(self) -> list[Problem]:
        """Those that its row in a table shows as problems."""
        return [one for one in self.problems if one.rule.row and one.severity is Severity.ERROR]

    @property
    def milder(self) -> Problem | None:
        """What its row shows if there is no error."""
        return next((one for one in self.problems if one.rule.row and one.severity is not Severity.ERROR), None)

    def of(self, code: Code) -> bool:
        return any(one.code is code for one in self.problems)

    @property
    def remark(self) -> str:
        return self.milder.row if self.milder else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Queues:
    """All queues at once: whether one is in trouble depends on others too."""

    levels: Sequence[Level]
    excused: Collection[str] = ()
    limits: Limits = Limits()
    vhost: str = "/"
    late: Mapping[str, LateHandlers] = field(default_factory=dict)
    parked: Mapping[str, int] = field(default_factory=dict)
    """The parked messages by the queue to which a requeue returns them."""
    stops_known: bool = True
    """False while the database does not tell which queues are stopped, so that no consumer may be needed."""

    def judged(self) -> list[Judged]:
        return [Judged(level=level, problems=tuple(self._of(level))) for level in self.levels]

    def _of(self, level: Level) -> Iterator[Problem]:
        problem = partial(Problem, subject=level.queue, count=level.ready or 0)
        if level.refusal:
            yield problem(code=Code.UNREADABLE, values={"reason": level.refusal})
            return
        if level.abandoned:
            yield self._of_abandoned(level, problem)
            return
        if level.missing and level.existing:
            values = {"title": f"Queue {level.queue!r}", "reason": "It is external (existing=True) and does not exist."}
            yield problem(code=Code.EXTERNAL_MISSING, values=values)
        elif level.missing:
            yield problem(code=Code.MISSING)
        elif level.ready is not None:
            yield from self._of_present(level, problem)
        if level.queue in self.late:
            yield from in_late({level.queue: self.late[level.queue]})
        if level.moving is not None:
            command = f"manage.py rmq_declare --recreate {level.queue}"
            yield problem(code=Code.INTERRUPTED, count=level.moving, values={"command": command})

    def _of_present(self, level: Level, problem: Callable[..., Problem]) -> Iterator[Problem]:
        consumers = level.consumers or 0
        needs = level.role is Role.WORK and level.queue not in self.excused
        if needs and not consumers and not self.stops_known:
            yield problem(code=Code.PERHAPS_STOPPED)
            needs = False
        elif self._is_unread(level):
            which = f" {shlex.quote(level.queue)}" if level.role is Role.WORK else ""
            yield problem(code=Code.NO_CONSUMER, values={"which": which, "waiting": waiting_text(level.ready or 0)})
        least = self.limits.min_consumers
        if needs and consumers < least:
            yield problem(code=Code.FEW_CONSUMERS, count=consumers, values={"least": least})
        if level.role is Role.WAITING and consumers:
            yield problem(code=Code.TOO_EARLY, values={"vhost": shlex.quote(self.vhost)})
        most = level.arguments.get("x-max-length")
        if isinstance(most, int) and (level.ready or 0) >= most:
            yield problem(code=Code.FULL)
        if level.dead_letters:
            yield problem(code=Code.DEAD_LETTERS, count=level.dead_letters)
        # Another program reads it, perhaps not at this moment.
        if level.role is Role.OTHER and level.ready and not consumers and "x-message-ttl" not in level.arguments:
            yield problem(code=Code.UNREAD)
        if needs:
            yield from self._of_work(level, problem)
        if level.role is Role.PARKED and level.ready and not consumers and conf.settings().records:
            yield problem(code=Code.NOT_RECORDED)

    def _of_work(self, level: Level, problem: Callable[..., Problem]) -> Iterator[Problem]:
        ready, consumers, most = level.ready or 0, level.consumers or 0, self.limits.max_ready
        if not consumers and level.unacked:
            unacked = ngettext("%(number)s unacked message", "%(number)s unacked messages", level.unacked)
            unacked %= {"number": number(level.unacked)}
            yield problem(code=Code.HELD, values={"vhost": shlex.quote(self.vhost), "unacked": unacked})
        elif not consumers and not ready:
            yield problem(code=Code.IDLE)
        elif consumers and most is not None and ready > most:
            rate = "" if level.leaving is None else f", which take {level.leaving:.1f} messages a second"
            yield problem(code=Code.BACKLOG, values={"consumers": plural(consumers, "consumer"), "rate": rate})

    def _is_unread(self, level: Level) -> bool:
        """Consumers of a work queue also read its quarantine queue, in turn with others."""
        work = work_queue(level.queue) if level.role is Role.QUARANTINE else level.queue
        readers = [one.consumers for one in self.levels if one.queue in (level.queue, work)]
        needs = level.role in (Role.WORK, Role.REPLY, Role.QUARANTINE) and work not in self.excused
        needs = needs and (self.stops_known or level.role is Role.REPLY)
        return bool(needs and level.ready and not any(readers))

    def _of_abandoned(self, level: Level, problem: Callable[..., Problem]) -> Problem:
        if not level.ready and not level.consumers:
            return self._of_empty(level, problem)
        if level.consumers:
            return problem(code=Code.HANDED_OVER)
        # Retries that return to a queue with consumers are handled.
        returns = any(one.queue == level.home and (one.consumers or not one.abandoned) for one in self.levels)
        if returns and level.role is Role.WAITING:
            return problem(code=Code.RETURNING)
        # If other consumers read the home queue, the command refuses to move it; this queue can still be moved.
        moved = level.queue if returns else self._whole(level)
        command = f"manage.py rmq_declare --recreate {moved} --move-to NEW"
        return problem(code=Code.ABANDONED, values={"command": command})

    def _of_empty(self, level: Level, problem: Callable[..., Problem]) -> Problem:
        """Name the command that deletes an abandoned queue, unless messages beside it, or parked ones, need it."""
        whole = self._whole(level)
        beside = [one for one in self.levels if one.abandoned and whole in (one.queue, one.home)]
        held = sum(one.ready or 0 for one in beside)
        parked = self.parked.get(whole, 0)
        if parked:
            text = ngettext(
                "%(number)s parked message belongs to %(whole)s: first edit, move or discard it",
                "%(number)s parked messages belong to %(whole)s: first edit, move or discard them",
                parked,
            )
            rest = text % {"number": number(parked), "whole": whole}
        elif any(one.consumers for one in beside):
            rest = _("others still read queue %(whole)s") % {"whole": whole}
        elif held:
            text = ngettext(
                "first move the %(number)s message of %(whole)s: %(command)s",
                "first move the %(number)s messages of %(whole)s: %(command)s",
                held,
            )
            command = f"manage.py rmq_declare --recreate {whole} --move-to NEW"
            rest = text % {"number": number(held), "whole": whole, "command": command}
        else:
            return problem(code=Code.EMPTY, values={"command": f"manage.py rmq_delete {whole}"})
        return problem(code=Code.EMPTY_KEPT, values={"rest": rest})

    def _whole(self, level: Level) -> str:
        """Return the queue with which an abandoned queue is deleted or moved."""
        known = any(one.abandoned and one.queue == level.home for one in self.levels)
        return level.home if known else level.queue


def in_plan(plan: Plan) -> Iterator[Problem]:
    """Yield what differs between the code and the broker."""
    for item in plan.of(PlanState.CREATE):
        yield Problem(code=Code.DEFINITION_MISSING, subject=f"{item.kind} {item.name}")
    for item in plan.of(PlanState.DIFFERS, PlanState.MISSING, PlanState.REFUSED, PlanState.LEFT):
        yield _drifted(item)


def _drifted(item: Item) -> Problem:
    if item.state is PlanState.LEFT:
        return Problem(code=Code.MOVE_LEFT, subject=item.name.removesuffix(MOVING), values={"aside": item.name})
    declaration = item.declaration
    repair = (
        "rmq_declare does not change it, because another program may own it: define it as the broker has it, with "
        "existing=True if one does, or rename it."
    )
    if getattr(declaration, "existing", False):
        repair = "Define it as the broker has it, or ask its owner to change it."
    elif isinstance(declaration, QueueDeclaration):
        command = f"manage.py rmq_declare --recreate {shlex.quote(item.name)}"
        repair = f"Stop its consumers and publishers, then run {command}"
    codes = {
        PlanState.DIFFERS: Code.DIFFERS,
        PlanState.MISSING: Code.EXTERNAL_MISSING,
        PlanState.REFUSED: Code.NOT_DECLARABLE,
    }
    values = {
        "title": f"{item.kind.capitalize()} {item.name!r}",
        "reason": item.text,
        "sentence": " ".join(item.text.split()).removesuffix("."),
        "repair": repair,
    }
    return Problem(code=codes[item.state], subject=f"{item.kind} {item.name}", values=values)


def in_survey(survey: Survey, limits: Limits, levels: Sequence[Level] = ()) -> Iterator[Problem]:
    """Yield what the survey of the database shows; ``levels`` tell what waits in each queue, as far as it is known."""
    now, read = survey.at, queues_read(survey.processes, survey.at)
    yield from _in_clocks(survey)
    yield from in_outbox(survey.outbox, now, limits) if survey.outbox_answers else [Problem(code=Code.OUTBOX_AWAY)]
    of_runs = list(in_runs(survey.runs, now, survey.elsewhere, survey.held, survey.paused_by))
    yield from _in_parked(survey, limits, troubled={one.subject for one in of_runs})
    yield from _in_silent(survey.silent, now)
    yield from in_stopped(survey.stopped, now, read, survey.given_again, levels)
    yield from in_halts(survey.halted, now, limits, levels)
    yield from in_blocked(survey.blocked)
    yield from _in_approvals(survey.approvals, now)
    yield from in_processes(
        survey.processes, now, survey.overtaken, survey.killers, dead=survey.dead, checked=survey.checked
    )
    yield from of_runs
    if survey.anyway.count:
        anyway = survey.anyway
        values = {"number": number(anyway.count)}
        yield Problem(
            code=Code.HANDLED_ANYWAY,
            subject=str(anyway.last),
            count=anyway.count,
            since=anyway.at,
            values=values,
            doubts=anyway.doubts,
        )
    yield from in_given_again(survey.given_again, survey.processes, now, levels, survey.stopped)
    yield from _in_handled_again([one for one in survey.handled_again if one.mark not in survey.checked], now)
    for run in survey.twice:
        digest = mark_of_run(run)
        if digest in survey.checked:
            continue
        code, count = Code.HANDLED_TWICE, run.handled_twice
        if not count:
            code, count = Code.RUN_PERHAPS_TWICE, run.perhaps_twice
        values = {"number": number(count), "names": _with_names(survey.twice_names.get(run.pk, ()), count)}
        stays = _("This stays here until a day after the run has ended.")
        if run.finished_at:
            stays = _("This stays here until %(time)s.") % {"time": minute(run.finished_at + TWICE_REPORTED_FOR)}
        yield Problem(code=code, subject=str(run.pk), count=count, values=values, stays=stays, doubts={digest: run})


def _with_names(names: Sequence[str], count: int) -> str:
    """Return the first names of so many messages behind a colon; empty if none is known."""
    first, more = ", ".join(names), count - len(names)
    shown = _("%(names)s and %(count)d more") % {"names": first, "count": more} if more > 0 else first
    return f": {shown}" if names else ""


def in_given_again(
    given: Mapping[str, GivenAgain],
    rows: Sequence[ConsumerProcess],
    now: datetime,
    levels: Sequence[Level],
    stopped: Iterable[QueueControl],
) -> Iterator[Problem]:
    """Yield what of lost consumers others handle again, and may handle; what waits in a stopped queue is told there."""
    waits = {one.queue for one in stopped}
    living = [row for row in rows if row.living(now)]
    for queue, one in given.items():
        waiting = () if queue in waits or _is_empty(queue, living, levels) else one.waiting
        told = replace(one, waiting=waiting)
        if told.count:
            yield Problem(code=Code.GIVEN_AGAIN, subject=queue, count=told.count, values=_given_again(queue, told))


def _is_empty(queue: str, living: Iterable[ConsumerProcess], levels: Iterable[Level]) -> bool:
    """Return True if nothing waits in a queue, or in a consumer of it, as far as that is known."""
    roles = (Role.WORK, Role.QUARANTINE)
    ready = [level.ready for level in levels if level.role in roles and work_queue(level.queue) == queue]
    waits = any(row.waiting for row in living if queue in row.queues)
    return 0 in ready and not (waits or any(ready))


def _given_again(queue: str, one: GivenAgain) -> dict[str, object]:
    now = ngettext(
        "%(number)s message is being handled again: %(names)s.",
        "%(number)s messages are being handled again: %(names)s.",
        len(one.begun),
    )
    perhaps = ngettext(
        "%(number)s message in a handler may have been begun by a lost consumer before: %(names)s.",
        "%(number)s messages in handlers may have been begun by a lost consumer before: %(names)s.",
        len(one.perhaps),
    )
    waiting = ngettext(
        "%(number)s message was in a handler when its consumer was heard of last, and may be handled again: %(names)s.",
        "%(number)s messages were in handlers when their consumer was heard of last, and may be handled again: "
        "%(names)s.",
        len(one.waiting),
    )
    # What nobody has begun again can still be kept from it.
    told = ((waiting, one.waiting), (now, one.begun), (perhaps, one.perhaps))
    said = [text % {"number": number(len(names)), "names": listed(names)} for text, names in told if names]
    advice, pause = _("The work may be done already."), ""
    if one.waiting:
        advice = _("The work may be done already, and that of others begun since: pause the queue until you know.")
        pause = f"; manage.py rmq_queue pause {shlex.quote(queue)} keeps what waits from being handled"
    return {"said": said[0], "advice": " ".join([*said[1:], advice]), "pause": pause}


def _in_handled_again(known: Sequence[HandledAgain], now: datetime) -> Iterator[Problem]:
    """Yield what was handled twice, and what perhaps was: what a lost consumer had begun comes before the rest."""
    yield from in_still(known)
    certain = [one for one in known if one.certain]
    begun = [one for one in known if (one.begun_by or one.still) and not one.certain]
    others = [one for one in known if not (one.begun_by or one.still or one.certain)]
    if certain:
        yield _handled_again(Code.DONE_TWICE, certain, now)
    if begun or others:
        yield _handled_again(Code.PERHAPS_TWICE, begun or others, now, others if begun else ())


def still_at_it(known: Iterable[HandledAgain], rows: Sequence[ConsumerProcess], now: datetime) -> list[Problem]:
    """Return the same of these processes; one query if there is such a message."""
    again = [one for one in known if one.still]
    return list(in_still(named(again, rows, now))) if again else []


def in_still(known: Iterable[HandledAgain]) -> Iterator[Problem]:
    """Yield what living processes have in a handler yet, and others have handled meanwhile."""
    still = [one for one in known if one.still]
    if still:
        each = [f"{one.name} ({listed(map(str, one.still))})" for one in still]
        values: dict[str, object] = {"number": number(len(still)), "names": listed(each)}
        yield Problem(code=Code.STILL_AT_IT, subject=still[0].name, count=len(still), values=values)


def _handled_again(
    code: Code, some: Sequence[HandledAgain], now: datetime, others: Sequence[HandledAgain] = ()
) -> Problem:
    every = [*some, *others]
    last, first = max(one.at for one in every), ""
    if others:
        text = ngettext(
            "%(counter)s of them was in a handler when its consumer was heard of last: check it first.",
            "%(counter)s of them were in a handler when their consumer was heard of last: check these first.",
            len(some),
        )
        first = text % {"counter": number(len(some))}
    lost, most = handled_at_once(every) if code is Code.PERHAPS_TWICE else (0, None)
    if most is not None and most < len(every):
        text = ngettext(
            "Their consumer handled at most %(most)s at once.",
            "Their consumers handled at most %(most)s at once.",
            lost,
        )
        first = " ".join(filter(None, (first, text % {"most": number(most)})))
    stays = _("This stays here until %(time)s.") % {"time": minute(last + TWICE_REPORTED_FOR)}
    return Problem(
        code=code,
        subject=every[0].name,
        count=len(every),
        since=last,
        values={"number": number(len(every)), "span": span(now - last), "names": listed(one.name for one in every)},
        stays=" ".join(filter(None, (first, stays))),
        doubts={one.mark: one for one in every},
    )


def _in_clocks(survey: Survey) -> Iterator[Problem]:
    apart = abs(survey.apart)
    if apart > CLOCKS_APART_AFTER:
        yield Problem(
            code=Code.CLOCKS_WRONG if apart > database_clock.CLOCK_TOLERANCE else Code.CLOCKS_APART,
            subject=survey.alias,
            values={"difference": _difference(survey)},
        )


def _difference(survey: Survey) -> str:
    text = _("The clock of this host is %(span)s ahead of the clock of database %(alias)r.")
    if survey.apart > timedelta():
        text = _("The clock of this host is %(span)s behind the clock of database %(alias)r.")
    return text % {"span": span(abs(survey.apart)), "alias": survey.alias}


def _in_approvals(known: ApprovalCounts, now: datetime) -> Iterator[Problem]:
    if known.oldest is not None:
        yield Problem(
            code=Code.APPROVAL_WAITS,
            subject="" if known.only is None else str(known.only),
            count=known.count,
            since=known.oldest,
            values={"span": span(now - known.oldest)},
        )


def in_outbox(outbox: PendingRows, now: datetime, limits: Limits) -> Iterator[Problem]:
    """Yield failed messages of the outbox, and overdue or refused ones."""
    if outbox.failed:
        words = {"reason": _refused(outbox)}
        yield Problem(code=Code.OUTBOX_FAILED, count=outbox.failed, since=outbox.failed_since, values=words)
    to = _sent_to(outbox.answer_exchange, outbox.answer_key)
    values: dict[str, object] = {"answer": outbox.answer.strip().removesuffix("."), "to": to}
    if outbox.oldest is not None and now - outbox.oldest > limits.outbox_age:
        values |= _waited(now - outbox.oldest, limits.outbox_age)
        code = Code.OUTBOX_REFUSED if outbox.answer else Code.OUTBOX_OVERDUE
        yield Problem(code=code, count=outbox.waiting - outbox.behind, since=outbox.oldest, values=values)
    elif outbox.refused:
        # No later attempt is likely to end otherwise: whoever can mend it has to know now, not when it is overdue.
        yield Problem(code=Code.OUTBOX_NOT_TAKEN, count=outbox.refused, values=values)


def _sent_to(exchange: str, key: str) -> str:
    text = _("exchange %(exchange)r with routing key %(key)r") if exchange else _("queue %(key)r")
    return text % {"exchange": exchange, "key": key}


def _refused(outbox: PendingRows) -> str:
    """Return which message of the outbox failed first, where to, and why."""
    values = {
        "message": outbox.failed_first,
        "to": _sent_to(outbox.failed_exchange, outbox.failed_key),
        "answer": outbox.failed_answer.strip().removesuffix("."),
    }
    if outbox.untaken < outbox.failed:
        text = ngettext(
            "The broker did not take %(message)s to %(to)s: %(answer)s. It waits until somebody sends it again or "
            "discards it.",
            "The broker did not take the oldest of them, %(message)s to %(to)s: %(answer)s. They wait until somebody "
            "sends them again or discards them.",
            outbox.failed,
        )
    else:
        text = ngettext(
            "No queue took %(message)s to %(to)s (%(answer)s). It waits until somebody sends it again, once its queue "
            "is declared.",
            "No queue took them (%(answer)s), the oldest is %(message)s to %(to)s. They wait until somebody sends them "
            "again, once their queues are declared.",
            outbox.failed,
        )
    behind = ngettext(
        "%(number)s more waits for a failed one with its ordering key.",
        "%(number)s more wait for a failed one with their ordering key.",
        outbox.behind,
    )
    return " ".join([text % values, *([behind % {"number": number(outbox.behind)}] if outbox.behind else [])])


def _in_parked(survey: Survey, limits: Limits, *, troubled: Collection[str] = ()) -> Iterator[Problem]:
    """Yield the parked messages, which need nobody while runs send all of them; ``troubled`` are the runs that do."""
    parked, now, most = survey.parked, survey.at, limits.parked_age
    sending = survey.sending
    if parked.count and parked.oldest is not None:
        at_it = bool(sending) and not any(
            run.state != RunState.RUNNING or run.is_silent(now) or str(run.pk) in troubled for run in sending
        )
        left = max(parked.count - survey.to_send, 0) if at_it else parked.count
        # What a run has sent and failed again is parked anew.
        waits = not at_it or left > sum(run.failed for run in sending)
        late = most is not None and now - parked.oldest > most and waits
        many = limits.max_parked is None and left >= PARKED_TOO_MANY
        only = str(survey.cause.only) if survey.cause and survey.cause.only is not None else ""
        code = Code.PARKED_MANY if many else Code.PARKED_LONG if late else Code.PARKED
        yield Problem(
            code=code if left else Code.PARKED_UNDER_WAY,
            subject=only if left else str(sending[0].pk),
            count=parked.count,
            since=parked.oldest,
            causes=survey.causes,
            values={
                **_waited(now - parked.oldest, most or PARKED_TOO_LONG),
                "cause": _handled_already(survey.parked) + (_caused(survey) if left else _titled(survey)),
                "sent": f" {_at_it(survey, left)}" if at_it else "",
                "details": _details(survey, parked.oldest, at_it=at_it),
                "runs": [str(run.pk) for run in _runs_beside(survey, at_it=at_it) if left or run not in sending],
                "request": str(survey.approvals.of_parked[0][0].pk) if survey.approvals.of_parked else "",
                "others": survey.cause.others if survey.cause else 0,
                "mixed": bool(left) and _is_mixed(survey.cause, parked.count),
                "command": _next_look(survey),
                "many": PARKED_TOO_MANY,
            },
        )


def _runs_beside(survey: Survey, *, at_it: bool) -> list[RequeueRun]:
    """Return the runs whose pages are linked, in the order in which the sentences name them."""
    sending, stopped = survey.sending[:1], [one.run for one in survey.left_behind[:1]]
    paused = [run for run, _count in _paused_with(survey)[-MOST_IN_A_TEXT:][:1]]
    return ([*sending, *stopped, *paused] if at_it else [*stopped, *sending, *paused])[:2]


def _is_mixed(cause: LargestCause | None, parked: int) -> bool:
    """Return True if several causes have to be worked on: no single one has nearly all of what is parked."""
    return bool(cause and cause.others and cause.count < parked * NEARLY_ALL)


def _next_look(survey: Survey) -> str:
    """Return the command that shows what can be done: a preview if there is one cause that a requeue may cure."""
    cause = survey.cause
    paused = [run for run, _count in _paused_with(survey)]
    if paused or survey.to_send >= survey.parked.count:
        # A second run would leave out what the first one has, and what made that one pause would fail in it, too.
        return f"manage.py rmq_parked requeue-run {[*survey.sending, *paused][-1].pk}"
    if cause is None or cause.only is None or cause.others:
        return "manage.py rmq_parked groups"
    if cause.permanent or cause.perhaps_done:
        return f"manage.py rmq_parked list --group {cause.only}"
    return f"manage.py rmq_parked requeue --group {cause.only} --dry-run"


def _in_silent(silent: SilentCopies, now: datetime) -> Iterator[Problem]:
    if silent.count and silent.oldest is not None:
        shown = f"{number(MOST_SURVEYED_MESSAGES)}+" if silent.count > MOST_SURVEYED_MESSAGES else number(silent.count)
        values = {"number": shown, "span": span(now - silent.oldest)}
        count = min(silent.count, MOST_SURVEYED_MESSAGES)
        yield Problem(code=Code.NO_OUTCOME, count=count, since=silent.oldest, values=values)


def _handled_already(parked: ParkedCounts) -> str:
    """Return how many parked messages need nothing more, because a copy of each was handled; empty if none."""
    if not parked.handled:
        return ""
    if parked.handled >= parked.count:
        return _(", all handled already")
    return _(", %(number)s of them handled already") % {"number": number(parked.handled)}


def _caused(survey: Survey) -> str:
    """Return the cause that is named and its new failures, short enough for the first line of a page."""
    cause = survey.cause
    if cause is None:
        return ""
    settled = settled_at(cause.last_handled, (run for run in survey.runs if not run.retries_of))
    grown = growth(
        cause.newest,
        cause.newest_since,
        last_new=cause.last_new,
        again_at=cause.again_at,
        last_seen=cause.last_seen,
        now=survey.at,
        parked=cause.count,
        settled=settled,
    )
    second, its, _queues = cause.second or ("", 0, {})
    rest = survey.parked.count - cause.count - its
    also = f"; {number(its)} {second}" if second else ""
    others = ngettext("; %(number)s other", "; %(number)s others", rest) if cause.others and rest > 0 else ""
    ago = survey.at - cause.others_seen if cause.others_seen else STILL_GROWS
    # The named one is the largest, but may be quiet while the others fail.
    lately = (also or others) and ago < STILL_GROWS <= survey.at - cause.last_seen
    others = others % {"number": number(rest)} if others else ""
    if lately:
        others += ", " + _("the last %(span)s ago") % {"span": span(max(ago, timedelta()))}
    return f"{_titled(survey)}, {grown}{also}{others}"


def _titled(survey: Survey) -> str:
    """Return the cause that is named, with its number if there are others; empty if none is known."""
    cause = survey.cause
    return "" if cause is None else f": {number(cause.count)} {cause.title}" if cause.others else f": {cause.title}"


def _perhaps_handled(survey: Survey) -> list[str]:
    """Return those that cost most if they are handled again, however few they are."""
    if not survey.by_dead_workers:
        return []
    count, most = len(survey.by_dead_workers), MOST_SURVEYED_MESSAGES
    text = ngettext(
        "%(number)s of them may have been handled, because its worker died: %(names)s.",
        "%(number)s of them may have been handled, because their worker died: %(names)s.",
        count,
    )
    shown = f"{number(most)}+" if count > most else number(count)
    return [text % {"number": shown, "names": listed(map(str, survey.by_dead_workers))}]


def _details(survey: Survey, oldest: datetime, *, at_it: bool) -> str:
    """Return what else is known of the parked messages, each as a sentence."""
    found = _perhaps_handled(survey)
    found += [_places(survey.cause)] if survey.cause else []
    found += [one.sentence_of_all for one in survey.left_behind[:MOST_IN_A_TEXT]]
    if edited := survey.parked.edited:
        text = ngettext("%(number)s is edited and not sent.", "%(number)s are edited and not sent.", edited)
        found.append(text % {"number": number(edited)})
    found.append(_("The oldest %(span)s ago.") % {"span": span(survey.at - oldest)})
    asked = _asked_for(survey.approvals)
    sent = "" if at_it else _sent_by(survey)
    return " ".join(filter(None, (*found, sent, *_held_by(survey), *asked, _behind(survey.blocked))))


def _places(cause: LargestCause) -> str:
    """Return the queues of the causes that are named, and the number of the other error groups."""
    places = _counted_places(cause.places)
    if not cause.others:
        return _("In %(places)s.") % {"places": places}
    if cause.others == 1 and cause.second:
        second, _its, queues = cause.second
        return f"{cause.title}: {places}. {second}: {_counted_places(queues)}."
    rest = ngettext(
        "The rest in %(count)d other error group.", "The rest in %(count)d other error groups.", cause.others
    )
    return f"{cause.title}: {places}. {rest % {'count': cause.others}}"


def _counted_places(places: Mapping[str, int]) -> str:
    return ", ".join(f"{queue} {number(count)}" for queue, count in places.items())


def _behind(blocked: BlockedCounts) -> str:
    """Return a sentence on the messages that wait behind blocked keys; empty if none does."""
    if not blocked.messages:
        return ""
    text = ngettext(
        "%(number)s more waits behind blocked keys.", "%(number)s more wait behind blocked keys.", blocked.messages
    )
    return text % {"number": number(blocked.messages)}


def _at_it(survey: Survey, left: int) -> str:
    """Return a sentence on the runs that are to send parked messages, and on how many of these nobody sends."""
    runs = survey.sending
    waiting = [run for run in runs if run.nothing_sent_since(survey.at)]
    if waiting:
        return _waits(survey) if waiting == runs else _sent_by(survey)
    text = ngettext(
        "Requeue run %(runs)s by %(who)s is sending %(number)s of them; nobody sends the other %(left)s.",
        "Requeue runs %(runs)s by %(who)s are sending %(number)s of them; nobody sends the other %(left)s.",
        len(runs),
    )
    if not left:
        text = ngettext(
            "Requeue run %(runs)s by %(who)s is sending them: %(sent)s of %(total)s sent.",
            "Requeue runs %(runs)s by %(who)s are sending them: %(sent)s of %(total)s sent.",
            len(runs),
        )
    counts = {"number": survey.to_send, "left": left}
    counts |= {"sent": sum(run.sent for run in runs), "total": sum(run.total for run in runs)}
    return text % {**_named_runs(runs), **{name: number(count) for name, count in counts.items()}}


def _waits(survey: Survey) -> str:
    """Return a sentence on runs of which each waits, and for what."""
    runs = survey.sending
    text = ngettext(
        "Requeue run %(runs)s waits with %(number)s of them%(because)s.",
        "Requeue runs %(runs)s wait with %(number)s of them%(because)s.",
        len(runs),
    )
    why = listed(dict.fromkeys(filter(None, (_why_it_waits(run, survey.held).removesuffix(".") for run in runs))))
    return text % {**_named_runs(runs), "number": number(survey.to_send), "because": f": {why}" if why else ""}


def _why_it_waits(run: RequeueRun, held: Mapping[int, Sequence[QueueState]]) -> str:
    """Return what a run waits for: a stopped queue rather than what follows from it."""
    return in_few_words(held.get(run.pk, ())) or run.explanation


def _named_runs(runs: Sequence[RequeueRun]) -> dict[str, object]:
    return {"runs": listed(str(run.pk) for run in runs), "who": listed(dict.fromkeys(run.who for run in runs))}


def _sent_by(survey: Survey) -> str:
    """Return a sentence on the runs that are to send parked messages; empty if none is."""
    runs = survey.sending
    if not runs:
        return ""
    text = ngettext(
        "Requeue run %(runs)s is to send %(number)s of them.",
        "Requeue runs %(runs)s are to send %(number)s of them.",
        len(runs),
    )
    return text % {**_named_runs(runs), "number": number(survey.to_send)}


def _paused_with(survey: Survey) -> list[tuple[RequeueRun, int]]:
    """Return the paused runs, each with the parked messages that it has not sent, if these can be told."""
    paused = [run for run in survey.runs if run.state == RunState.PAUSED and not run.retries_of]
    counts = [(run, run.unsent - survey.elsewhere.get(run.pk, 0)) for run in paused]
    most = survey.parked.count
    told = [one for one in counts if survey.elsewhere.get(one[0].pk, 0) < MOST_SURVEYED_ITEMS]
    return [(run, min(count, most)) for run, count in told if count > 0]


def _held_by(survey: Survey) -> Iterator[str]:
    """Yield a sentence on each of the latest paused runs that have parked messages still to send."""
    for run, count in _paused_with(survey)[-MOST_IN_A_TEXT:]:
        text = ngettext(
            "Requeue run %(run)s is paused with %(number)s of them.",
            "Requeue run %(run)s is paused with %(number)s of them.",
            count,
        )
        yield text % {"run": run.pk, "number": number(count)}


def _asked_for(known: ApprovalCounts) -> Iterator[str]:
    """Yield a sentence on each of the oldest requests for acts on parked messages: these wait for a second person."""
    for request, count in known.of_parked[:MOST_REQUESTS_NAMED]:
        discards = request.act == GatedAct.DISCARD
        text = _("%(request)s is to requeue %(number)s of them.")
        if discards:
            text = _("%(request)s is to discard %(number)s of them.")
        if count != request.count:
            # A number here would be neither the one that was asked for, nor the one that its page says is left.
            text = _("%(request)s is to requeue some of them.")
            if discards:
                text = _("%(request)s is to discard some of them.")
        yield text % {"request": request, "number": number(count)}


def growth(
    newest: int,
    since: datetime | None,
    *,
    last_new: datetime,
    now: datetime,
    again_at: datetime | None = None,
    last_seen: datetime | None = None,
    parked: int | None = None,
    settled: datetime | None = None,
) -> str:
    """Say if more messages fail, as far as it is known: that none fails now may also mean that none is attempted.

    ``newest`` is the number of new messages of the last burst, which began ``since`` then; ``again_at`` is when one of
    the messages failed last that was requeued and is parked again. If fewer are ``parked``, some of the burst were
    decided on: its number, which is larger than the one of the messages that wait, would be no news. New failures
    before it was ``settled`` are none. If the last failure was not one of a new message, ``last_seen`` is its time.
    """
    if grows(newest, last_new, now, settled=settled):
        return _("growing")
    if again_at is not None:
        return _("failed again %(span)s ago") % {"span": span(max(now - again_at, timedelta()))}
    quiet = max(now - last_new, timedelta())
    if quiet < STILL_GROWS:
        return _("the last %(span)s ago") % {"span": span(quiet)}
    if last_seen is not None and last_seen > last_new:
        return _("no failure for %(span)s") % {"span": span(max(now - last_seen, timedelta()))}
    all_parked = parked is None or parked >= newest
    if since is not None and has_grown(newest) and all_parked and quiet < BURST_TOLD:
        text = _("+%(number)s new since %(time)s, none for %(span)s")
        return text % {"number": number(newest), "time": minute(since), "span": span(quiet)}
    return _("no new failure for %(span)s") % {"span": span(quiet)}


def _waited(waited: timedelta, most: timedelta) -> dict[str, object]:
    seconds = {"seconds": waited.total_seconds(), "limit": most.total_seconds()}
    return {"span": span(waited), "most": span(most), **seconds}


def waiting_text(ready: int) -> str:
    """Return a sentence on what waits in a queue, with a space before it; empty if nothing is known to."""
    if not ready:
        return ""
    return " " + ngettext("%(number)s message waits.", "%(number)s messages wait.", ready) % {"number": number(ready)}


def in_stopped(
    stopped: Iterable[QueueControl],
    now: datetime,
    read: Collection[str] | None,
    given: Mapping[str, GivenAgain],
    levels: Sequence[Level],
) -> Iterator[Problem]:
    """Yield the queues that a pause or a breaker stops, with what of lost consumers waits there; ``read`` are those
    with a consumer."""
    ready = {level.queue: level.ready for level in levels if level.ready}
    for control in stopped:
        known = given.get(control.queue)
        begun = begun_in_stopped(known.waiting) if known else ""
        is_read = read is None or control.queue in read
        yield _stopped(control, now, ready=ready.get(control.queue, 0), read=is_read, begun=begun)


def _stopped(control: QueueControl, now: datetime, *, ready: int, read: bool, begun: str) -> Problem:
    if control.opened:
        lasted = now - control.opened_at if control.opened_at else timedelta()
        because, cause = (f": {text}" if text else "" for text in (control.cause, control.cause.removesuffix(".")))
        values = {
            "span": span(lasted),
            "because": because,
            "cause": cause,
            "waiting": waiting_text(ready),
            "probe": " ".join(filter(None, (state_of(control).next_probe(now.timestamp(), read=read), begun))),
            "begun": begun,
        }
        return Problem(code=Code.BREAKER_OPEN, subject=control.queue, since=control.opened_at, values=values)
    by = " " + _("by %(name)s") % {"name": control.by} if control.by else ""
    reason = f": {control.reason.removesuffix('.')}" if control.reason else ""
    lasted = now - control.since if control.since else timedelta()
    ends = _("Its messages wait until it is resumed.")
    if control.until is not None:
        ends = _("Its messages wait. It resumes automatically at %(time)s.") % {"time": minute(control.until)}
    return Problem(
        code=Code.PAUSED_LONG if lasted > PAUSED_TOO_LONG else Code.PAUSED,
        subject=control.queue,
        since=control.since,
        values={
            "span": span(lasted),
            "by": f"{by}{reason}",
            "ends": " ".join(filter(None, (ends, begun))),
            "once": "once you know that, " if begun else "",
            "begun": begun,
            "most": span(PAUSED_TOO_LONG),
        },
    )


def in_halts(
    halted: Iterable[QueueControl], now: datetime, limits: Limits, levels: Sequence[Level] = ()
) -> Iterator[Problem]:
    """Yield the halts, but for those that no consumer reports now of queues that hold no message any more."""
    ready = {level.queue: level.ready or 0 for level in levels}
    empty = {level.queue for level in levels if _holds_nothing(level)}
    for control in halted:
        if not (control.queue in empty and known_last(control, now)):
            yield _halted(control, now, limits, ready.get(control.queue, 0))


def _holds_nothing(level: Level) -> bool:
    """Return True if it is known that neither the queue nor a consumer has a message of it."""
    in_handlers = level.consumers if level.unacked is None else level.unacked
    return level.ready == 0 and not in_handlers


def _halted(control: QueueControl, now: datetime, limits: Limits, ready: int) -> Problem:
    lasted, most = now - control.halted_at if control.halted_at else timedelta(), limits.halted_age
    error, first = control.halted_error, control.halted_key or control.halted_message
    cause = error.removesuffix(".")
    values: dict[str, object] = {"error": error, "cause": cause, "waiting": waiting_text(ready)}
    values |= {"attempt": control.halted_attempt, "first": first, "named": f" ({first})" if first else ""}
    return Problem(
        code=Code.HALTED_LONG if most is not None and lasted > most else Code.HALTED,
        subject=control.queue,
        since=control.halted_at,
        as_of=known_last(control, now),
        values={**values, **_waited(lasted, most or HALTED_TOO_LONG)},
    )


def in_blocked(blocked: BlockedCounts) -> Iterator[Problem]:
    settings = conf.settings()
    for setting, count, limit, where in (
        ("BLOCKED_TOTAL", blocked.messages, settings.blocked_total, _("behind blocked keys")),
        ("BLOCKED_PER_KEY", blocked.most, settings.blocked_per_key, _("behind one key")),
    ):
        if count >= limit * NEARLY_FULL:
            yield Problem(
                code=Code.BLOCKED_FULL if count >= limit else Code.BLOCKED_NEAR,
                count=count,
                since=blocked.oldest,
                values={"setting": setting, "limit": number(limit), "where": where},
            )


def in_processes(
    rows: Iterable[ConsumerProcess],
    now: datetime,
    overtaken: Sequence[Process] = (),
    suspects: Sequence[ParkedMessage] = (),
    *,
    dead: Iterable[Dead] | None = None,
    checked: Collection[str] = (),
) -> Iterator[Problem]:
    """Yield what heartbeats show: vanished and disconnected processes, and different versions.

    Those ``overtaken`` may be frozen with messages that others got since. The ``suspects`` are parked because their
    workers died. The ``dead`` are those of the rows, if they are known already. Of a crash loop that was ``checked``
    only later deaths are told.
    """
    known = sorted(rows, key=lambda row: (row.host, row.pid))
    # The one that has just fallen silent may hang: it is not named behind those that died an hour ago.
    dead = sorted(dead_processes(known, now) if dead is None else dead, key=lambda one: one.row.beat_at, reverse=True)
    told = {id(one.row) for one in overtaken}
    gone = [one.row for one in dead if one.state is ProcessState.VANISHED and one.loop is None]
    living = [row for row in known if row.living(now)]
    heard = [row for row in living if not row.silent(now)]
    loops = crash_loops(dead, now, heard, suspects, checked)
    yield from (one.problem for one in loops)
    looping = {id(row) for one in loops for row in one.dead}
    gone = [row for row in (*gone, *died_after_check(dead, loops, checked)) if id(row) not in told | looping]
    if overtaken:
        yield _overtaken(overtaken, now)
    ended, vanished = ([row for row in gone if bool(row.ended_at) is it] for it in (True, False))
    every = len(living) + len(gone) + len(told)
    if ended:
        yield _ended(ended, every, now)
    if vanished:
        yield _vanished(vanished, every, now)
    for what, versions in (
        (_("the project"), Counter(row.deploy for row in living)),
        ("django-rmq-retry", Counter(row.version for row in living)),
    ):
        if len(versions) > 1:
            names = ", ".join(f"{name or 'unknown'} ({count})" for name, count in versions.items())
            yield Problem(code=Code.VERSIONS, count=len(versions), values={"what": what, "names": names})
    stuck = stuck_processes(known, now)
    if stuck:
        since = min(row.stuck_at for row in stuck if row.stuck_at)
        values: dict[str, object] = {"names": listed(map(str, stuck)), "span": span(now - since)}
        yield Problem(code=Code.STUCK, count=len(stuck), since=since, values=values)
    yield from in_late(late_handlers(known, now))
    # One that is not heard of any more may be dead, and one that has just been started has had no time to connect.
    away = [row for row in living if not (row.connected or row.starting or row.silent(now))]
    if away:
        lost = min((row.lost_at for row in away if row.lost_at), default=None)
        lasted = now - (lost or min(row.started_at for row in away))
        all_of_them = not any(row.connected for row in living)
        values = {"names": listed(map(str, away)), "all": all_of_them, "span": span(lasted)}
        yield Problem(code=Code.DISCONNECTED, count=len(away), since=lost, values=values)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldLoop:
    """A crash loop as one problem, and the processes that it counts."""

    problem: Problem
    dead: Sequence[ConsumerProcess]


def crash_loops(
    dead: Iterable[Dead | Process],
    now: datetime,
    heard: Iterable[ConsumerProcess],
    suspects: Sequence[ParkedMessage],
    checked: Collection[str] = (),
) -> list[ToldLoop]:
    """Return the crash loops. Those in which processes of the same queues died at the same time are one.

    Of those of one service that are over only the latest is told, and none beside one that goes on. Of one that was
    ``checked`` several later deaths are one again.
    """
    known = list(dead)
    loops = {id(one.loop): one.loop for one in known if one.loop is not None}
    beside = [one for one in known if one.loop is None and one.row.ended_at and not one.row.gave_back]
    together: list[list[CrashLoop]] = []
    for loop in loops.values():
        joined = [some for some in together if any(_at_once(loop, one) for one in some)]
        together = [some for some in together if some not in joined]
        together.append([loop, *(one for some in joined for one in some)])
    living = list(heard)
    told = [_crash_loop(some, beside, now, living, suspects, checked=checked) for some in together]
    # Of one that was only said to have ended nobody knows why it died.
    marked = [one.row for one in known if checked and not one.row.ended_by and mark_of(one.row) in checked]
    # Who has checked the latest deaths of a service has checked those before.
    open_ones = [one for one in told if one and not _checked_with(one.dead[-1], marked)]
    latest_last = sorted(open_ones, key=lambda one: (one.problem.severity, str(one.problem.since)))
    return list({one.problem.subject: one for one in latest_last}.values())


def died_after_check(
    dead: Iterable[Dead | Process], loops: Iterable[ToldLoop], checked: Collection[str]
) -> list[ConsumerProcess]:
    """Return the last ones of crash loops that are told no more, as they were ``checked`` just before these died."""
    told = {row.pk for one in loops for row in one.dead}
    looping = [one for one in dead if one.loop is not None] if checked else []
    marked = [one.row for one in looping if mark_of(one.row) in checked]
    last = (one.row for one in looping if one.loop and not one.loop.over and one.row is one.loop.dead[-1])
    return [row for row in last if row.pk not in told and _checked_with(row, marked) is False]


def _checked_with(row: ConsumerProcess, marked: Iterable[ConsumerProcess]) -> bool | None:
    """Return True if somebody has checked it, or a later death of its queues; False if only earlier ones, else None."""
    times = [one.beat_at for one in marked if set(one.queues) == set(row.queues)]
    return row.beat_at <= max(times) if times else None


def _at_once(one: CrashLoop, other: CrashLoop) -> bool:
    same = set(one.dead[-1].queues) == set(other.dead[-1].queues)
    return same and all(a.dead[0].beat_at <= b.dead[-1].beat_at for a, b in ((one, other), (other, one)))


def _crash_loop(
    loops: Sequence[CrashLoop],
    beside: Sequence[Dead | Process],
    now: datetime,
    heard: Sequence[ConsumerProcess],
    suspects: Sequence[ParkedMessage],
    *,
    checked: Collection[str],
) -> ToldLoop | None:
    """Return what is told of these loops, of their deaths after the last one that was ``checked``."""
    dead = [row for loop in loops for row in loop.dead]
    began, same = min(row.beat_at for row in dead), set(dead[-1].queues)
    # What ends long after them, such as by an operator, was no part of it.
    ended = max(row.beat_at for row in dead) + max([LIVED, *(row.ran(now) for row in dead if row.started_at > began)])
    among = [one for one in beside if began <= one.row.beat_at <= ended and set(one.row.queues) == same]
    # One that died among them, and in whose place none was started yet, is no finding of its own.
    dead += [one.row for one in among if one.state is ProcessState.VANISHED]
    rows = sorted(dead, key=lambda row: row.beat_at)
    if known := [place for place, row in enumerate(rows, 1) if checked and mark_of(row) in checked]:
        among = [one for one in among if one.row.beat_at > rows[known[-1] - 1].beat_at]
        rows = rows[known[-1] :]
    if not rows or (known and len(rows) == 1):
        return None
    first, last, heirs = rows[0].beat_at, rows[-1].beat_at, [loop.last for loop in loops]
    queues = list(dict.fromkeys(queue for row in reversed(rows) for queue in row.queues))
    read = sorted(set(map(work_queue, queues)))
    # The next process parks it: what is parked long after that was started has killed others.
    until = max([last, *(heir.started_at for heir in heirs)]) + LOOP_OVER_AFTER
    killers = [one for one in suspects if first <= one.parked_at <= until and one.queue in read]
    rows = _killed_by(killers, rows, [one.row for one in among])
    first = rows[0].beat_at
    said = [_("Parked meanwhile because their worker died: %(names)s.") % {"names": listed(map(_with_state, killers))}]
    said = said if killers else []
    said += _in_hand(rows, set(map(str, killers)))
    held = {work_queue(str(entry["queue"])) for row in rows for entry in row.in_flight if entry.get("queue")}
    unread = [queue for queue in queues if not any(queue in row.queues for row in heard)]
    over = all(loop.over for loop in loops) or (not unread and _settled(killers, rows, now))
    # The one that outlived the loop may be dead, too: then another one that lives may show that it is over.
    living = [row for row in heard if set(row.queues) >= set(queues)]
    witness = max(living, key=lambda row: (row in heirs, row.ran(now)), default=None)
    restarts = not over and now - last < RESTARTED_WITHIN
    if over and witness is not None and (witness.ran(now) > LOOP_OVER_AFTER or not all(loop.over for loop in loops)):
        lived = _("It seems over: %(process)s has run for %(span)s.")
        said.append(lived % {"process": witness, "span": span(witness.ran(now))})
    elif unread:
        text = _("Nobody reads %(queues)s now.")
        if restarts:
            text = _("Nobody reads %(queues)s until the next one has started.")
        said.append(text % {"queues": listed(unread)})
    elif witness is not None and not over:
        lives = _("%(process)s has run for %(span)s.")
        said.append(lives % {"process": witness, "span": span(witness.ran(now))})
    problem = Problem(
        code=Code.CRASH_LOOP_OVER if over else Code.CRASH_LOOP,
        subject=listed(queues),
        count=len(rows),
        since=first,
        values={
            # The killer's queue says more than all that its worker read.
            "queues": listed(dict.fromkeys(one.queue for one in killers) or queues),
            "number": number(len(rows)),
            "since": minute(first),
            "span": span(now - last),
            "details": " ".join(said),
            "group_of_killer": str(killers[0].group_id) if killers else "",
            "read": read,
            "source": sorted({one.queue for one in killers} or held),
            "restarts": restarts,
            "named": bool(killers),
        },
        # With the next death it is another doubt.
        doubts={mark_of(rows[-1]): tuple(reversed(rows))},
    )
    return ToldLoop(problem=problem, dead=rows)


def _settled(killers: Sequence[ParkedMessage], rows: Sequence[ConsumerProcess], now: datetime) -> bool:
    """Return True if what killed these was parked after the last death, and none has died for longer than any lived
    that was started after the first one."""
    parked = max((one.parked_at for one in killers), default=None)
    if parked is None or parked < rows[-1].beat_at:
        return False
    lives = (row.ran(now) * LOOP_OVER_BY for row in rows if row.started_at > rows[0].beat_at)
    return now - parked > max([KILLS_AT_ONCE, *lives])


def with_waiting(loop: Problem, levels: Iterable[Level]) -> Problem:
    """Return a crash loop that goes on with what is known of its messages in the broker meanwhile."""
    if loop.code is not Code.CRASH_LOOP or loop.values["named"]:
        return loop
    read: Any = loop.values["read"]
    mine = [one for one in levels if work_queue(one.queue) in read and one.ready is not None]
    quarantines = [one for one in mine if one.role is Role.QUARANTINE]
    if not quarantines or conf.settings().crash_limit is None:
        return loop
    count = sum(one.ready or 0 for one in quarantines)
    said = _("What kills its workers is soon tried alone in quarantine, and parked if it kills on.")
    if count:
        of = sorted({work_queue(one.queue) for one in quarantines if one.ready})
        text = ngettext(
            "%(number)s message of %(queues)s is in quarantine: it is tried alone, and parked if it kills on.",
            "%(number)s messages of %(queues)s are in quarantine: each is tried alone, and parked if it kills on.",
            count,
        )
        said = text % {"number": number(count), "queues": listed(of)}
    return replace(loop, values={**loop.values, "details": f"{loop.values['details']} {said}"})


def _with_state(killer: ParkedMessage) -> str:
    """Return what killed workers, with what became of it if it is not parked any more."""
    word = ENDED_AS.get(State(killer.state))
    return f"{killer} ({word})" if word else str(killer)


def _killed_by(
    killers: Sequence[ParkedMessage], rows: list[ConsumerProcess], among: Iterable[ConsumerProcess]
) -> list[ConsumerProcess]:
    """Return those of a loop that died after what killed them was published; all if that is not known.

    Before it is parked, that is among what the last one had in hand. Others may have been killed by an operator just
    before it came. Those that died ``among`` them were replaced, and died of the same.
    """
    published = [one.published_at for one in killers] if killers else _published_in_hand(rows)
    if not published or None in published:
        return _of_one_kind(rows)
    since = min(at for at in published if at) - SILENT_AFTER
    every = sorted({row.pk or id(row): row for row in (*rows, *among)}.values(), key=lambda row: row.beat_at)
    later = [row for row in every if row.beat_at >= since]
    if not killers:
        # One that kills at once is in no report: what the last one had in hand came beside it, perhaps after it.
        later = [*_just_before(later, every), *later]
    return later if len(later) > 1 or (killers and later) else rows


def _published_in_hand(rows: Sequence[ConsumerProcess]) -> list[datetime | None]:
    """Return when each message was published that the last one of these had in hand."""
    return [time_in(entry.get("published")) for entry in rows[-1].in_flight]


def _just_before(later: Sequence[ConsumerProcess], every: Sequence[ConsumerProcess]) -> Sequence[ConsumerProcess]:
    """Return those that died before these in as quick a succession as messages kill that do so at once."""
    first = place = len(every) - len(later)
    while later and place and every[place].beat_at - every[place - 1].beat_at < KILLS_AT_ONCE:
        place -= 1
    return every[place:first]


def _of_one_kind(rows: list[ConsumerProcess]) -> list[ConsumerProcess]:
    """Leave out those that were killed by a signal before others ended in one other way: an operator sends signals."""
    place = len(rows)
    while place and rows[place - 1].fault == rows[-1].fault:
        place -= 1
    before = rows[:place]
    signals = all(row.fault.startswith("SIG") for row in before)
    return rows[place:] if before and signals and len(rows) - place > 1 else rows


def _in_hand(rows: Iterable[ConsumerProcess], known: Collection[str]) -> list[str]:
    """Return what several dead processes had in flight, and how often: one that kills at once is in no heartbeat.

    What is known to have killed them is told already, and what one had in flight is a finding while it is begun again.
    """
    each = ({entry.get("key") or entry.get("message_id") for entry in row.in_flight} for row in rows)
    held = Counter(name for names in each for name in names if name and name not in known)
    several = {name: times for name, times in held.most_common() if times > 1}
    if not several:
        if known:
            return []
        if held:
            text = _("No message was in more than one of them at its last heartbeat: their logs say why they ended.")
            return [text]
        return [_("None had reported a message of these queues in flight: their logs say why they ended.")]
    messages = listed(f"{name} ({number(times)})" for name, times in several.items())
    return [_("In flight as they died, and how often: %(messages)s.") % {"messages": messages}]


def _overtaken(found: Sequence[Process], now: datetime) -> Problem:
    latest = sorted(found, key=lambda one: one.row.beat_at, reverse=True)
    each = [message for one in latest for message in one.reported]
    has = [message.name for message in each if message.also]
    had = [message.name for message in each if not message.also]
    unreported = {place: name or "-" for one in latest for place, name in one.unreported.items()}
    said = [
        text % {"number": number(len(names)), "names": listed(names)}
        for text, names in (
            (_("Others have now (%(number)s): %(names)s."), has),
            (_("Others have handled since (%(number)s): %(names)s."), had),
            (
                _("Others have got since, perhaps from such a consumer (%(number)s): %(names)s."),
                list(unreported.values()),
            ),
        )
        if names
    ]
    return Problem(
        code=Code.VANISHED_IN_HAND,
        count=len(latest),
        since=latest[0].row.beat_at,
        causes=tuple(str(one.row) for one in latest),
        values={
            "ages": listed(f"{one.row} ({_ago(one.row, now)})" for one in latest),
            "held": " ".join(said),
            "until": minute(max(one.row.beat_at + MAY_GO_ON_FOR for one in latest)),
        },
        doubts={mark_of(one.row): one.row for one in latest},
    )


def _vanished(gone: Sequence[ConsumerProcess], every: int, now: datetime) -> Problem:
    """Say which processes vanished, of how many."""
    said = _in_flight_of(gone)
    if said:
        said += " " + _("End one that hangs before it goes on, or they may be handled twice.")
    return Problem(
        code=Code.VANISHED,
        count=len(gone),
        since=max(row.beat_at for row in gone),
        values={"every": every, "ages": listed(f"{row} ({_ago(row, now)})" for row in gone), "held": said},
    )


def _ended(gone: Sequence[ConsumerProcess], every: int, now: datetime) -> Problem:
    """Say which processes ended, of how many, and why: a reason that several have only once."""
    by_fault: dict[str, list[str]] = {}
    for row in gone:
        since = _("last heard of %(ago)s") % {"ago": _ago(row, now)} if row.end_noticed else _ago(row, now)
        by_fault.setdefault(_fault(row), []).append(f"{row}, {since}")
    return Problem(
        code=Code.ENDED,
        count=len(gone),
        since=max(row.beat_at for row in gone),
        values={
            "every": every,
            "ends": listed(f"{fault} ({'; '.join(names)})" for fault, names in by_fault.items()),
            "held": _in_flight_of(gone),
        },
    )


def _in_flight_of(gone: Sequence[ConsumerProcess]) -> str:
    """Return a sentence on what these had in flight, with a space before it; empty if nothing."""
    count = sum(len(row.in_flight) + row.unlisted for row in gone)
    text = ngettext("%(number)s message was in flight", "%(number)s messages were in flight", count)
    return f" {text % {'number': number(count)}}." if count else ""


def _ago(row: ConsumerProcess, now: datetime) -> str:
    """Return for how long a process has been dead, or not been heard of."""
    at = row.beat_at if row.end_noticed or row.ended_at is None else row.ended_at
    return _("%(span)s ago") % {"span": span(now - at)}


def _fault(row: ConsumerProcess) -> str:
    """Return the first sentence of the reason for which a process ended."""
    return row.why_ended.partition(". ")[0].removesuffix(".")


@dataclass(frozen=True, slots=True, kw_only=True)
class LastSigns:
    """What was heard last of processes of which none takes messages."""

    at: datetime
    span: str
    names: str
    ends: str
    """A sentence on how many of them ended, why, and how many vanished; empty if none has said why it ended."""
    died: bool
    """True if one of them was killed or ended with a fault; another one is stopping."""


def last_signs(rows: Sequence[ConsumerProcess], now: datetime, dead: Iterable[Dead]) -> LastSigns | None:
    """Return what was heard last of the processes; None if one takes messages, or none is known.

    One that is stopping, or that has ended a moment ago, was heard later than those that vanished before.
    """
    if any(row.living(now) for row in rows):
        return None
    gone = {id(row) for row in unreplaced(dead)}
    known = [row for row in rows if id(row) in gone or not row.vanished(now)]
    if not known:
        return None
    last = max(row.beat_at for row in known)
    lately = [row for row in known if last - row.beat_at < DIED_TOGETHER]
    lately.sort(key=lambda row: row.beat_at, reverse=True)
    return LastSigns(
        at=last,
        span=span(now - last),
        names=listed(map(_named, lately)),
        ends=_ends(lately, now),
        died=any(row.vanished(now) for row in lately),
    )


def _named(row: ConsumerProcess) -> str:
    stops = row.stopping and not row.ended_at
    return _("%(process)s (stopping)") % {"process": row} if stops else str(row)


def _ends(rows: Iterable[ConsumerProcess], now: datetime) -> str:
    ended, others = [], 0
    for row in rows:
        if row.ended_at:
            ended.append(row)
        elif row.vanished(now):
            others += 1
    if not ended:
        return ""
    text = ngettext("%(number)s ended (%(faults)s)", "%(number)s ended (%(faults)s)", len(ended))
    said = [text % {"number": number(len(ended)), "faults": listed(dict.fromkeys(map(_fault, ended)))}]
    said += [ngettext("%(count)d vanished", "%(count)d vanished", others) % {"count": others}] if others else []
    return f" {', '.join(said)}."


def in_late(late: Mapping[str, LateHandlers]) -> Iterator[Problem]:
    """Yield the queues whose handlers run beyond their deadline."""
    for queue, one in late.items():
        values = {
            "handlers": listed(one.handlers),
            "names": listed(one.processes),
            "deadline": duration(one.timeout),
            "limit": duration(one.ends_after),
        }
        yield Problem(code=Code.LATE, subject=queue, count=one.count, values=values)


def stuck_processes(rows: Iterable[ConsumerProcess], now: datetime) -> list[ConsumerProcess]:
    """Return the living processes whose threads all run handlers beyond their deadline."""
    living = [row for row in rows if row.living(now)]
    return [row for row in living if row.stuck_at is not None and now - row.stuck_at > STUCK_FOR]


def overdue_in(levels: Sequence[Level], survey: Survey) -> list[OverdueRetries]:
    """Return the overdue retries that a queue may hold.

    In a queue that is stopped or halted they wait for its end. If its queues hold no message, the attempt was made
    and its row lost with a killed process, or somebody purged the queue.
    """
    stopped = {one.queue for one in (*survey.stopped, *survey.halted)}
    homes, held, waiting = homes_of(registry.work_queues()), set[str](), set[str]()
    for level in levels:
        home = level.home or homes.get(level.queue, level.queue)
        waiting |= {home} if level.role is Role.WAITING else set()
        held |= {home} if level.role is not Role.PARKED and (level.ready or level.unacked) else set()
    known = {level.queue for level in levels if level.role is Role.WORK}
    # A carrier without waiting queues keeps retries where the broker does not count them.
    return [one for one in survey.overdue if one.queue in known - stopped and one.queue in held | (known - waiting)]


def in_retries(levels: Sequence[Level], survey: Survey) -> Iterator[Problem]:
    """Yield the queues whose retries are overdue."""
    for one in overdue_in(levels, survey):
        values = {"span": span(survey.at - one.oldest)}
        yield Problem(code=Code.RETRIES_OVERDUE, subject=one.queue, count=one.count, since=one.oldest, values=values)


def in_groups(
    groups: Mapping[int, ErrorGroup],
    lately: Lately,
    now: datetime,
    runs: Mapping[int, RequeueRun] = MappingProxyType({}),
) -> Iterator[Problem]:
    """Yield the error groups that grow, by their new messages of the last minutes; some have active runs."""
    last = {number: group.last_new or group.last_seen for number, group in groups.items()}
    settled = {
        number: settled_at(group.last_handled, [runs[number]] if number in runs else [])
        for number, group in groups.items()
    }
    counted = lately.newest.items()
    growing = sorted(((n, one) for one, n in counted if grows(n, last[one], now, settled=settled[one])), reverse=True)
    for count, group in growing[:MOST_IN_A_TEXT]:
        values = {"group": groups[group], "time": minute(lately.began[group])}
        yield Problem(code=Code.GROWS, subject=str(group), count=count, values=values)
    if len(growing) > MOST_IN_A_TEXT:
        yield Problem(code=Code.GROW_MORE, count=len(growing) - MOST_IN_A_TEXT)


def in_runs(
    runs: Iterable[RequeueRun],
    now: datetime,
    elsewhere: Mapping[int, int] = MappingProxyType({}),
    held: Mapping[int, Sequence[QueueState]] = MappingProxyType({}),
    paused_by: Mapping[int, str] = MappingProxyType({}),
) -> Iterator[Problem]:
    """Yield the runs that need somebody; ``elsewhere`` has the unsent messages that are not to be counted with them.

    Those ``held`` wait for stopped queues; ``paused_by`` has who paused some.
    """
    for run in runs:
        paused = run.state == RunState.PAUSED
        # A lease ends later than its driver has stopped.
        since = min((None if paused else run.leased_until) or run.beat_at or run.created_at, now)
        others = elsewhere.get(run.pk, 0)
        idle, explanation = now - since, _with_others(_why_it_waits(run, held), others).removesuffix(".")
        itself = f"manage.py rmq_parked requeue-run {run.pk}"
        values: dict[str, object] = {
            "command": itself,
            "resume": f"{itself} {resuming(run)}" if paused else "",
            "explanation": explanation and f": {explanation}",
            "by": " " + _("by %(name)s") % {"name": paused_by[run.pk]} if run.pk in paused_by else "",
            "span": span(idle),
        }
        code = None
        if run.state == RunState.PAUSED:
            code = Code.RUN_PAUSED if run.wait else Code.RUN_HELD
        elif run.wait != RunWait.KEYS_WAIT and (stands := run.idle_since(now)):
            code, since = Code.RUN_WAITS, stands
        elif run.wait not in USUAL_WAITS:
            code = Code.RUN_WAITS
        elif idle > RUN_IDLE_AFTER and not run.is_sent:
            code = Code.RUN_IDLE
        if code is not None:
            left = max(run.unsent - others, 0)
            yield Problem(code=code, subject=str(run.pk), count=left, since=since, values=values)


def _with_others(explanation: str, others: int) -> str:
    text = ngettext(
        "%(number)s of its messages is in another requeue run too, or was sent or changed meanwhile.",
        "%(number)s of its messages are in another requeue run too, or were sent or changed meanwhile.",
        others,
    )
    shown = f"{number(others)}+" if others >= MOST_SURVEYED_ITEMS else number(others)
    return " ".join(filter(None, (explanation, text % {"number": shown} if others else "")))


def unusable(alias: str, reason: str) -> Problem:
    # PostgreSQL's client asks back whether the server is running.
    told = reason.partition(" Is the server running")[0]
    return Problem(code=Code.DATABASE_UNUSABLE, subject=alias, values={"reason": told})


def unreachable(error: Exception) -> Problem:
    """Return why the broker cannot be reached."""
    if isinstance(error, NotRunning):
        return Problem(code=Code.BROKER_NOT_RUNNING)
    if isinstance(error, BrokerRefused):
        return Problem(code=Code.BROKER_REFUSES, subject=error.address, values={"reason": error.reason})
    if isinstance(error, BrokerUnreachable):
        return Problem(code=Code.BROKER_AWAY, values={"address": error.address, "reason": error.reason})
    # A URL function of the project may raise anything.
    return Problem(code=Code.BROKER_UNUSABLE, values={"setting": LOGIN, "reason": one_line(error)})


def as_felt(away: Problem, survey: Survey | None) -> Problem:
    """Return a broker that is away as it is: for this host alone while consumers have their connections."""
    now, rows = (survey.at, survey.processes) if survey else (None, ())
    reaching = [row for row in rows if now and row.connected and row.living(now) and not row.silent(now)]
    if away.code is not Code.BROKER_AWAY or not now or not reaching:
        return away
    values = {**away.values, "span": span(now - max(row.beat_at for row in reaching))}
    return replace(away, code=Code.BROKER_AWAY_HERE, count=len(reaching), values=values)


def too_many_parked(levels: Iterable[Level], survey: Survey | None, limits: Limits) -> Iterator[Problem]:
    """Yield a problem if more messages are parked than a command allows, recorded or not."""
    unrecorded = sum(level.ready or 0 for level in levels if level.role is Role.PARKED)
    count = unrecorded + (survey.parked.count if survey else 0)
    if limits.max_parked is not None and count > limits.max_parked:
        yield Problem(code=Code.TOO_MANY_PARKED, count=count, values={"limit": limits.max_parked})
