"""The findings of ``rmq_doctor``, and its examination of settings, databases, clocks and records."""

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import TypeVar

from django.core.checks import WARNING, CheckMessage, run_checks
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, Error, connections, router
from django.db.migrations.executor import MigrationExecutor

from django_rmq_retry import server
from django_rmq_retry.amqp.refusals import Refusal
from django_rmq_retry.arguments import plural
from django_rmq_retry.checks.once import database_problems
from django_rmq_retry.checks.settings import TAG, joined
from django_rmq_retry.conf import settings
from django_rmq_retry.errors import BrokerRefused, BrokerUnreachable
from django_rmq_retry.handlers import registry
from django_rmq_retry.health.facts import RECENT, Survey, Unanswered, in_time, surveyed
from django_rmq_retry.health.rules import NEARLY_FULL, OUTBOX_OVERDUE, RUN_IDLE, VANISHED
from django_rmq_retry.messages.texts import short
from django_rmq_retry.models import ConsumerProcess, ErrorGroup, ParkedMessage, QueueControl, RequeueRun
from django_rmq_retry.models.runs import ACTIVE, RunState, RunWait
from django_rmq_retry.parked.groups import grows, parked_lately
from django_rmq_retry.parked.operators import LABEL

T = TypeVar("T")

NAMED = 3
"""The most names in one finding; others are counted."""
MOST_PROCESSES = 1000
"""The most processes that are examined: those with the latest heartbeats."""
MOST_GROUPS = 100
"""The most error groups whose growth is examined: those with the latest messages."""
DAY = timedelta(days=1)
APART = timedelta(seconds=2)
USUAL_WAITS = ("", RunWait.LISTING, RunWait.KEYS_WAIT, RunWait.CANARY_WAITS)
"""The reasons for which a requeue run waits without a problem."""


class Health(StrEnum):
    """The level of a finding."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"
    UNKNOWN = "unknown"
    """The area, or a part of it, was not looked at."""


class Area(StrEnum):
    """An area that the doctor examines, in the order in which its findings are shown."""

    SETTINGS = "settings"
    BROKER = "broker"
    POLICIES = "policies"
    PERMISSIONS = "permissions"
    TOPOLOGY = "topology"
    CONSUMERS = "consumers"
    DATABASE = "database"
    CLOCKS = "clocks"
    PARKED = "parked"

    def ok(self, fact: str) -> "Finding":
        return Finding(area=self, level=Health.OK, problem=fact)

    def warning(self, problem: str, *, why: str, fix: str) -> "Finding":
        return Finding(area=self, level=Health.WARNING, problem=problem, why=why, fix=fix)

    def error(self, problem: str, *, why: str, fix: str) -> "Finding":
        return Finding(area=self, level=Health.ERROR, problem=problem, why=why, fix=fix)

    def unseen(self, reason: str, *, what: str = "", fix: str = "") -> "Finding":
        """Return a finding for an area, or the named part of it, that was not looked at."""
        head = f"{what} not looked at" if what else "Not looked at"
        return Finding(area=self, level=Health.UNKNOWN, problem=f"{head}, because {reason}.", fix=fix)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A fact, a problem or a gap in one area: each part is a sentence or empty."""

    area: Area
    level: Health
    problem: str
    why: str = ""
    """The reason why the problem matters."""
    fix: str = ""
    """The command or the change that repairs it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a healthy state, and the seconds that an answer may take."""

    timeout: float
    max_parked_age: timedelta
    max_ready: int
    deploy: bool = False


