"""One look at database and broker: what is known, and all that is wrong. Commands, pages and alerts show the same."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property

from django.db import router

from django_rmq_retry.amqp.declarer import Declarer
from django_rmq_retry.amqp.levels import Gauged
from django_rmq_retry.breakers.table import state_of
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
    excused,
    in_plan,
    in_retries,
    in_survey,
    last_signs,
    too_many_parked,
    unreachable,
    unusable,
)
from django_rmq_retry.health.processes import late_handlers, lost_since
from django_rmq_retry.health.rules import Code, Problem, Severity
from django_rmq_retry.models import QueueControl, RunWait
from django_rmq_retry.models.boxes import PendingRows
from django_rmq_retry.topology.declarations import QUARANTINE, Role
from django_rmq_retry.wording import listed, messages_counted, number

NO_QUEUES = Gauged(levels=(), api_set=False)
"""What is known of the queues without the broker."""
AWAY = (BrokerUnreachable, BrokerRefused, NotRunning)
"""The errors of a broker that does not answer."""
UNCONSUMED = (Code.NO_CONSUMER, Code.IDLE, Code.PERHAPS_STOPPED)
FOLLOWING = (Code.NOT_RECORDED, Code.RUN_IDLE)
"""What no consumer does while none is alive, whichever queue or run it is about."""
WITH_BROKER = (Code.DISCONNECTED, Code.RETRIES_OVERDUE, Code.OUTBOX_OVERDUE, Code.OUTBOX_WAITS)
"""What ends by itself once the broker is back, if no consumer reaches it."""


@dataclass(frozen=True, kw_only=True)
class Health:
    """What is known at one moment, and what is wrong by the rules."""

    survey: Survey | None
    """None if the database is not used, or if it could not be queried and ``trouble`` has the reason."""
    trouble: str = ""
    gauged: Gauged = NO_QUEUES
    as_of: datetime | None = None
    """The time at which the broker told this of its queues, if it does not answer now."""
    broker: BrokerFacts | None = None
    """None if the broker was not asked here, or if it did not answer and ``away`` has the reason."""
    away: Problem | None = None
    """Why the broker cannot be reached, since the time at which the consumers lost it, if that is known."""
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        if self.away and self.survey:
            since = lost_since(self.survey.processes, self.survey.at)
            object.__setattr__(self, "away", replace(self.away, since=since))

    @cached_property
    def queues(self) -> Queues:
        """The queues, of which those that an operator or a breaker has stopped need no consumer."""
        stopped = self.survey.stopped if self.survey else ()
        now = self.survey.at.timestamp() if self.survey else 0.0
        without = excused(map(state_of, stopped), now)
        late = late_handlers(self.survey.processes, self.survey.at) if self.survey else {}
        return Queues(
            levels=self.gauged.levels,
            excused=without,
            limits=self.limits,
            vhost=self.gauged.vhost,
            late=late,
            stops_known=not self.trouble,
        )

    @cached_property
    def judged(self) -> tuple[Judged, ...]:
        return tuple(self.queues.judged())

    @cached_property
    def of_database(self) -> tuple[Problem, ...]:
        """What the database shows, whatever the broker answers."""
        if self.trouble:
            return (unusable(router.db_for_read(QueueControl), self.trouble),)
        levels = () if self.as_of else self.gauged.levels
        ready = {level.queue: level.ready for level in levels if level.ready}
        return tuple(in_survey(self.survey, self.limits, ready)) if self.survey else ()

    @cached_property
    def problems(self) -> tuple[Problem, ...]:
        """All that is wrong or remarkable, the most harmful first."""
        levels = self.gauged.levels
        found = [problem for one in self.judged for problem in one.problems]
        # A queue with a late handler has that problem by the broker's levels already.
        found += [one for one in self.of_database if one not in found]
        found += in_retries(levels, self.survey) if self.survey and levels else []
        found += too_many_parked(levels, self.survey, self.limits)
        last = last_signs(self.survey.processes, self.survey.at) if self.survey else None
        found = merged(found, self.queues, last)
        if self.as_of:
            found = [one if one in self.of_database else replace(one, as_of=self.as_of) for one in found]
        found += [self.away] if self.away else []
        found += self._waiting_for_the_broker(found)
        found += self._drift()
        return tuple(sorted(found, key=lambda problem: problem.harm))

    @property
    def halts(self) -> dict[str, Problem]:
        """The halts, each by its queue."""
        return {one.subject: one for one in self.problems if one.code in (Code.HALTED, Code.HALTED_LONG)}

    @property
    def needs(self) -> tuple[Problem, ...]:
        """The problems that need somebody."""
        return self.of_severity(Severity.WARNING)

    @property
    def following(self) -> tuple[Problem, ...]:
        """Those of the needs that only follow from a broker that is away: nobody can end them before it is back.

        None does while a consumer reaches it: then it is away for this process alone.
        """
        if self.away is None or self.survey is None or self._reached_by_others:
            return ()
        waiting = {str(run.pk) for run in self.survey.runs if run.wait == RunWait.BROKER_AWAY}
        return tuple(
            problem
            for problem in self.needs
            if problem.code in WITH_BROKER
            or (problem.code in (Code.RUN_WAITS, Code.RUN_IDLE) and problem.subject in waiting)
        )

    @property
    def _reached_by_others(self) -> bool:
        known = self.survey
        return known is not None and any(row.connected and row.living(known.at) for row in known.processes)

    def _waiting_for_the_broker(self, found: Iterable[Problem]) -> Iterable[Problem]:
        """Return how many messages wait in the outbox for a broker that is away, unless they are overdue already."""
        outbox = self.survey.outbox if self.survey else PendingRows()
        overdue = any(one.code in (Code.OUTBOX_OVERDUE, Code.OUTBOX_REFUSED) for one in found)
        if self.away and outbox.waiting and not overdue:
            code = Code.OUTBOX_NOT_TAKEN if outbox.answer else Code.OUTBOX_WAITS
            values = {"answer": outbox.answer.strip().removesuffix(".")}
            yield Problem(code=code, count=outbox.waiting, since=outbox.oldest, values=values)

    def of_severity(self, least: Severity) -> tuple[Problem, ...]:
        return tuple(problem for problem in self.problems if problem.severity >= least)

    def _drift(self) -> Iterable[Problem]:
        """Return what differs from its definition, except queues that have a problem of their own."""
        plan = self.broker.plan if self.broker else None
        shown = {f"queue {one.level.queue}" for one in self.judged if one.errors}
        for problem in in_plan(plan) if plan else ():
            # Its work queue has the problem of an interrupted move.
            if problem.code is Code.DIFFERS or not (problem.subject in shown or problem.code is Code.MOVE_LEFT):
                yield problem


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


def merged(found: Sequence[Problem], queues: Queues, last: LastSigns | None) -> list[Problem]:
    """Say once what holds for several queues; ``last`` is what was heard last of the processes if none is alive."""
    left = _none_alive(found, queues, last)
    idle = [one for one in left if one.code is Code.IDLE]
    if len(idle) <= 1:
        return left
    names = listed(one.subject for one in idle)
    several = Problem(code=Code.SEVERAL_IDLE, count=len(idle), values={"names": names})
    return [several, *(one for one in left if one.code is not Code.IDLE)]


def _none_alive(found: Sequence[Problem], queues: Queues, last: LastSigns | None) -> list[Problem]:
    """Say once that no queue has a consumer, instead of once for each queue, and leave out what follows from it."""
    work = [one for one in queues.levels if one.role is Role.WORK and one.ready is not None and not one.abandoned]
    # A paused queue needs no consumer now, but it stands still like the others if all processes are gone.
    needy = [one for one in work if one.queue not in queues.excused]
    idle = [one for one in needy if not one.consumers]
    died = last if last is not None and last.died else None
    if not idle or len(idle) < len(needy) or (not died and (len(idle) == 1 or len(idle) < len(work))):
        return list(found)
    unread = work if died else idle
    ready = sum(one.ready or 0 for one in unread)
    code = Code.ALL_VANISHED if died else Code.ALL_UNREAD if ready else Code.ALL_IDLE
    held = sorted((one for one in unread if one.ready), key=lambda one: -(one.ready or 0))
    places = listed(f"{one.queue} {number(one.ready or 0)}" for one in held)
    names = {"names": died.names, "span": died.span} if died else {}
    values = {**names, "messages": messages_counted(ready), "places": places and f": {places}"}
    all_idle = Problem(code=code, count=len(unread), since=died.at if died else None, values=values)
    said = {name for one in idle for name in (one.queue, f"{one.queue}{QUARANTINE}")}
    left = [
        one
        for one in found
        if not (died and one.code is Code.VANISHED)
        and one.code not in FOLLOWING
        and not (one.code in UNCONSUMED and one.subject in said)
    ]
    return [all_idle, *left]
