"""What is wrong at this moment, as alerts tell it."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from django.core.exceptions import ImproperlyConfigured

from django_rmq_retry import database_clock
from django_rmq_retry.amqp.declarer import Declarer
from django_rmq_retry.amqp.levels import Gauged
from django_rmq_retry.amqp.management_api import Inspector
from django_rmq_retry.amqp.session import Session
from django_rmq_retry.conf import Alerts, settings
from django_rmq_retry.errors import RmqRetryError
from django_rmq_retry.health.facts import Survey, surveyed
from django_rmq_retry.health.problems import present, unreachable
from django_rmq_retry.health.rules import Code, Problem, Severity
from django_rmq_retry.messages.texts import short
from django_rmq_retry.parked.declared import gauged

PATIENCE_SECONDS = 5.0
"""Seconds for the answer of the database, and for each step of the broker's."""
LONGEST_TEXT = 500
MILDER = {
    Code.PARKED_MANY: Code.PARKED,
    Code.PARKED_LONG: Code.PARKED,
    Code.PAUSED_LONG: Code.PAUSED,
    Code.HALTED_LONG: Code.HALTED,
    Code.CLOCKS_WRONG: Code.CLOCKS_APART,
    Code.BLOCKED_FULL: Code.BLOCKED_NEAR,
    Code.NO_CONSUMER: Code.IDLE,
    Code.ALL_VANISHED: Code.ALL_IDLE,
    Code.ALL_UNREAD: Code.ALL_IDLE,
}
"""Codes of the same finding at a later time, with the code under which it is known."""
NOTHING = Gauged(levels=(), api_set=False)
"""What is known of the queues without the broker."""
WHOLE = (Code.PARKED, Code.BLOCKED_NEAR)
"""Codes of findings that are one, whatever they are about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertFinding:
    """One problem in plain words and numbers."""

    key: str
    """The same as long as the problem lasts, also when it gets worse."""
    code: str
    subject: str
    severity: Severity
    count: int
    text: str
    since: datetime | None = None
    why: str = ""
    fix: str = ""
    of_queues: bool = False
    """True if it is unknown while the broker does not answer."""

    @classmethod
    def of(cls, problem: Problem, *, of_queues: bool) -> "AlertFinding":
        code = MILDER.get(problem.code, problem.code)
        return cls(
            key=code.name if code in WHOLE else f"{code.name} {problem.subject}",
            code=problem.code.name,
            subject=problem.subject,
            severity=problem.severity,
            count=problem.count,
            text=_line(problem.text),
            since=problem.since,
            why=_line(problem.why),
            fix=_line(problem.fix),
            of_queues=of_queues,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The findings of one moment that the settings want to be told, the most harmful first."""

    findings: tuple[AlertFinding, ...]
    blind: bool = False
    """True if the broker did not answer, so that nothing is known of its queues."""


class Unseen(Exception):
    """The database did not answer, so nothing is known."""


def find(wanted: Alerts) -> Found:
    survey, trouble = surveyed(PATIENCE_SECONDS)
    if survey is None:
        raise Unseen(trouble or "the tables of rmq_retry are missing")
    seen = NOTHING
    away = None
    try:
        seen = _gauged(survey)
    except (RmqRetryError, OSError, ImproperlyConfigured) as error:
        away = unreachable(error)
    return Found(findings=tuple(_chosen(wanted, survey, seen, away)), blind=away is not None)


def _gauged(survey: Survey) -> Gauged:
    url = settings().operators.management_url
    with Session(settings().access(), purpose="alerts", patience=PATIENCE_SECONDS) as session:
        inspector = None if url is None else Inspector(url=url, vhost=session.access.vhost)
        return gauged(Declarer(session, inspector), survey.declared)


def _chosen(wanted: Alerts, survey: Survey, seen: Gauged, away: Problem | None) -> Iterable[AlertFinding]:
    now, least = database_clock.now(survey.alias), Severity[wanted.level.upper()]
    without_queues = [*([away] if away else []), *present(survey, now, NOTHING)]
    known = {problem.code for problem in without_queues}
    found: dict[str, AlertFinding] = {}
    for problem in without_queues if away else present(survey, now, seen):
        if problem.severity >= least and problem.code.name not in wanted.without:
            finding = AlertFinding.of(problem, of_queues=problem.code not in known)
            found.setdefault(finding.key, finding)
    return found.values()


def _line(text: str) -> str:
    """Return a text on one line, of a length that fits into a mail's subject and a chat."""
    return short(" ".join(text.split()), LONGEST_TEXT)
