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
from django_rmq_retry.models import Attempt, AttemptName, OperatorAction, QueueControl
from django_rmq_retry.parked.operators import Actor
from django_rmq_retry.parked.queue_pauses import pause_queue
from django_rmq_retry.topology import Role
from tests.admin import made
from tests.admin.conftest import QUEUE, client_of
from tests.admin.looking import Page, follow, press
from tests.admin.stopped import blocked, halted, trip
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
    resumed = press(page, paused, "Resume", reason="it is open")

    assert f"Queue {QUEUE} is paused." in told
    assert "Reason: bank is closed. It resumes automatically at" in told
    assert row.until is not None
    assert timedelta(minutes=59) < row.until - timezone.now() <= timedelta(hours=1)
    assert (f"Queue {QUEUE} is resumed." in Page(resumed).text, QueueControl.objects.get().paused) == (True, False)
    acts = [(act.action, act.subject, act.reason) for act in OperatorAction.objects.order_by("number")]
    assert acts == [("pause", QUEUE, "bank is closed"), ("resume", QUEUE, "it is open")]


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
    assert [one.row.queue for one in keys.context["rows"]] == [QUEUE, QUEUE]
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
    assert "nothing waits" not in status.text
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

    assert "Queues that no handler reads Queue" in text
    assert text.index(f"{QUEUE} Ready 0") < text.index("payments.legacy Ready 25")
    assert "manage.py rmq_declare --recreate payments.legacy --move-to NEW" in text


