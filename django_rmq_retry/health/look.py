"""One look at database and broker: what is known, and all that is wrong. Commands, pages and alerts show the same."""

import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Any

from django.db import router
from django.utils.translation import gettext as _
from django.utils.translation import pgettext

from django_rmq_retry.amqp.declarer import Declarer
from django_rmq_retry.amqp.levels import Gauged
from django_rmq_retry.breakers.table import state_of
from django_rmq_retry.conf import settings
from django_rmq_retry.embedded.place import NotRunning
from django_rmq_retry.errors import BrokerRefused, BrokerUnreachable
from django_rmq_retry.health import broker
from django_rmq_retry.health.broker import BrokerFacts
from django_rmq_retry.health.facts import Survey, surveyed
from django_rmq_retry.health.problems import (
    Judged,
    LastSigns,
    Limits,
    Queues,
    as_felt,
    in_plan,
    in_retries,
    in_survey,
    last_signs,
    too_many_parked,
    unreachable,
    unusable,
    waiting_text,
    with_waiting,
    without_need,
)
from django_rmq_retry.health.processes import (
    late_handlers,
    lost_since,
    read_since,
    unreplaced,
    with_cut_off,
    without_passed,
)
from django_rmq_retry.health.rules import Code, Problem, Severity
from django_rmq_retry.models import QueueControl, RunWait
from django_rmq_retry.models.boxes import PendingRows
from django_rmq_retry.topology.declarations import QUARANTINE, Role, work_queue
from django_rmq_retry.wording import listed, number

NO_QUEUES = Gauged(levels=(), api_set=False)
"""What is known of the queues without the broker."""
AWAY = (BrokerUnreachable, BrokerRefused, NotRunning)
"""The errors of a broker that does not answer."""
UNCONSUMED = (Code.NO_CONSUMER, Code.IDLE, Code.PERHAPS_STOPPED)
FOLLOWING = (Code.NOT_RECORDED, Code.RUN_IDLE)
"""What no consumer does while none is alive, whichever queue or run it is about."""
CUT_OFF = (Code.ALL_DISCONNECTED, Code.ALL_DISCONNECTED_IDLE)
NONE_ALIVE = (Code.ALL_VANISHED, Code.ALL_UNREAD, *CUT_OFF)
WITH_CONSUMERS = (Code.RETRIES_OVERDUE, Code.OUTBOX_OVERDUE)
"""What ends once consumers run again, if none is alive: the retries of each queue, and the outbox."""
MISSED = (Code.NO_CONSUMER, Code.SEVERAL_UNREAD, Code.IDLE, Code.SEVERAL_IDLE)
"""Queues without a consumer beside others that have one."""
OF_OUTBOX = (Code.OUTBOX_OVERDUE, Code.OUTBOX_REFUSED, Code.OUTBOX_NOT_TAKEN)
WITH_BROKER = (Code.DISCONNECTED, *CUT_OFF, Code.RETRIES_OVERDUE, Code.OUTBOX_OVERDUE, Code.OUTBOX_WAITS)
"""What ends by itself once the broker is back, if no consumer reaches it."""


