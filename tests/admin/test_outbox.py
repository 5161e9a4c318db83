"""What the pages of the outbox say of a message: who sends it, what it waits for, and what an operator can do."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from django.utils.translation import override

from django_rmq_retry.models import OperatorAction, OutboxMessage
from tests.admin import made
from tests.admin.conftest import client_of
from tests.admin.looking import Page, press

pytestmark = pytest.mark.django_db
OUTBOX = "/admin/rmq_retry/outboxmessage/"
WAITS = {"failed_at": None, "error": "", "attempts": 0}


def waiting_row(*, due: float, **fields: Any) -> OutboxMessage:
    """A message that the broker has not refused, due in so many seconds."""
    at = timezone.now() + timedelta(seconds=due)
    return made.outgoing(**{**WAITS, "created_at": at - timedelta(seconds=20), "due_at": at, **fields})


def shown(page: Client, row: OutboxMessage) -> str:
    return Page(page.get(f"{OUTBOX}{row.pk}/change/")).text


@pytest.fixture(autouse=True)
def _broker(monkeypatch: pytest.MonkeyPatch) -> None:
    made.broker_seen(monkeypatch)


def test_a_message_that_nobody_sends_is_not_promised_to_be_sent(page: Client) -> None:
    """It said "It is sent by itself as soon as the broker takes it" while no relay was alive."""
    made.consumer(seconds=3600)
    text = shown(page, waiting_row(due=-720))

    assert "It has been due for 12 min, and nobody has taken it." in text
    assert "No consumer is alive" in text
    assert "the last one that vanished was heard of at" in text
    assert "Start manage.py rmq_consume or manage.py rmq_relay." in text
    assert "by itself" not in text


def test_a_message_is_sent_by_its_process_then_by_a_consumer_and_the_page_says_which(page: Client) -> None:
    made.consumer()
    fresh, due = shown(page, waiting_row(due=20)), shown(page, waiting_row(due=-1))

    assert "The process that wrote it sends it; from " in fresh
    assert "It is due now: a relay takes it within seconds." in due
    assert all("1 consumer is alive and sends what is due." in one for one in (fresh, due))


def test_all_consumers_are_counted_that_send(page: Client) -> None:
    """A page that lists processes lists the newest of them."""
    for name in ("connected", "connected", "stopping", "vanished"):
        facts = {"connected": True, "stopping": name == "stopping", "seconds": 600 if name == "vanished" else 0}
        made.consumers(150, **facts)

    assert "300 consumers are alive and send what is due." in shown(page, waiting_row(due=-1))


def test_consumers_without_a_broker_send_nothing(page: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    made.consumer(connected=False, lost_at=timezone.now() - timedelta(minutes=4))
    made.broker_seen(monkeypatch, away="connection refused")
    text = shown(page, waiting_row(due=-240))

    assert "The broker does not answer, so nobody can send it now." in text
    assert "1 consumer is alive, without a connection to the broker: it sends what is due once it has one." in text
    assert "nobody has taken it" not in text


@pytest.mark.parametrize("state", [{"away": "timed out"}, {"late": True}])
def test_nobody_is_said_to_send_while_the_broker_hangs(
    page: Client, monkeypatch: pytest.MonkeyPatch, state: dict[str, Any]
) -> None:
    """Its consumer notices only later: the page said that nobody can send it, and that the consumer does."""
    made.consumer()
    made.broker_seen(monkeypatch, **state)
    text = shown(page, waiting_row(due=-5))

    assert "It is sent once the broker answers." in text
    assert "sends what is due" not in text
    assert "within seconds" not in text


def test_no_relay_takes_it_within_seconds_while_none_is_connected(page: Client) -> None:
    made.consumer(connected=False, lost_at=timezone.now() - timedelta(seconds=5))
    text = shown(page, waiting_row(due=-5))

    assert "It is due now. 1 consumer is alive, without a connection to the broker" in text


def test_the_list_has_a_button_that_sends_the_ticked_messages_again(page: Client) -> None:
    """Django's list of actions had English texts on pages in other languages."""
    row = made.outgoing(message_id="first")
    with override("de"):
        listed = page.get(OUTBOX)
        again = press(page, listed, "Erneut senden", _selected_action=str(row.pk), action=["", "retry", "discard"])

    assert "Select an option" not in Page(listed).text
    assert "Run" not in Page(listed).text.split()
    row.refresh_from_db()
    assert (again.status_code, row.failed_at) == (200, None)


def test_ticked_messages_are_discarded_with_a_reason_after_a_look_at_what_becomes_of_them(page: Client) -> None:
    first, second = (made.outgoing(message_id=name, order_key="ACC-5") for name in ("first", "second"))
    behind = waiting_row(due=-1, message_id="behind", order_key="ACC-5")
    fresh = waiting_row(due=20, message_id="fresh")
    numbers = [str(row.pk) for row in (first, second, fresh)]
    asked = press(page, page.get(OUTBOX), "Discard…", _selected_action=numbers, action=["", "retry", "discard"])

    assert "2 messages will never be sent." in Page(asked).text
    assert "1 message with the same ordering key is not among them, and is sent without them." in Page(asked).text
    assert "1 selected message is left out: the broker has not refused it" in Page(asked).text
    assert OutboxMessage.objects.count() == 4
    without = press(page, asked, "Discard 2 messages", text=" ")
    assert (without.status_code, OutboxMessage.objects.count()) == (422, 4)
    done = press(page, without, "Discard 2 messages", text="paid by hand: INC-7")

    assert "2 messages were discarded and are never sent." in Page(done).text
    assert set(OutboxMessage.objects.values_list("pk", flat=True)) == {behind.pk, fresh.pk}
    act = OperatorAction.objects.get()
    assert (act.action, act.count, act.reason) == ("discard", 2, "paid by hand: INC-7")


