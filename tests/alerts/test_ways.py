"""The mail and the webhook, as they arrive."""

import hashlib
import hmac
import json
import re
import socket
import threading
from dataclasses import replace
from datetime import UTC, datetime
from smtplib import SMTPAuthenticationError
from typing import Any

import django
import pytest
from django.core import mail
from django.test import override_settings

from django_rmq_retry import conf
from django_rmq_retry.alerts.found import AlertFinding
from django_rmq_retry.alerts.ledger import Alert, AlertEvent
from django_rmq_retry.alerts.runbook import runbook
from django_rmq_retry.alerts.ways import TimeLimitedWay, Undelivered, Way, failure_reason, ways
from django_rmq_retry.health.rules import Code, Severity
from tests.alerts.receiving import PATH, SECRET, Receiver
from tests.commands.running import Exit, run
from tests.tooling.pages import page
from tests.tooling.waiting import wait_until

ROOT = ["root@bank.example"] if django.VERSION >= (6, 0) else [("root", "root@bank.example")]
FINDING = AlertFinding(
    key="NO_CONSUMER pay",
    code="NO_CONSUMER",
    subject="pay",
    severity=Severity.ERROR,
    count=4000,
    text="Queue 'pay': no consumer reads this queue.",
    since=datetime(2026, 11, 27, 17, 4, tzinfo=UTC),
    why="It has 4000 messages ready.",
    fix="Start manage.py rmq_consume pay",
)
ALERT = Alert(event=AlertEvent.BEGINS, id="a1", finding=FINDING)
ADMIN = "https://bank.example/admin/"
KEPT = "but django.core.mail.backends.locmem.EmailBackend delivers to nobody"
OURS = "https://django-rmq-retry.readthedocs.io/en/latest/operate/runbook.html"


def configured(**keys: Any) -> Any:
    return override_settings(
        RMQ_RETRY={"ALERTS": {"ADMIN_URL": ADMIN, **keys}, "OPERATORS": {"ENVIRONMENT": "PRODUCTION"}}
    )


def only_way() -> Way:
    (way,) = ways(conf.settings())
    return way


def test_a_webhook_can_be_verified_by_its_signature_over_timestamp_and_body(receiving: Receiver) -> None:
    with configured(WEBHOOK=receiving.url, SECRET=SECRET):
        assert TimeLimitedWay(only_way()).send(ALERT) == ""
    ((headers, body),) = receiving.got
    signed = headers["Rmq-Retry-Timestamp"].encode() + b"." + body

    expected = hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()
    assert headers["Rmq-Retry-Signature"] == f"sha256={expected}"
    assert headers["Rmq-Retry-Alert"] == "a1"
    assert headers["Content-Type"] == "application/json"
    assert abs(int(headers["Rmq-Retry-Timestamp"]) - datetime.now(UTC).timestamp()) < 60
    assert json.loads(body) == {
        "version": 1,
        "id": "a1",
        "event": "begins",
        "environment": "PRODUCTION",
        "code": "NO_CONSUMER",
        "subject": "pay",
        "severity": "error",
        "count": 4000,
        "since": "2026-11-27T17:04:00+00:00",
        "text": "Queue 'pay': no consumer reads this queue.",
        "why": "It has 4000 messages ready.",
        "fix": "Start manage.py rmq_consume pay",
        "page": "https://bank.example/admin/rmq_retry/livestatus/",
        "runbook": f"{OURS}#a-queue-grows",
    }


def test_a_mail_says_what_is_wrong_what_to_do_and_where_to_look() -> None:
    with configured(MAIL=["ops@bank.example", "lead@bank.example"]):
        assert TimeLimitedWay(only_way()).send(ALERT) == ""
    (sent,) = mail.outbox

    assert sent.to == ["ops@bank.example", "lead@bank.example"]
    assert sent.subject == "[PRODUCTION] Error begins: Queue 'pay': no consumer reads this queue."
    assert sent.body.splitlines()[::2] == [
        "Queue 'pay': no consumer reads this queue.",
        "It has 4000 messages ready.",
        "Repair: Start manage.py rmq_consume pay",
        "Since: 2026-11-27 17:04:00 UTC",
        "Live status: https://bank.example/admin/rmq_retry/livestatus/",
        f"Runbook: {OURS}#a-queue-grows",
        "At most one alert of this finding is sent in 15 min.",
    ]


@pytest.mark.parametrize("code", Code, ids=lambda one: one.name)
def test_the_runbook_of_each_finding_is_a_section_that_exists(code: Code) -> None:
    with configured(MAIL="admins"):
        address, _, section = runbook(conf.settings().alerts, replace(FINDING, code=code.name)).partition("#")
    headings = re.findall(r"^## (.+)$", page("runbook.md").read_text(), re.MULTILINE)

    assert address == OURS
    assert section in {"", *(re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings)}


