"""How alerts are sent: by mail, and as signed requests to a webhook."""

import hashlib
import hmac
import json
import threading
import time
from http import HTTPStatus
from typing import Protocol
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request

from django.conf import settings as project
from django.core import mail
from django.db import connections

from django_rmq_retry import __version__
from django_rmq_retry.alerts.found import AlertFinding
from django_rmq_retry.alerts.ledger import Alert, AlertEvent
from django_rmq_retry.alerts.runbook import runbook
from django_rmq_retry.amqp.address import Secret
from django_rmq_retry.arguments import plural
from django_rmq_retry.conf import ADMINS, Settings
from django_rmq_retry.health.rules import Severity
from django_rmq_retry.http_requests import opener
from django_rmq_retry.wording import duration

SEND_SECONDS = 10.0
"""Seconds for which one alert may take; a try that takes longer goes on, and none is made beside it."""
TIMESTAMP, SIGNATURE, NUMBER = "Rmq-Retry-Timestamp", "Rmq-Retry-Signature", "Rmq-Retry-Alert"
"""The headers of the webhook."""
STATUS_PAGE = "rmq_retry/livestatus/"
NOWHERE = {f"django.core.mail.backends.{name}.EmailBackend" for name in ("console", "dummy", "filebased", "locmem")}
WORDS = {
    AlertEvent.BEGINS: "begins",
    AlertEvent.WORSENS: "is worse",
    AlertEvent.ENDS: "is over",
    AlertEvent.TEST: "is a test",
}

TEST = Alert(
    event=AlertEvent.TEST,
    id="test",
    finding=AlertFinding(
        key="test",
        code="TEST",
        subject="",
        severity=Severity.INFORMATION,
        count=0,
        text="rmq_doctor --alerts test was run, and this alert arrived",
    ),
)


class Undelivered(Exception):
    """An alert was not accepted; the text names the reason and holds no address and no secret."""


class Way(Protocol):
    name: str
    to: str
    """Whom it reaches, for people."""
    remark: str
    """What a test has to say although it was sent."""

    def send(self, alert: Alert) -> None:
        """Send it, or raise."""


def ways(settings: Settings) -> list[Way]:
    """Return the ways to send alerts that the settings name."""
    found: list[Way] = []
    if settings.alerts.mail:
        found.append(Mail(settings))
    if settings.alerts.webhook and settings.alerts.secret:
        found.append(Webhook(settings, settings.alerts.webhook, settings.alerts.secret))
    return found


def _page(settings: Settings) -> str:
    return settings.alerts.admin_url.rstrip("/") + "/" + STATUS_PAGE if settings.alerts.admin_url else ""


class Mail:
    name = "mail"

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        recipients = settings.alerts.mail
        self.to = "ADMINS" if recipients == ADMINS else plural(len(recipients), "address", "es")
        mailers = getattr(project, "MAILERS", None)
        backend = mailers.get("default", {}).get("BACKEND", "") if mailers else project.EMAIL_BACKEND
        self.remark = f"but {backend} delivers to nobody" if backend in NOWHERE else ""

    def send(self, alert: Alert) -> None:
        recipients = self._settings.alerts.mail
        subject, body = self._subject(alert), self._body(alert)
        if recipients == ADMINS and not project.ADMINS:
            raise Undelivered("the setting ADMINS is empty")
        if recipients == ADMINS:
            mail.mail_admins(subject, body)
        elif not mail.send_mail(subject, body, None, list(recipients)):
            raise Undelivered("the mail backend sent nothing")

    def _subject(self, alert: Alert) -> str:
        environment = self._settings.operators.environment
        head = f"[{environment}] " if environment else ""
        return f"{head}{alert.finding.severity.name.capitalize()} {WORDS[alert.event]}: {alert.finding.text}"

    def _body(self, alert: Alert) -> str:
        finding, window = alert.finding, self._settings.alerts.window
        since = "" if finding.since is None else f"Since: {finding.since:%Y-%m-%d %H:%M:%S %Z}".rstrip()
        parts = (
            finding.text,
            "" if alert.event is AlertEvent.ENDS else finding.why,
            f"Repair: {finding.fix}" if finding.fix and alert.event is not AlertEvent.ENDS else "",
            since,
            f"Live status: {_page(self._settings)}" if _page(self._settings) else "",
            f"Runbook: {runbook(self._settings.alerts, finding)}" if alert.event is not AlertEvent.ENDS else "",
            f"At most one alert of this finding is sent in {duration(window)}.",
        )
        return "\n\n".join(filter(None, parts)) + "\n"


