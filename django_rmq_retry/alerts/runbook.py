"""Where an alert says what to do about its finding."""

from collections.abc import Mapping

from django_rmq_retry.alerts.found import AlertFinding
from django_rmq_retry.conf import Alerts
from django_rmq_retry.health.rules import Area, Code

PAGE = "https://django-rmq-retry.readthedocs.io/en/latest/operate/runbook.html"
SECTIONS: Mapping[Code, str] = {
    Code.BREAKER_OPEN: "a-queue-is-paused-or-its-breaker-is-open",
    Code.PAUSED: "a-queue-is-paused-or-its-breaker-is-open",
    Code.PAUSED_LONG: "a-queue-is-paused-or-its-breaker-is-open",
    Code.HALTED: "a-line-has-halted",
    Code.HALTED_LONG: "a-line-has-halted",
    Code.BLOCKED_NEAR: "a-key-is-blocked",
    Code.BLOCKED_FULL: "a-key-is-blocked",
    Code.OUTBOX_FAILED: "the-outbox-grows",
    Code.OUTBOX_OVERDUE: "the-outbox-grows",
    Code.ABANDONED: "a-queue-was-renamed",
    Code.MANY_DEAD_LETTER_PROCESSES: "retries-do-not-return-after-an-update-of-rabbitmq",
    Code.RETRIES_OVERDUE: "retries-are-overdue",
    Code.STUCK: "a-consumer-is-stuck",
    Code.NO_OUTCOME: "requeued-messages-have-no-outcome",
    Code.ALL_VANISHED: "a-consumer-restarts-again-and-again",
    Code.VANISHED: "a-consumer-restarts-again-and-again",
}
OF_AREA: Mapping[Area, str] = {
    Area.BROKER: "the-broker-was-away",
    Area.CONSUMERS: "a-queue-grows",
    Area.DATABASE: "the-database-was-away",
    Area.PARKED: "payments-are-parked",
}
"""The sections for all other findings of an area; without one, the list of symptoms."""


def runbook(wanted: Alerts, finding: AlertFinding) -> str:
    """Return the project's page for this finding, else the section of this package's runbook."""
    own = wanted.runbook.filled({"code": finding.code, "subject": finding.subject}) if wanted.runbook else ""
    return own or _ours(finding.code)


def _ours(name: str) -> str:
    code = Code.__members__.get(name)
    section = "" if code is None else SECTIONS.get(code) or OF_AREA.get(code.value.area, "")
    return f"{PAGE}#{section}" if section else PAGE