def looked(area: Area, look: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """Yield the findings of a look; an error ends this look and no other."""
    try:
        yield from look()
    except (BrokerUnreachable, BrokerRefused, Refusal, Error, Unanswered) as error:
        yield area.unseen(f"of an error: {one_line(error)}")
    except Exception as error:  # noqa: BLE001 - the other areas are examined all the same
        yield area.error(
            f"The examination failed: {type(error).__name__}: {one_line(error)}.",
            why="The state of this area is unknown.",
            fix="Report it to the authors of django-rmq-retry, with the text of this finding.",
        )


def one_line(error: BaseException) -> str:
    """Return an error's text on one line, without its last full stop."""
    return (" ".join(short(error).split()) or type(error).__name__).removesuffix(".")


def listed(names: Iterable[str]) -> str:
    """Return the first few names, and the number of the others."""
    every = list(names)
    more = f" and {len(every) - NAMED} more" if len(every) > NAMED else ""
    return ", ".join(every[:NAMED]) + more


def examine_settings(limits: Limits) -> Iterator[Finding]:
    """Yield the problems that the system checks find."""
    area = Area.SETTINGS
    problems = [one for one in run_checks(tags=[TAG]) if one.level >= WARNING and not one.is_silenced()]
    of_deployment = run_checks(tags=[TAG], include_deployment_checks=True) if limits.deploy else []
    for problem in (*problems, *(one for one in of_deployment if one not in problems and not one.is_silenced())):
        report = area.error if problem.is_serious() else area.warning
        stops = problem.is_serious() and problem in problems
        why = "rmq_consume does not start and rmq_declare declares nothing before it is corrected." if stops else ""
        where = f"{problem.obj}: " if problem.obj else ""
        yield report(f"{where}{problem.msg}", why=why, fix=f"{problem.hint} ({problem.id})")
    if not problems:
        handlers = registry.registrations()
        queues = {handler.queue_name for handler in handlers.values()}
        yield area.ok(f"The checks accept {plural(len(handlers), 'handler')} on {plural(len(queues), 'queue')}.")


def unapplied(alias: str) -> list[str]:
    """Return the names of this package's migrations that a database lacks."""
    executor = MigrationExecutor(connections[alias])
    targets = [node for node in executor.loader.graph.leaf_nodes() if node[0] == LABEL]
    return [migration.name for migration, _ in executor.migration_plan(targets) if migration.app_label == LABEL]


class RecordExamination:
    """The examination of the databases; each query has a time limit."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._alias = router.db_for_read(ParkedMessage)
        self.survey: Survey | None = None
        self._unread = ""
        """The reason why the records were not read."""

    def findings(self) -> Iterator[Finding]:
        """Examine the databases first: the result decides if the records can be read."""
        yield from looked(Area.DATABASE, self._database)
        looks = {Area.CLOCKS: self._clocks, Area.CONSUMERS: self._processes, Area.PARKED: self._parked}
        for area, look in looks.items():
            if self.survey is None:
                what = "Heartbeats were" if area is Area.CONSUMERS else ""
                yield area.unseen(self._unread or "the database was not read", what=what)
            else:
                yield from looked(area, partial(look, self.survey))

    def _database(self) -> Iterator[Finding]:
        area, wrong, used = Area.DATABASE, 0, self._used()
        for alias in connections:
            if alias not in used:
                yield from self._checked(alias)
        for alias in used:
            for finding in self._one_database(alias):
                wrong += 1
                yield finding
        if self._unread:
            return
        self.survey, trouble = surveyed(self._limits.timeout)
        if self.survey is not None:
            vendor, seconds = connections[self._alias].vendor, self.survey.seconds
            yield area.ok(f"{self._alias!r} ({vendor}), round trip {seconds * 1000:.0f} ms.")
            yield from self._outbox(self.survey)
            return
        self._unread = f"the tables of {self._alias!r} cannot be read" if trouble else "RECORDS is off"
        if trouble and not wrong:
            yield self._unusable(self._alias, trouble)
        elif not trouble:
            yield area.ok("RMQ_RETRY['RECORDS'] is False, and the database has no tables of rmq_retry.")

    def _used(self) -> list[str]:
        """Return the databases that the settings and handlers use and that may have the tables."""
        now = settings()
        outbox = [DEFAULT_DB_ALIAS] if now.outbox is True else list(now.outbox or ())
        once = [one.using or DEFAULT_DB_ALIAS for one in map(registry.subscription, joined()) if one.once]
        named = dict.fromkeys([*([self._alias] if now.records else []), *outbox, *once])
        return [alias for alias in named if alias in connections and router.allow_migrate(alias, LABEL)]

    def _one_database(self, alias: str) -> Iterator[Finding]:
        try:
            missing = in_time(partial(unapplied, alias), alias, self._limits.timeout)
        except (Error, Unanswered, ImproperlyConfigured) as error:
            if alias == self._alias:
                self._unread = f"the database {alias!r} cannot be used"
            yield self._unusable(alias, one_line(error))
            return
        if missing:
            yield Area.DATABASE.error(
                f"Migrations of rmq_retry are not applied in {alias!r}: {', '.join(missing)}.",
                why="This version of the package needs their tables to record, park and pause.",
                fix=f"manage.py migrate rmq_retry --database {shlex.quote(alias)}",
            )
            return
        yield from self._checked(alias)

    def _checked(self, alias: str) -> Iterator[Finding]:
        """Yield the problems that the checks of one database find. One that is unused may not answer."""
        problems: list[CheckMessage] = []
        with suppress(Error, Unanswered, ImproperlyConfigured):
            problems = in_time(partial(database_problems, alias), alias, self._limits.timeout)
        for problem in problems:
            yield Area.DATABASE.warning(f"{problem.msg}", why="", fix=f"{problem.hint} ({problem.id})")

    def _unusable(self, alias: str, reason: str) -> Finding:
        return Area.DATABASE.error(
            f"The database {alias!r} cannot be used: {reason}.",
            why="Parked messages stay in their queues, and handlers that need the database fail.",
            fix=f"Start it, or correct DATABASES[{alias!r}] in the settings.",
        )

    def _outbox(self, survey: Survey) -> Iterator[Finding]:
        area, outbox = Area.DATABASE, survey.outbox
        if outbox.failed:
            yield area.error(
                f"{plural(outbox.failed, 'message')} in the outbox failed.",
                why="The broker can never accept them as they are, so they are not sent.",
                fix="manage.py rmq_relay list --failed, then manage.py rmq_relay retry or discard",
            )
        waited = server.now(survey.alias) - outbox.oldest if outbox.oldest else timedelta()
        if waited > OUTBOX_OVERDUE:
            yield area.error(
                f"{plural(outbox.waiting, 'message')} in the outbox not sent, the oldest for {server.span(waited)}.",
                why="A relay sends within seconds, so none runs, or the broker refuses the message.",
                fix="Start manage.py rmq_consume or rmq_relay; manage.py rmq_relay list shows the last errors.",
            )

    def _clocks(self, survey: Survey) -> Iterator[Finding]:
        area, apart = Area.CLOCKS, abs(survey.apart)
        report = area.error if apart > server.TOLERANCE else area.warning
        if apart > APART:
            yield report(
                server.difference(survey.apart, survey.alias),
                why="Pauses, holds and leases last by the database's clock; above 5 min, nothing is deleted by age.",
                fix="Synchronize both by NTP: timedatectl status",
            )
        elif apart:
            yield area.ok(f"This host and the database {survey.alias!r} differ by {apart.total_seconds():.3f} s.")
        else:
            yield area.ok(f"The database {survey.alias!r} has no clock of its own.")

    def _processes(self, survey: Survey) -> Iterator[Finding]:
        newest = ConsumerProcess.objects.defer("in_flight").order_by("-beat_at")[:MOST_PROCESSES]
        rows = sorted(self._asked(lambda: list(newest)), key=lambda row: (row.host, row.pid))
        now = server.now(survey.alias)
        gone = [row for row in rows if now - row.beat_at > VANISHED]
        if gone:
            named = listed(f"{row} ({server.span(now - row.beat_at)} ago)" for row in gone)
            yield Area.CONSUMERS.warning(
                f"{plural(len(gone), 'consumer')} without a heartbeat for 30 s: {named}.",
                why="Each was killed, hangs, or cannot reach the database.",
                fix="Check rmq_consume on these hosts: journalctl, docker logs or kubectl logs.",
            )
        living = [row for row in rows if now - row.beat_at <= VANISHED and not row.stopping]
        yield from _versions(living)
        away = [str(row) for row in living if not row.connected]
        if away:
            yield Area.CONSUMERS.warning(
                f"Without a connection to the broker: {listed(away)}.",
                why="These consumers take no messages.",
                fix="Their logs name the reason: event=disconnected.",
            )

    def _parked(self, survey: Survey) -> Iterator[Finding]:
        now = server.now(survey.alias)
        yield self._oldest(survey, now)
        yield from self._asked(lambda: list(_growing(now)))
        for control in survey.stopped:
            yield _stopped(control, now)
        for control in survey.halted:
            yield _halted(control, now)
        yield from _blocked(survey)
        for run in self._asked(lambda: list(RequeueRun.objects.filter(state__in=ACTIVE).order_by("pk"))):
            yield from _run(run, now)

    def _oldest(self, survey: Survey, now: datetime) -> Finding:
        area, parked = Area.PARKED, survey.parked
        if not parked.count or parked.oldest is None:
            return area.ok("No message is parked.")
        text = f"{plural(parked.count, 'message')} parked, the oldest {server.span(now - parked.oldest)} ago."
        if now - parked.oldest <= self._limits.max_parked_age:
            return area.ok(text)
        return area.error(
            text,
            why=f"A parked message waits for an operator, and the limit is {server.span(self._limits.max_parked_age)}.",
            fix="manage.py rmq_parked groups, then manage.py rmq_parked requeue --group N --canary",
        )

    def _asked(self, ask: Callable[[], T]) -> T:
        return in_time(ask, self._alias, self._limits.timeout)


def _versions(living: Iterable[ConsumerProcess]) -> Iterator[Finding]:
    """Yield a finding if the living consumers run different versions of the project or of this package."""
    rows = list(living)
    for what, versions in (
        ("the project", Counter(row.deploy for row in rows)),
        ("django-rmq-retry", Counter(row.version for row in rows)),
    ):
        if len(versions) > 1:
            named = ", ".join(f"{name or 'unknown'} ({count})" for name, count in versions.items())
            yield Area.CONSUMERS.warning(
                f"Consumers run {len(versions)} versions of {what}: {named}.",
                why="After a deployment, a process that was not restarted handles messages with the old code.",
                fix="Restart the consumers of the old version.",
            )


def _growing(now: datetime) -> Iterator[Finding]:
    """Yield a finding for each error group in which messages are being parked."""
    recent = ErrorGroup.objects.filter(parked__gt=0, muted=False, last_seen__gte=now - RECENT).order_by("-last_seen")
    groups = {group.pk: group for group in recent[:MOST_GROUPS]}
    _, counts = parked_lately(groups, buckets=1)
    growing = sorted(((count, number) for number, (count,) in counts.items() if grows(count)), reverse=True)
    for count, number in growing[:NAMED]:
        yield Area.PARKED.warning(
            f"Error group {number} grows: {plural(count, 'message')} in the last 10 min ({groups[number]}).",
            why="As long as its cause persists, requeued messages fail again.",
            fix=f"manage.py rmq_parked list --group {number}; correct the cause before you requeue.",
        )
    if len(growing) > NAMED:
        yield Area.PARKED.warning(
            f"Further error groups that grow more slowly: {len(growing) - NAMED}.",
            why="As above.",
            fix="manage.py rmq_parked groups",
        )


def _stopped(control: QueueControl, now: datetime) -> Finding:
    area, resume = Area.PARKED, f"manage.py rmq_queue resume {shlex.quote(control.queue)}"
    if control.opened:
        since = f" for {server.span(now - control.opened_at)}" if control.opened_at else ""
        cause = f": {control.cause.removesuffix('.')}" if control.cause else ""
        return area.error(
            f"The breaker of queue {control.queue!r} has been open{since}{cause}.",
            why="A service that the handler needs is down, so the queue is paused; single probes continue.",
            fix=f"Restore the service; the queue resumes by itself, or at once with {resume}",
        )
    by = f" by {control.by}" if control.by else ""
    reason = f": {control.reason.removesuffix('.')}" if control.reason else ""
    lasted = now - control.since if control.since else timedelta()
    text = f"Queue {control.queue!r} has been paused for {server.span(lasted)}{by}{reason}."
    if lasted <= DAY:
        return area.ok(text)
    return area.warning(text, why="Its messages wait, and a pause of more than a day may be forgotten.", fix=resume)


def _halted(control: QueueControl, now: datetime) -> Finding:
    since = now - control.halted_at if control.halted_at else timedelta()
    report = Area.PARKED.error if since > DAY else Area.PARKED.warning
    error = control.halted_error.removesuffix(".")
    return report(
        f"Queue {control.queue!r} has been halted for {server.span(since)}, attempt {control.halted_attempt}: {error}.",
        why="It keeps its order: all later messages wait until its first message succeeds.",
        fix="Correct the cause of the error; the queue resumes with the next attempt that succeeds.",
    )


def _blocked(survey: Survey) -> Iterator[Finding]:
    now, blocked = settings(), survey.blocked
    for name, count, limit, where in (
        ("BLOCKED_TOTAL", blocked.messages, now.blocked_total, "behind blocked keys"),
        ("BLOCKED_PER_KEY", blocked.most, now.blocked_per_key, "behind one key"),
    ):
        if count >= limit * NEARLY_FULL:
            report = Area.PARKED.error if count >= limit else Area.PARKED.warning
            yield report(
                f"{plural(count, 'message')} {where}, and the limit {name} is {limit}.",
                why="At the limit, messages of blocked keys stay unacked and slow down their queues.",
                fix="manage.py rmq_blocked list, then resolve the message that goes first of the oldest key.",
            )


def _run(run: RequeueRun, now: datetime) -> Iterator[Finding]:
    area, command = Area.PARKED, f"manage.py rmq_parked requeue-run {run.pk}"
    idle = now - (run.leased_until or run.beat_at or run.created_at)
    explanation = run.explanation.removesuffix(".")
    if run.state == RunState.PAUSED:
        if run.wait or idle > DAY:
            by = "paused itself" if run.wait else f"has been paused for {server.span(idle)}"
            yield area.warning(
                f"Requeue run {run.pk} {by}{explanation and ': '}{explanation}.",
                why=f"{plural(run.total - run.sent - run.skipped, 'message')} not sent yet.",
                fix=f"{command} --resume, or {command} --stop",
            )
    elif run.wait not in USUAL_WAITS:
        yield area.warning(
            f"Requeue run {run.pk} waits: {explanation}.",
            why="It sends nothing meanwhile.",
            fix=f"{command} follows it, {command} --stop ends it",
        )
    elif idle > RUN_IDLE:
        yield area.warning(
            f"Requeue run {run.pk} has had no driver for {server.span(idle)}.",
            why="A consumer drives it, and none that reaches the database is running.",
            fix=f"Start manage.py rmq_consume, or drive it here: {command}",
        )
