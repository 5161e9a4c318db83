"""Ways to unblock a key: an action on the record, an operator, the periodic check."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import transaction
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from django_rmq_retry import Delivery, Message, handler
from django_rmq_retry.messages import Headers, Properties, encode_properties
from django_rmq_retry.messages.identity import message_identity, text_digest
from django_rmq_retry.models import BlockedKey, BlockedMessage, OperatorAction, OutboxMessage, ParkedMessage, State
from django_rmq_retry.ordering import keys
from django_rmq_retry.parked.blocked_keys import unblock
from django_rmq_retry.parked.operators import Outdated, Refused
from django_rmq_retry.parked.outbox_actions import discard_outbox
from django_rmq_retry.publishing import outbox
from tests.admin.made import person
from tests.operators.made import ANN, QUEUE, discard_messages, record, restore_messages
from tests.parked.arrivals import ticket_header
from tests.tooling.brokers import broker_away

pytestmark = [pytest.mark.database, pytest.mark.django_db(transaction=True)]


@pytest.fixture(autouse=True)
def nobody_sends() -> Iterator[None]:
    """The copy of an unblocked message is a row of the outbox."""
    with broker_away():
        yield


def delivery(number: int, *, name: str | None = "") -> Delivery:
    said = f"m{number}" if name == "" else name
    return Delivery(
        queue=QUEUE,
        body=b'{"number": %d}' % number,
        raw=encode_properties(Properties(message_id=said)),
        exchange="payments",
        routing_key="charge.card",
        key="A",
    )


def post(_message: Delivery) -> None: ...


def after_it_failed() -> datetime:
    """Return a time after the failure, whose time is the database's: that clock may be ahead of this one."""
    return timezone.now() + timedelta(seconds=10)


def standstill(*, waiting: int = 2, parked: bool = True, name: str | None = "") -> BlockedKey:
    """The first message has failed, and some wait behind it."""
    key = text_digest("charge", "A")
    with transaction.atomic():
        keys.block(delivery(1, name=name), handler="charge", digest=key, parked=parked)
        known = BlockedKey.objects.select_for_update().get()
        for number in range(2, 2 + waiting):
            keys.add_waiting(known, delivery(number))
    return BlockedKey.objects.get()


def recorded(**fields: Any) -> ParkedMessage:
    body = b'{"number": 1}'
    made = {"message_id": "m1", "identity": message_identity(QUEUE, "m1", body), **fields}
    return record(body=body, **made)


def sent() -> list[tuple[str, str]]:
    """Return the queue and name of each message in the outbox."""
    return list(OutboxMessage.objects.order_by("pk").values_list("routing_key", "message_id"))


def test_discarding_the_blocker_sends_the_next_message() -> None:
    standstill()
    known = recorded()

    discard_messages([known.pk])

    row = BlockedKey.objects.get()
    assert (row.blocker, row.parked, row.waiting, sent()) == ("m2", False, 1, [(QUEUE, "m2")])


def test_a_discarded_message_that_is_restored_does_not_block_its_key_again() -> None:
    standstill()
    known = recorded()
    discard_messages([known.pk])

    restore_messages([known.pk])

    row = BlockedKey.objects.get()
    assert (row.blocker, row.parked, row.waiting, sent()) == ("m2", False, 1, [(QUEUE, "m2")])


def test_a_success_recorded_elsewhere_unblocks_the_key() -> None:
    standstill()
    recorded(state=State.PROCESSED, resolved_at=after_it_failed())

    assert keys.unblock_resolved() is False

    assert (BlockedKey.objects.get().blocker, sent()) == ("m2", [(QUEUE, "m2")])


def test_a_key_that_cannot_resume_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    standstill()
    with transaction.atomic():
        keys.block(delivery(1), handler="charge", digest=text_digest("charge", "B"), parked=True)
    recorded(state=State.PROCESSED, resolved_at=after_it_failed())
    known, other = BlockedKey.objects.order_by("pk")
    pass_on = keys.pass_on
    monkeypatch.setattr(keys, "pass_on", lambda row: 1 / 0 if row.pk == known.pk else pass_on(row))

    with pytest.raises(ZeroDivisionError):
        keys.unblock_resolved()

    assert list(BlockedKey.objects.values_list("pk", flat=True)) == [known.pk]
    assert other.pk != known.pk


