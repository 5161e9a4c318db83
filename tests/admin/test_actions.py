"""Discarding, holding, taking back, editing, noting, exporting: each asks first, each is written down."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.test import Client
from django.utils import timezone

from django_rmq_retry import Delivery, Message, database_clock, handler, parked
from django_rmq_retry.admin import decisions
from django_rmq_retry.admin.action_facts import name_in_words
from django_rmq_retry.amqp.levels import Level
from django_rmq_retry.markup import NOTHING
from django_rmq_retry.models import (
    Action,
    ErrorGroup,
    MessageVersion,
    OperatorAction,
    OutboxMessage,
    ParkedMessage,
    RequeueRun,
    State,
)
from django_rmq_retry.parked.actions import hold
from django_rmq_retry.parked.edit import propose, store
from django_rmq_retry.parked.operators import Actor
from django_rmq_retry.parked.selection import Selection
from django_rmq_retry.testing import isolated_handlers
from django_rmq_retry.topology import Role
from tests.admin import made
from tests.admin.conftest import client_of, is_north, operating
from tests.admin.looking import Page, address_of, follow, press
from tests.operators.invariants import check_audit_log
from tests.operators.made import ANN, discard_messages, logged, pause_run, requeue_run, restore_messages

pytestmark = pytest.mark.django_db
MESSAGES = "/admin/rmq_retry/parkedmessage/"


def again(message: ParkedMessage) -> ParkedMessage:
    return ParkedMessage.objects.get(pk=message.pk)


def asked(client: Client, what: str, **words: int) -> Any:
    return client.get(f"{MESSAGES}{what}/", words, follow=True)


def test_a_message_is_discarded_for_a_reason_and_restored_after_that_was_read(page: Client) -> None:
    one = made.message(business_key="PAY-1")
    ask = asked(page, "discard", message=one.pk)
    silent = press(page, ask, "Discard ")
    done = press(page, ask, "Discard ", category="duplicate", text="of PAY-0")
    gone = again(one)
    asked_again = page.get(Page(done).links["Restore…"])
    restored = press(page, asked_again, "Restore PAY-1", reason="not paid")

    assert "Discard PAY-1" in Page(ask).text
    assert "Its body is kept until" in Page(ask).text
    assert "by lead (Duplicate: of PAY-0): no requeue sends it." in Page(asked_again).text
    assert "Restore it only if that is not so" in Page(asked_again).text
    assert "After this it is parked again, and a requeue leaves it out" in Page(asked_again).text
    assert OperatorAction.objects.get(action="restore").reason == "not paid"
    assert "Reason (required)" in Page(ask).text
    assert (silent.status_code, "is not a discard category" in Page(silent).text) == (422, True)
    assert (gone.state, gone.resolution) == (State.DISCARDED, "duplicate: of PAY-0")
    assert "1 message was discarded (reason: Duplicate). It can be restored until" in Page(done).text
    assert again(one).state == State.PARKED
    assert "The message is parked again." in Page(restored).text
    assert [act.action for act in OperatorAction.objects.order_by("number")] == ["discard", "restore"]
    check_audit_log()


@pytest.mark.parametrize(("name", "says"), [("in_order", True), ("transfer", False)])
def test_before_a_restore_the_page_says_that_the_ordering_key_stays_unblocked(
    page: Client, name: str, *, says: bool
) -> None:
    @handler("payments.ordered", name="in_order", order_by=lambda message: message.id)
    def in_order(message: Delivery) -> None:
        """Nothing."""

    one = made.message(handler=name)
    discard_messages([one.pk])
    shown = page.get(f"{MESSAGES}{one.pk}/restore/")

    assert ("restoring it does not block the key again" in Page(shown).text) is says


def test_a_refusal_names_who_discarded_the_message_meanwhile_and_when(page: Client) -> None:
    one = made.message(business_key="PAY-1")
    other = made.message(one.group, business_key="PAY-2")
    token = Selection.of_filter({"group": one.group_id, "state": ["parked"]}).token()
    discarding, holding = asked(page, "discard", message=one.pk), asked(page, "hold", message=one.pk)
    preview = page.get("/admin/rmq_retry/requeuerun/preview/", {"message": one.pk}, follow=True)
    of_group = page.get("/admin/rmq_retry/requeuerun/preview/", {"sel": token})
    discard_messages([one.pk, other.pk], category="duplicate", text="INC-7")
    answers = [
        press(page, discarding, "Discard ", category="test"),
        press(page, holding, "Hold ", span="2h"),
        press(page, preview, "Requeue 1 message"),
    ]

    for answer in answers:
        assert answer.status_code == 422
        assert re.search(r"Discarded \d\d:\d\d by ann \(Duplicate: INC-7\)", Page(answer).text)
    assert re.search(r"Discard by ann, \d\d:\d\d\.", Page(press(page, of_group, "Requeue 2 messages")).text)
    assert OperatorAction.objects.count() == 1


def test_of_two_operators_who_restore_a_message_the_second_is_refused(page: Client) -> None:
    one = made.message()
    discard_messages([one.pk])
    shown = page.get(f"{MESSAGES}{one.pk}/restore/")
    first, second = press(page, shown, "Restore "), press(page, shown, "Restore ")
    third = page.get(f"{MESSAGES}{one.pk}/restore/")

    assert "The message is parked again." in Page(first).text
    assert "Nothing was changed: the message has changed since" in Page(second).text
    assert (third.status_code, "Nothing was changed: the message has changed" in Page(third).text) == (409, True)
    assert OperatorAction.objects.filter(action="restore").count() == 1


@pytest.mark.parametrize("several", [False, True], ids=["by type", "by two groups"])
def test_a_refusal_names_nobody_if_it_is_not_known_who_decided(page: Client, several: bool) -> None:
    """An act on messages of other groups, which itself has no group, is somebody else's."""
    one, other = made.message(type="card"), made.message(type="card")
    strangers = [made.message(type="cash").pk, made.message(type="cash").pk]
    words = {"group": [one.group_id, other.group_id]} if several else {"type": "card"}
    token = Selection.of_filter({**words, "state": ["parked"]}).token()
    preview = page.get("/admin/rmq_retry/requeuerun/preview/", {"sel": token})
    discard_messages(strangers, category="duplicate", text="INC-7")
    ParkedMessage.objects.filter(type="card").update(state=State.PROCESSED)
    answer = press(page, preview, "Requeue 2 messages")

    assert answer.status_code == 422
    assert "Nothing is left to requeue." in Page(answer).text
    assert "Discard by ann" not in Page(answer).text


def test_an_invalid_form_keeps_the_text_that_was_entered(page: Client) -> None:
    ask = asked(page, "discard", message=made.message().pk)
    wrong = press(page, ask, "Discard ", category="other", text="")
    _form, values = Page(wrong).form_with("Discard ")

    assert "Enter an explanation" in Page(wrong).text
    assert values["category"] == "other"


