"""The examination of ``rmq_doctor``: settings, databases, clocks and records."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TypeVar

from django.core.checks import WARNING, CheckMessage, run_checks
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, Error, connections, router
from django.db.migrations.executor import MigrationExecutor
from django.db.models import F

from django_rmq_retry import conf
from django_rmq_retry.amqp.refusals import Refusal
from django_rmq_retry.arguments import plural
from django_rmq_retry.checks.once import database_problems
from django_rmq_retry.checks.settings import TAG, joined
from django_rmq_retry.database_connections import Unanswered
from django_rmq_retry.errors import BrokerRefused, BrokerUnreachable
from django_rmq_retry.handlers import registry
from django_rmq_retry.health.facts import RECENT, Survey, surveyed
from django_rmq_retry.health.look import Health
from django_rmq_retry.health.problems import Limits, in_groups, unusable
from django_rmq_retry.health.rules import CLOCKS_APART_AFTER, Area, Code, Problem
from django_rmq_retry.health.time_limit import in_time
from django_rmq_retry.management.findings import Finding, Grade
from django_rmq_retry.messages.texts import one_line
from django_rmq_retry.models import ErrorGroup, ParkedMessage
from django_rmq_retry.parked.groups import parked_lately, with_held
from django_rmq_retry.parked.items import groups_of_runs
from django_rmq_retry.parked.operators import LABEL

MOST_GROUPS_EXAMINED = 100
"""The most error groups whose growth is examined: those with the latest messages."""


T = TypeVar("T")
Examined = Problem | Finding | str
"""What a look yields; a text is a fact."""
Examiner = Callable[[], Iterable[Examined]]


def looked(area: Area, look: Examiner) -> Iterator[Finding]:
    """Yield the findings of a look; an error ends this look and no other."""
    try:
        for one in look():
            if isinstance(one, Problem):
                yield Finding.of(one)
            else:
                yield one if isinstance(one, Finding) else Finding(area=area, level=Grade.OK, problem=one)
    except (BrokerUnreachable, BrokerRefused, Refusal, Error, Unanswered) as error:
        yield Finding.unseen(area, f"of an error: {one_line(error)}")
    except Exception as error:  # noqa: BLE001 - the other areas are examined all the same
        yield Finding(
            area=area,
            level=Grade.ERROR,
            problem=f"The examination failed: {type(error).__name__}: {one_line(error)}.",
            why="The state of this area is unknown.",
            fix="Report it to the authors of django-rmq-retry, with the text of this finding.",
        )


def examine_settings(*, deploy: bool) -> Iterator[Examined]:
    problems = [one for one in run_checks(tags=[TAG]) if one.level >= WARNING and not one.is_silenced()]
    of_deployment = run_checks(tags=[TAG], include_deployment_checks=True) if deploy else []
    for problem in (*problems, *(one for one in of_deployment if one not in problems and not one.is_silenced())):
        stops = problem.is_serious() and problem in problems
        yield Finding(
            area=Area.SETTINGS,
            level=Grade.ERROR if problem.is_serious() else Grade.WARNING,
            problem=f"{problem.obj}: {problem.msg}" if problem.obj else f"{problem.msg}",
            why="rmq_consume does not start and rmq_declare declares nothing before it is corrected." if stops else "",
            fix=f"{problem.hint} ({problem.id})",
        )
    if not problems:
        handlers = registry.registrations()
        queues = {handler.queue_name for handler in handlers.values()}
        yield f"The checks accept {plural(len(handlers), 'handler')} on {plural(len(queues), 'queue')}."


def unapplied(alias: str) -> list[str]:
    executor = MigrationExecutor(connections[alias])
    targets = [node for node in executor.loader.graph.leaf_nodes() if node[0] == LABEL]
    return [migration.name for migration, _ in executor.migration_plan(targets) if migration.app_label == LABEL]


class RecordExamination:
    """The examination of the databases; each query has a time limit."""

    def __init__(self, limits: Limits, timeout: float) -> None:
        self.health = Health(survey=None, limits=limits)
        """What is known, as soon as the databases are examined."""
        self._timeout = timeout
        self._alias = router.db_for_read(ParkedMessage)
        self._unread = ""
        """The reason why the records were not read."""

    def findings(self) -> Iterator[Finding]:
        """Examine the databases first: the result decides if the records can be read."""
        yield from looked(Area.DATABASE, self._database)
        survey = self.health.survey
        if survey is None:
            for area, what in ((Area.CLOCKS, ""), (Area.CONSUMERS, "Heartbeats were"), (Area.PARKED, "")):
                yield Finding.unseen(area, self._unread or "the database was not read", what=what)
            return
        yield from looked(Area.CLOCKS, lambda: [_agreeing(survey)] if abs(survey.apart) <= CLOCKS_APART_AFTER else [])
        yield from looked(Area.PARKED, lambda: [] if survey.parked.count else ["No message is parked."])

    def growing(self) -> Iterator[Finding]:
        """Return the error groups that grow."""
        survey = self.health.survey
        if survey is not None:
            yield from looked(
                Area.PARKED, lambda: self._in_time(lambda: list(growing(survey.at)), self._alias, "growth")
            )

    def _database(self) -> Iterator[Examined]:
        wrong, used = 0, self._used()
        for alias in connections:
            if alias not in used:
                yield from self._check(alias)
        for alias in used:
            for finding in self._one_database(alias):
                wrong += 1
                yield finding
        if self._unread:
            self.health = replace(self.health, trouble=self._unread)
            return
        survey, trouble = surveyed(self._timeout)
        if survey is not None:
            self.health = replace(self.health, survey=survey)
            vendor, seconds = connections[self._alias].vendor, survey.seconds
            yield f"{self._alias!r} ({vendor}), round trip {seconds * 1000:.0f} ms."
            return
        self._unread = f"the tables of {self._alias!r} cannot be read" if trouble else "RECORDS is off"
        self.health = replace(self.health, trouble=trouble)
        if trouble and not wrong:
            yield unusable(self._alias, trouble)
        elif not trouble:
            yield "RMQ_RETRY['RECORDS'] is False, and the database has no tables of rmq_retry."

    def _used(self) -> list[str]:
        """Return the databases that the settings and handlers use and that may have the tables."""
        settings = conf.settings()
        outbox = [DEFAULT_DB_ALIAS] if settings.outbox is True else list(settings.outbox or ())
        once = [one.using or DEFAULT_DB_ALIAS for one in map(registry.subscription, joined()) if one.once]
        named = dict.fromkeys([*([self._alias] if settings.records else []), *outbox, *once])
        return [alias for alias in named if alias in connections and router.allow_migrate(alias, LABEL)]

    def _one_database(self, alias: str) -> Iterator[Examined]:
        try:
            missing = self._in_time(partial(unapplied, alias), alias, "migrations")
        except (Error, Unanswered, ImproperlyConfigured) as error:
            if alias == self._alias:
                self._unread = f"the database {alias!r} cannot be used"
            yield unusable(alias, one_line(error))
            return
        if missing:
            yield Problem(code=Code.UNMIGRATED, subject=alias, values={"names": ", ".join(missing)})
        else:
            yield from self._check(alias)

    def _in_time(self, ask: Callable[[], T], alias: str, purpose: str) -> T:
        return in_time(ask, alias, self._timeout, purpose=purpose)

    def _check(self, alias: str) -> Iterator[Finding]:
        """Yield the problems that the checks of one database find. One that is unused may not answer."""
        problems: list[CheckMessage] = []
        with suppress(Error, Unanswered, ImproperlyConfigured):
            problems = self._in_time(partial(database_problems, alias), alias, "checks")
        for problem in problems:
            fix = f"{problem.hint} ({problem.id})"
            yield Finding(area=Area.DATABASE, level=Grade.WARNING, problem=f"{problem.msg}", fix=fix)


def growing(now: datetime) -> Iterator[Problem]:
    """Yield the error groups that grow."""
    waiting = with_held(ErrorGroup.objects.filter(muted=False, last_seen__gte=now - RECENT))
    recent = waiting.filter(parked__gt=F("held")).order_by("-last_seen")
    groups = {group.pk: group for group in recent[:MOST_GROUPS_EXAMINED]}
    yield from in_groups(groups, parked_lately(groups, buckets=1), now, groups_of_runs(groups))


def _agreeing(survey: Survey) -> str:
    apart = abs(survey.apart).total_seconds()
    if not apart:
        return f"The database {survey.alias!r} has no clock of its own."
    return f"This host and the database {survey.alias!r} differ by {apart:.3f} s."