def test_a_resolution_before_the_newest_failure_unblocks_nothing() -> None:
    standstill()
    recorded(state=State.PROCESSED, resolved_at=timezone.now() - timedelta(minutes=5))

    keys.unblock_resolved()

    assert (BlockedKey.objects.get().blocker, sent()) == ("m1", [])


@pytest.mark.parametrize("state", [State.PARKED, State.ON_HOLD, State.REQUEUED, State.REQUEUEING])
def test_an_open_blocker_unblocks_nothing(state: State) -> None:
    standstill()
    recorded(state=state)

    keys.unblock_resolved()

    assert sent() == []


def test_a_blocker_without_an_id_is_found_by_its_bytes() -> None:
    row = standstill(name=None)
    known = recorded(message_id="", identity="copy:1")

    assert keys.record_of(row) == known

    discard_messages([known.pk])

    assert sent() == [(QUEUE, "m2")]


def test_many_waiting_messages_without_an_id_do_not_hide_a_resolved_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "MOST_AT_ONCE", 1)
    with transaction.atomic():
        for number in range(1, 6):
            keys.block(
                delivery(number, name=None), handler="charge", digest=text_digest("charge", str(number)), parked=True
            )
    record(body=b'{"number": 5}', message_id="", state=State.PROCESSED, resolved_at=after_it_failed())

    looks = 0
    while BlockedKey.objects.count() == 5 and looks < 300:
        looks += 1
        keys.unblock_resolved()

    assert not BlockedKey.objects.filter(digest=text_digest("charge", "5")).exists()


@pytest.mark.parametrize("name", ["", None])
def test_a_message_discarded_on_its_way_back_sends_the_next_one(name: str | None) -> None:
    key = text_digest("charge", "A")
    with transaction.atomic():
        keys.block(delivery(1), handler="charge", digest=key, parked=False)
        known = BlockedKey.objects.select_for_update().get()
        for number in (2, 3):
            keys.add_waiting(known, delivery(number, name=name))
    keys.unblock(BlockedKey.objects.get())
    stuck = OutboxMessage.objects.get()
    OutboxMessage.objects.update(failed_at=timezone.now(), attempts=15)

    discard_outbox(ANN, [stuck.pk], using="default", reason="test")

    left = OutboxMessage.objects.get()
    assert (bytes(left.body), left.routing_key, left.pk != stuck.pk) == (b'{"number": 3}', QUEUE, True)
    assert BlockedKey.objects.get().waiting == 0


def test_discarding_an_unsent_message_of_another_record_unblocks_nothing() -> None:
    standstill(parked=False)
    other = Message(body=b'{"number": 1}', routing_key=QUEUE, properties=Properties(message_id="m1"))
    with transaction.atomic():
        outbox.writer.keep([other], using="default")
    OutboxMessage.objects.update(failed_at=timezone.now(), attempts=15)

    discard_outbox(ANN, list(OutboxMessage.objects.values_list("pk", flat=True)), using="default", reason="test")

    assert (BlockedKey.objects.get().blocker, sent()) == ("m1", [])


@pytest.mark.parametrize(("order_by", "left"), [(None, False), (lambda message: message.data, True)])
def test_keys_of_a_handler_without_order_by_are_unblocked(order_by: Any, left: bool) -> None:
    handler(QUEUE, order_by=order_by)(post)
    standstill()

    keys.unblock_resolved()

    assert sent() == ([] if left else [(QUEUE, "m2"), (QUEUE, "m3")])
    assert BlockedKey.objects.exists() is left


@pytest.mark.parametrize("new_id", ["m1", "m1-repaired"])
def test_an_edited_and_requeued_blocker_still_goes_first(new_id: str) -> None:
    row = standstill()
    known = recorded(state=State.REQUEUED)
    body = b'{"number": 1, "repaired": true}'
    ticket = ticket_header(known.pk, 1, queue=QUEUE, id=new_id, body=body)
    properties = Properties(message_id=new_id, headers=Headers.of(ticket))
    copy = Delivery(queue=QUEUE, body=body, raw=encode_properties(properties), key="A")
    first = keys.goes_first(row, copy)
    with transaction.atomic():
        keys.block(copy, handler="charge", digest=row.digest, parked=True)
    ParkedMessage.objects.update(state=State.PARKED)
    again = BlockedKey.objects.get()

    assert (first, keys.goes_first(again, copy), again.blocker, again.parked) == (True, True, new_id, True)

    discard_messages([known.pk])

    assert sent() == [(QUEUE, "m2")]


