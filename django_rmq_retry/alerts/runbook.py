"""The link in an alert to the page that says what to do about its finding."""

from collections.abc import Mapping

from django_rmq_retry.alerts.found import AlertFinding
from django_rmq_retry.conf import Alerts
from django_rmq_retry.health.rules import Area, Code

PAGE = "https://django-rmq-retry.readthedocs.io/en/latest/operate/runbook.html"
OF_AREA: Mapping[Area, str] = {
    Area.BROKER: "the-broker-was-down",
    Area.CONSUMERS: "a-queue-grows",
    Area.DATABASE: "the-database-was-down",
    Area.PARKED: "payments-are-parked",
}
"""The sections for findings whose rule names none; without one, the list of symptoms."""


def runbook(wanted: Alerts, finding: AlertFinding) -> str:
    """Return the project's page for this finding, else the section of this package's runbook."""
    own = wanted.runbook.filled({"code": finding.code, "subject": finding.subject}) if wanted.runbook else ""
    return own or _ours(finding.code)


def _ours(name: str) -> str:
    code = Code.__members__.get(name)
    section = "" if code is None else code.value.runbook or OF_AREA.get(code.value.area, "")
    return f"{PAGE}#{section}" if section else PAGE