@pytest.mark.parametrize(("category", "stays"), [("handled elsewhere", True), ("bad data", False)])
def test_a_restored_message_says_why_it_had_been_discarded_until_it_is_sent_or_longer(
    page: Client, category: str, *, stays: bool
) -> None:
    """What may have been done by hand is said for as long as the message is open."""
    one = made.message()
    discard_messages([one.pk], category=category, text="paid by phone")
    restore_messages([one.pk])
    told = Page(page.get(address_of(one))).text
    ParkedMessage.objects.update(requeued_at=timezone.now())

    assert "ann restored it after a discard, " in told
    assert f"Discard: {category.capitalize()}: paid by phone." in told
    assert ("restored it after a discard" in Page(page.get(address_of(one))).text) == stays


def test_a_message_on_hold_is_left_out_of_a_requeue_from_its_own_page_too(page: Client) -> None:
    one = made.message(state=State.ON_HOLD, held_until=timezone.now() + timedelta(hours=1))
    preview = follow(page, page.get(address_of(one)), "Requeue…")

    assert preview.context["report"].sendable == 0
    assert "1 is on hold" in Page(preview).text


def test_a_group_is_put_on_hold_until_the_morning_and_one_is_taken_off_hold(page: Client) -> None:
    cause = made.group()
    one, two = made.message(cause), made.message(cause)
    done = press(page, asked(page, "hold", group=cause.pk), "Hold 2 messages", span="morning", text="bank is closed")
    held = again(one)
    press(page, page.get(f"{MESSAGES}{one.pk}/unhold/"), "Take ")

    assert "2 messages are on hold until" in Page(done).text
    assert (held.state, held.hold_reason) == (State.ON_HOLD, "bank is closed")
    assert held.held_until is not None
    assert timezone.localtime(held.held_until).hour == 8
    assert (again(one).state, again(two).state) == (State.PARKED, State.ON_HOLD)


def test_the_page_that_ends_many_holds_tells_how_many_there_are_of_each_cause_and_by_whom(page: Client) -> None:
    """It told the ends and reasons only; who had put them on hold stood in the audit log."""
    until, causes = timezone.now() + timedelta(hours=4), [made.group(title=title) for title in ("BankDown", "Refused")]
    bank = [made.message(causes[0]).pk for _ in range(3)]
    hold(Selection.of_ids(bank), ANN, until=until, reason="outage")
    other = made.message(causes[1])
    hold(Selection.of_ids([other.pk]), Actor(name="bob", source="cli"), until=until + timedelta(hours=1), reason="")
    chosen = {"sel": made.selected(*ParkedMessage.objects.all())}
    text = Page(page.get(f"{MESSAGES}unhold/", chosen)).text
    told = Page(client_of(made.person("support", "hold")).get(f"{MESSAGES}unhold/", chosen)).text

    assert re.search(r"3 are on hold until [\d: -]+, by ann: outage 1 is on hold until [\d: -]+, by bob ", text)
    assert re.search(r"3 BankDown.* oldest .* 1 Refused", text)
    assert "3 are on hold until" in told
    assert ("by ann" in told, "outage" in told) == (False, False)


def test_many_holds_end_at_once_from_their_group_and_from_the_list(page: Client) -> None:
    cause = made.group()
    held = [made.message(cause) for _ in range(3)]
    press(page, asked(page, "hold", group=cause.pk), "Hold 3 messages", span="2h", text="the customer is asked")
    of_group = page.get(f"/admin/rmq_retry/errorgroup/{cause.pk}/change/")
    listed = follow(page, of_group, "3 on hold")
    asks = follow(page, of_group, "Take 3 off hold…")
    ticks = {"action": "unhold", "index": "0", ACTION_CHECKBOX_NAME: [one.pk for one in held[:2]]}
    of_list = page.post(listed.request["PATH_INFO"] + "?" + listed.request["QUERY_STRING"], ticks, follow=True)
    told = Page(asks).text
    done = press(page, asks, "Take 3 messages off hold", text="it was answered")
    act = OperatorAction.objects.latest("number")

    assert "Take off hold…" in Page(listed).text
    assert "Take off hold…" not in Page(page.get(f"{MESSAGES}?state=parked")).text
    assert re.search(r"they are parked again, .* 3 are on hold until [\d: -]+, by lead: the customer is asked", told)
    assert "2 are on hold until" in Page(of_list).text
    assert "3 messages are parked again." in Page(done).text
    assert {again(one).state for one in held} == {State.PARKED}
    assert (act.action, act.count, act.reason) == (Action.UNHOLD, 3, "it was answered")


@pytest.mark.parametrize(("act", "button"), [("discard", "Discard"), ("hold", "Hold")])
def test_only_what_is_open_is_counted_and_the_rest_is_named(page: Client, act: str, button: str) -> None:
    """It said "8 messages will be discarded: no requeue sends them" of a customer with four that were processed."""
    open_ones = [made.message() for _ in range(2)]
    paid = made.message(state=State.PROCESSED, business_key="PAY-89038", resolved_at=timezone.now())
    sent = made.message(state=State.REQUEUED, requeued_at=timezone.now())
    several = {"sel": Selection.of_ids([one.pk for one in (*open_ones, paid, sent)]).token()}
    asks = page.get(f"{MESSAGES}{act}/", several)
    one_of_two = page.get(f"{MESSAGES}{act}/", {"sel": Selection.of_ids([paid.pk, open_ones[0].pk]).token()})
    none = asked(page, act, message=sent.pk)

    assert f"{button} 2 messages" in Page(asks).text
    assert "2 of the chosen messages stay as they are, because of their states:" in Page(asks).text
    assert f"{paid} Processed " in Page(asks).text
    assert "its outcome is not known yet" in Page(asks).text
    assert {row.pk for row in asks.context["sample"]} == {one.pk for one in open_ones}
    assert f"{button} {open_ones[0]}" in Page(one_of_two).text
    assert "1 of the chosen messages stays as it is, because of its state:" in Page(none).text
    assert "no requeue sends it" not in Page(none).text
    assert f"{button} 0 messages" in Page(none).text
    assert "disabled" in none.content.decode().split('id="rmq-actions"')[1].split("</button>")[0]