def test_a_queue_that_another_program_should_read_is_found_where_its_finding_leads(
    page: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ "Open the queues" stood beside "no consumer reads payments.legacy", and the page had no such queue."""
    other = Level(queue="payments.legacy", role=Role.OTHER, ready=25, consumers=0)
    made.broker_seen(monkeypatch, Level(queue=QUEUE, role=Role.WORK, ready=0, consumers=1), other)

    assert "Queue 'payments.legacy': no consumer reads this queue" in Page(page.get(STATUS)).text
    assert re.search(r"payments\.legacy Ready 25 Consumers 0 No consumer reads this queue", Page(page.get(QUEUES)).text)


def test_an_abandoned_queue_to_which_parked_messages_belong_says_so(
    page: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ "Abandoned, empty: manage.py rmq_delete" was all that was said of a queue with ten parked payments."""
    old = Level(queue="payments.old", role=Role.WORK, ready=0, consumers=0, abandoned=True, home="payments.old")
    made.broker_seen(monkeypatch, old)
    for _ in range(2):
        made.message(queue="payments.old")
    answer = page.get(QUEUES)

    said = "2 parked messages would return to this queue, and no handler would take them"
    assert f"Abandoned, empty: manage.py rmq_delete payments.old {said}" in Page(answer).text
    assert "/parkedmessage/?queue=payments.old" in answer.content.decode()


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


def test_a_queue_is_resumed_in_the_admin_with_a_reason_only(page: Client) -> None:
    """The page of pauses said so, and the audit log had resumed queues without a word why."""
    pause_queue(QUEUE, ANN, reason="outage")
    answer = press(page, page.get(QUEUES), "Resume", reason=" ")

    assert answer.status_code == 422
    assert "Enter a reason: the audit log keeps why the queue was resumed." in Page(answer).text
    assert QueueControl.objects.get().paused


@pytest.mark.parametrize(("let_go", "missed"), [({QUEUE: []}, False), ({}, True)])
def test_a_queue_that_was_resumed_a_moment_ago_is_not_called_unread(
    page: Client, monkeypatch: pytest.MonkeyPatch, let_go: dict[str, list[str]], missed: bool
) -> None:
    """Its consumers take it again within two seconds; by then the broker still said that it has none."""
    made.broker_seen(monkeypatch, Level(queue=QUEUE, role=Role.WORK, ready=3, consumers=0))
    made.consumer(queues=[QUEUE], seconds=2, let_go=let_go)
    pages = [Page(page.get(address)).text for address in (QUEUES, STATUS, "/admin/")]

    assert [bool(re.search("✕ no consumer|has no consumer", text)) for text in pages] == [missed] * 3


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
    closed = press(page, held, "Resume", reason="it is back")
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


def test_the_message_that_goes_first_is_named_by_its_key_or_its_kind_and_its_id_comes_second(page: Client) -> None:
    """32 digits stood there: of a message without a key, and of each that waits for its retry."""
    nameless, ids = made.message(message_id="f" * 32, business_key=""), ("a" * 32, "b" * 32)
    made.blocked_key(parked=True, identity=nameless.identity, queue=nameless.queue, blocker="f" * 32)
    for name, key in zip(ids, ("PAY-7", ""), strict=True):
        made.blocked_key(identity=f"message:{name}", blocker=name)
        made.waiting_retries(name, 1)
        Attempt.objects.filter(queue=name).update(identity=f"message:{name}")
        for value in filter(None, (name, key)):
            AttemptName.objects.create(identity=f"message:{name}", value=value, folded=value, at=timezone.now())
    keys = Page(page.get(KEYS))
    asks = Page(follow(page, page.get(KEYS, {"q": ids[0]}), "Unblock")).text
    viewer = Page(client_of(made.person("viewer", "view_blockedkey")).get(KEYS)).text

    error = "GatewayTimeout: no answer within 30 s"
    assert f"payment.transfer parked: an operator decides {error} · {'f' * 32}" in keys.text
    assert f"PAY-7 waits for its next attempt in 9 min GatewayTimeout · {ids[0]}" in keys.text
    assert f"{ids[1]} waits for its next attempt in 9 min GatewayTimeout" in keys.text
    assert "PAY-7 of transfer goes first" in asks
    assert ("GatewayTimeout" in viewer, "PAY-7" in viewer, ids[0] in viewer) == (False, False, True)


def test_an_expired_pause_is_not_shown(page: Client) -> None:
    pause_queue(QUEUE, ANN, reason="outage", until=timezone.now() + timedelta(hours=1))
    QueueControl.objects.update(until=timezone.now() - timedelta(seconds=1))

    assert "‖ paused" not in Page(page.get(QUEUES)).text
    assert "has been paused" not in Page(page.get(STATUS)).text


def test_a_late_pause_or_resume_is_refused_with_an_explanation(page: Client) -> None:
    pause_queue(QUEUE, ANN, reason="outage")
    shown = page.get(QUEUES)
    press(page, shown, "Resume", reason="it is over")
    again = press(page, shown, "Resume", reason="it is over")

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


def test_queues_that_need_somebody_stand_first_red_ones_above_amber_ones(
    page: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Among 40 handlers the broken one was found by reading."""
    with registry.isolated():
        for name in ("fine", "paused", "open", "unread", "crashing"):
            handler(name, name=name)(print)
        QueueControl.objects.create(queue="paused", paused=True, by="ann", since=timezone.now())
        QueueControl.objects.create(queue="open", opened=True, opened_at=timezone.now(), cause="BankDown")
        work = [
            Level(queue=one, role=Role.WORK, ready=0, consumers=1) for one in ("fine", "paused", "open", "crashing")
        ]
        unread = Level(queue="unread", role=Role.WORK, ready=3, consumers=0)
        aside = Level(queue="crashing.quarantine", role=Role.QUARANTINE, ready=2, consumers=1)
        made.broker_seen(monkeypatch, *work, unread, aside)
        answer = page.get(QUEUES)

    assert [row.queue for row in answer.context["rows"]] == ["open", "unread", "paused", "fine", "crashing"]
    assert "crashing Ready 0 In quarantine 2" in Page(answer).text
    assert "In quarantine are messages that came back several times without an outcome" in Page(answer).text


def test_many_queues_of_which_nothing_is_to_be_told_are_one_line_and_can_be_ticked_in_it(
    page: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"fine.{number}" for number in range(7)]
    with registry.isolated():
        for name in ("backlog", *names):
            handler(name, name=name)(print)
        levels = [Level(queue=name, role=Role.WORK, ready=0, consumers=1) for name in names]
        made.broker_seen(monkeypatch, *levels, Level(queue="backlog", role=Role.WORK, ready=9, consumers=1))
        folded, few = page.get(QUEUES), page.get(QUEUES, {"q": "fine."})
        form, values = Page(folded).form_with("Pause")
        back = page.post(form.action, {**values, "queue": "fine.3", "reason": ""})
        page.post(form.action, {**values, "queue": "fine.3", "reason": "outage"})

    assert "Fine: nothing waits in 7 queues" in Page(folded).text
    assert [(one.folded, len(one.rows)) for one in folded.context["tables"]] == [(False, 1), (True, 7)]
    assert [one.folded for one in few.context["tables"]] == [False]
    opened = [[attrs for tag, attrs in Page(one).tags if tag == "details" and "rmq-fine" in attrs["class"]]
              for one in (folded, back)]  # fmt: skip
    assert [["open" in one for one in some] for some in opened] == [[False], [True]]
    assert QueueControl.objects.get(paused=True).queue == "fine.3"


def test_a_halted_queue_is_on_the_status_page_while_it_lasts(page: Client) -> None:
    now = timezone.now()
    line = {"halted_at": now - timedelta(minutes=5), "halted_attempt": 24, "halted_error": "DiskFull: no space"}
    QueueControl.objects.create(queue="orders", halted_seen_at=now, **line)
    QueueControl.objects.create(queue="stale", halted_seen_at=now - timedelta(minutes=1), **line)

    text = Page(page.get("/admin/rmq_retry/livestatus/")).text
    assert "! Queue 'orders' has been halted for 5 min, attempt 24: DiskFull: no space." in text
    assert "'stale'" not in text


def test_the_message_at_which_a_queue_is_halted_has_a_page_with_its_error_and_its_next_attempt(
    page: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The link led to a search that found the queue again; what fails, and what can be done, stood nowhere."""
    made.broker_seen(monkeypatch, Level(queue=QUEUE, role=Role.WORK, ready=4_312, consumers=1))
    now = timezone.now()
    halted(QUEUE)
    unknown = Page(page.get(f"{QUEUES}first/", {"queue": QUEUE})).text
    first = made.message(message_id="9f3c-1", queue=QUEUE)
    for number in (13, 14):
        made.attempt(
            first, number, at=now - timedelta(minutes=15 - number), verdict="halt", next_at=now + timedelta(seconds=50)
        )
    shown = page.get(f"{QUEUES}first/", {"queue": QUEUE})
    Attempt.objects.update(next_at=now - timedelta(seconds=3))
    late = Page(page.get(f"{QUEUES}first/", {"queue": QUEUE, "fragment": "1"})).text
    viewer = client_of(made.person("viewer", "view_queuecontrol", "view_parkedmessage"))
    untraced = Page(viewer.get(f"{QUEUES}first/", {"queue": QUEUE})).text

    text = Page(shown).text
    assert "Business key PAY-1 Message id 9f3c-1 Handler transfer Last attempt" in text
    assert re.search(r"Last attempt [\d: -]+ \( ?1 min ago ?\) · worker-3:812 · a1b2c3 Next attempt in \d+ s", text)
    assert "Ready 4,312" in text
    assert ("raise GatewayTimeout(host)" in text, "raise GatewayTimeout(host)" in untraced) == (True, False)
    assert "let it raise Park for this message, or name the error in park_on" in text
    assert "No traceback was recorded." in unknown
    assert "Next attempt due Halted since" in late


def test_the_page_of_a_halted_queue_goes_on_with_it(page: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stood still, "next attempt in 7 s", after all had been handled; loaded again it was not found."""
    made.broker_seen(monkeypatch, Level(queue=QUEUE, role=Role.WORK, ready=0, consumers=1))
    halted(QUEUE)
    shown = page.get(f"{QUEUES}first/", {"queue": QUEUE})
    (live,) = [attrs for _tag, attrs in Page(shown).tags if "data-rmq-live" in attrs]
    QueueControl.objects.update(halted_at=None)
    part, again = (page.get(live["data-rmq-live"] + more) for more in ("&fragment=1", ""))

    assert "data-rmq-pulse" in shown.content.decode()
    assert Page(part).text == f"Queue {QUEUE} is not halted any more. Queues"
    assert f"Queue {QUEUE} is not halted any more." in Page(again).text


def test_a_halted_queue_does_not_run_though_a_consumer_reads_it(page: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    made.broker_seen(monkeypatch, Level(queue=QUEUE, role=Role.WORK, ready=3, consumers=2))
    since = timezone.now() - timedelta(minutes=3, seconds=10)
    control = QueueControl.objects.create(
        queue=QUEUE,
        halted_at=since,
        halted_seen_at=timezone.now(),
        halted_attempt=4,
        halted_error="BankDown: timeout",
        halted_message="m-1",
        halted_key="PAY-1",
    )
    halted = Page(page.get(QUEUES)).text
    control.halted_seen_at = since
    control.save()

    assert "! halted" in halted
    assert "has been halted for 3 min, attempt 4: BankDown: timeout." in halted
    assert "✓ OK" not in halted
    found = f"{QUEUES}first/?queue={QUEUE}"
    assert Page(page.get(QUEUES)).links["What is known of PAY-1"] == found
    assert Page(page.get(STATUS)).links[f"What is known of its first message {QUEUE}"] == found
    assert "Last known at" in Page(page.get(QUEUES)).text
    assert "! halted" in Page(page.get(QUEUES)).text, "who reported it was killed, and nobody settled the message"

    made.broker_seen(monkeypatch, Level(queue=QUEUE, role=Role.WORK, ready=0, consumers=2, unacked=0))
    assert "✓ OK" in Page(page.get(QUEUES)).text, "somebody purged the queue"


def test_a_key_whose_message_is_parked_is_unblocked_by_no_main_button(page: Client) -> None:
    """Unblocking lets later ledger rows pass this one: the next step is to look at the message."""
    known = blocked(made.message(business_key="ACC-2000"), waiting=1)
    shown = page.get(f"{KEYS}{known.pk}/unblock/")
    html = shown.content.decode()

    assert "parkedmessage/" in Page(shown).links["Open the message"]
    assert html.count("rmq-main") == 1
    assert re.search(r'rmq-destroys">Unblock key ', html)
    assert "Reason (required)" in Page(shown).text
