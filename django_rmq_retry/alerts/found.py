"""What is wrong at this moment, as alerts tell it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

from django.core.exceptions import ImproperlyConfigured

from django_rmq_retry.amqp.declarer import Declarer
from django_rmq_retry.amqp.session import Session
from django_rmq_retry.conf import Alerts, settings
from django_rmq_retry.declared import declarer_on
from django_rmq_retry.errors import RmqRetryError
from django_rmq_retry.health.look import look
from django_rmq_retry.health.problems import Limits
from django_rmq_retry.health.rules import Problem, Severity
from django_rmq_retry.messages.texts import short

ALERT_PATIENCE_SECONDS = 5.0
"""Seconds for the answer of the database, and for each step of the broker's."""
LONGEST_TEXT = 500


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
    causes: tuple[str, ...] = ()
    of_queues: bool = False
    """True if it is unknown while the broker does not answer."""

    @classmethod
    def of(cls, problem: Problem, *, of_queues: bool) -> "AlertFinding":
        name = problem.code.known_as
        return cls(
            key=name if problem.rule.alerts_once else f"{name} {problem.subject}",
            code=problem.code.name,
            subject=problem.subject,
            severity=problem.severity,
            # Of several queues it counts the queues, and of one the messages: an alert tells of messages.
            count=int(str(problem.values.get("ready", problem.count))),
            text=_line(problem.text),
            since=problem.since,
            why=_line(problem.why),
            fix=_line(problem.fix),
            causes=problem.causes,
            of_queues=of_queues,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertFindings:
    """The findings of one moment that the settings want to be told, the most harmful first."""

    findings: tuple[AlertFinding, ...]
    blind: bool = False
    """True if the broker did not answer, so that nothing is known of its queues."""
    following: frozenset[str] = frozenset()
    """The keys of what only follows from a finding: no alert tells of it, nor that it is over."""


class Unseen(Exception):
    """The database did not answer, so nothing is known."""


def find(wanted: Alerts) -> AlertFindings:
    away = (RmqRetryError, OSError, ImproperlyConfigured)
    seen = look(_opened, timeout=ALERT_PATIENCE_SECONDS, limits=Limits(), away=away)
    if seen.survey is None:
        raise Unseen(seen.trouble or "the tables of rmq_retry are missing")
    least = Severity[wanted.level.upper()]
    known = {problem.code for problem in (*seen.of_database, seen.away) if problem}
    found: dict[str, AlertFinding] = {}
    for problem in seen.of_severity(least):
        if problem.code.name not in wanted.without and problem not in seen.following:
            finding = AlertFinding.of(problem, of_queues=problem.code not in known)
            found.setdefault(finding.key, finding)
    following = frozenset(AlertFinding.of(one, of_queues=True).key for one in (*seen.following, *seen.absorbed))
    return AlertFindings(
        findings=tuple(found.values()), blind=seen.away is not None, following=following - found.keys()
    )


@contextmanager
def _opened() -> Iterator[Declarer]:
    with Session(settings().access(), purpose="alerts", patience=ALERT_PATIENCE_SECONDS) as session:
        yield declarer_on(session)


def _line(text: str) -> str:
    """Return a text on one line, of a length that fits into a mail's subject and a chat."""
    return short(" ".join(text.split()), LONGEST_TEXT)