class Webhook:
    name = "webhook"
    remark = ""

    def __init__(self, settings: Settings, url: Secret, secret: Secret) -> None:
        self._settings = settings
        self._url = url
        self._secret = secret
        # Its path is often the password.
        self.to = str(urlsplit(url.reveal()).hostname)

    def send(self, alert: Alert) -> None:
        body = json.dumps(self._document(alert), ensure_ascii=False).encode("utf-8", "replace")
        timestamp = str(int(time.time()))
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"django-rmq-retry/{__version__}",
            NUMBER: alert.id,
            TIMESTAMP: timestamp,
            SIGNATURE: f"sha256={signature(self._secret, timestamp, body)}",
        }
        request = Request(self._url.reveal(), data=body, headers=headers, method="POST")  # noqa: S310  # settings: http(s)
        try:
            with opener().open(request, timeout=SEND_SECONDS) as answer:
                status = answer.status
        except HTTPError as error:
            error.close()
            status = error.code
        if not HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
            raise Undelivered(f"it answered {status}")

    def _document(self, alert: Alert) -> dict[str, object]:
        finding, settings = alert.finding, self._settings
        return {
            "version": 1,
            "id": alert.id,
            "event": alert.event.value,
            "environment": settings.operators.environment,
            "code": finding.code,
            "subject": finding.subject,
            "severity": finding.severity.name.lower(),
            "count": finding.count,
            "since": None if finding.since is None else finding.since.isoformat(),
            "text": finding.text,
            "why": finding.why,
            "fix": finding.fix,
            "page": _page(settings),
            "runbook": runbook(settings.alerts, finding),
        }


def signature(secret: Secret, timestamp: str, body: bytes) -> str:
    """Return the HMAC-SHA256 of the timestamp, a full stop and the body, in hexadecimal digits."""
    return hmac.new(secret.reveal().encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()


def failure_reason(error: BaseException) -> str:
    """Return why a try failed, without the texts of errors, which may hold an address or a password."""
    if isinstance(error, Undelivered):
        return str(error)
    inner = error.reason if isinstance(error, URLError) and isinstance(error.reason, BaseException) else error
    code = getattr(inner, "smtp_code", None)
    more = inner.strerror if isinstance(inner, OSError) and inner.strerror else code
    return f"{type(inner).__name__} ({more})" if more else type(inner).__name__


class TimeLimitedWay:
    """A way with a deadline. A try that has not answered by then is awaited before the next one begins."""

    def __init__(self, way: Way, *, seconds: float = SEND_SECONDS) -> None:
        self.way = way
        self._seconds = seconds
        self._trying: threading.Thread | None = None
        self._results: dict[str, str] = {}
        """The reasons of tries that ended, by the id of their alert; empty for one that was sent."""

    def send(self, alert: Alert) -> str:
        """Return why the alert was not sent; empty if it was."""
        until = time.monotonic() + self._seconds
        if self._trying is not None:
            self._trying.join(self._seconds)
            if self._trying.is_alive():
                return self._silent
        if self._results.pop(alert.id, None) == "":
            return ""
        self._trying = threading.Thread(target=self._try, args=(alert,), name="rmq-alert", daemon=True)
        self._trying.start()
        self._trying.join(max(0.0, until - time.monotonic()))
        return self._silent if self._trying.is_alive() else self._results.pop(alert.id, "its thread ended")

    @property
    def _silent(self) -> str:
        return f"it did not answer within {self._seconds:g} s"

    def _try(self, alert: Alert) -> None:
        try:
            self.way.send(alert)
        except Exception as error:  # noqa: BLE001 - a mail backend of the project may raise anything
            self._results[alert.id] = failure_reason(error)
        else:
            self._results[alert.id] = ""
        finally:
            # A mail backend may keep its mails in a database.
            connections.close_all()
