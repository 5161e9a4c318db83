"""The page of the queues: who stands still and why; pausing and resuming, with a reason and a time, written down."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_rmq_retry import Delivery, InPlace, Queue, RetryThenPark, handler
from django_rmq_retry.admin import broker_look
from django_rmq_retry.amqp.levels import Level
from django_rmq_retry.handlers import registry
from django_rmq_retry.markup import NOTHING
from django_rmq_retry.models import OperatorAction, QueueControl
from django_rmq_retry.parked.operators import Actor
from django_rmq_retry.parked.queue_pauses import pause_queue
from django_rmq_retry.topology import Role
from tests.admin import made
from tests.admin.conftest import QUEUE, client_of
from tests.admin.looking import Page, press
from tests.admin.stopped import trip
from tests.commands.running import Exit, run
from tests.operators.made import ANN

pytestmark = pytest.mark.django_db
QUEUES = "/admin/rmq_retry/queuecontrol/"
STATUS = "/admin/rmq_retry/livestatus/"
KEYS = "/admin/rmq_retry/blockedkey/"


def test_a_queue_is_paused_with_a_reason_and_a_time_and_resumed(page: Client) -> None:
    flowing = page.get(QUEUES)
    paused = press(page, flowing, "Pause", reason="bank is closed")
    row = QueueControl.objects.get()
    told = Page(paused).text
    resumed = press(page, paused, "Resume")

    assert f"Queue {QUEUE} is paused." in told
    assert "Reason: bank is closed. It resumes automatically at" in told
    assert row.until is not None
    assert timedelta(minutes=59) < row.until - timezone.now() <= timedelta(hours=1)
    assert (f"Queue {QUEUE} is resumed." in Page(resumed).text, QueueControl.objects.get().paused) == (True, False)
    acts = [(act.action, act.subject, act.reason) for act in OperatorAction.objects.order_by("number")]
    assert acts == [("pause", QUEUE, "bank is closed"), ("resume", QUEUE, "")]


def test_a_queue_is_ok_only_if_a_consumer_reads_it(page: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    said = {}
    for consumers, ready in ((2, 4_712), (0, 1), (0, 0)):
        made.broker_seen(monkeypatch, Level(queue=QUEUE, role=Role.WORK, ready=ready, consumers=consumers))
        said[consumers, ready] = Page(page.get(QUEUES)).text
    made.broker_seen(monkeypatch, away="connection refused")
    away = Page(page.get(QUEUES)).text

    assert f"{QUEUE} Ready 4,712 Parked 0 Consumers 2 ✓ OK" in said[2, 4_712]
    assert f"{QUEUE} Ready 1 Parked 0 Consumers 0 ✕ no consumer" in said[0, 1]
    assert f"{QUEUE} Ready 0 Parked 0 Consumers 0 ! no consumer" in said[0, 0]
    assert "✓ OK" not in said[0, 1] + said[0, 0] + away
    assert f"{QUEUE} Ready {NOTHING} Parked 0 Consumers {NOTHING} {NOTHING}" in away


def test_while_the_broker_is_away_its_last_numbers_are_shown_with_their_time_and_what_is_parked(
    page: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queues had dashes only, and the rows of the live status lost their "! parked", which the database knows."""
    made.message(queue=QUEUE)
    made.broker_seen(monkeypatch, Level(queue=QUEUE, role=Role.WORK, ready=5, consumers=2))
    now = Page(page.get(QUEUES)).text
    last = broker_look.look()
    made.broker_seen(monkeypatch, away="connection refused", last=last)
    away, status = Page(page.get(QUEUES)), Page(page.get(STATUS)).text

    assert f"{QUEUE} Ready 5 Parked 1 Consumers 2 ! parked" in now
    assert f"{QUEUE} Ready 5 Parked 1 Consumers 2 ! parked" in away.text
    assert re.search(r"Last known numbers, as of \S+ \S+ \( ?(now|\d+ \w+ ago) ?\)\.", away.text)
    assert any("rmq-stale" in attrs.get("class", "").split() for tag, attrs in away.tags if tag == "table")
    assert away.links["1"] == f"/admin/rmq_retry/parkedmessage/?queue={QUEUE}"
    assert re.search(rf"{QUEUE} \w+ Ready 5 .*Parked 1 .*! parked", status)


