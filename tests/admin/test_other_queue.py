"""A requeue to another queue: after checks of its own queue, a card payment was booked by the ledger."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from django_rmq_retry import Delivery, Message, handler
from django_rmq_retry.messages.reasons import Reason
from django_rmq_retry.models import ParkedMessage, RequeueRun
from django_rmq_retry.parked.findings import RequeueTerms, report
from django_rmq_retry.parked.selection import Selection
from tests.admin import made
from tests.admin.conftest import support
from tests.admin.looking import Page, address_of, follow, press
from tests.admin.stopped import trip
from tests.commands.running import run
from tests.operators.made import requeue_run

pytestmark = pytest.mark.django_db
ADMIN = "/admin/rmq_retry/"
PREVIEW = "/admin/rmq_retry/requeuerun/preview/"
CARDS, LEDGER, NOTICES = "cards.authorize", "ledger.import", "notifications.send"
TAKES = f"In {LEDGER} bank.import_rows takes what was made for bank.authorize."


@pytest.fixture(autouse=True)
def bank(no_handlers: None) -> None:  # noqa: ARG001 - the first of the two
    def taking(queue: str, name: str, **options: Any) -> None:
        @handler(queue, name=name, **options)
        def take(message: Delivery) -> None:
            """Nothing."""

    taking(CARDS, "bank.authorize")
    taking(LEDGER, "bank.import_rows", once=True, formerly=["bank.rows"])
    taking(NOTICES, "bank.notify")


@pytest.fixture
def card() -> ParkedMessage:
    return made.message(queue=CARDS, handler="bank.authorize", business_key="PAY-89386")


def address_of_group(message: ParkedMessage) -> str:
    return f"{ADMIN}errorgroup/{message.group_id}/change/"


def previewed(client: Client, *some: ParkedMessage) -> Any:
    return client.get(PREVIEW, {"sel": made.selected(*some)}, follow=True)


def test_nothing_is_sent_to_a_queue_whose_checks_were_not_shown(
    page: Client, card: ParkedMessage, sent: list[Message]
) -> None:
    shown = press(page, previewed(page, card), "Requeue 1 message", target=LEDGER)
    text = Page(shown).text

    assert (shown.status_code, RequeueRun.objects.count(), sent) == (422, 0, [])
    assert "Nothing was sent yet: you chose another queue" in text
    assert f"{LEDGER}: 0 messages go there" in text
    assert f"the original queue of each message: {LEDGER}" not in text
    assert f"1 would go to a handler that it was not made for \N{EN DASH} left out · {TAKES}" in text
    with pytest.raises(AssertionError, match="no button says"):
        Page(shown).form_with("Requeue 1 message")


def test_another_handler_takes_it_only_if_the_operator_says_so(
    page: Client, card: ParkedMessage, sent: list[Message]
) -> None:
    shown = press(page, previewed(page, card), "Requeue 1 message", target=LEDGER)
    included = press(page, shown, "Include anyway 1 would go")
    press(page, press(page, included, "Requeue 1 message", reason="the ledger has it"), "Continue here")

    assert TAKES in Page(included).text
    assert [one.routing_key for one in sent] == [LEDGER]


def test_the_checks_say_that_the_other_queue_is_stopped(page: Client, card: ParkedMessage) -> None:
    trip(NOTICES, handler="bank.notify")
    shown = press(page, previewed(page, card), "Requeue 1 message", target=NOTICES)

    assert "messages will wait The breaker of bank.notify is open" in Page(shown).text


@pytest.mark.parametrize(("names", "target", "sendable"), [
    pytest.param({"handler": "bank.authorize"}, LEDGER, 0, id="another handler"),
    pytest.param({"handler": "bank.authorize"}, CARDS, 1, id="its own queue"),
    pytest.param({"handler": ""}, LEDGER, 0, id="the handlers of its queue"),
    pytest.param({"handler": "bank.rows"}, LEDGER, 1, id="a handler that was renamed"),
    pytest.param({"handler": "bank.import_rows", "queue": "ledger.old"}, LEDGER, 1, id="a queue that was renamed"),
    pytest.param({"handler": "", "queue": "ledger.old"}, LEDGER, 1, id="nothing is known"),
])  # fmt: skip
def test_a_message_is_left_out_if_the_other_queue_has_another_handler(
    names: dict[str, str], target: str, sendable: int
) -> None:
    fields: dict[str, Any] = {"queue": CARDS, **names}
    one = made.message(**fields)

    assert report(Selection.of_ids([one.pk]), RequeueTerms(target=target)).sendable == sendable


def test_the_command_tells_the_same(card: ParkedMessage) -> None:
    trip(LEDGER, handler="bank.import_rows")
    told = run("rmq_parked", "requeue", str(card.pk), "--to", LEDGER, "--dry-run").out
    both = run("rmq_parked", "requeue", str(card.pk), "--to", LEDGER, "--include", "other_handler", "--dry-run").out

    assert f"1 other handler, left out (--include other_handler sends it): PAY-89386 (#{card.pk})\n    {TAKES}" in told
    assert TAKES in both
    assert f"1 to {LEDGER}, where messages wait: the breaker of bank.import_rows is open" in both


def test_the_page_of_a_requeued_message_says_that_its_queue_is_stopped(page: Client, card: ParkedMessage) -> None:
    """It said that the outcome is not known yet, of a queue that was paused for an hour."""
    one = requeue_run([card.pk], target=NOTICES, include=["other_handler"])
    one.items.update(state="sent", sent_at=timezone.now())
    ParkedMessage.objects.filter(pk=card.pk).update(state="requeued", requeued_at=timezone.now())
    flowing = Page(page.get(address_of(card)))
    trip(NOTICES, handler="bank.notify")
    stopped = Page(page.get(address_of(card)))

    assert "what was sent there waits" not in flowing.text
    assert "what was sent there waits The breaker of bank.notify is open" in stopped.text
    assert "/admin/rmq_retry/queuecontrol/?q=notifications.send" in [tag.get("href") for _, tag in stopped.tags]


def test_the_page_of_the_message_says_who_handled_it(page: Client, card: ParkedMessage) -> None:
    one = requeue_run([card.pk], target=LEDGER, include=["other_handler"])
    ParkedMessage.objects.filter(pk=card.pk).update(state="processed", succeeded_at=timezone.now(), cycle=2)
    sent_at = timezone.now() - timedelta(seconds=1)
    one.items.update(state="processed", sent_at=sent_at, handled=1, cycle=2)
    before = Page(page.get(address_of(card))).text
    made.attempt(card, 1, at=sent_at, cycle=2, verdict="ack", queue=LEDGER, handler="bank.import_rows")
    after = Page(page.get(address_of(card))).text

    assert f"It was handled in {LEDGER}; it came from {CARDS}." in before
    assert f"bank.import_rows handled it, in {LEDGER}; it was made for bank.authorize, in {CARDS}." in after


def test_a_message_that_came_back_from_another_queue_says_so_everywhere(page: Client, card: ParkedMessage) -> None:
    """It stood under its own queue with "no handler", as if its own handler were gone."""
    back = {"parked_in": f"{LEDGER}.parked", "reason": Reason.UNHANDLED, "error": "", "error_text": "", "cycle": 2}
    ParkedMessage.objects.filter(pk=card.pk).update(**back)
    addresses = (address_of(card), f"{ADMIN}parkedmessage/", f"{ADMIN}errorgroup/", address_of_group(card))
    on_page, in_list, on_card, in_group = (Page(page.get(address)).text for address in addresses)
    sentence = f"It failed in {LEDGER}, where an operator had sent it. A requeue sends it to {CARDS}, unless you"

    assert sentence in on_page
    assert f"PAY-89386 : {sentence}" in in_group
    assert f"failed again \N{MIDDLE DOT} failed in {LEDGER}" in in_list
    assert f"the last one failed in {LEDGER}" in on_card


def test_a_message_that_failed_in_its_own_queue_names_no_other(page: Client, card: ParkedMessage) -> None:
    ParkedMessage.objects.filter(pk=card.pk).update(parked_in=f"{CARDS}.parked")
    addresses = (address_of(card), f"{ADMIN}parkedmessage/", f"{ADMIN}errorgroup/", address_of_group(card))

    assert [address for address in addresses if "failed in" in Page(page.get(address)).text] == []


class TestMessagesThatNoHandlerTakes:
    """The page had one line about them among its checks, and a blue button that had them parked again."""

    @pytest.fixture
    def unread(self) -> list[ParkedMessage]:
        cause = made.group()
        return [made.message(cause, queue="cards.old", handler="bank.old_cards") for _ in range(3)]

    @pytest.fixture
    def untaken(self) -> list[ParkedMessage]:
        @handler("payments", name="bank.transfer", type="payment.transfer")
        def transfer(message: Delivery) -> None:
            """Nothing."""

        @handler("payments", name="bank.refund", type="payment.refund")
        def refund(message: Delivery) -> None:
            """Nothing."""

        cause = made.group(reason=Reason.UNHANDLED)
        return [made.message(cause, queue="payments", handler="", type="payment.chargeback") for _ in range(3)]

    def test_say_what_would_become_of_them_and_what_can_be_done(
        self, page: Client, unread: list[ParkedMessage]
    ) -> None:
        shown = previewed(page, *unread)
        text = Page(shown).text

        assert "No handler of this project takes any of these messages, so none is sent." in text
        assert "In cards.old they would lie until a program reads it. Made for: bank.old_cards." in text
        assert f"{LEDGER} · bank.import_rows" in text
        assert "Nothing to requeue of 3 messages" in text
        assert "rmq-main" not in shown.content.decode()
        assert follow(page, shown, "Discard 3…").status_code == 200

    def test_go_to_another_queue_once_its_checks_were_seen(
        self, page: Client, unread: list[ParkedMessage], sent: list[Message]
    ) -> None:
        checked = press(page, previewed(page, *unread), "Check this queue", target=CARDS)
        included = press(page, checked, "Include anyway 3 would go")
        press(page, press(page, included, "Requeue 3 messages", reason="renamed"), "Continue here")

        assert "In cards.authorize bank.authorize takes what was made for bank.old_cards." in Page(checked).text
        assert {one.routing_key for one in sent} == {CARDS}

    def test_are_left_out_if_it_is_their_type_that_none_takes(
        self, page: Client, untaken: list[ParkedMessage], sent: list[Message]
    ) -> None:
        taken = made.message(queue="payments", type="payment.refund")
        shown, both = previewed(page, *untaken), previewed(page, *untaken, taken)
        told = run("rmq_parked", "requeue", *[str(one.pk) for one in untaken], "--dry-run").out
        why = (
            "No handler of payments takes payment.chargeback. Its handlers take: payment.transfer (bank.transfer), "
            "payment.refund (bank.refund)."
        )

        assert why in Page(shown).text
        assert "3 have types that no handler of their queues takes: they would be parked again" in Page(both).text
        assert "3 untaken, left out (--include untaken sends them)" in told
        assert why in told
        assert (shown.context["report"].sendable, both.context["report"].sendable) == (0, 1)

    def test_have_a_type_that_the_handlers_of_another_queue_do_not_take_either(
        self, unread: list[ParkedMessage], untaken: list[ParkedMessage]
    ) -> None:
        found = report(Selection.of_ids([unread[0].pk, untaken[0].pk]), RequeueTerms(target="payments"))

        assert {one.name: one.count for one in found.findings if one.left_out} == {"other_handler": 1, "untaken": 1}

    def test_are_not_meant_where_one_handler_takes_every_type(self) -> None:
        one = made.message(queue=LEDGER, type="anything")

        assert report(Selection.of_ids([one.pk])).sendable == 1

    def test_name_no_button_that_the_user_may_not_press(self, unread: list[ParkedMessage]) -> None:
        shown = previewed(support("requeue"), *unread)

        assert "No handler of this project takes any of these messages" in Page(shown).text
        assert "Discard 3…" not in Page(shown).links


def test_a_message_from_an_unknown_queue_asks_for_one(page: Client) -> None:
    shown = previewed(page, made.message(queue="", handler=""))

    assert "left out · Name the queue that it goes to." in Page(shown).text
    assert "Requeue 1 message" in [
        said for form in Page(press(page, shown, "Check this queue", target=LEDGER)).forms for *_, said in form.buttons
    ]
