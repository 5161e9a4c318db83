"""One thing is wrong: Live status, ``rmq_status``, ``rmq_doctor`` and the alerts tell the same, in the same words."""

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry import conf
from django_rmq_retry.admin import broker_look
from django_rmq_retry.alerts.found import find
from django_rmq_retry.health.rules import Code, Problem, Severity
from django_rmq_retry.management.findings import GRADES, Grade
from django_rmq_retry.management.terminal import utc
from django_rmq_retry.models import ErrorGroup, OutboxMessage, ParkedMessage
from tests.admin import made
from tests.admin.looking import Page
from tests.commands.running import run
from tests.operators.made import pause_run, record, requeue_run

QUEUE = "payments.charge"
NOT_OF_HEALTH = ("settings", "permissions", "policies")
"""The areas that only ``rmq_doctor`` examines."""
Told = tuple[str, str, str, str, str | None]
"""A finding: its severity, its sentence, why it matters, what repairs it, and since when."""

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("declared")]


@pytest.fixture
def browser(project: Any) -> Client:
    project.RMQ_RETRY = {**project.RMQ_RETRY, "ALERTS": {"MAIL": ["ops@bank.example"]}}
    client = Client()
    client.force_login(User.objects.create_superuser("lead"))
    return client


def of(problem: Any, severity: Severity) -> Told:
    return GRADES[severity].value, problem.text, problem.why, problem.fix, utc(problem.since)


def on_the_page(browser: Client) -> list[Told]:
    broker_look.forget()
    needs: list[Problem] = [one.problem for one in browser.get("/admin/rmq_retry/livestatus/").context["needs"]]
    return [of(one, one.severity) for one in needs]


def in_alerts() -> list[Told]:
    return [of(one, one.severity) for one in find(conf.settings().alerts).findings]


def of_command(findings: Any) -> list[Told]:
    return [
        (one["level"], one["problem"], one["why"], one["fix"], one["since"])
        for one in findings
        if one["level"] in (Grade.WARNING, Grade.ERROR) and one["area"] not in NOT_OF_HEALTH
    ]


def failed(*, hours: int) -> ParkedMessage:
    """A message that was parked so long ago, as the last one of its group."""
    ago = timezone.now() - timedelta(hours=hours, minutes=20)
    message = record(parked_at=ago)
    ErrorGroup.objects.update(last_seen=ago, last_new=ago)
    return message


def parked() -> None:
    failed(hours=5)


def dead_consumer() -> None:
    made.consumer(seconds=3 * 3600 + 900, queues=[QUEUE])


def paused_run() -> None:
    run = pause_run(requeue_run([failed(hours=3).pk], planned=True))
    ago = timezone.now() - timedelta(hours=2, minutes=20)
    type(run).objects.filter(pk=run.pk).update(created_at=ago, beat_at=ago, leased_until=None)


def failed_row() -> None:
    for hours in (3, 2):
        made.outgoing(failed_at=timezone.now() - timedelta(hours=hours))


def missed_consumer() -> None:
    """One was killed beside another one, which reads its queue."""
    made.consumer(host="a", queues=[QUEUE])
    made.consumer(host="z", seconds=95, queues=[QUEUE])


def fewer_consumers() -> None:
    """Two were told to end and were killed, one was killed long ago, and one does the work of all."""
    made.consumer(host="a", queues=[QUEUE], started_at=timezone.now() - timedelta(minutes=2))
    for seconds, stopping in ((95, True), (95, True), (1000, False)):
        made.consumer(
            host="z", seconds=seconds, queues=[QUEUE], stopping=stopping, in_flight=[made.in_flight(queue=QUEUE)]
        )
    parked()


def waiting_request() -> None:
    paused_run()
    message = failed(hours=3)
    asked = made.asked(lambda actor: requeue_run([message.pk], actor))
    asked.asked_at = timezone.now() - timedelta(hours=1, minutes=20)
    asked.save()


def nothing_consumes() -> None:
    """The queue has messages, and no consumer."""


STATES = [
    (parked, [Code.PARKED_LONG]),
    (dead_consumer, [Code.ALL_VANISHED]),
    (paused_run, [Code.PARKED, Code.RUN_HELD]),
    (failed_row, [Code.OUTBOX_FAILED]),
    (waiting_request, [Code.PARKED, Code.RUN_HELD, Code.APPROVAL_WAITS]),
    (nothing_consumes, [Code.NO_CONSUMER]),
    (missed_consumer, [Code.VANISHED]),
    (fewer_consumers, [Code.PARKED_LONG]),
]


@pytest.mark.parametrize(("state", "codes"), STATES)
def test_pages_commands_and_alerts_tell_the_same(
    browser: Client, amqp: BlockingChannel, state: Any, codes: list[Code]
) -> None:
    unread = state in (dead_consumer, nothing_consumes)
    if unread:
        amqp.confirm_delivery()
        amqp.basic_publish("", QUEUE, b"{}")
    for queue in (QUEUE, f"{QUEUE}.parked"):
        if not unread:
            amqp.basic_consume(queue, lambda *_delivery: None)
    state()
    page, alerts = on_the_page(browser), in_alerts()
    status, doctor = run("rmq_status", "--json").data["findings"], run("rmq_doctor", "--json").data["findings"]
    probe = run("rmq_status", "--check", "--fail-on", "warning").out

    assert [one.code for one in find(conf.settings().alerts).findings] == [code.name for code in codes]
    assert page == alerts == of_command(status)
    assert sorted(map(str, of_command(doctor))) == sorted(map(str, page))
    assert probe.startswith("FAIL ")
    assert probe.count(";") == len(codes) - 1


def test_pages_and_commands_count_alike_what_waits_behind_keys_and_was_parked_lately(
    browser: Client, amqp: BlockingChannel
) -> None:
    for queue in (QUEUE, f"{QUEUE}.parked"):
        amqp.basic_consume(queue, lambda *_delivery: None)
    made.blocked_key(queue=QUEUE, waiting=6)
    pages = [Page(browser.get(f"/admin/rmq_retry/{name}/")).text for name in ("livestatus", "queuecontrol")]
    row, data = next(line for line in run("rmq_status").lines if line[0] == QUEUE), run("rmq_status", "--json").data

    assert "Behind blocked keys 6 Consumers 1 … waiting" in pages[0]
    assert "Behind blocked keys 6 Parked 0 Consumers 1 … waiting" in pages[1]
    assert row[-1] == "… waiting"
    assert data["blocked"]["by_queue"] == {QUEUE: 6}

    now = timezone.now()
    record(parked_at=now)
    record(parked_at=now, cycle=2, requeued_at=now - timedelta(minutes=3))
    tile, told = Page(browser.get("/admin/rmq_retry/livestatus/")).text, run("rmq_status", "--json").data["parked"]
    assert "Parked in 10 minutes 2 1 new · 1 failed again" in tile
    assert (told["recent"], told["recent_again"], told["recent_still"]) == (2, 1, 2)


def test_failed_messages_of_the_outbox_say_since_when_and_which_failed_first() -> None:
    failed_row()
    OutboxMessage.objects.filter(pk=OutboxMessage.objects.latest("pk").pk).update(message_id="LATER")
    [told] = [one for one in run("rmq_status", "--json").data["findings"] if one["area"] == "database"]

    assert "the oldest is 9f3c-7 to queue 'payments.main'" in told["why"]

    assert told["since"][:16] == utc(timezone.now() - timedelta(hours=3))[:16]  # type: ignore[index]  # not None
