"""The page of the queues: who stands still and why; pausing and resuming, with a reason and a time, written down."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from django_rmq_retry import Delivery, InPlace, Queue, RetryThenPark, handler
from django_rmq_retry.handlers import registry
from django_rmq_retry.models import OperatorAction, QueueControl
from django_rmq_retry.parked.controls import pause
from django_rmq_retry.parked.operators import Actor
from django_rmq_retry.policies import Circuit
from tests.admin import made
from tests.admin.conftest import QUEUE, client_of
from tests.admin.looking import Page
from tests.admin.standstills import tripped
from tests.admin.test_requeueing import press
from tests.commands.running import Exit, run
from tests.operators.made import ANN

pytestmark = pytest.mark.django_db
QUEUES = "/admin/rmq_retry/queuecontrol/"
STATUS = "/admin/rmq_retry/livestatus/"


def trip(cause: str = "BankDown: timeout", failed: int = 0) -> None:
    now = timezone.now().timestamp()
    circuit = Circuit().trip(handler="bank.charge", kind="BankDown", cause=cause, now=now, wait=60)
    for _ in range(failed):
        circuit = circuit.fail(cause=cause, now=now, wait=60)
    tripped(QUEUE, circuit)


def test_a_queue_is_paused_with_a_reason_and_a_time_and_resumed(page: Client) -> None:
    flowing = page.get(QUEUES)
    paused = press(page, flowing, "Pause", reason="bank is closed", span="1h")
    row = QueueControl.objects.get()
    told = Page(paused).text
    resumed = press(page, paused, "Resume")

    assert "✓ running" in Page(flowing).text
    assert f"Queue {QUEUE} is paused." in told
    assert "Reason: bank is closed. It resumes automatically at" in told
    assert row.until is not None
    assert timedelta(minutes=59) < row.until - timezone.now() <= timedelta(hours=1)
    assert (f"Queue {QUEUE} is resumed." in Page(resumed).text, QueueControl.objects.get().paused) == (True, False)
    acts = [(act.action, act.subject, act.reason) for act in OperatorAction.objects.order_by("number")]
    assert acts == [("pause", QUEUE, "bank is closed"), ("resume", QUEUE, "")]


def test_an_auto_delete_queue_cannot_be_paused(page: Client) -> None:
    said = (
        "Queue rates cannot be paused: with auto_delete=True the broker deletes it with its messages when its last "
        "consumer stops. Stop the publishers, or declare it with exclusive=True."
    )
    with registry.isolated():

        @handler(Queue("rates", type="classic", auto_delete=True), policy=RetryThenPark(via=InPlace()))
        def fetch(message: Delivery) -> None:
            """Nothing."""

        told = Page(press(page, page.get(QUEUES), "Pause")).text
        ran = run("rmq_queue", "pause", "rates")

    assert said in told
    assert (ran.code, ran.err) == (Exit.USAGE, said)
    assert (QueueControl.objects.count(), OperatorAction.objects.count()) == (0, 0)


def test_an_operator_can_close_a_breaker_or_keep_it_open(page: Client) -> None:
    trip(failed=2)
    shown = page.get(QUEUES)
    held = press(page, shown, "Pause the queue", reason="the bank asks for it")
    closed = press(page, held, "Resume")
    row = QueueControl.objects.get()

    assert "The breaker of bank.charge is open since" in Page(shown).text
    assert "BankDown: timeout. 2 probes have failed. Next probe at" in Page(shown).text
    assert "Its breaker is open as well." in Page(held).text
    assert "✓ running" in Page(closed).text
    assert (row.paused, row.opened, row.failed, row.probe_at) == (False, False, 0, None)


def test_a_stalled_queue_is_on_the_status_page(page: Client) -> None:
    pause(QUEUE, ANN, reason="bank is closed")
    text = Page(page.get(STATUS)).text

    assert f"{QUEUE}: Paused by ann since" in text
    assert "No problems found." not in text


def test_too_many_messages_behind_one_key_are_on_the_status_page(page: Client, settings: Any) -> None:
    settings.RMQ_RETRY = {**settings.RMQ_RETRY, "BLOCKED_PER_KEY": 2}
    made.blocked_key(waiting=1)
    below = Page(page.get(STATUS)).text
    made.blocked_key(waiting=2)
    shown = page.get(STATUS)

    assert "Too many messages wait behind blocked keys." not in below
    assert (
        "Too many messages wait behind blocked keys. Consumers take only one further message a second"
        in Page(shown).text
    )
    assert "No problems found." not in Page(shown).text
    assert 'href="/admin/rmq_retry/blockedkey/"' in shown.content.decode()
    support = client_of(made.person("support", "view_livestatus")).get(STATUS).content.decode()
    assert "Too many messages wait behind blocked keys." in support
    assert "/blockedkey/" not in support


def test_an_expired_pause_is_not_shown(page: Client) -> None:
    pause(QUEUE, ANN, until=timezone.now() + timedelta(hours=1))
    QueueControl.objects.update(until=timezone.now() - timedelta(seconds=1))

    assert "✓ running" in Page(page.get(QUEUES)).text
    assert "Paused by" not in Page(page.get(STATUS)).text


def test_a_late_pause_or_resume_is_refused_with_an_explanation(page: Client) -> None:
    pause(QUEUE, ANN)
    shown = page.get(QUEUES)
    press(page, shown, "Resume")
    again = press(page, shown, "Resume")

    assert f"Nothing was changed: queue {QUEUE} is already running." in Page(again).text


def test_an_unknown_queue_is_refused_and_nothing_is_written(page: Client) -> None:
    answer = page.post(f"{QUEUES}change_state/", {"queue": "made-up", "action": "pause"}, follow=True)
    page.post(f"{QUEUES}change_state/", {"queue": QUEUE, "action": "burn"}, follow=True)

    assert "No handler reads a queue made-up." in Page(answer).text
    assert (QueueControl.objects.count(), OperatorAction.objects.count()) == (0, 0)


def test_the_queue_page_escapes_all_names(page: Client) -> None:
    evil = "<script>alert(1)</script>\x1b[2J"
    pause(QUEUE, Actor(name=evil), reason=evil)
    trip(cause=evil)
    told: Any = page.get(QUEUES)
    QueueControl.objects.update(paused=False)
    open_one: Any = page.get(QUEUES)

    for answer in (told, open_one, page.get(STATUS)):
        assert b"<script>alert" not in answer.content
        assert b"\x1b" not in answer.content


def test_a_user_without_the_permission_has_no_buttons_and_sees_why() -> None:
    viewer = client_of(made.person("viewer", "view_queuecontrol"))
    answer = viewer.get(QUEUES)

    assert "You need the permission “Can pause and resume queues”" in Page(answer).text
    assert "Pause" not in [words for form in Page(answer).forms for _name, _value, words in form.buttons]


def test_each_queue_of_the_project_is_listed_once(page: Client) -> None:
    known = registry.registrations()
    with registry.isolated():
        for one in known.values():
            registry.register(one)

        @handler(QUEUE, type="other", name="other")
        def other(message: Delivery) -> None: ...

        text = Page(page.get(QUEUES)).text

    assert text.count(f"{QUEUE} ✓ running") == 1


def test_a_halted_queue_is_on_the_status_page_while_it_lasts(page: Client) -> None:
    now = timezone.now()
    line = {"halted_at": now - timedelta(minutes=5), "halted_attempt": 24, "halted_error": "DiskFull: no space"}
    QueueControl.objects.create(queue="orders", halted_seen_at=now, **line)
    QueueControl.objects.create(queue="stale", halted_seen_at=now - timedelta(minutes=1), **line)

    text = Page(page.get("/admin/rmq_retry/livestatus/")).text
    assert "orders: halted since " in text
    assert " at attempt 24: DiskFull: no space." in text
    assert "stale: " not in text