def test_many_wrong_discards_are_undone_at_once_from_their_list(page: Client) -> None:
    """Nine payments that were discarded by mistake had to be opened and restored one by one."""
    gone = [made.message(business_key=f"PAY-{number}") for number in range(3)]
    discard_messages([one.pk for one in gone[:2]], category="bad data", text="no IBAN")
    discard_messages([gone[2].pk], category="handled elsewhere", text="paid by phone")
    filters = f"{MESSAGES}?state=discarded&queue={gone[0].queue}"
    listed = page.get(filters)
    ticks = {"action": "restore", "index": "0", ACTION_CHECKBOX_NAME: [one.pk for one in gone]}
    asks = page.post(filters, ticks, follow=True)
    done = press(page, asks, "Restore 3 messages", text="the IBANs came")
    act = OperatorAction.objects.latest("number")
    offered = Page(listed).text

    assert "Restore…" in offered
    assert not [label for label in ("Requeue…", "Discard…", "Hold…", "Take off hold…") if label in offered]
    assert "ann: Bad data: no IBAN" in offered
    assert "2 were discarded, the last one" in Page(asks).text
    assert "(Handled elsewhere: paid by phone)" in Page(asks).text
    assert "what 1 of them requests was done in another way" in Page(asks).text
    assert "A requeue leaves 1 of them out until somebody includes it." in Page(asks).text
    assert "3 messages are parked again." in Page(done).text
    assert {again(one).state for one in gone} == {State.PARKED}
    assert (act.action, act.count, act.reason) == (Action.RESTORE, 3, "the IBANs came")
    assert "Restore…" not in Page(page.get(MESSAGES)).text


@pytest.mark.parametrize("action", ["discard", "hold", "requeue", "export"])
def test_who_acts_on_some_of_a_filtered_list_comes_back_to_it(page: Client, action: str) -> None:
    """After a hold, all 145 messages were listed instead of the 29 that were left, and the next ticks were others."""
    one, _other = made.message(business_key="PAY-1"), made.message(business_key="PAY-2")
    listed = f"{MESSAGES}?queue={one.queue}&type="
    ticks = {"action": action, "index": "0", ACTION_CHECKBOX_NAME: [one.pk]}
    asks = page.post(listed, ticks, follow=True)

    assert Page(asks).links["Cancel"] == listed
    if action == "hold":
        done = press(page, asks, "Hold ", span="2h")
        assert done.request["PATH_INFO"] + "?" + done.request["QUERY_STRING"] == listed


def test_who_discards_or_holds_what_is_on_hold_reads_that_it_is(page: Client) -> None:
    one = made.message()
    press(page, asked(page, "hold", message=one.pk), "Hold ", span="2h", text="the customer is asked")
    two = made.message(state=State.ON_HOLD, held_until=again(one).held_until, hold_reason="the customer is asked")
    both = {"sel": Selection.of_ids([one.pk, two.pk]).token()}

    assert "by lead: the customer is asked" in Page(asked(page, "discard", message=one.pk)).text
    assert "by lead: the customer is asked" in Page(asked(page, "hold", message=one.pk)).text
    for what in ("discard", "hold"):
        told = Page(page.get(f"{MESSAGES}{what}/", both)).text
        assert "2 are on hold until" in told
        assert "the customer is asked" in told
    assert "on hold" not in Page(asked(page, "discard", message=made.message().pk)).text


@pytest.mark.parametrize(("hour", "day"), [(3, 0), (9, 1)])
def test_until_the_morning_is_the_coming_one(monkeypatch: pytest.MonkeyPatch, hour: int, day: int) -> None:
    """At 3 am, "until tomorrow, 08:00" ended 29 hours later."""
    now = timezone.localtime().replace(hour=hour, minute=5)
    monkeypatch.setattr(database_clock, "now", lambda _using: now)
    end = decisions._until("morning", "")

    assert (end.date() - now.date(), end.hour, end.minute) == (timedelta(days=day), 8, 0)


def test_the_page_of_a_hold_says_when_it_ends_and_what_it_does_not_stop(page: Client) -> None:
    one = made.message()
    made.blocked_key(identity=one.identity, queue=one.queue, waiting=3, parked=True)
    asks = asked(page, "hold", message=one.pk)
    press(page, asks, "Hold ", span="2h", text="the bank calls back")
    again_asked, ends = asked(page, "hold", message=one.pk), page.get(f"{MESSAGES}{one.pk}/unhold/")

    assert f"for 2 hours → {timezone.localtime() + timedelta(hours=2):%Y-%m-%d %H:}" in Page(asks).text
    assert "nothing is sent before somebody requeues it" in Page(asks).text
    assert "A hold does not stop the queue" in Page(asks).text
    assert "3 messages wait behind these by their ordering keys" in Page(asks).text
    assert "by lead: the bank calls back" in Page(again_asked).text
    assert "The new end and the new reason replace these." in Page(again_asked).text
    assert "3 messages wait behind it by their ordering keys" in Page(ends).text


@pytest.mark.parametrize("at", ["", "rubbish", "2020-01-01T00:00", "2999-01-01T00:00", "2026-13-45T99:99"])
def test_a_hold_with_an_invalid_end_is_refused(page: Client, at: str) -> None:
    one = made.message()
    wrong = press(page, asked(page, "hold", message=one.pk), "Hold ", span="at", at=at)

    assert wrong.status_code == 422
    assert again(one).state == State.PARKED


def test_a_hold_can_end_at_a_chosen_time(page: Client) -> None:
    one = made.message()
    until = timezone.localtime() + timedelta(hours=5)
    press(page, asked(page, "hold", message=one.pk), "Hold ", span="at", at=f"{until:%Y-%m-%dT%H:%M}")

    assert again(one).held_until == until.replace(second=0, microsecond=0)


def test_a_message_that_was_processed_meanwhile_is_not_discarded(page: Client) -> None:
    one = made.message()
    asks = asked(page, "discard", message=one.pk)
    ParkedMessage.objects.update(state=State.PROCESSED)
    done = press(page, asks, "Discard ", category="test")

    assert again(one).state == State.PROCESSED
    assert done.status_code == 422
    assert "Nothing was changed. 1 was not changed: it had changed meanwhile" in Page(done).text


def edited(settings: Any) -> None:
    operating(settings, EDITABLE={"payment.*": True})


def test_editing_is_off_unless_the_project_allows_it(page: Client) -> None:
    response = page.get(f"{MESSAGES}{made.message().pk}/edit/")

    assert response.status_code == 409
    assert "This project does not allow messages of “payment.transfer” to be edited" in Page(response).text


def test_a_message_that_nobody_can_edit_offers_no_edit_but_says_why(page: Client, settings: Any) -> None:
    one = made.message()
    closed = page.get(f"{MESSAGES}{one.pk}/change/").content.decode()
    edited(settings)
    offered = page.get(f"{MESSAGES}{one.pk}/change/").content.decode()

    assert f"{MESSAGES}{one.pk}/edit/" not in closed
    assert "This project does not allow messages of “payment.transfer” to be edited" in closed
    assert f"{MESSAGES}{one.pk}/edit/" in offered


def test_a_group_of_messages_without_a_type_lists_no_types(page: Client) -> None:
    one, other = made.message(type=""), made.message(made.group(fingerprint="b" * 64), type="refund")
    untyped, typed = (page.get(f"/admin/rmq_retry/errorgroup/{some.group_id}/change/") for some in (one, other))

    assert "Affected message types" not in Page(untyped).text
    assert "Affected message types refund 1" in Page(typed).text