def test_what_is_parked_is_counted_at_one_moment_for_the_tile_the_cause_and_the_rows(
    page: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an incident 2,192 were parked beside two rows of 1,103: each was counted by a statement of its own."""
    made.broker_seen(monkeypatch, Level(queue=QUEUE, role=Role.WORK, ready=0, consumers=2))
    made.message(queue=QUEUE)
    with CaptureQueriesContext(connection) as queries:
        page.get(STATUS)

    counting = re.compile(r"SUM\(\W?rmq_retry_parkedorigin")
    assert len([one for one in queries if counting.search(one["sql"])]) == 1


def test_unacked_messages_have_a_column_only_if_the_broker_tells_them(
    page: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = []
    for unacked in (None, 3):
        made.broker_seen(monkeypatch, Level(queue=QUEUE, role=Role.WORK, ready=5, unacked=unacked, consumers=2))
        shown.append(Page(page.get(QUEUES)).text)

    assert [f"{QUEUE} Ready 5 Parked" in shown[0], f"{QUEUE} Ready 5 Unacked 3 Parked" in shown[1]] == [True, True]


SINGLE = {"x-single-active-consumer": True}


@pytest.mark.parametrize("told", [1, 2])
def test_a_single_active_consumer_is_shown_with_those_on_standby(
    page: Client, monkeypatch: pytest.MonkeyPatch, told: int
) -> None:
    """A quorum queue tells its active consumer only: "Consumers 1" stood there while two processes read it."""
    made.broker_seen(monkeypatch, Level(queue=QUEUE, role=Role.WORK, ready=1, consumers=told, arguments=SINGLE))
    states: tuple[dict[str, Any], ...] = ({}, {}, {"connected": False}, {"stopping": True}, {"seconds": 31})
    for pid, state in enumerate(states):
        made.consumer(pid=pid, queues=[QUEUE], **state)

    assert f"{QUEUE} Ready 1 Parked 0 Consumers 1 active, 1 standby" in Page(page.get(QUEUES)).text
    assert "Ready 1 Consumers 1 active, 1 standby" in Page(page.get(STATUS)).text


def test_without_a_second_reader_no_standby_is_told(page: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    for pid in (1, 2):
        made.consumer(pid=pid, queues=[QUEUE])
    shown = []
    for consumers, arguments in ((1, {}), (0, SINGLE), (2, {})):
        level = Level(queue=QUEUE, role=Role.WORK, ready=1, consumers=consumers, arguments=arguments)
        made.broker_seen(monkeypatch, level)
        shown.append(Page(page.get(QUEUES)).text)

    assert [f"Consumers {number} " in text for number, text in zip((1, 0, 2), shown, strict=True)] == [True] * 3
    assert "standby" not in "".join(shown)


def test_what_waits_until_due_and_behind_blocked_keys_has_its_own_columns(
    page: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    rung = Level(queue=f"{QUEUE}.retry.9m", role=Role.WAITING, ready=7, consumers=0, abandoned=True, home=QUEUE)
    made.broker_seen(monkeypatch, Level(queue=QUEUE, role=Role.WORK, ready=2, consumers=1))
    none = Page(page.get(QUEUES)).text
    made.broker_seen(monkeypatch, Level(queue=QUEUE, role=Role.WORK, ready=2, consumers=1), rung)
    made.waiting_retries(QUEUE, 3)
    for waiting in (4, 1):
        made.blocked_key(queue=QUEUE, waiting=waiting)
    made.blocked_key(queue="payments.elsewhere", waiting=9)
    shown = Page(page.get(QUEUES))
    keys = page.get(shown.links["5"])

    assert "Waiting until due" not in none
    assert "Behind blocked keys" not in none
    assert f"{QUEUE} Ready 2 Waiting until due 7 Behind blocked keys 5 Parked 0 Consumers 1 … waiting" in shown.text
    assert "Waiting until due 7 Behind blocked keys 5" in Page(page.get(STATUS)).text
    assert [row.queue for row, _record in keys.context["rows"]] == [QUEUE, QUEUE]
    viewer = client_of(made.person("viewer", "view_queuecontrol"))
    assert "Behind blocked keys 5" in Page(viewer.get(QUEUES)).text
    assert "5" not in Page(viewer.get(QUEUES)).links


def test_an_empty_queue_with_messages_behind_blocked_keys_is_not_called_fine(
    page: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a first message on hold, six others waited for it, and the queue was "✓ OK" and folded away."""
    made.broker_seen(monkeypatch, Level(queue=QUEUE, role=Role.WORK, ready=0, consumers=1))
    made.blocked_key(queue=QUEUE, waiting=6)
    status, queues = Page(page.get(STATUS)), Page(page.get(QUEUES))

    assert re.search(rf"{QUEUE} (\w+ )?Ready 0 Behind blocked keys 6 Consumers 1 … waiting", status.text)
    assert "queue is empty" not in status.text
    assert f"{QUEUE} Ready 0 Behind blocked keys 6 Parked 0 Consumers 1 … waiting" in queues.text
    assert status.links["6"] == queues.links["6"] == f"{KEYS}?q={QUEUE}"


def test_retries_that_wait_in_their_consumer_are_counted_and_not_offered_to_be_sent(
    page: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tile counted them, and the rows of their queue said 0."""
    with registry.isolated():

        @handler(Queue("ledger.post"), policy=RetryThenPark(attempts=3, via=InPlace()))
        def post(message: Delivery) -> None: ...

        made.broker_seen(monkeypatch, Level(queue="ledger.post", role=Role.WORK, ready=0, consumers=1))
        made.waiting_retries("ledger.post", 3)
        queues, status = page.get(QUEUES), page.get(STATUS)

    assert "ledger.post Ready 0 Waiting until due 3 Parked 0 Consumers 1 … waiting" in Page(queues).text
    assert re.search(r"ledger.post (\w+ )?Ready 0 Waiting until due 3", Page(status).text)
    assert not any("/requeuerun/waiting/" in one.content.decode() for one in (queues, status))


def test_an_abandoned_queue_stands_below_the_others(page: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    old = Level(queue="payments.legacy", role=Role.WORK, ready=25, consumers=0, abandoned=True, home="payments.legacy")
    made.broker_seen(monkeypatch, Level(queue=QUEUE, role=Role.WORK, ready=0, consumers=1), old)
    text = Page(page.get(QUEUES)).text

    assert "Queues that no handler reads any longer" in text
    assert text.index(f"{QUEUE} Ready 0") < text.index("payments.legacy Ready 25")
    assert "manage.py rmq_declare --recreate payments.legacy --move-to NEW" in text


def test_what_waits_in_an_abandoned_waiting_queue_counts_on_both_pages(
    page: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Level(queue=QUEUE, role=Role.WORK, ready=0, consumers=1)
    abandoned = Level(queue=f"{QUEUE}.retry.9m", role=Role.WAITING, ready=3, consumers=0, abandoned=True, home=QUEUE)
    made.broker_seen(monkeypatch, work, abandoned)
    made.waiting_retries(QUEUE, 3)

    assert "Send the 3 waiting retries now…" in Page(page.get(QUEUES)).text
    assert "Waiting until due 3" in Page(page.get(STATUS)).text


def test_a_pause_needs_a_reason_in_the_admin_and_in_the_shell(page: Client) -> None:
    said = "Enter a reason: whoever finds the queue paused must learn why."
    answer = press(page, page.get(QUEUES), "Pause", reason=" ", span="4h")
    again = Page(answer).form_with("Pause")[1]
    ran = run("rmq_queue", "pause", QUEUE)
    blank = run("rmq_queue", "pause", QUEUE, "--reason", "")

    assert (answer.status_code, said in Page(answer).text) == (422, True)
    assert (again["queue"], again["span"]) == (QUEUE, "4h")
    assert "--reason" in ran.err
    assert (blank.code, blank.err) == (Exit.USAGE, said)
    assert (QueueControl.objects.count(), OperatorAction.objects.count()) == (0, 0)


def test_many_queues_are_searched_ticked_and_paused_by_one_form(page: Client) -> None:
    with registry.isolated():
        for number in range(21):

            @handler(f"bank.{number}", name=f"h{number}")
            def one(message: Delivery) -> None: ...

        shown = page.get(QUEUES, {"q": "BANK.2"})
        form, values = Page(shown).form_with("Pause")
        ticked = {**values, "queue": ["bank.2", "bank.20"], "reason": "outage"}
        told = Page(page.post(form.action, ticked, follow=True)).text
        nothing = page.post(form.action, {**values, "reason": "outage"})

    assert "Find" in Page(shown).text
    assert ("bank.20 Ready" in Page(shown).text, "bank.19 Ready" in Page(shown).text) == (True, False)
    assert "Queue bank.2 is paused." in told
    assert "Queue bank.20 is paused." in told
    assert "Tick the queues first." in Page(nothing).text
    assert set(QueueControl.objects.values_list("queue", flat=True)) == {"bank.2", "bank.20"}


def test_an_auto_delete_queue_cannot_be_paused(page: Client) -> None:
    said = (
        "Queue rates cannot be paused: with auto_delete=True the broker deletes it with its messages when its last "
        "consumer stops. Stop the publishers, or declare it with exclusive=True."
    )
    with registry.isolated():

        @handler(Queue("rates", type="classic", auto_delete=True), policy=RetryThenPark(via=InPlace()))
        def fetch(message: Delivery) -> None:
            """Nothing."""

        told = Page(press(page, page.get(QUEUES), "Pause", queue="rates", reason="no rates")).text
        ran = run("rmq_queue", "pause", "rates", "--reason", "no rates")

    assert said in told
    assert (ran.code, ran.err) == (Exit.USAGE, said)
    assert (QueueControl.objects.count(), OperatorAction.objects.count()) == (0, 0)


def test_an_operator_can_close_a_breaker_or_keep_it_open(page: Client) -> None:
    trip(QUEUE, handler="bank.charge", failed=2)
    unread = page.get(QUEUES)
    made.consumer(queues=[QUEUE])
    shown = page.get(QUEUES)
    held = press(page, shown, "Pause", reason="the bank asks for it")
    closed = press(page, held, "Resume")
    row = QueueControl.objects.get()

    assert "The breaker of bank.charge is open since" in Page(shown).text
    assert "BankDown: timeout. 2 probes have failed. Next probe at" in Page(shown).text
    assert "2 probes have failed. Nobody probes it: no consumer of this queue is alive." in Page(unread).text
    assert "Its breaker is open as well." in Page(held).text
    assert f"Queue {QUEUE} is resumed." in Page(closed).text
    assert (row.paused, row.opened, row.failed, row.probe_at) == (False, False, 0, None)


def test_a_stalled_queue_is_on_the_status_page(page: Client) -> None:
    pause_queue(QUEUE, ANN, reason="bank is closed")
    text = Page(page.get(STATUS)).text

    assert re.search(rf"! Queue '{QUEUE}' has been paused for \d s by ann: bank is closed\.", text)
    assert "No problems found." not in text


def test_too_many_messages_behind_one_key_are_on_the_status_page(page: Client, settings: Any) -> None:
    settings.RMQ_RETRY = {**settings.RMQ_RETRY, "BLOCKED_PER_KEY": 2}
    made.blocked_key(waiting=1)
    below = Page(page.get(STATUS)).text
    made.blocked_key(waiting=2)
    shown = page.get(STATUS)

    said = "2 messages behind one key; the limit is 2."
    assert "behind one key" not in below
    assert f"✕ {said} At the limit, messages of blocked keys stay unacked" in Page(shown).text
    assert "No problems found." not in Page(shown).text
    assert 'href="/admin/rmq_retry/blockedkey/"' in shown.content.decode()
    support = client_of(made.person("support", "view_livestatus")).get(STATUS)
    assert said in Page(support).text
    assert "/blockedkey/" not in support.content.decode()


def test_blocked_keys_are_counted_searched_and_shown_by_the_key_of_the_message(page: Client) -> None:
    one = made.message(business_key="LED-103")
    made.blocked_key(key="DE1/4", handler="ledger", parked=True, identity=one.identity, queue=one.queue, waiting=1234)
    made.blocked_key(key="DE2", handler="mail")
    whole, found, nothing = (Page(page.get(KEYS, words)).text for words in ({}, {"q": "LEDG"}, {"q": "none"}))

    assert "2 keys are blocked 1,234 messages wait behind them" in whole
    assert "ledger DE1/4 LED-103 parked: an operator decides" in whole
    assert ("DE1/4" in found, "DE2" in found) == (True, False)
    assert "No blocked key matches." in nothing


def test_an_expired_pause_is_not_shown(page: Client) -> None:
    pause_queue(QUEUE, ANN, reason="outage", until=timezone.now() + timedelta(hours=1))
    QueueControl.objects.update(until=timezone.now() - timedelta(seconds=1))

    assert "‖ paused" not in Page(page.get(QUEUES)).text
    assert "has been paused" not in Page(page.get(STATUS)).text


def test_a_late_pause_or_resume_is_refused_with_an_explanation(page: Client) -> None:
    pause_queue(QUEUE, ANN, reason="outage")
    shown = page.get(QUEUES)
    press(page, shown, "Resume")
    again = press(page, shown, "Resume")

    assert f"Nothing was changed: queue {QUEUE} is already running." in Page(again).text


def test_an_unknown_queue_is_refused_and_nothing_is_written(page: Client) -> None:
    answer = page.post(
        f"{QUEUES}change_state/", {"queue": "made-up", "action": "pause", "reason": "outage"}, follow=True
    )
    page.post(f"{QUEUES}change_state/", {"queue": QUEUE, "action": "burn"}, follow=True)

    assert "No handler reads a queue made-up." in Page(answer).text
    assert (QueueControl.objects.count(), OperatorAction.objects.count()) == (0, 0)


def test_the_queue_page_escapes_all_names(page: Client) -> None:
    evil = "<script>alert(1)</script>\x1b[2J"
    pause_queue(QUEUE, Actor(name=evil), reason=evil)
    trip(QUEUE, cause=evil)
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

    assert text.count(f"{QUEUE} Ready") == 1


def test_a_halted_queue_is_on_the_status_page_while_it_lasts(page: Client) -> None:
    now = timezone.now()
    line = {"halted_at": now - timedelta(minutes=5), "halted_attempt": 24, "halted_error": "DiskFull: no space"}
    QueueControl.objects.create(queue="orders", halted_seen_at=now, **line)
    QueueControl.objects.create(queue="stale", halted_seen_at=now - timedelta(minutes=1), **line)

    text = Page(page.get("/admin/rmq_retry/livestatus/")).text
    assert "! Queue 'orders' has been halted for 5 min, attempt 24: DiskFull: no space." in text
    assert "'stale'" not in text


def test_a_halted_queue_does_not_run_though_a_consumer_reads_it(page: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    made.broker_seen(monkeypatch, Level(queue=QUEUE, role=Role.WORK, ready=3, consumers=2))
    since = timezone.now() - timedelta(minutes=3, seconds=10)
    control = QueueControl.objects.create(
        queue=QUEUE,
        halted_at=since,
        halted_seen_at=timezone.now(),
        halted_attempt=4,
        halted_error="BankDown: timeout",
    )
    halted = Page(page.get(QUEUES)).text
    control.halted_seen_at = since
    control.save()

    assert "! halted" in halted
    assert "has been halted for 3 min, attempt 4: BankDown: timeout." in halted
    assert "✓ OK" not in halted
    assert "✓ OK" in Page(page.get(QUEUES)).text, "who reported it has gone"