@dataclass(frozen=True, kw_only=True)
class Health:
    """What is known at one moment, and what is wrong by the rules."""

    survey: Survey | None
    """None if the database is not used, or if it could not be queried and ``trouble`` has the reason."""
    trouble: str = ""
    gauged: Gauged = NO_QUEUES
    looked_at: datetime | None = None
    """The time at which the broker told this of its queues, if that may be older than the survey."""
    as_of: datetime | None = None
    """The same, if the broker does not answer now."""
    broker: BrokerFacts | None = None
    """None if the broker was not asked here, or if it did not answer and ``away`` has the reason."""
    away: Problem | None = None
    """Why the broker cannot be reached, since the time at which the consumers lost it, if that is known."""
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        if self.away and self.survey:
            since = lost_since(self.survey.processes, self.survey.at)
            object.__setattr__(self, "away", replace(as_felt(self.away, self.survey), since=since))

    @cached_property
    def queues(self) -> Queues:
        """The queues, of which those need no consumer that an operator or a breaker has stopped, or that have one."""
        stopped = self.survey.stopped if self.survey else ()
        now = self.survey.at.timestamp() if self.survey else 0.0
        levels, states = self.gauged.levels, map(state_of, stopped)
        late = late_handlers(self.survey.processes, self.survey.at) if self.survey else {}
        return Queues(
            levels=levels,
            excused=without_need(levels, states, now, self._read_since),
            limits=self.limits,
            vhost=self.gauged.vhost,
            late=late,
            parked=self.survey.parked_in if self.survey else {},
            stops_known=not self.trouble,
        )

    def _read_since(self) -> frozenset[str]:
        return read_since(self.survey.processes, self.survey.at, self.looked_at) if self.survey else frozenset()

    @cached_property
    def judged(self) -> tuple[Judged, ...]:
        return tuple(self.queues.judged())

    @cached_property
    def of_database(self) -> tuple[Problem, ...]:
        """What the database shows, whatever the broker answers."""
        if self.trouble:
            return (unusable(router.db_for_read(QueueControl), self.trouble),)
        if self.survey is None:
            return ()
        known, levels = self.survey, () if self.as_of else self.gauged.levels
        each = [problem for one in self.judged if levels for problem in one.problems if problem.code in UNCONSUMED]
        unread = {work_queue(problem.subject) for problem in each}
        holding = {work_queue(problem.subject) for problem in each if problem.count}
        holding |= {control.queue for control in known.stopped}
        given = without_passed(known.given_again, levels)
        given = with_cut_off(given, known.processes, known.at, unread, holding=holding)
        return tuple(in_survey(replace(known, given_again=given), self.limits, levels))

    @cached_property
    def _each(self) -> tuple[Problem, ...]:
        """What is wrong with each queue, run and process by itself."""
        levels = self.gauged.levels
        found = [problem for one in self.judged for problem in one.problems]
        # A queue with a late handler has that problem by the broker's levels already.
        found += [one for one in self.of_database if one not in found]
        found += in_retries(levels, self.survey) if self.survey and levels else []
        found += too_many_parked(levels, self.survey, self.limits)
        return tuple(found)

    @property
    def absorbed(self) -> tuple[Problem, ...]:
        """What is wrong by itself, and is told only with all others that have the same cause."""
        told = {(one.code, one.subject) for one in self.problems}
        return tuple(one for one in self._each if (one.code, one.subject) not in told)

    @cached_property
    def problems(self) -> tuple[Problem, ...]:
        """All that is wrong or remarkable, the most harmful first."""
        last = last_signs(self.survey.processes, self.survey.at, self.survey.dead) if self.survey else None
        found = merged(self._each, self.queues, last, alive=self._some_alive)
        if self.as_of:
            found = [one if one in self.of_database else replace(one, as_of=self.as_of) for one in found]
        found += [self.away] if self.away else []
        found += self._waiting_for_the_broker(found)
        found += self._drift()
        return tuple(sorted(paused_before(found), key=lambda problem: problem.harm))

    @property
    def _some_alive(self) -> bool | None:
        """True if a process takes messages; None if nobody knows, because no heartbeats are recorded."""
        known = self.survey
        return any(row.living(known.at) for row in known.processes) if known and settings().records else None

    @property
    def halts(self) -> dict[str, Problem]:
        """The halts, each by its queue."""
        return {one.subject: one for one in self.problems if one.code in (Code.HALTED, Code.HALTED_LONG)}

    @property
    def needs(self) -> tuple[Problem, ...]:
        """The problems that need somebody, and those that somebody is at."""
        return self.of_severity(Severity.WARNING)

    @cached_property
    def following(self) -> tuple[Problem, ...]:
        """Those of the needs that only follow from another one: nobody can end them before that."""
        return tuple(follower for cause in self.needs for follower in self.followers(cause))

    def followers(self, cause: Problem) -> tuple[Problem, ...]:
        """Return what only follows from a need: from a broker that is away, or from consumers that are gone."""
        return tuple(one for one in self.needs if self._follows(one, cause)) if self.survey else ()

    def _follows(self, problem: Problem, cause: Problem) -> bool:
        if cause is self.away:
            # While a consumer reaches it, it is away for this process alone.
            return not self._reached_by_others and (problem.code in WITH_BROKER or self._waits_for_it(problem))
        if self.away:
            return False
        if cause.code in NONE_ALIVE:
            return problem.code in WITH_CONSUMERS
        if cause.code in MISSED:
            # What it had in hand asks for an act of its own.
            if problem.code is Code.ENDED or (problem.code is Code.VANISHED and not problem.values["held"]):
                return self._left_by_the_vanished(cause.causes)
            return problem.code in (Code.RETRIES_OVERDUE, Code.HELD) and problem.subject in cause.causes
        return False

    def _waits_for_it(self, problem: Problem) -> bool:
        """Return True if the problem is a run that waits for the broker."""
        runs = self.survey.runs if self.survey else ()
        waiting = {str(run.pk) for run in runs if run.wait == RunWait.BROKER_AWAY}
        return problem.code in (Code.RUN_WAITS, Code.RUN_IDLE) and problem.subject in waiting

    def _left_by_the_vanished(self, queues: Collection[str]) -> bool:
        """Return True if each process that vanished has read one of these queues."""
        gone = unreplaced(self.survey.dead) if self.survey else []
        return all(set(queues) & set(row.queues) for row in gone)

    @property
    def _reached_by_others(self) -> bool:
        known = self.survey
        return known is not None and any(row.connected and row.living(known.at) for row in known.processes)

    def _waiting_for_the_broker(self, found: Iterable[Problem]) -> Iterable[Problem]:
        """Return how many messages wait in the outbox for a broker that is away, unless more is told of them."""
        outbox = self.survey.outbox if self.survey else PendingRows()
        told = any(one.code in OF_OUTBOX for one in found)
        if self.away and outbox.waiting and not told:
            yield Problem(code=Code.OUTBOX_WAITS, count=outbox.waiting, since=outbox.oldest)

    def failing(self, least: Severity) -> tuple[Problem, ...]:
        """Return those of at least this severity that nobody is at."""
        return tuple(problem for problem in self.of_severity(least) if not problem.rule.under_way)

    def of_severity(self, least: Severity) -> tuple[Problem, ...]:
        return tuple(problem for problem in self.problems if problem.severity >= least)

    def _drift(self) -> Iterable[Problem]:
        """Return what differs from its definition, except queues that have a problem of their own."""
        plan = self.broker.plan if self.broker else None
        shown = {f"queue {one.level.queue}" for one in self.judged if one.errors}
        lacking = []
        for problem in in_plan(plan) if plan else ():
            # Its work queue has the problem of an interrupted move.
            if problem.code is Code.DIFFERS or not (problem.subject in shown or problem.code is Code.MOVE_LEFT):
                if problem.code is Code.DEFINITION_MISSING:
                    lacking.append(problem)
                else:
                    yield problem
        if lacking:
            yield replace(lacking[0], subject=listed(one.subject for one in lacking), count=len(lacking))