def test_an_edit_is_reviewed_stored_as_a_version_and_previewed(page: Client, settings: Any) -> None:
    edited(settings)
    one = made.message(body=b'\n{"amount": 100.00}')
    form = page.get(f"{MESSAGES}{one.pk}/edit/")
    _form, values = Page(form).form_with("Review the changes")
    review = press(page, form, "Review the changes", text='{"amount":\r\n1.10}')
    silent = press(page, review, "Store and preview the requeue")
    preview = press(page, silent, "Store and preview the requeue", reason="customer's wish")
    version = MessageVersion.objects.get()

    assert values["text"] == '{\n  "amount": 100.00\n}'
    assert "amount : 100.00 → 1.10" in Page(review).text
    assert "1<del>00.0</del>0" in review.content.decode()
    assert "1<ins>.1</ins>0" in review.content.decode()
    assert "Enter the reason for the edit." in Page(silent).text
    assert (bytes(version.body), version.by, version.number) == (b'\n{"amount": 1.10}', "lead", 2)
    assert bytes(again(one).body) == b'\n{"amount": 100.00}'
    assert "1 is sent as it was edited" in Page(preview).text


def test_an_edit_names_the_run_that_has_still_to_send_the_message(page: Client, settings: Any) -> None:
    edited(settings)
    one = made.message()
    run = requeue_run([one.pk], reason="x")
    pause_run(run)
    form = page.get(f"{MESSAGES}{one.pk}/edit/")
    review = press(page, form, "Review the changes", text='{"amount": 1.10}')
    RequeueRun.objects.update(state="stopped")
    later = page.get(f"{MESSAGES}{one.pk}/edit/")
    said = f"Requeue run {run.pk} by {run.by} is paused and has not sent it."

    assert [said in Page(shown).text for shown in (form, review, later)] == [True, True, False]


def test_a_large_edit_is_previewed_by_its_beginning_and_stored_whole(page: Client, settings: Any) -> None:
    operating(settings, EDITABLE={"*": True})
    one = made.message(body=b'{"a": 1}')
    text = '{"a": "' + "x" * 500_000 + '"}'
    review = press(page, page.get(f"{MESSAGES}{one.pk}/edit/"), "Review the changes", text=text)
    press(page, review, "Store and preview the requeue", reason="test")

    assert "Only its beginning is shown." in Page(review).text
    assert len(review.content) < 600_000
    assert bytes(MessageVersion.objects.get(message=one.pk).body) == text.encode()


def test_an_edited_message_is_sent_from_its_review(page: Client, settings: Any, sent: list[Message]) -> None:
    edited(settings)
    one = made.message(business_key="PAY-1")
    review = press(page, page.get(f"{MESSAGES}{one.pk}/edit/"), "Review the changes", text='{"amount": 1.10}')
    silent = press(page, review, "Requeue the edited message")
    before = list(sent)
    run_page = press(page, silent, "Requeue the edited message", reason="customer's wish")
    run = RequeueRun.objects.get()
    press(page, run_page, "Continue here")

    assert "payments.main: 1 message goes there" in Page(review).text
    assert ("Enter the reason for the edit." in Page(silent).text, before) == (True, [])
    assert run_page.redirect_chain[-1][0] == f"/admin/rmq_retry/requeuerun/{run.pk}/change/"
    assert (run.reason, run.max_depth, run.stop_at) == ("customer's wish", 1000, 20.0)
    assert [message.body for message in sent] == [b'{"amount": 1.10}']


@pytest.fixture
def referenced() -> Iterator[None]:
    """The handler of the messages names them by their reference."""
    with isolated_handlers():

        @handler("payments.main", keys=lambda message: message.data["reference"])
        def transfer(message: Delivery) -> None:
            """Nothing."""

        yield


def tick(response: Any) -> str:
    """What a form sends if the operator ticks that they know the other messages."""
    return next(given["value"] for _tag, given in Page(response).tags if given.get("name") == "known")


@pytest.mark.usefixtures("referenced")
def test_an_edit_to_the_key_of_a_paid_message_names_it_and_needs_a_tick(page: Client, settings: Any) -> None:
    edited(settings)
    paid = made.message(business_key="PAY-1", state=State.PROCESSED)
    one = made.message(business_key="PAY-2", body=b'{"reference": "PAY-2"}')
    form = page.get(f"{MESSAGES}{one.pk}/edit/")
    review = press(page, form, "Review the changes", text='{"reference": "PAY-1"}')
    refused = press(page, review, "Requeue the edited message", reason="typing error")
    press(page, review, "Requeue the edited message", reason="typing error", known=tick(review))
    shown = page.get(f"{MESSAGES}{one.pk}/change/")

    assert "The business key changes: PAY-2 → PAY-1" in Page(review).text
    assert f"1 other message has the new business key already: PAY-1 : #{paid.pk} payment.transfer" in Page(review).text
    assert "Processed I know this message" in Page(review).text
    assert (refused.status_code, "Nothing was stored: another message" in Page(refused).text) == (422, True)
    assert (MessageVersion.objects.count(), RequeueRun.objects.count()) == (1, 1)
    assert "Business key: PAY-2 → PAY-1 · typing error" in Page(shown).text
    assert "PAY-1, PAY-2" in Page(shown).text


@pytest.mark.usefixtures("referenced")
def test_an_edit_to_a_key_that_no_message_has_says_how_far_that_was_looked_for(page: Client, settings: Any) -> None:
    edited(settings)
    one = made.message(business_key="PAY-2", body=b'{"reference": "PAY-2"}')
    form = page.get(f"{MESSAGES}{one.pk}/edit/")
    review = Page(press(page, form, "Review the changes", text='{"reference": "PAY-3"}')).text
    same = Page(press(page, form, "Review the changes", text='{"reference": "PAY-2", "amount": 1}')).text

    assert "Messages that were handled without ever being parked are not known here." in review
    assert "I know" not in review
    assert "business key changes" not in same


@pytest.mark.usefixtures("referenced")
def test_one_change_to_keys_of_other_messages_needs_a_tick(page: Client, settings: Any) -> None:
    edited(settings)
    made.message(business_key="A-1", state=State.PROCESSED)
    cause = made.group()
    some = [made.message(cause, business_key=f"B-{n}", body=f'{{"reference": "B-{n}"}}'.encode()) for n in (1, 2)]
    form = page.get(f"{MESSAGES}edit/", {"group": cause.pk}, follow=True)
    shown = press(page, form, "Preview each result", path="reference", act="replace", find="B", value="A")
    refused = press(page, shown, "Edit 2 messages", reason="x")
    press(page, shown, "Edit 2 messages", reason="x", known=tick(shown))
    equal = press(page, form, "Preview each result", path="reference", act="set", value='"C-1"')

    assert "business key: B-1 → A-1" in Page(shown).text
    assert refused.status_code == 422
    assert [again(one).business_key for one in some] == ["A-1", "A-2"]
    assert Page(equal).text.count("Several of these messages would get the business key C-1.") == 2


