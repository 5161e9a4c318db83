"""Nobody is paid twice: a sender published one payment several times, and each of these copies was parked."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from django_rmq_retry import Delivery, Message, Queue, handler
from django_rmq_retry.models import ItemReason, ParkedMessage, RequeueRun
from django_rmq_retry.parked import erasure, findings
from django_rmq_retry.parked.actions import discard, hold
from django_rmq_retry.parked.edit import propose
from django_rmq_retry.parked.edit import store as store_edit
from django_rmq_retry.parked.operators import Actor
from django_rmq_retry.parked.selection import Selection
from django_rmq_retry.wording import minute
from tests.admin.looking import Page, press
from tests.admin.pasting import ADMIN, LIST, pasted, previewed
from tests.commands.running import run
from tests.operators.made import drive_run, list_in_parts, pause_run, requeue_run
from tests.parked.arrivals import by_us, store

pytestmark = [pytest.mark.django_db, pytest.mark.database]
LEAD = Actor.of_code("lead")
COPIES, SENT = ItemReason.COPIES.value, ""
PAYMENT = b'{"payment": "PAY-7", "amount": 100}'
Parked = Callable[..., list[ParkedMessage]]


@pytest.fixture
def parked() -> Parked:
    """The sender published a message several times, each time with a new id, and all were parked."""

    @handler(Queue("payments"), name="payments.charge", keys=lambda message: message.data["payment"])
    def charge(message: Delivery) -> None:
        """Nothing."""

    def publish(count: int = 2, *, body: bytes = PAYMENT, batches: int = 1, **told: Any) -> list[ParkedMessage]:
        first = ParkedMessage.objects.count()
        all_ = [by_us(id=f"m-{first + place}", body=body, at=_ms(first + place), **told) for place in range(count)]
        for batch in range(batches):
            store(*all_[batch::batches])
        return list(ParkedMessage.objects.order_by("parked_at")[first:])

    return publish


@pytest.fixture(params=[findings.MOST_COPIES, 0], ids=["few", "very many"])
def few_or_very_many(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copies are few enough to be listed, or too many."""
    monkeypatch.setattr(findings, "MOST_COPIES", request.param)


def _ms(place: int) -> int:
    return int((timezone.now() - timedelta(minutes=10)).timestamp() * 1000) + place


def codes(requeued: RequeueRun | None = None) -> list[str]:
    """Why each message of the last run is left out, the oldest message first; nothing for those that are sent."""
    last = requeued or RequeueRun.objects.latest("pk")
    return list(last.items.order_by("message__parked_at").values_list("skip_code", flat=True))


def requeued(*messages: ParkedMessage, **options: Any) -> list[str]:
    return codes(drive_run(requeue_run([one.pk for one in messages], **options)))


def change(message: ParkedMessage, **changes: Any) -> None:
    ParkedMessage.objects.filter(pk=message.pk).update(**changes)


def processed(message: ParkedMessage) -> None:
    change(message, state="processed", succeeded_at=timezone.now(), resolved_at=timezone.now())


def unconfirmed(message: ParkedMessage) -> None:
    change(message, unconfirmed=True)


def unacked(message: ParkedMessage) -> None:
    change(message, unacked=True)


def on_hold(message: ParkedMessage) -> None:
    hold(Selection.of_ids([message.pk]), LEAD, until=timezone.now() + timedelta(hours=1))


def discarded(message: ParkedMessage, category: str = "handled elsewhere") -> None:
    discard(Selection.of_ids([message.pk]), LEAD, category=category)


@pytest.mark.parametrize(
    ("fate", "said"),
    [
        (processed, "A copy of this message was processed "),
        (on_hold, "A copy of this message is on hold until "),
        (unconfirmed, "A copy of this message may have been delivered."),
        (unacked, "A copy of this message may have been handled."),
        (discarded, "Another message with its business key was discarded "),
    ],
)
def test_a_run_names_and_links_the_message_because_of_which_it_left_one_out(
    page: Client, parked: Parked, fate: Callable[[ParkedMessage], None], said: str
) -> None:
    """Four possibilities stood there, and no link."""
    first, copy = parked(2)
    fate(first)
    run = requeue_run([copy.pk])
    shown = Page(page.get(f"{ADMIN}requeuerun/{run.pk}/change/"))

    assert f"1 {said}" in shown.text
    assert shown.links[f"#{first.pk}"] == f"{ADMIN}parkedmessage/{first.pk}/change/"
    assert shown.links[f"#{copy.pk} PAY-7"] == f"{ADMIN}parkedmessage/{copy.pk}/change/"
    assert "It is a copy of another message" not in shown.text