def look(
    opened: Callable[[], AbstractContextManager[Declarer]],
    *,
    timeout: float,
    limits: Limits,
    plan: bool = False,
    away: tuple[type[Exception], ...] = AWAY,
) -> Health:
    """Ask the database first: it knows the queues that were declared before.

    If one does not answer, the other is still shown.

    The broker is asked over a session that ``opened`` opens; the errors in ``away`` mean that it does not answer.
    """
    survey, trouble = surveyed(timeout)
    known = survey.declared if survey else ()
    try:
        with opened() as declarer:
            facts = broker.ask(declarer, known, plan=plan)
    except away as error:
        return Health(survey=survey, trouble=trouble, away=unreachable(error), limits=limits)
    return Health(survey=survey, trouble=trouble, gauged=facts.gauged, broker=facts, limits=limits)


def merged(
    found: Sequence[Problem], queues: Queues, last: LastSigns | None, *, alive: bool | None = None
) -> list[Problem]:
    """Say once what holds for several queues; ``last`` is what was heard last of the processes if none is alive.

    All may have ended in good order, which leaves no sign: then ``alive`` is False.
    """
    restarted = {queue for one in found if one.values.get("restarts") for queue in _read_by(one)}
    found = [with_waiting(one, queues.levels) for one in found]
    left = _several_missing(_none_alive(found, queues, last, alive=alive, restarted=restarted))
    missed = [one for one in left if one.code in (Code.NO_CONSUMER, Code.IDLE)]
    if len(missed) <= 1:
        return [replace(one, causes=(one.subject,)) if one in missed else one for one in left]
    ready = {one.subject: one.count for one in sorted(missed, key=lambda one: -one.count)}
    words = _ready_in(ready)
    several = Problem(
        code=Code.SEVERAL_UNREAD if any(one.code is Code.NO_CONSUMER for one in missed) else Code.SEVERAL_IDLE,
        count=len(missed),
        causes=tuple(ready),
        values={**words, "names": words["places"]},
    )
    return [several, *(one for one in left if one not in missed)]