def test_an_edited_message_with_a_finding_goes_to_the_preview(page: Client, settings: Any, sent: list[Message]) -> None:
    edited(settings)
    one = made.message(unconfirmed=True)
    review = press(page, page.get(f"{MESSAGES}{one.pk}/edit/"), "Review the changes", text='{"amount": 1.10}')
    forged = press(page, review, "Store and preview the requeue", reason="customer's wish", send="1")

    assert "1 may have been delivered" in Page(review).text
    assert "Requeue the edited message" not in Page(review).text
    assert 'value="customer&#x27;s wish"' in forged.content.decode()
    assert (MessageVersion.objects.count(), RequeueRun.objects.count(), sent) == (1, 0, [])


def test_a_permanent_error_that_an_edit_removed_is_requeued_from_the_review(
    page: Client, settings: Any, sent: list[Message]
) -> None:
    edited(settings)
    one = made.message(made.group(reason="permanent"), body=b'{"amount": "8,50"}')
    review = press(page, page.get(f"{MESSAGES}{one.pk}/edit/"), "Review the changes", text='{"amount": 8.50}')
    run_page = press(page, review, "Requeue the edited message", reason="comma")
    press(page, run_page, "Continue here")

    assert "permanent" not in Page(review).text
    assert (RequeueRun.objects.get().reason, [message.body for message in sent]) == ("comma", [b'{"amount": 8.50}'])


@pytest.mark.parametrize(
    ("reason", "leads"),
    [("invalid", "edit"), ("undecodable_body", "edit"), ("permanent", "edit"), ("expired", "preview")],
)
def test_the_main_button_is_edit_where_an_error_is_permanent_and_the_message_may_be_edited(
    page: Client, settings: Any, reason: str, leads: str
) -> None:
    """The first button of a malformed payment was a requeue, after which it fails the same way again."""
    edited(settings)
    one = made.message(made.group(reason=reason))
    group = f"/admin/rmq_retry/errorgroup/{one.group_id}/change/"

    def main(address: str) -> str:
        found = re.search(r'rmq-main" href="[^"]*/([a-z]+)/', page.get(address).content.decode())
        return found[1] if found else ""

    before = main(f"{MESSAGES}{one.pk}/change/"), main(group)
    card = Page(page.get("/admin/rmq_retry/errorgroup/")).text
    store(one.pk, ANN, propose(one, text="{}"), version=1, reason="x")

    assert before == (leads, leads)
    assert ("Edit 1… Requeue…" in card) == (leads == "edit")
    assert "Edit 1…" in Page(page.get(group)).links
    assert main(f"{MESSAGES}{one.pk}/change/") == "preview"


def test_a_card_shows_one_button_and_has_the_others_in_a_menu(page: Client) -> None:
    cause, alone = made.group(title="BankDown"), made.group(title="Once")
    for _ in range(3):
        made.message(cause)
    made.message(alone)
    cards = page.get("/admin/rmq_retry/errorgroup/").context["cards"]
    labels = {card.group: [[one.label for one in some] for some in buttons] for card, _ready, *buttons, _asked in cards}

    assert labels[cause] == [["Requeue one, then the others…"], ["Requeue 3…", "Hold…", "Discard 3…"]]
    assert labels[alone] == [["Requeue…"], []]


def test_the_line_of_an_error_is_named_and_shown(page: Client, settings: Any) -> None:
    edited(settings)
    one = made.message(body=b'{"a": 1, "amount": 2}')
    form = page.get(f"{MESSAGES}{one.pk}/edit/")
    wrong = press(page, form, "Review the changes", text='{\r\n  "a": 1,\r\n  "amount": 8,50\r\n}')

    assert "Line 3, column 15: invalid JSON" in Page(wrong).text
    assert '"amount": 8,50' in Page(wrong).text


def test_a_body_that_is_only_shown_and_stored_is_not_changed(page: Client, settings: Any) -> None:
    edited(settings)
    one = made.message(body=b'\n{"amount":100.00 ,"id": 12345678901234567890,"a":[1E400,\t"\\u0041"]}')
    shown = press(page, page.get(f"{MESSAGES}{one.pk}/edit/"), "Review the changes")

    assert "Nothing was changed." in Page(shown).text