def test_unblocking_the_last_message_deletes_the_key() -> None:
    row = standstill(waiting=0)

    assert unblock(row, ANN, reason="booked by hand") is None
    assert BlockedKey.objects.count() == 0


def test_a_returned_copy_names_its_original_exchange_and_routing_key() -> None:
    row = standstill(waiting=1)
    unblock(row, ANN, reason="booked by hand")

    copy = OutboxMessage.objects.get()
    assert (bytes(copy.body), copy.exchange, copy.routing_key) == (b'{"number": 2}', "", QUEUE)
    assert (b"payments" in bytes(copy.properties), b"charge.card" in bytes(copy.properties)) == (True, True)
    assert BlockedMessage.objects.count() == 0


def test_unblocking_needs_a_reason_and_is_logged() -> None:
    row = standstill()
    with pytest.raises(Refused, match="Enter a reason"):
        unblock(row, ANN, reason=" ")
    now = unblock(row, ANN, reason="booked by hand")

    act = OperatorAction.objects.get()
    assert now is not None
    assert (act.action, act.reason, act.subject, act.actor_name) == ("unblock", "booked by hand", "charge A", "ann")
    assert (act.facts["unblocked"], act.facts["goes_first"], act.facts["waiting"]) == ("m1", "m2", 2)


def test_two_operators_who_unblock_a_key_at_once_send_one_message() -> None:
    row = standstill()
    unblock(row, ANN, reason="booked by hand")

    with pytest.raises(Outdated):
        unblock(row, ANN, reason="booked by hand")
    assert sent() == [(QUEUE, "m2")]


def test_the_figures_of_blocked_keys_are_counted(settings: Any) -> None:
    standstill()

    now = keys.blocked_figures()
    assert (now.keys, now.waiting, now.most, now.parked, now.full) == (1, 2, 2, 1, False)

    settings.RMQ_RETRY = {"URL": "embedded://", "BLOCKED_PER_KEY": 2}
    assert keys.blocked_figures().full


def page(client: Client, name: str, *args: object) -> str:
    return client.get(reverse(f"admin:rmq_retry_{name}", args=args)).content.decode()


def test_the_page_shows_the_first_message_and_confirms_before_skipping_it(client: Client) -> None:
    row = standstill()
    known = recorded()
    client.force_login(person("ann", "view_blockedkey", "unblock_blockedkey", "view_parkedmessage"))
    shown = page(client, "blockedkey_changelist")
    asked = reverse("admin:rmq_retry_blockedkey_unblock", args=[row.pk])
    without = client.post(asked, {"first": row.name, "text": ""})
    client.post(asked, {"first": "another", "text": "booked by hand"})
    unchanged = sent()
    answer = client.post(asked, {"first": row.name, "text": "booked by hand"}, follow=True).content.decode()

    assert reverse("admin:rmq_retry_parkedmessage_change", args=[known.pk]) in shown
    assert (without.status_code, unchanged, sent()) == (422, [], [(QUEUE, "m2")])
    assert "Key A is unblocked: m2 now goes first." in answer


def test_record_links_and_unblock_buttons_need_their_permissions(client: Client) -> None:
    row = standstill()
    recorded()
    client.force_login(person("bob", "view_blockedkey"))
    shown = page(client, "blockedkey_changelist")
    refused = client.post(reverse("admin:rmq_retry_blockedkey_unblock", args=[row.pk]), {"text": "x"})

    assert ("m1" in shown, "parkedmessage" in shown.split("<tbody>")[1].split("</tbody>")[0]) == (True, False)
    address = reverse("admin:rmq_retry_blockedkey_unblock", args=[row.pk])
    assert (address in shown, refused.status_code, sent()) == (False, 403, [])