def test_the_projects_own_runbook_is_linked_with_the_code_of_the_finding() -> None:
    own = "https://wiki.bank/run?on={subject}#{code}"
    with configured(MAIL=["ops@bank.example"], RUNBOOK=own):
        TimeLimitedWay(only_way()).send(replace(ALERT, finding=replace(FINDING, subject="pay in/eu")))
        TimeLimitedWay(only_way()).send(replace(ALERT, finding=replace(FINDING, subject="")))

    first, second = (re.findall("Runbook: (.*)", str(one.body)) for one in mail.outbox)
    assert first == ["https://wiki.bank/run?on=pay%20in%2Feu#NO_CONSUMER"]
    assert second == [f"{OURS}#a-queue-grows"]


def test_a_mail_to_the_admins_reaches_them() -> None:
    with configured(MAIL="admins"), override_settings(ADMINS=ROOT):
        assert TimeLimitedWay(only_way()).send(ALERT) == ""

    assert [one.to for one in mail.outbox] == [["root@bank.example"]]


def test_a_mail_to_no_admins_is_not_sent() -> None:
    with configured(MAIL="admins"), override_settings(ADMINS=[]):
        assert TimeLimitedWay(only_way()).send(ALERT) == "the setting ADMINS is empty"


@pytest.mark.parametrize("status", [302, 400, 500])
def test_a_webhook_that_refuses_or_redirects_has_not_accepted(receiving: Receiver, status: int) -> None:
    receiving.status, receiving.location = status, receiving.url
    with configured(WEBHOOK=receiving.url, SECRET=SECRET):
        assert TimeLimitedWay(only_way()).send(ALERT) == f"it answered {status}"

    assert len(receiving.got) == 1


def test_a_webhook_that_is_down_is_named_without_its_address() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}{PATH}"
        with configured(WEBHOOK=url, SECRET=SECRET):
            assert TimeLimitedWay(only_way()).send(ALERT) == "ConnectionRefusedError (Connection refused)"


class Silent:
    """A mail server that accepts a connection and says nothing until it is let go."""

    name, to, remark = "mail", "1 address", ""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.over = threading.Event()

    def send(self, alert: Alert) -> None:
        self.over.wait(60)
        self.sent.append(alert.id)


def test_a_way_that_is_silent_costs_its_deadline_and_gets_no_second_try_beside_the_first() -> None:
    way = Silent()
    limited = TimeLimitedWay(way, seconds=0.2)
    reasons = [limited.send(ALERT) for _ in range(3)]
    way.over.set()
    wait_until(lambda: limited.send(ALERT) == "")

    assert reasons == ["it did not answer within 0.2 s"] * 3
    assert way.sent == ["a1"]


def test_the_reason_of_a_failure_holds_no_text_of_the_error() -> None:
    assert failure_reason(ValueError(f"https://h{PATH}")) == "ValueError"
    assert failure_reason(OSError(111, "Connection refused", PATH)) == "ConnectionRefusedError (Connection refused)"
    assert failure_reason(SMTPAuthenticationError(535, PATH.encode())) == "SMTPAuthenticationError (535)"
    assert failure_reason(Undelivered("it answered 500")) == "it answered 500"


def test_the_doctor_sends_one_test_by_each_way(receiving: Receiver) -> None:
    with configured(MAIL=["ops@bank.example"], WEBHOOK=receiving.url, SECRET=SECRET):
        ran = run("rmq_doctor", "--alerts", "test")

    assert ran.code == Exit.DONE
    assert ran.out.splitlines() == [f"mail to 1 address: sent, {KEPT}", "webhook to 127.0.0.1: sent"]
    assert [json.loads(body)["event"] for _, body in receiving.got] == ["test"]
    assert [one.subject for one in mail.outbox] == [
        "[PRODUCTION] Information is a test: rmq_doctor --alerts test was run, and this alert arrived"
    ]


def test_the_doctor_says_which_way_failed(receiving: Receiver) -> None:
    receiving.status = 403
    with configured(MAIL=["ops@bank.example"], WEBHOOK=receiving.url, SECRET=SECRET):
        ran = run("rmq_doctor", "--alerts", "test", "--json")

    assert ran.code == Exit.UNHEALTHY
    assert ran.data["items"] == [
        {"way": "mail", "to": "1 address", "sent": True, "reason": KEPT},
        {"way": "webhook", "to": "127.0.0.1", "sent": False, "reason": "it answered 403"},
    ]


@pytest.mark.parametrize(("backend", "remarked"), [("console", True), ("smtp", False)])
def test_the_doctor_names_a_mail_backend_that_delivers_to_nobody(backend: str, remarked: bool, settings: Any) -> None:
    name = f"django.core.mail.backends.{backend}.EmailBackend"
    if django.VERSION >= (6, 1):
        settings.MAILERS = {"default": {"BACKEND": name}}
    else:
        settings.EMAIL_BACKEND = name
    with configured(MAIL="admins"):
        assert (name in only_way().remark) is remarked


def test_the_doctor_without_alerts_has_nothing_to_test() -> None:
    with override_settings(RMQ_RETRY={}):
        ran = run("rmq_doctor", "--alerts", "test")

    assert (ran.code, ran.err.strip()) == (Exit.NOTHING, "RMQ_RETRY['ALERTS'] names no way.")