def test_an_edit_without_a_broker_is_stored_and_can_be_planned(
    page: Client, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    edited(settings)
    made.broker_seen(monkeypatch, away="refused")
    one = made.message()
    review = press(page, page.get(f"{MESSAGES}{one.pk}/edit/"), "Review the changes", text='{"amount": 1.10}')
    stored = press(page, review, "Store and preview the requeue", reason="customer's wish", send="1")

    assert "The broker does not answer." in Page(review).text
    assert "Requeue the edited message" not in Page(review).text
    assert "Start when the broker is back" in Page(stored).text
    assert RequeueRun.objects.count() == 0


def test_an_invalid_edit_shows_the_position_and_keeps_the_text(page: Client, settings: Any) -> None:
    edited(settings)
    form = page.get(f"{MESSAGES}{made.message().pk}/edit/")
    wrong = press(page, form, "Review the changes", text='{"amount": 1,}', new_id="mine")
    _form, values = Page(wrong).form_with("Review the changes")

    assert wrong.status_code == 422
    assert "Line 1, column" in Page(wrong).text
    assert (values["text"], values["new_id"]) == ('{"amount": 1,}', "mine")


@dataclass
class Order:
    amount: Decimal
    count: int


def test_what_a_handlers_type_refuses_stands_beside_its_field(page: Client, settings: Any) -> None:
    operating(settings, EDITABLE={"*": True})
    with isolated_handlers():

        @handler("typed.orders")
        def book(message: Delivery[Order]) -> None:
            """Nothing."""

        one = made.message(body=b'{"amount": null, "count": 1}', queue="typed.orders", handler=book.name)
        form = {"version": "1", "reason": "typo", "text": '{"amount": "8,50", "count": 1}'}
        wrong = page.post(f"{MESSAGES}{one.pk}/edit/", form)
        unchanged = page.post(f"{MESSAGES}{one.pk}/edit/", form | {"text": '{"amount": null, "count": 2}'})

    assert ".. Checks" not in Page(wrong).text
    assert 'amount : null → "8,50" ✕ Invalid decimal string' in Page(wrong).text
    assert "Other values that its handler refuses amount : ✕ Expected `decimal`, got `null`" in Page(unchanged).text


def test_going_back_from_the_review_keeps_the_edited_text(page: Client, settings: Any) -> None:
    edited(settings)
    form = page.get(f"{MESSAGES}{made.message().pk}/edit/")
    review = press(page, form, "Review the changes", text='{"amount": 7}', **{"header:0": "south"})
    back = press(page, review, "Back to editing")
    _form, values = Page(back).form_with("Review the changes")

    assert "north → south" in Page(review).text
    assert (values["text"], values["header:0"]) == ('{"amount": 7}', "south")


def test_the_second_editor_sees_the_version_of_the_first(page: Client, settings: Any) -> None:
    edited(settings)
    one = made.message()
    review = press(page, page.get(f"{MESSAGES}{one.pk}/edit/"), "Review the changes", text='{"mine": 1}')
    press(page, review, "Store and preview the requeue", reason="first")
    late = press(page, review, "Store and preview the requeue", reason="second", text='{"other": 1}')

    assert "lead stored version 2 meanwhile." in Page(late).text
    assert "other : added → 1" in Page(late).text
    assert MessageVersion.objects.count() == 1


def test_an_edit_of_what_a_colleague_has_edited_names_that_version(page: Client, settings: Any) -> None:
    """Review compared 9000 → 4500, as typed, with her 4000 without a word; only the last button said so."""
    edited(settings)
    one = made.message(body=b'{"amount": 9000}')
    mine = page.get(f"{MESSAGES}{one.pk}/edit/")
    store(one.pk, ANN, propose(one, text='{"amount": 4000}'), version=1, reason="customer asked for 4000")
    review = press(page, mine, "Review the changes", text='{"amount": 4500}')
    fresh = page.get(f"{MESSAGES}{one.pk}/edit/")

    assert "While you were editing, ann stored version 2, " in Page(review).text
    assert "customer asked for 4000" in Page(review).text
    assert "This is version 2, which ann stored " in Page(fresh).text
    assert "This is version" not in Page(mine).text


def test_a_note_is_stored_and_shown_with_its_author(page: Client) -> None:
    cause = made.group()
    form = page.get(f"/admin/rmq_retry/errorgroup/{cause.pk}/note/")
    done = press(page, form, "Save the note", note="bank is down", ticket="INC-5", muted="1")
    known = ErrorGroup.objects.get()

    assert (known.note, known.ticket, known.muted, known.noted_by) == ("bank is down", "INC-5", True, "lead")
    assert "bank is down" in Page(done).text
    assert {act.action for act in OperatorAction.objects.all()} == {"note", "mute"}


def test_an_export_has_no_formulas_and_is_logged(page: Client) -> None:
    cause = made.group()
    made.message(cause, business_key="=1+1")
    ask = asked(page, "export", group=cause.pk)
    file = press(page, ask, "Export ", reason="audit")
    content = b"".join(file).decode()
    act = OperatorAction.objects.get()

    assert file.headers["Content-Disposition"] == 'attachment; filename="messages.csv"'
    assert "'=1+1" in content
    assert (act.action, act.count, act.reason) == ("export", 1, "audit")


def test_an_export_without_the_body_permission_has_no_hidden_field() -> None:
    properties = made.properties({"card": {"pan": "4111222233334444"}, "authorization": "Bearer abc"})
    one = made.message(body=b'{"iban": "DE89", "amount": 1}', properties=properties)
    clerk = client_of(made.person("clerk", "view_parkedmessage", "export"))
    ask = asked(clerk, "export", message=one.pk)
    file = press(clerk, ask, "Export ", form="jsonl", payload="masked")
    content = b"".join(file).decode()

    assert not [secret for secret in ("DE89", "4111222233334444", "Bearer abc") if secret in content]
    assert '\\"amount\\": 1' in content


def test_the_result_of_a_requeue_run_can_be_exported(page: Client) -> None:
    preview = page.get("/admin/rmq_retry/requeuerun/preview/", {"message": made.message().pk}, follow=True)
    run_page = press(page, preview, "Requeue 1 message")
    file = press(page, run_page, "Export CSV")

    assert b"".join(file).decode().startswith("place,id,business_key")


def test_a_body_too_large_for_a_form_names_the_edit_command(page: Client, settings: Any) -> None:
    operating(settings, EDITABLE={"*": True})
    one = made.message(body=b'{"x": "' + b"y" * 3_200_000 + b'"}')
    lines = made.message(body=b"[" + b"1,\n" * 1_000_000 + b"1]")
    said = "Its body is too large to be edited in a browser. Edit it with: manage.py rmq_parked edit"
    shown, edit = page.get(f"{MESSAGES}{one.pk}/change/"), page.get(f"{MESSAGES}{one.pk}/edit/")

    assert f"{said} {one.pk} --editor" in Page(shown).text
    assert (edit.status_code, f"{said} {one.pk} --editor" in Page(edit).text) == (409, True)
    assert f"{said} {lines.pk} --editor" in Page(page.get(f"{MESSAGES}{lines.pk}/edit/")).text


def test_a_body_above_the_django_form_limit_can_be_edited(page: Client, settings: Any) -> None:
    operating(settings, EDITABLE={"*": True})
    text = "[" + '"é",' * 400_000 + "1]"
    one = made.message(body=text.encode())
    form = urlencode({"text": f"{text} ", "reason": "test", "version": "1", "store": "1"})
    kind = "application/x-www-form-urlencoded"
    stored = page.post(f"{MESSAGES}{one.pk}/edit/", form, content_type=kind, follow=True)

    assert (len(form) > 5_000_000, stored.status_code) == (True, 200)
    assert bytes(MessageVersion.objects.get(message=one.pk).body) == f"{text} ".encode()


def test_an_oversized_form_is_answered_with_413_and_an_explanation(page: Client, settings: Any) -> None:
    operating(settings, EDITABLE={"*": True})
    one = made.message()
    form, kind = "text=" + "y" * 11_000_000, "application/x-www-form-urlencoded"
    answer = page.post(f"{MESSAGES}{one.pk}/edit/", form, content_type=kind)

    assert answer.status_code == 413
    assert "Nothing was done. Go back: your text is still there." in Page(answer).text
    assert again(one).version == 1


def test_an_edit_shows_values_in_a_language_neutral_format(page: Client, settings: Any) -> None:
    operating(settings, EDITABLE={"*": True})
    at = datetime(2026, 11, 22, 17, 47, tzinfo=UTC)
    one = made.message(properties=made.properties({"at": at, "more": [{"when": at, "none": None}], "yes": True}))
    text = Page(page.get(f"{MESSAGES}{one.pk}/edit/")).text

    assert "2026-11-22T17:47:00+00:00" in text
    assert "when = 2026-11-22T17:47:00+00:00, none = null" in text
    assert "datetime.datetime" not in text


def test_audit_facts_are_shown_in_words(page: Client) -> None:
    act = logged(
        Action.RESUME,
        Actor.of_code("test"),
        run=7,
        facts={
            # A database may return the facts in an order of its own.
            "after": [None],
            "before": {"canary": True, "stop_at": 20.0, "rate": 0.5},
            "category": "bad data",
            "counts": {"processed": 3},
            "until": "2026-11-22T17:47:00+00:00",
            "of_tomorrow": 1,
        },
    )
    text = Page(page.get(f"/admin/rmq_retry/operatoraction/{act.pk}/change/")).text

    before = "Sends one message first: yes Pauses when more percent fail again than: 20 Messages per second: 0.5"
    until = timezone.localtime(datetime(2026, 11, 22, 17, 47, tzinfo=UTC))
    changed = f"Until {until:%Y-%m-%d %H:%M:%S} Before {before} After {NOTHING} "
    assert f"{changed}Reason for the discard Bad data Messages by status Processed: 3 of_tomorrow 1 Seal" in text


def test_the_requeue_of_one_message_names_its_run_too(page: Client) -> None:
    """It named the message alone, and the run of a later one had to be looked for."""
    message = made.message(business_key="PAY-1")
    run = requeue_run([message.pk], reason="r")
    act = OperatorAction.objects.get(action=Action.REQUEUE)
    for address in ("", f"{act.pk}/change/"):
        told = Page(page.get(f"/admin/rmq_retry/operatoraction/{address}"))
        assert told.links[f"Requeue run {run.pk}"] == f"/admin/rmq_retry/requeuerun/{run.pk}/change/"
        assert f"{message} · Requeue run {run.pk}" in told.text


def test_the_act_of_an_edit_leads_to_the_message_and_both_its_versions(page: Client) -> None:
    one = made.message(business_key="PAY-1")
    act = logged(Action.EDIT, Actor.of_code("test"), message=one.pk, subject="PAY-1", facts={"version": 2})
    shown = Page(page.get(f"/admin/rmq_retry/operatoraction/{act.pk}/change/"))
    now = Page(page.get("/admin/rmq_retry/livestatus/"))

    assert "Version 2 · show the edited version · show the original" in shown.text
    assert shown.links["show the original"] == f"{address_of(one)}?version=1"
    assert shown.links["show the edited version"] == address_of(one)
    assert f"/admin/rmq_retry/operatoraction/{act.pk}/change/" in now.links.values()
    assert "Edit · PAY-1" in now.text


def test_a_message_of_the_outbox_is_found_by_its_id_in_any_case(page: Client) -> None:
    made.outgoing(message_id="out-2")
    made.outgoing(message_id="out-3")
    found = Page(page.get("/admin/rmq_retry/outboxmessage/?q=OUT-2")).text

    assert ["out-2" in found, "out-3" in found] == [True, False]


def test_an_empty_outbox_has_no_search_field(page: Client) -> None:
    empty = page.get("/admin/rmq_retry/outboxmessage/").content.decode()
    nothing = page.get("/admin/rmq_retry/outboxmessage/?q=m-1").content.decode()
    made.outgoing()
    some = page.get("/admin/rmq_retry/outboxmessage/").content.decode()

    assert ['id="searchbar"' in one for one in (empty, nothing, some)] == [False, True, True]
    assert [one.count('name="q"') for one in (empty, nothing, some)] == [1, 1, 1], "two fields stood there"
    said = ("No message waits in the outbox.", "No message of the outbox has a key or id that begins so")
    assert [[text in one for text in said] for one in (empty, nothing, some)] == [
        [True, False],
        [False, True],
        [False, False],
    ]


OUTBOX = "/admin/rmq_retry/outboxmessage/"


@pytest.fixture
def keyed() -> None:
    """A handler of another queue that names the business keys of its messages."""

    @handler("payments.slow", keys=lambda message: message.data["order_id"])
    def slow(message: Delivery) -> None:
        """Nothing."""


def refused_row(**fields: Any) -> OutboxMessage:
    """A payment that the broker has refused ten times, and that is sent again in 40 minutes."""
    due = timezone.now() + timedelta(minutes=40, seconds=30)
    about = {"body": b'{"order_id": "ORD-7", "iban": "DE7"}', "size": 36, "routing_key": "payments.slow"}
    told = {"properties": made.properties({"token": "t-1"}, type="payment.order"), "attempts": 10, "due_at": due}
    return made.outgoing(**{**about, **told, "failed_at": None, **fields})


@pytest.mark.usefixtures("keyed")
def test_the_outbox_says_which_payment_waits_and_what_the_broker_answers(page: Client) -> None:
    refused_row()
    listed = Page(page.get(OUTBOX)).text
    refused_row(routing_key="payments.nowhere", exchange="bank")

    assert "ORD-7" in listed
    assert "payment.order" in listed
    assert "refused 10 attempts, next in 40 min" in listed
    assert "No queue took “payments.slow” (312 NO_ROUTE)" in listed
    assert "No queue took “payments.nowhere” from the exchange “bank”" in Page(page.get(OUTBOX)).text


def test_a_message_whose_queue_was_declared_since_can_be_sent_again(
    page: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It said "No queue takes them" after the queue had been declared."""
    row = refused_row()
    level = Level(queue="payments.slow", role=Role.WORK, ready=0, consumers=1)
    said = []
    for now in (replace(level, missing=True), level):
        made.broker_seen(monkeypatch, now)
        said.append("Queue payments.slow exists by now" in Page(page.get(f"{OUTBOX}{row.pk}/change/")).text)

    assert said == [False, True]


@pytest.mark.usefixtures("keyed")
def test_the_page_of_an_outbox_message_has_its_body_and_sends_it_again(page: Client) -> None:
    row = refused_row()
    shown = page.get(f"{OUTBOX}{row.pk}/change/")
    done = press(page, shown, "Send again")
    row.refresh_from_db()

    assert "payment.order 9f3c-7" in Page(shown).text
    assert "ORD-7" in Page(shown).text
    assert "DE7" in Page(shown).text
    assert "1 message will be sent again." in Page(done).text
    assert row.attempts == 0


@pytest.mark.usefixtures("keyed")
def test_the_page_of_an_outbox_message_hides_what_its_user_may_not_see(settings: Any) -> None:
    row = refused_row()
    operating(settings, MASK=["iban", "token"])
    without_bodies = client_of(made.person("ann", "view_outboxmessage", "view_parkedmessage"))
    masked = Page(without_bodies.get(f"{OUTBOX}{row.pk}/change/")).text
    of_rows_only = client_of(made.person("ben", "view_outboxmessage"))
    nothing = [Page(of_rows_only.get(one)).text for one in (OUTBOX, f"{OUTBOX}{row.pk}/change/")]
    operating(settings, PERMIT=is_north)
    ruled = Page(without_bodies.get(f"{OUTBOX}{row.pk}/change/")).text

    assert "ORD-7" in masked
    assert [secret in masked for secret in ("DE7", "t-1")] == [False, False]
    assert ["ORD-7" in one or "payment.order" in one for one in (*nothing, ruled)] == [False, False, False]


def test_a_message_that_left_the_outbox_meanwhile_is_answered_with_404(page: Client) -> None:
    answers = [page.get(f"{OUTBOX}{number}/change/").status_code for number in ("17", "x", "9" * 30)]

    assert answers == [404, 404, 404]


def test_each_fact_that_the_package_writes_has_a_name() -> None:
    sources = [path.read_text() for path in Path(parked.__file__).parent.glob("*.py")]
    logging = "\n".join(source for source in sources if "log_action(" in source)
    literals = re.findall(r"facts[^=\n]*=\s*\{([^}]*)\}", logging)
    written = {name for one in literals for name in re.findall(r'"([a-z_0-9]+)":', one)}

    assert {"selection", "until", "paused_by", "outbox", "category"} <= written
    assert [name for name in written if name_in_words(name) == name] == []


MALFORMED = [f'{{"amount":"8,{number}0" }}'.encode() for number in range(3)]
COMMA = {"path": "amount", "act": "replace", "find": ",", "value": ".", "number": "1"}


def test_who_cannot_edit_a_permanent_error_is_led_to_no_requeue(page: Client) -> None:
    """Edits are off: the first button was *Requeue one, then the others…*, below "fail the same way again"."""
    cause = made.group(reason="permanent")
    gone, *_others = [made.message(cause) for _ in range(3)]
    discard_messages([gone.pk], category="bad data")
    address = f"/admin/rmq_retry/errorgroup/{cause.pk}/change/"
    shown = page.get(address)

    assert "fail the same way again" in Page(shown).text
    assert "Requeue 2…" in Page(shown).text
    assert 'rmq-main" href' not in shown.content.decode()
    assert Page(shown).links["1 discarded"].endswith(f"?group={cause.pk}&state=discarded")


def test_a_cause_in_plain_words_has_its_newest_error_beside_it(page: Client, settings: Any) -> None:
    """Two groups with one name had one sentence each, the same: only their errors told 504 from 502."""
    operating(settings, ERROR_LABELS={"GatewayTimeout": "The bank did not answer."})
    made.message(made.group(title="GatewayTimeout"), error_text="502 Bad Gateway")
    shown = Page(page.get("/admin/rmq_retry/errorgroup/")).text

    assert "The bank did not answer." in shown
    assert "502 Bad Gateway" in shown


def test_one_change_repairs_all_messages_of_a_group_and_offers_one_run(
    page: Client, settings: Any, sent: list[Message]
) -> None:
    edited(settings)
    cause = made.group(reason="permanent")
    some = [made.message(cause, body=body) for body in MALFORMED]
    other = made.message(cause, body=b'{"sum": 1}', business_key="OTHER-1")
    form = page.get(f"{MESSAGES}edit/", {"group": cause.pk}, follow=True)
    shown = press(page, form, "Preview each result", **COMMA)
    silent = press(page, shown, "Edit 3 messages")
    preview = press(page, silent, "Edit 3 messages", reason="comma")
    run_page = press(page, preview, "Requeue 3 messages")
    press(page, run_page, "Continue here")

    assert '"8,10" 8.10' in Page(shown).text
    assert "OTHER-1 : It has no such path." in Page(shown).text
    assert "Enter the reason for the edit." in Page(silent).text
    assert "3 messages were edited." in Page(preview).text
    listed = Page(page.get(Page(preview).links["Show the edited ones"]))
    assert "3 messages" in listed.text
    assert "Edited at: " in listed.text
    assert "OTHER-1" not in listed.text
    assert sorted(message.body for message in sent) == [f'{{"amount":8.{n}0 }}'.encode() for n in range(3)]
    assert RequeueRun.objects.get().reason == "comma"
    assert (again(other).version, {again(one).version for one in some}) == (1, {2})


def test_the_form_of_one_change_shows_its_cause_an_example_and_the_paths_in_it(page: Client, settings: Any) -> None:
    edited(settings)
    cause = made.group(title="UnreadableAmount")
    one = made.message(cause, body=b'{"amount": "8,50", "to": {"name": "Ann"}}', business_key="PAY-1")
    made.message(cause, body=b'{"amount": "9,50"}')
    form = page.get(f"{MESSAGES}edit/", {"group": cause.pk}, follow=True)
    alone = page.get(f"{MESSAGES}edit/", {"message": one.pk}, follow=True)
    wrong = press(page, form, "Preview each result", path="Amount", act="set", value="1")
    offered = [given["value"] for tag, given in Page(alone).tags if tag == "option" and "." in given.get("value", "")]

    assert Page(form).links[str(cause)] == f"/admin/rmq_retry/errorgroup/{cause.pk}/change/"
    assert 'Example: the body of PAY-1 { "amount": "8,50",' in Page(alone).text
    assert "Edit PAY-1" in Page(alone).text
    assert offered == ["to.name", "headers.tenant"]
    assert Page(wrong).text.count("It has no such path. Did you mean amount?") == 2


def test_the_form_of_an_edit_shows_the_error_and_the_line_that_raised_it(page: Client, settings: Any) -> None:
    edited(settings)
    one = made.message()
    made.attempt(one)
    form = page.get(f"{MESSAGES}{one.pk}/edit/")

    assert "Last error: GatewayTimeout : no answer within 30 s" in Page(form).text
    assert "bank/gateway.py:17 post · raise GatewayTimeout(host)" in Page(form).text
    assert Page(form).links["Timeline"] == f"{MESSAGES}{one.pk}/change/#rmq-timeline"


def test_only_the_change_that_was_shown_is_stored(page: Client, settings: Any) -> None:
    edited(settings)
    one = made.message(body=MALFORMED[0])
    shown = press(page, page.get(f"{MESSAGES}edit/", {"message": one.pk}, follow=True), "Preview each result", **COMMA)
    other = press(page, shown, "Edit ", reason="x", value=";")
    forged = press(page, shown, "Edit ", reason="x", shown="x:y:z")

    assert "Nothing was done, because the change was not previewed" in Page(other).text
    assert "Nothing was done, because the change was not previewed" in Page(forged).text
    assert (other.status_code, MessageVersion.objects.count()) == (422, 0)


def test_an_edit_of_many_leaves_out_what_changed_after_its_preview(page: Client, settings: Any) -> None:
    edited(settings)
    cause = made.group()
    mine, other = (made.message(cause, body=body) for body in MALFORMED[:2])
    form = page.get(f"{MESSAGES}edit/", {"group": cause.pk}, follow=True)
    shown = press(page, form, "Preview each result", **COMMA)
    store(other.pk, ANN, propose(other, text="{}"), version=1, reason="first")
    done = press(page, shown, "Edit 2 messages", reason="comma")

    assert "1 message was edited." in Page(done).text
    assert "1 was left out, because it had changed meanwhile." in Page(done).text
    assert [MessageVersion.objects.get(message=one.pk).by for one in (mine, other)] == ["lead", "ann"]