def test_a_copy_that_waits_for_another_one_of_its_run_says_that_this_one_goes_first(
    page: Client, parked: Parked
) -> None:
    first, *copies = parked(3)
    run = requeue_run([first.pk, *(one.pk for one in copies)])
    shown = Page(page.get(f"{ADMIN}requeuerun/{run.pk}/change/"))

    assert f"2 A copy of this message goes first in requeue run {run.pk}. #{first.pk}" in shown.text


class TestThreeCopiesOfOnePayment:
    @pytest.mark.parametrize("batches", [1, 3])
    def test_are_paid_once_by_a_requeue_of_their_group(
        self, page: Client, sent: list[Message], parked: Parked, batches: int
    ) -> None:
        first, *copies = parked(3, batches=batches)
        preview = previewed(page, group=first.group_id)
        press(page, press(page, preview, "Requeue 1 message"), "Continue here")

        told = "2 are copies of other messages \N{EN DASH} left out · 2: another copy goes first"
        assert told in Page(preview).text
        assert [one.properties.message_id for one in sent] == [first.message_id]
        assert codes() == [SENT, COPIES, COPIES]
        run_page = Page(page.get(f"{ADMIN}requeuerun/{RequeueRun.objects.get().pk}/change/"))
        assert "2 A copy of this message was requeued " in run_page.text
        assert run_page.links[f"#{first.pk}"] == f"{ADMIN}parkedmessage/{first.pk}/change/"
        assert [one.pk for one in ParkedMessage.objects.filter(state="parked").order_by("pk")] == [
            one.pk for one in copies
        ]

    def test_are_paid_three_times_only_if_the_operator_includes_them(self, page: Client, parked: Parked) -> None:
        preview = press(page, previewed(page, group=parked(3)[0].group_id), "Include anyway 2 are copies")
        refused = press(page, preview, "Requeue 3 messages")
        press(page, preview, "Requeue 3 messages", reason="three payments")

        assert "Enter a reason: messages are included that a check had left out." in Page(refused).text
        assert codes() == [SENT, SENT, SENT]

    def test_look_worse_once_they_are_included(self, page: Client, parked: Parked) -> None:
        """The warning turned into a mild remark, and one press paid again."""
        done = parked(3)[0]
        run = requeue_run([done.pk])
        run.items.update(state="processed")
        processed(done)
        preview = previewed(page, group=done.group_id)
        included = press(page, preview, "Include anyway 2 are copies")
        when = minute(ParkedMessage.objects.get(pk=done.pk).succeeded_at or timezone.now())
        told = f"2: another copy was processed {when} (requeue run {run.pk})"

        assert f"2 are copies of other messages \N{EN DASH} left out · {told} Include" in Page(preview).text
        told = f"! 2 are copies of other messages · {told} \N{EN DASH} sending them does it again"
        assert told in Page(included).text
        assert '<li class="rmq-no">' in included.content.decode()
        assert "Reason (required)" in Page(included).text

    def test_are_paid_once_by_a_requeue_of_a_list_of_keys(
        self, page: Client, sent: list[Message], parked: Parked
    ) -> None:
        parked(3)
        assert pasted(page, "PAY-7")
        drive_run(requeue_run(Selection.of_filter({"key": "PAY-7", "state": ["parked"]})))

        assert (codes(), len(sent)) == ([SENT, COPIES, COPIES], 1)

    def test_are_paid_once_although_they_failed_for_several_reasons(self, page: Client, parked: Parked) -> None:
        one, two = parked(1, error="BankDown")[0], parked(1, error="Timeout")[0]
        preview = page.get(f"{ADMIN}requeuerun/preview/?group={one.group_id}&group={two.group_id}", follow=True)
        press(page, preview, "Requeue 1 message")

        assert one.group_id != two.group_id
        assert codes() == [SENT, COPIES]

    def test_are_paid_once_by_a_run_that_is_listed_in_parts(
        self, sent: list[Message], parked: Parked, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        list_in_parts(monkeypatch, 1, at_once=0)
        parked(3)
        drive_run(requeue_run(Selection.of_filter({"state": ["parked"]})))

        assert (codes(), len(sent)) == ([SENT, COPIES, COPIES], 1)

    @pytest.mark.parametrize("most", [5000, 1])
    def test_are_counted_alike_if_they_are_very_many(
        self, page: Client, parked: Parked, most: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(findings, "MOST_COPIES", most)
        report = previewed(page, group=parked(4)[0].group_id).context["report"]

        assert (report.sendable, report.left_out) == (1, 3)

    def test_are_named_in_the_shell_with_the_option_that_sends_them(self, parked: Parked) -> None:
        parked(2)
        told = run("rmq_parked", "requeue", "--key", "PAY-7", "--dry-run").out
        run("rmq_parked", "requeue", "--key", "PAY-7", "--include", "copies", "--yes", "--no-wait", "--reason", "both")

        assert "1 copies, left out (--include copies sends it): PAY-7" in told
        assert codes() == [SENT, SENT]


@pytest.mark.parametrize("happened", [
    pytest.param(processed, id="was processed"),
    pytest.param(on_hold, id="is on hold"),
    pytest.param(lambda one: change(one, state="requeued"), id="was sent"),
    pytest.param(lambda one: change(one, state="requeueing"), id="is being sent"),
    pytest.param(lambda one: change(one, unconfirmed=True), id="may have been delivered"),
    pytest.param(lambda one: change(one, unacked=True), id="failed after its first worker was killed"),
    pytest.param(lambda one: change(one, reason="worker_stopped"), id="may have killed its worker"),
    pytest.param(lambda one: change(one, succeeded_at=timezone.now()), id="was handled in another copy"),
    pytest.param(lambda one: change(one, discarded_at=timezone.now()), id="was discarded and arrived again"),
    pytest.param(lambda one: requeue_run([one.pk]), id="is sent next by another run"),
])  # fmt: skip
class TestACopyOfAMessageThat:
    @pytest.mark.usefixtures("few_or_very_many")
    def test_is_left_out_until_the_operator_includes_it(
        self, parked: Parked, happened: Callable[[ParkedMessage], None]
    ) -> None:
        other, one = parked(2)
        happened(other)

        assert requeued(one) == [COPIES]
        assert requeued(one, include=["copies"]) == [SENT]

    def test_is_left_out_also_if_that_happened_after_the_run_was_started(
        self, sent: list[Message], parked: Parked, happened: Callable[[ParkedMessage], None]
    ) -> None:
        other, one = parked(2)
        chosen = requeue_run([one.pk])
        happened(other)
        if RequeueRun.objects.count() > 1:
            drive_run(RequeueRun.objects.latest("pk"))
            assert codes() == [COPIES]
            return
        drive_run(chosen)

        assert (codes(chosen), sent) == ([COPIES], [])


@pytest.mark.usefixtures("few_or_very_many")
class TestACopyIsSent:
    def test_if_the_hold_of_the_other_is_over(self, parked: Parked) -> None:
        other, one = parked(2)
        change(other, state="on_hold", held_until=timezone.now() - timedelta(minutes=1))

        assert requeued(one) == [SENT]

    @pytest.mark.parametrize("category", ["duplicate", "bad data"])
    def test_if_the_other_was_discarded_in_its_favour(self, parked: Parked, category: str) -> None:
        other, one = parked(2)
        discarded(other, category)

        assert requeued(one) == [SENT]

    def test_if_the_other_failed_again(self, parked: Parked) -> None:
        other, one = parked(2)
        change(other, cycle=2, requeued_at=timezone.now() - timedelta(hours=1))

        assert requeued(one) == [SENT]

    def test_if_it_is_the_one_on_hold_and_the_operator_includes_that(self, parked: Parked) -> None:
        one, other = parked(2)
        on_hold(one)

        assert requeued(one, include=["on_hold"]) == [SENT]
        assert requeued(other) == [COPIES]

    def test_once_if_all_are_on_hold_and_included(self, parked: Parked) -> None:
        messages = parked(3)
        for one in messages:
            on_hold(one)

        assert requeued(*messages, include=["on_hold"]) == [SENT, COPIES, COPIES]

    @pytest.mark.parametrize("told", [
        pytest.param({"body": b'{"payment": "PAY-7", "amount": 200}'}, id="its body is another one"),
        pytest.param({"type": "refund"}, id="its type is another one"),
    ])  # fmt: skip
    def test_if_only_its_business_key_is_the_same(self, parked: Parked, told: Any) -> None:
        one, other = parked(1)[0], parked(1, **told)[0]

        assert requeued(one, other, include=["duplicates"]) == [SENT, SENT]
        assert one.business_key == other.business_key == "PAY-7"

    def test_if_messages_of_its_kind_have_no_business_key(self, parked: Parked) -> None:
        assert requeued(*parked(3, body=b'{"payment": ""}')) == [SENT, SENT, SENT]

    def test_if_an_edit_made_it_another_payment(self, parked: Parked, settings: Any) -> None:
        settings.RMQ_RETRY = {"URL": "amqp://127.0.0.1/", "OPERATORS": {"EDITABLE": {"*": True}}}
        one, other = parked(2)
        edit(other, '{"payment": "PAY-7", "amount": 300}')

        assert requeued(one, other, include=["duplicates"]) == [SENT, SENT]


def edit(message: ParkedMessage, text: str) -> None:
    store_edit(message.pk, LEAD, propose(message, text=text), version=message.version, reason="typo")


def test_an_edit_that_makes_a_message_a_copy_leaves_it_out(parked: Parked, settings: Any) -> None:
    settings.RMQ_RETRY = {"URL": "amqp://127.0.0.1/", "OPERATORS": {"EDITABLE": {"*": True}}}
    processed(parked(1)[0])
    one = parked(1, body=b'{"payment": "PAY-7", "amount": 1}')[0]
    edit(one, PAYMENT.decode())

    assert requeued(one) == [COPIES]


def test_a_copy_of_a_message_discarded_after_the_run_was_started_is_left_out(
    sent: list[Message], parked: Parked
) -> None:
    other, one = parked(2)
    chosen = requeue_run([one.pk])
    discarded(other)
    drive_run(chosen)

    assert (codes(chosen), sent) == (["key_discarded"], [])


def test_two_runs_with_a_copy_each_send_one(sent: list[Message], parked: Parked) -> None:
    """The first one was paused when the second was started."""
    one, other = parked(2)
    first = requeue_run([one.pk])
    pause_run(first)
    second = requeue_run([other.pk])
    RequeueRun.objects.filter(pk=first.pk).update(state="running")
    for chosen in (second, first):
        drive_run(chosen)

    assert (codes(first), codes(second), len(sent)) == ([COPIES], [SENT], 1)


def test_copies_stored_by_two_processes_at_once_are_sent_once(parked: Parked, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither process saw the other's record, so no preview knows: it is found when they are sent."""
    monkeypatch.setattr("django_rmq_retry.parked.store.mark", lambda *_given, **_options: None)

    assert requeued(*parked(3), include=["duplicates"]) == [SENT, COPIES, COPIES]


class TestPages:
    @pytest.mark.parametrize(("happened", "told"), [
        (processed, "A copy of this message was processed"),
        (on_hold, "A copy of this message is on hold until"),
        (lambda one: change(one, state="requeued", requeued_at=timezone.now()), "A copy of this message was requeued"),
        (discarded, "A copy of this message was discarded"),
        (lambda one: change(one, unconfirmed=True), "A copy of this message may have been delivered."),
        (lambda _one: None, "A copy of this message is parked."),
    ])  # fmt: skip
    def test_a_message_names_its_copies_and_links_them(
        self, page: Client, parked: Parked, happened: Callable[[ParkedMessage], None], told: str
    ) -> None:
        other, one = parked(2)
        happened(other)
        shown = Page(page.get(f"{LIST}{one.pk}/change/"))
        in_shell = run("rmq_parked", "show", str(one.pk)).out

        assert told in shown.text
        assert told in in_shell
        assert shown.links[f"#{other.pk}"] == f"{LIST}{other.pk}/change/"
        assert "Another message with its business key" not in shown.text

    def test_a_processed_message_names_the_copy_that_is_still_parked(self, page: Client, parked: Parked) -> None:
        done, other = parked(2)
        processed(done)
        told = Page(page.get(f"{LIST}{done.pk}/change/"))

        assert "A copy of this message is parked." in told.text
        assert f"#{other.pk}" in told.links

    def test_lists_and_the_group_mark_them(self, page: Client, parked: Parked) -> None:
        one = parked(2)[0]
        parked(1, body=b'{"payment": "PAY-8"}')
        listed, cause = (Page(page.get(at)).text for at in (LIST, f"{ADMIN}errorgroup/{one.group_id}/change/"))

        assert listed.count("published several times") == 2
        assert cause.count("published several times") == 2

    def test_an_erased_message_has_no_copies(self, page: Client, parked: Parked) -> None:
        done, other = parked(2)
        processed(done)
        erasure.erase(["m-0"], LEAD, reason="Article 17")

        assert "A copy of this message" not in Page(page.get(f"{LIST}{other.pk}/change/")).text
        assert requeued(other) == [SENT]


def test_the_main_button_of_a_copy_of_what_was_handled_discards_it_as_a_duplicate(page: Client, parked: Parked) -> None:
    """Its page said that a copy had been processed, and offered a requeue that would have sent nothing."""
    first, second = parked()
    address = f"{LIST}{second.pk}/change/"
    before = Page(page.get(address))
    ParkedMessage.objects.filter(pk=first.pk).update(state="processed", succeeded_at=timezone.now())
    after = Page(page.get(address))
    main = [[tag["href"] for _, tag in shown.tags if "rmq-main" in tag.get("class", "")] for shown in (before, after)]

    assert "A copy of this message was processed" in after.text
    assert ["preview" in " ".join(some) for some in main] == [True, False]
    assert main[1] == [after.links["Discard…"]]
    assert '<option value="duplicate" selected>' in page.get(main[1][0], follow=True).content.decode()