def paused_before(found: Sequence[Problem]) -> list[Problem]:
    """Say what to do before consumers are started: they handle again at once what lost ones had begun."""
    queues = [one.subject for one in found if one.code is Code.GIVEN_AGAIN and one.values["pause"]]
    pauses = listed(f"manage.py rmq_queue pause {shlex.quote(queue)}" for queue in queues)
    before = f"First {pauses}, until you know what its lost consumers have done. "
    first = _("First pause %(queues)s: a consumer does again at once what a lost one had begun.")
    values = {"before": before, "first_pause": first % {"queues": listed(queues)}}
    started = {*MISSED, *NONE_ALIVE}.difference(CUT_OFF) if queues else set[Code]()
    return [replace(one, values={**one.values, **values}) if one.code in started else one for one in found]


def _read_by(loop: Problem) -> Collection[str]:
    read: Any = loop.values["read"]
    return set(read)


def _several_missing(found: Sequence[Problem]) -> list[Problem]:
    missing = [one for one in found if one.code is Code.MISSING]
    if len(missing) <= 1:
        return [replace(one, causes=(one.subject,)) if one in missing else one for one in found]
    names = tuple(one.subject for one in missing)
    several = Problem(code=Code.SEVERAL_MISSING, count=len(names), causes=names, values={"names": listed(names)})
    return [several, *(one for one in found if one not in missing)]


def _ready_in(queues: Mapping[str, int], paused: Collection[str] = ()) -> dict[str, object]:
    """Return the words for the ready messages of some queues, and all of their names with what each holds, the most
    first; without numbers if all are empty. Those that are paused are not read as soon as a consumer runs."""
    total, ordered = sum(queues.values()), sorted(queues.items(), key=lambda one: -one[1])
    words = {queue: f"{queue} {number(count)}" if total else queue for queue, count in ordered}
    stopped = pgettext("queue", "paused")
    places = listed(f"{word} ({stopped})" if queue in paused else word for queue, word in words.items())
    return {"ready": total, "waiting": waiting_text(total), "places": places}


def _none_alive(
    found: Sequence[Problem],
    queues: Queues,
    last: LastSigns | None,
    *,
    alive: bool | None,
    restarted: Collection[str],
) -> list[Problem]:
    """Say once that no queue has a consumer, instead of once for each queue, and leave out what follows from it.

    Of those that are ``restarted`` a crash loop tells: the next consumer is about to read them.
    """
    work = [one for one in queues.levels if one.role is Role.WORK and one.ready is not None and not one.abandoned]
    found = [one for one in found if not (one.code in UNCONSUMED and work_queue(one.subject) in restarted)]
    # A paused queue needs no consumer now, but it stands still like the others if all processes are gone.
    needy = [one for one in work if one.queue not in {*queues.excused, *restarted}]
    idle = [one for one in needy if not one.consumers]
    died = last if last is not None and last.died else None
    cut_off = next((one for one in found if one.code is Code.DISCONNECTED and one.values["all"]), None)
    unconsumed = not any(one.consumers for one in work)
    known = bool(died or cut_off or (alive is False and unconsumed and len(work) > 1))
    if not idle or len(idle) < len(needy) or (not known and (alive or len(idle) == 1 or len(idle) < len(work))):
        return list(found)
    unread = work if known else idle
    kept = {work_queue(one.queue): one.ready or 0 for one in queues.levels if one.role is Role.QUARANTINE}
    ready = {one.queue: (one.ready or 0) + kept.get(one.queue, 0) for one in unread}
    paused = [one.subject for one in found if one.code in (Code.PAUSED, Code.PAUSED_LONG)]
    code, since = Code.ALL_UNREAD if any(ready.values()) else Code.ALL_IDLE, None
    values: Mapping[str, object] = {}
    if died:
        code, since = Code.ALL_VANISHED, died.at
        values = {"names": died.names, "span": died.span, "ends": died.ends}
    elif cut_off:
        code, since = Code.ALL_DISCONNECTED if any(ready.values()) else Code.ALL_DISCONNECTED_IDLE, cut_off.since
        values = cut_off.values
    all_idle = Problem(
        code=code, count=len(unread), since=since, causes=tuple(ready), values={**values, **_ready_in(ready, paused)}
    )
    said = {name for one in idle for name in (one.queue, f"{one.queue}{QUARANTINE}")}
    left = [
        one
        for one in found
        if not (died and one.code in (Code.VANISHED, Code.ENDED))
        and one is not cut_off
        and one.code not in FOLLOWING
        and not (one.code in UNCONSUMED and one.subject in said)
    ]
    return [all_idle, *left]