def test_only_who_may_discard_one_message_may_discard_those_ticked() -> None:
    made.outgoing()
    button = ">Discard…</button>"
    may, may_not = (
        client_of(made.person(name, "view_outboxmessage", *more)).get(OUTBOX).content.decode()
        for name, more in (("may", ["discard_outboxmessage"]), ("not", ["requeue"]))
    )

    assert (button in may, button in may_not) == (True, False)


@pytest.mark.parametrize("asked", ["PAY-80010", "m-77", "M-7", "ACC-5", "in-the-body"])
def test_the_outbox_is_searched_by_what_it_shows_as_every_page_is(page: Client, asked: str) -> None:
    body = b'{"payment": "PAY-80010", "note": "in-the-body"}'
    made.outgoing(message_id="m-77", order_key="ACC-5", body=body, size=len(body))
    made.outgoing(message_id="other")
    found = page.get(OUTBOX, {"q": asked})

    assert [row.message_id for row in found.context["cl"].result_list] == ["m-77"]
    none = Page(page.get(OUTBOX, {"q": "PAY-9"})).text
    assert "No message of the outbox has a key or id that begins so: it was sent, discarded, or never" in none


def test_a_message_behind_a_failed_one_of_its_ordering_key_waits_for_the_operator(page: Client) -> None:
    made.consumer()
    first = made.outgoing(message_id="first", order_key="ACC-5")
    second = waiting_row(due=-300, message_id="second", order_key="ACC-5")
    answer = page.get(f"{OUTBOX}{second.pk}/change/")

    assert "It waits behind first, which has the same ordering key and failed" in Page(answer).text
    assert f"{OUTBOX}{first.pk}/change/" in Page(answer).links.values()
    assert "nobody has taken it" not in Page(answer).text
    assert "waiting to be sent behind an earlier one" in Page(answer).text
    assert Page(answer).links["Open the message in front"] == f"{OUTBOX}{first.pk}/change/"
    assert "1 message with the same ordering key waits behind it." in shown(page, first)
    listed = Page(page.get(OUTBOX)).text
    assert "nobody has taken" not in listed, "the list counted it as left by the relays"
    assert "waiting to be sent behind an earlier one" in listed
    assert "due 5 min ago" not in listed


def test_a_message_to_a_queue_that_nobody_declared_says_so_first(page: Client) -> None:
    made.consumer()
    foreign = made.outgoing(routing_key="payments.typo")
    own = made.outgoing(routing_key="payments.main")
    bound = made.outgoing(exchange="bank", routing_key="charge")
    gone = made.outgoing(exchange="bnak", error="exchange 'bnak' does not exist")
    said = [shown(page, row) for row in (foreign, own, bound, gone)]

    assert "Queue payments.typo does not exist." in said[0]
    assert "It is not declared by this project" in said[0]
    assert "Queue payments.main does not exist." in said[1]
    assert "manage.py rmq_declare creates it" in said[1]
    assert "Exchange bank gives “charge” to no queue." in said[2]
    assert "Exchange bnak does not exist." in said[3]
    assert "does not exist." not in said[2]


@pytest.mark.parametrize(
    ("error", "leads"),
    [("312 NO_ROUTE", False), ("exchange 'bnak' does not exist", False), ("connection reset", True)],
)
def test_sending_again_is_no_main_button_while_its_target_does_not_exist(
    page: Client, error: str, *, leads: bool
) -> None:
    row = made.outgoing(exchange="bnak" if "bnak" in error else "", routing_key="payments.typo", error=error)
    answer = page.get(f"{OUTBOX}{row.pk}/change/")

    assert ('rmq-main">Send again<' in answer.content.decode()) == leads
    assert "Send again" in Page(answer).text


def test_a_refused_message_says_how_often_it_is_tried_before_it_waits_for_an_operator(page: Client) -> None:
    made.consumer()
    due = timezone.now() + timedelta(seconds=40)
    refused = made.outgoing(failed_at=None, attempts=3, due_at=due)
    full = made.outgoing(failed_at=None, attempts=7, due_at=due, error="the queue is full")
    failed = made.outgoing()

    assert "Refused 3 times of 15" in shown(page, refused)
    assert "After the last one it stays here until an operator sends it again or discards it." in shown(page, refused)
    once = made.outgoing(failed_at=None, attempts=1, due_at=due)
    assert "Refused 1 time of 15" in shown(page, once)
    assert "Refused 7 times" in shown(page, full)
    assert "7 times of 15" not in shown(page, full)
    assert "Refused 15 times, so it is not tried again." in shown(page, failed)


def test_the_list_says_since_when_nobody_sends(page: Client) -> None:
    made.consumer(seconds=3600)
    for number in range(3):
        waiting_row(due=-720 + number)
    text = Page(page.get(OUTBOX)).text

    assert "3 messages are due and nobody has taken them, the first for 12 min." in text
    assert "No consumer is alive" in text
    assert "due 12 min ago" in text


def test_the_list_does_not_alarm_while_messages_are_sent(page: Client) -> None:
    made.consumer()
    waiting_row(due=-2)

    assert "nobody has taken" not in Page(page.get(OUTBOX)).text
