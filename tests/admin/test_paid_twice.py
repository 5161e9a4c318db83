"""Nobody is paid twice: what an operator has to check first, and what a page says before it sends."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.db.models import F
from django.test import Client
from django.utils import timezone

from django_rmq_retry import Message, handler
from django_rmq_retry.admin import requeue_form
from django_rmq_retry.admin.cards import cards_of
from django_rmq_retry.models import (
    BlockedMessage,
    ErrorGroup,
    ItemReason,
    OperatorAction,
    ParkedMessage,
    RequeueItem,
    RequeueRun,
    State,
)
from django_rmq_retry.models.parked import reason_text
from django_rmq_retry.parked import findings, key_lists, under_way
from django_rmq_retry.parked.actions import discard, hold, restore
from django_rmq_retry.parked.operators import Actor
from django_rmq_retry.parked.run_steering import resume_run
from django_rmq_retry.parked.selection import Selection
from django_rmq_retry.wording import minute, second
from tests.admin import made
from tests.admin.conftest import client_of
from tests.admin.looking import Page, follow, main_of, press
from tests.admin.pasting import ADMIN, LIST, pasted, previewed, state
from tests.admin.stopped import blocked, outgoing
from tests.commands.running import run
from tests.operators.made import ANN, BOB, pause_run, requeue_run
from tests.parked.arrivals import by_us, store, the_record

pytestmark = pytest.mark.django_db
OUTCOMES = ("Processed", "Failed again")
CHECKED = {"category": "handled elsewhere", "span": "2h"}


def excluded(client: Client, text: str, *, copies: int = 1) -> Any:
    """Leave the typed keys out of a group with PAY-1, PAY-2 and some of CUST-7."""
    cause = made.group()
    for key in ("PAY-1", "PAY-2", *["CUST-7"] * copies):
        made.message(cause, business_key=key)
    return press(client, previewed(client, group=cause.pk), "Leave these out", **{"except": text})


def ticked(causes: list[ErrorGroup]) -> dict[str, str | list[int]]:
    return {"ticked": "1", "group": [one.pk for one in causes]}


class TestAKeyThatMatchesNothingOrSeveral:
    @pytest.mark.parametrize(
        ("text", "which"), [("PAY-1\nPAY-8001X", "PAY-8001X"), ("pay-1", "pay-1"), ("PAY-1\nCUST-7", "CUST-7")]
    )
    def test_stops_a_requeue_until_it_is_ticked(self, page: Client, sent: list[Message], text: str, which: str) -> None:
        preview = excluded(page, text, copies=2)
        refused = press(page, preview, "Requeue ")
        started = RequeueRun.objects.exists()
        mark = refused.context["left"].mark
        press(page, refused, "Requeue ", checked=mark)

        assert "I have checked 1 key that matches no message, several, one elsewhere or on hold." in Page(preview).text
        assert (refused.status_code, started, sent) == (422, False, [])
        assert (
            f"Check 1 key that matches no message, several, one elsewhere or on hold, and tick it: {which}."
            in Page(refused).text
        )
        assert RequeueRun.objects.count() == 1

    def test_of_a_customer_whose_payments_were_requeued_tells_each_state_and_must_be_ticked(self, page: Client) -> None:
        """It said "ACC-17 (Discarded)" of a customer with two payments that were on their way."""
        states = [State.DISCARDED, State.REQUEUED, State.REQUEUED, *[State.PROCESSED] * 4]
        for number, state_of_one in enumerate(states):
            made.message(business_key=f"REF-{number}", keys=[f"REF-{number}", "ACC-17"], state=state_of_one)
        made.message(business_key="CLO-0", state=State.DISCARDED)
        preview = excluded(page, "ACC-17\nCLO-0")
        said = Page(preview).text

        text = "1 key names a message that a requeue run sends or has sent, and that may still be handled: ACC-17"
        assert f"! {text} (Requeued 2 · Discarded 1 · Processed 4)" in said
        assert "1 key matches a message that is not among these anyway: CLO-0 (Discarded)" in said
        assert preview.context["left"].doubtful == ["ACC-17"]

    def test_of_a_customer_with_some_payments_here_tells_those_on_their_way(self, page: Client) -> None:
        made.message(business_key="REF-1", keys=["REF-1", "CUST-7"], state=State.REQUEUED)
        preview = excluded(page, "CUST-7")

        assert "1 message is left out by its key." in Page(preview).text
        assert "and that may still be handled: CUST-7 (Requeued)" in Page(preview).text

    def test_is_ticked_for_these_keys_only(self, page: Client) -> None:
        preview = excluded(page, "PAY-8001X")
        mark = preview.context["left"].mark
        other = press(page, preview, "Leave these out", **{"except": "PAY-8002X", "checked": mark})
        refused = press(page, other, "Requeue 3 messages", checked=mark)

        assert refused.status_code == 422
        assert not RequeueRun.objects.exists()

    @pytest.mark.parametrize("action", ["Requeue", "Discard", "Hold"])
    def test_of_a_list_stops_its_actions_too(self, page: Client, action: str) -> None:
        made.message(business_key="PAY-1")
        asked = follow(page, pasted(page, "PAY-1\npay-2"), f"{action} 1")
        button = f"{action} {'1 message' if action == 'Requeue' else 'PAY-1'}"
        refused = press(page, asked, button, **CHECKED)
        before = state("PAY-1")
        press(page, refused, button, checked=refused.context["left"].mark, **CHECKED)

        assert "1 key of the list matches no message: pay-2" in Page(asked).text
        assert "Check 1 key that matches no message, several, one elsewhere or on hold, and tick it: pay-2." in (
            Page(refused).text
        )
        assert before == "parked"
        assert state("PAY-1") != "parked" or RequeueRun.objects.exists()

    def test_of_an_exclusion_stops_a_discard(self, page: Client) -> None:
        cause = made.group()
        made.message(cause, business_key="PAY-1")
        asked = page.get(f"{LIST}discard/", {"group": cause.pk}, follow=True)
        asked = press(page, asked, "Leave these out", **{"except": "pay-1"})

        assert press(page, asked, "Discard ", category="test").status_code == 422
        assert state("PAY-1") == "parked"

    def test_is_not_asked_about_if_each_key_matches_one_message(self, page: Client) -> None:
        preview = excluded(page, "PAY-1")
        press(page, preview, "Requeue 2 messages")

        assert "I have checked" not in Page(preview).text
        assert RequeueRun.objects.exists()


class TestSeveralGroups:
    """Groups of 3 and 2 messages; PAY-0 of each was paid in another way."""

    @pytest.fixture
    def causes(self) -> list[ErrorGroup]:
        causes = [made.group(title="GatewayTimeout") for _ in range(2)]
        for which, (cause, count) in enumerate(zip(causes, (3, 2), strict=True)):
            for number in range(count):
                made.message(cause, business_key=f"{'AB'[which]}-{number}")
        return causes

    def test_are_ticked_and_requeued_by_one_preview_one_exclusion_and_one_run(
        self, page: Client, causes: list[ErrorGroup], sent: list[Message]
    ) -> None:
        made.message(business_key="C-0")
        listed = page.get(f"{ADMIN}errorgroup/")
        boxes = [given["value"] for tag, given in Page(listed).tags if given.get("form") == "rmq-ticked" and tag]
        there = next(given["formaction"] for tag, given in Page(listed).tags if "formaction" in given)
        preview = page.get(there, ticked(causes), follow=True)
        rest = press(page, preview, "Leave these out", **{"except": "A-0, B-0"})
        press(page, press(page, rest, "Requeue 3 messages", reason="INC-5"), "Continue here")
        run = RequeueRun.objects.get()

        assert {str(one.pk) for one in causes} < set(boxes)
        assert re.search(r"3 GatewayTimeout · bank.gateway:post · \S+ 2 GatewayTimeout", Page(preview).text)
        assert "2 messages are left out by their keys." in Page(rest).text
        assert sorted(item.message.business_key for item in run.items.all()) == ["A-1", "A-2", "B-1"]
        assert len(sent) == 3
        assert OperatorAction.objects.get().facts["selection"]["filter"]["group"] == [one.pk for one in causes]
        shown = Page(page.get(f"{ADMIN}requeuerun/{run.pk}/change/"))
        linked = {given.get("href") for tag, given in shown.tags if tag == "a"}
        assert {f"{ADMIN}errorgroup/{one.pk}/change/" for one in causes} <= linked

    def test_each_name_the_runs_that_chose_some_of_their_messages(self, page: Client, causes: list[ErrorGroup]) -> None:
        """A group said "Last action: Discard", though two runs had sent most of its messages since."""
        discard(Selection.of_ids([ParkedMessage.objects.get(business_key="A-0").pk]), ANN, category="test")
        chosen = Selection.of_filter({"group": [one.pk for one in causes], "state": ["parked"]})
        both = requeue_run(chosen, ANN, reason="the bank is back")
        first = Page(page.get(f"{ADMIN}errorgroup/{causes[0].pk}/change/")).text
        one = requeue_run([made.message(causes[1]).pk], BOB)
        pages = [page.get(f"{ADMIN}errorgroup/{cause.pk}/change/") for cause in causes]
        told = [[act.run for act, _why in shown.context["activity"]] for shown in pages]
        audited = [run("rmq_audit", "list", "--group", str(cause.pk), "--json").data["items"] for cause in causes]
        searched = page.get(f"{ADMIN}operatoraction/?group={causes[1].pk}").context["cl"].result_list

        here = f"Requeue run {both.pk} (2 chosen from this group)"
        assert f"Last action: Requeue · {here} · ann ·" in first
        assert first.count(here) == 2
        assert told == [[both.pk, None], [one.pk, both.pk]]
        assert [[act["run"] for act in acts] for acts in audited] == told
        assert [act.run for act in searched] == told[1]
        # It has chosen no others, and its action says of how many.
        assert f"Last action: Requeue · Requeue run {one.pk} · bob ·" in Page(pages[1]).text

    @pytest.mark.database
    @pytest.mark.parametrize("erased", [False, True])
    def test_each_name_the_acts_on_some_of_their_messages(
        self, page: Client, causes: list[ErrorGroup], *, erased: bool
    ) -> None:
        """A group whose messages a filter had discarded said that no operator had acted yet."""
        keys = ["A-0", "B-0", "B-1"]
        chosen = ParkedMessage.objects.filter(business_key__in=keys).values_list("pk", flat=True)
        discard(Selection.of_ids(list(chosen)), ANN, category="duplicate", text="INC-5")
        held = Selection.of_filter({"group": [one.pk for one in causes], "state": ["parked"]})
        hold(held, BOB, until=timezone.now() + timedelta(hours=1))
        act = OperatorAction.objects.get(action="discard")
        if erased:
            OperatorAction.objects.filter(pk=act.pk).forget("default")
        first, second = (Page(page.get(f"{ADMIN}errorgroup/{cause.pk}/change/")).text for cause in causes)
        told = Page(page.get(f"{ADMIN}operatoraction/{act.pk}/change/"))
        audited = [run("rmq_audit", "list", "--group", str(cause.pk), "--json").data["items"] for cause in causes]

        for named in (f"{ADMIN}livestatus/", f"{ADMIN}operatoraction/"):
            assert "2 error groups" in Page(page.get(named)).text
        # One of the first group was held alone, of the second none was left.
        assert "Last action: Hold · bob ·" in first
        assert "Discard (1 chosen from this group) Messages 3" in first
        assert "Last action: Discard (2 chosen from this group) · ann ·" in second
        assert [[one["action"] for one in acts] for acts in audited] == [["hold", "discard"], ["discard"]]
        assert re.search(r"Error groups 2 GatewayTimeout .{,80} 1 GatewayTimeout ", told.text)
        assert act.intact

    @pytest.mark.parametrize(("what", "typed"), [("discard", {"category": "test"}), ("hold", {"span": "2h"})])
    def test_are_discarded_or_held_together(
        self, page: Client, causes: list[ErrorGroup], what: str, typed: dict[str, str]
    ) -> None:
        asked = page.get(f"{LIST}{what}/", ticked(causes), follow=True)
        press(page, asked, f"{what.capitalize()} 5 messages", **typed)

        assert not ParkedMessage.objects.filter(state="parked").exists()

    def test_need_at_least_one_tick(self, page: Client) -> None:
        told = page.get(f"{ADMIN}requeuerun/preview/", {"ticked": "1"}, follow=True)

        assert told.redirect_chain[-1][0] == f"{ADMIN}errorgroup/"
        assert "Tick at least one error group." in Page(told).text

    def test_are_not_offered_to_a_user_who_may_do_nothing_with_them(self, causes: list[ErrorGroup]) -> None:
        told = Page(client_of(made.person("clerk", "view_errorgroup")).get(f"{ADMIN}errorgroup/"))

        assert causes
        assert "the ticked" not in told.text
        assert "rmq-ticked" not in str(told.tags)


def test_the_paid_ones_are_discarded_first_and_the_groups_are_next(page: Client) -> None:
    cause = made.group()
    for number in range(3):
        made.message(cause, business_key=f"PAY-{number}")
    asked = follow(page, pasted(page, "PAY-0\nPAY-1\nPAY-9"), "Discard these 2, then go on to the error groups")
    refused = press(page, asked, "Discard 2 messages", category="handled elsewhere")
    done = press(
        page, refused, "Discard 2 messages", category="handled elsewhere", checked=refused.context["left"].mark
    )

    assert done.redirect_chain[-1][0] == f"{ADMIN}errorgroup/"
    assert "2 messages were discarded" in Page(done).text
    assert "1 parked" in Page(done).text


class TestSendingOne:
    def some(self, count: int = 3) -> int:
        """Messages of a cause that is over: of one that still fails, the first is tested anyway."""
        hour_ago = timezone.now() - timedelta(hours=1)
        cause = made.group(last_seen=hour_ago)
        for number in range(count):
            made.message(cause, business_key=f"PAY-{number}", parked_at=hour_ago - timedelta(minutes=number + 1))
        return cause.pk

    def test_only_sends_the_oldest_and_ends_the_run(
        self, page: Client, sent: list[Message], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("django_rmq_retry.admin.requeue_form.TYPED_FROM", 2)
        monkeypatch.setattr("django_rmq_retry.parked.operators.REASON_FROM", 2)
        preview = press(page, previewed(page, group=self.some()), "Leave these out", **{"except": "PAY-2"})
        press(page, press(page, preview, "Send only one"), "Continue here")
        run = RequeueRun.objects.get()

        assert [item.message.business_key for item in run.items.all()] == ["PAY-1"]
        assert (run.total, run.canary, len(sent)) == (1, False, 1)

    def test_first_is_still_the_main_button_after_an_error(self, page: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("django_rmq_retry.admin.requeue_form.TYPED_FROM", 2)
        words = "Send one now, the other 2 after it was processed"
        typed = {"rate": "7", "reason": "INC-5", "max_depth": "9", "stop_at": "33", "order": "key"}
        first = previewed(page, group=self.some())
        wrong = press(page, first, words, **typed)
        _form, values = Page(wrong).form_with(words)
        main = [
            given["value"]
            for shown in (first, wrong)
            for tag, given in Page(shown).tags
            if tag == "button" and "rmq-main" in given.get("class", "")
        ]
        press(page, wrong, words, typed="3")
        run = RequeueRun.objects.get()

        assert "Type 3 to confirm the number of messages." in Page(wrong).text
        assert main == ["now", "canary"]
        assert {name: values[name] for name in typed} == typed
        assert (run.canary, run.rate, run.reason, run.max_depth, run.stop_at, run.one_by_one) == (
            *(True, 7.0, "INC-5", 9, 33.0, True),
        )

    def test_all_at_once_is_another_button_on_the_same_page(self, page: Client) -> None:
        press(
            page, page.get(f"{ADMIN}requeuerun/preview/", {"group": self.some(), "canary": 1}, follow=True), "Requeue 3"
        )

        assert not RequeueRun.objects.get().canary


def test_a_preview_of_what_still_fails_sends_one_first(page: Client) -> None:
    growing, calm = made.group(), made.group(last_seen=timezone.now() - timedelta(minutes=60))
    for cause, minutes in ((growing, 0.5), (calm, 60)):
        for _ in range(3):
            made.message(cause, parked_at=timezone.now() - timedelta(minutes=minutes))
    shown = {cause: previewed(page, group=cause.pk).content.decode() for cause in (growing, calm)}
    said = re.compile(r"Still failing: 3 new failures since <time.*>[\d:]+</time>\. Send one message first\.")
    main = {cause: re.findall(r'rmq-main" name="start" value="(\w+)"', text) for cause, text in shown.items()}

    assert (bool(said.search(shown[growing])), "Still failing" in shown[calm]) == (True, False)
    assert main == {growing: ["canary"], calm: ["now"]}


def test_the_preview_of_one_message_asks_for_no_rate_and_names_who_waits_behind_it(page: Client) -> None:
    one = made.message(made.group())
    made.blocked_key(identity=one.identity, queue=one.queue, waiting=4)
    shown = previewed(page, group=one.group_id)

    assert b'type="number"' not in shown.content
    assert b'name="order"' not in shown.content
    assert "4 messages wait behind 1 of these by their ordering keys and are handled next" in Page(shown).text


def test_a_group_grows_while_its_messages_are_parked_and_no_longer(page: Client) -> None:
    now = timezone.now()
    ages = {"Faster": (0.5, 2, 3, 15), "Slower": (0.5, 2, 11, 12, 13), "Once": (0.5, 12), "Over": (7, 8, 9)}
    ages["Quiet for 2 min"] = (2, 3, 4)
    for title, minutes in ages.items():
        cause = made.group(title=title, last_seen=now - timedelta(minutes=minutes[0]))
        for age in minutes:
            made.message(cause, parked_at=now - timedelta(minutes=age))
    cards = [card for card, *_rest in page.get(f"{ADMIN}errorgroup/").context["cards"]]
    shown = {card.group.title: card.growing for card in cards}
    since = {card.group.title: minute(card.trend.newest_since) for card in cards if card.trend.newest_since}

    assert shown == {
        "Faster": f"growing (+3 since {since['Faster']})",
        "Slower": f"growing (+2 since {since['Slower']})",
        "Once": "",
        "Over": "",
        "Quiet for 2 min": "",
    }


class TestASecondRun:
    """Somebody's run has two of three messages of a group to send."""

    @pytest.fixture
    def run(self) -> RequeueRun:
        cause = made.group()
        rows = [made.message(cause, business_key=f"PAY-{number}") for number in range(3)]
        return requeue_run([one.pk for one in rows[:2]])

    def group(self, run: RequeueRun) -> int:
        return run.items.all()[0].message.group_id

    @pytest.mark.parametrize("most", [1, 2])
    def test_over_the_same_messages_is_named_by_group_card_and_preview(
        self, page: Client, run: RequeueRun, most: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("django_rmq_retry.parked.under_way.MOST_UNSENT_COUNTED", most)
        told = f"Requeue run {run.pk} by ann is to send 2 of these."
        pages = [previewed(page, group=self.group(run)), page.get(f"{ADMIN}errorgroup/{self.group(run)}/change/")]
        cards = Page(page.get(f"{ADMIN}errorgroup/"))

        assert [Page(one).links.get(told) for one in pages] == [f"{ADMIN}requeuerun/{run.pk}/change/"] * 2
        assert f"Requeue run {run.pk} by ann is to send messages of this group." in cards.links

    def test_and_its_preview_tell_two_causes_with_one_name_apart(self, page: Client) -> None:
        causes = [made.group(), made.group()]
        rows = [made.message(cause, handler=name) for cause, name in zip(causes, ("pay.card", "pay.book"), strict=True)]
        preview = page.get(f"{ADMIN}requeuerun/preview/?group={causes[0].pk}&group={causes[1].pk}", follow=True)
        run = requeue_run([one.pk for one in rows])
        pages = [preview, page.get(f"{ADMIN}requeuerun/{run.pk}/change/"), page.get(f"{ADMIN}requeuerun/")]

        for name in ("pay.card", "pay.book"):
            assert [f"1 {causes[0]} · {name}" in Page(one).text for one in pages] == [True, True, True]

    def test_is_named_on_the_card_of_each_group_of_which_it_has_something_to_send(
        self, page: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("django_rmq_retry.parked.next_items.PAGE_ITEMS", 1)
        first, later = made.group(), made.group()
        rows = [made.message(cause) for cause in (first, first, first, later)]
        run = requeue_run([one.pk for one in rows])
        named = {card.group: card.run for card in cards_of([first, later])}
        RequeueItem.objects.filter(message__group=first).update(state="sent")
        then = {card.group: card.run for card in cards_of([first, later])}

        assert named == {first: run, later: run}
        assert then == {first: None, later: run}

    def test_is_named_before_its_messages_are_listed_and_while_it_is_paused(
        self, page: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("django_rmq_retry.parked.listing.LISTED_AT_ONCE", 1)
        cause = made.group()
        for _ in range(2):
            made.message(cause)
        run = requeue_run(Selection.of_filter({"group": cause.pk, "state": ["parked"]}))
        before = Page(previewed(page, group=cause.pk)).text
        pause_run(run)

        assert run.listing
        assert f"Requeue run {run.pk} by ann is to send 2 of these." in before
        assert f"Requeue run {run.pk} by ann is paused with 2 of these." in Page(previewed(page, group=cause.pk)).text

    def test_leaves_its_messages_out_of_what_a_preview_counts_and_its_run_takes(
        self, page: Client, run: RequeueRun
    ) -> None:
        preview = previewed(page, group=self.group(run))
        said = Page(preview).text
        _, values = Page(preview).form_with("Requeue 1 message")
        page.post(preview.request["PATH_INFO"], values)
        other = RequeueRun.objects.latest("pk")
        pause_run(run)

        assert "2 are sent by another requeue run" in said
        assert "Requeue 1 of 3 messages |" in said
        assert {item.skip_code for item in other.items.all()} == {"", ItemReason.UNDER_WAY}
        assert other.items.filter(skip_code=ItemReason.UNDER_WAY).count() == 2
        assert "are sent by another requeue run" not in Page(previewed(page, group=self.group(run))).text

    def test_has_one_number_on_a_page_although_it_sends_meanwhile(
        self, page: Client, run: RequeueRun, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        known = under_way.under_way

        def sent_since(rows: Any, **counted: Any) -> Any:
            RequeueItem.objects.filter(pk=run.items.all()[0].pk).update(state="sent")
            return known(rows, **counted)

        monkeypatch.setattr(requeue_form, "under_way", sent_since)
        said = Page(previewed(page, group=self.group(run))).text

        assert "2 are sent by another requeue run" in said
        assert f"Requeue run {run.pk} by ann is to send 2 of these." in said

    def test_does_not_keep_back_a_message_that_was_edited_since(self, page: Client, run: RequeueRun) -> None:
        one = run.items.all()[0].message
        ParkedMessage.objects.filter(pk=one.pk).update(revision=F("revision") + 1)

        assert previewed(page, message=one.pk).context["report"].sendable == 1

    def test_that_has_sent_them_or_has_others_is_not_named(self, page: Client, run: RequeueRun) -> None:
        other = made.message()
        RequeueItem.objects.update(state="sent")

        assert previewed(page, message=other.pk).context["under_way"] == []
        assert previewed(page, group=self.group(run)).context["under_way"] == []


class TestADiscardedMessageThatArrivesAgain:
    """Paid by hand and discarded; then its sender published it once more, and it failed once more."""

    @pytest.fixture
    def again(self) -> ParkedMessage:
        store(by_us(id="PAY-7"))
        one = the_record()
        discard(Selection.of_ids([one.pk]), Actor.of_code("lead"), category="handled elsewhere", text="paid by hand")
        later = int((timezone.now() + timedelta(seconds=1)).timestamp() * 1000)
        store(by_us(id="PAY-7", at=later))
        made.attempt(the_record(), started_at=timezone.now())
        ParkedMessage.objects.update(queue="payments.main")
        return the_record()

    def test_is_left_out_of_a_requeue_unless_the_operator_includes_it(
        self, page: Client, again: ParkedMessage, sent: list[Message]
    ) -> None:
        other = made.message(again.group)
        preview = previewed(page, group=other.group_id)
        included = press(page, preview, "Include anyway 1 was discarded")
        press(page, preview, "Requeue 1 message")

        assert "1 was discarded by an operator, and arrived again" in Page(preview).text
        assert [one.pk for one in preview.context["sample"]] == [other.pk]
        assert included.context["report"].sendable == 2
        assert [item.skip_code for item in RequeueItem.objects.order_by("message")] == [ItemReason.DISCARDED, ""]

    def test_says_so_on_its_page_and_in_its_timeline(self, page: Client, again: ParkedMessage) -> None:
        told = Page(page.get(f"{LIST}{again.pk}/change/")).text
        shown = run("rmq_parked", "show", str(again.pk)).out
        assert again.discarded_at is not None
        at = second(again.discarded_at)
        zone = again.discarded_at.astimezone().tzname()
        by = "by lead (Handled elsewhere: paid by hand). Then it arrived"

        assert told.index(f"Discarded {at} {by}") < told.index("Timeline")
        assert f"Discarded {at} {zone} {by}" in shown
        assert told.index("Arrived again after it was discarded") < told.index("Discarded by lead")

    def test_is_like_any_other_once_the_discard_was_undone(self, page: Client) -> None:
        one = made.message()
        discard(Selection.of_ids([one.pk]), Actor.of_code("lead"), category="test")
        restore(Selection.of_ids([one.pk]), Actor.of_code("lead"))

        assert previewed(page, message=one.pk).context["report"].sendable == 1
        assert "arrived again" not in Page(page.get(f"{LIST}{one.pk}/change/")).text


class TestARestoredMessageThatWasDiscardedAsDone:
    """Discarded as handled elsewhere, then restored: by the discard's reason, it was paid already."""

    @pytest.fixture
    def restored(self) -> ParkedMessage:
        one = made.message(business_key="PAY-7")
        discard(Selection.of_ids([one.pk]), Actor.of_code("lead"), category="handled elsewhere", text="paid by hand")
        restore(Selection.of_ids([one.pk]), Actor.of_code("ann"), reason="wrong row")
        return one

    def test_is_left_out_of_a_requeue_unless_the_operator_includes_it(
        self, page: Client, restored: ParkedMessage, sent: list[Message]
    ) -> None:
        other = made.message(restored.group)
        preview = previewed(page, group=other.group_id)
        included = press(page, preview, "Include anyway 1 was discarded by an operator, and restored")
        press(page, preview, "Requeue 1 message")
        codes = [item.skip_code for item in RequeueItem.objects.order_by("message")]
        ran = Page(page.get(f"{ADMIN}requeuerun/{RequeueRun.objects.get().pk}/change/")).text

        assert "PAY-7 Discarded (Handled elsewhere: paid by hand), then restored by ann, " in Page(preview).text
        assert [one.pk for one in preview.context["sample"]] == [other.pk]
        assert included.context["report"].sendable == 2
        assert codes == [ItemReason.RESTORED, ""]
        assert "PAY-7 Discarded (Handled elsewhere: paid by hand), then restored by ann, " in ran

    def test_is_restored_with_a_reason_only(self, page: Client, restored: ParkedMessage) -> None:
        """One press without a word undid that a colleague had paid it by hand."""
        other = made.message(business_key="PAY-8")
        both = Selection.of_ids([restored.pk, other.pk])
        discard(both, Actor.of_code("lead"), category="handled elsewhere", text="paid by hand")
        alone = page.get(f"{LIST}{other.pk}/restore/")
        many = page.get(f"{LIST}restore/", {"sel": both.token()})
        why = "Enter a reason: by that of the discard, what is requested was done in another way"
        silent = press(page, alone, "Restore PAY-8"), press(page, many, "Restore 2 messages", text=" ")
        shell = run("rmq_parked", "restore", str(other.pk), "--yes")
        press(page, silent[0], "Restore PAY-8", reason="the bank sent it back")

        assert [one.status_code for one in silent] == [422, 422]
        assert all(why in Page(one).text for one in silent)
        assert "Reason (required)" in Page(alone).text
        assert "Reason (required)" in Page(many).text
        assert "After this it is parked again, and a requeue leaves it out until somebody" in Page(alone).text
        assert "once more" not in Page(alone).text + Page(many).text
        assert why in shell.err
        assert state("PAY-8") == State.PARKED
        assert state("PAY-7") == State.DISCARDED

    def test_is_requeued_by_no_main_button(self, page: Client, restored: ParkedMessage) -> None:
        """The page said that somebody may have paid it, above a blue "Requeue…"."""
        assert main_of(page.get(f"{LIST}{restored.pk}/change/")) == []

    def test_says_so_on_its_page_in_lists_and_in_the_shell(self, page: Client, restored: ParkedMessage) -> None:
        told = Page(page.get(f"{LIST}{restored.pk}/change/")).text
        listed = Page(page.get(LIST)).text
        dry = run("rmq_parked", "requeue", str(restored.pk), "--dry-run").out

        assert "Discard: Handled elsewhere: paid by hand. Restore: wrong row." in told
        assert "A requeue leaves it out until somebody includes it." in told
        assert "discarded before" in listed
        assert "1 restored, left out (--include restored sends it)" in dry

    def test_stays_left_out_after_it_was_sent_and_failed_again(self, page: Client, restored: ParkedMessage) -> None:
        requeue_run([restored.pk], include=["restored"])
        ParkedMessage.objects.update(requeued_at=timezone.now())
        told = Page(page.get(f"{LIST}{restored.pk}/change/")).text

        assert previewed(page, message=restored.pk).context["report"].sendable == 0
        assert "A requeue leaves it out until somebody includes it." in told

    def test_is_announced_on_the_page_that_restores(self, page: Client) -> None:
        one = made.message()
        discard(Selection.of_ids([one.pk]), Actor.of_code("lead"), category="handled elsewhere")

        told = Page(page.get(f"{LIST}{one.pk}/restore/")).text
        assert "After this it is parked again, and a requeue leaves it out until somebody includes it." in told

    def test_keeps_a_copy_of_it_back(self, page: Client) -> None:
        one, other = (made.message(business_key="PAY-8", content=7, has_siblings=True) for _ in range(2))
        discard(Selection.of_ids([one.pk]), Actor.of_code("lead"), category="handled elsewhere")
        restore(Selection.of_ids([one.pk]), Actor.of_code("lead"), reason="wrong row")

        assert previewed(page, message=other.pk).context["report"].sendable == 0

    @pytest.mark.parametrize(("category", "sendable"), [("cancelled", 0), ("other", 0), ("bad data", 1), ("test", 1)])
    def test_is_like_any_other_if_nobody_can_have_done_it(self, page: Client, category: str, sendable: int) -> None:
        one = made.message()
        discard(Selection.of_ids([one.pk]), Actor.of_code("lead"), category=category, text="why")
        restore(Selection.of_ids([one.pk]), Actor.of_code("lead"))

        assert previewed(page, message=one.pk).context["report"].sendable == sendable


def test_the_failures_of_a_second_publish_are_not_those_of_a_requeue(page: Client) -> None:
    """Its attempts are counted like those before the first requeue, and none of them is missed."""
    store(by_us(id="PAY-8"))
    ParkedMessage.objects.update(state="processed", cycle=2, resolved_at=timezone.now(), requeued_at=timezone.now())
    later = int((timezone.now() + timedelta(seconds=1)).timestamp() * 1000)
    store(by_us(id="PAY-8", at=later))
    for number in range(1, 6):
        made.attempt(the_record(), number)
    told = Page(page.get(f"{LIST}{the_record().pk}/change/")).text

    assert "It failed 5 times, then it was parked" in told
    assert "was not recorded" not in told
    assert "were not recorded" not in told


class TestTheProof:
    @pytest.mark.database
    def test_names_the_run_that_left_a_key_out_to_who_asks_the_audit_log_for_the_key(self, page: Client) -> None:
        """No action was found on PAY-0, although somebody had decided that it is not sent."""
        cause = made.group()
        for number in range(3):
            made.message(cause, business_key=f"PAY-{number}")
        rest = press(page, previewed(page, group=cause.pk), "Leave these out", **{"except": "PAY-0"})
        press(page, rest, "Requeue 2 messages", reason="INC-5")
        number = RequeueRun.objects.get().pk
        asked = ("pay-0", "PAY-0 lead", "PAY-1", "PAY-8")
        told = {one: Page(page.get(f"{ADMIN}operatoraction/?q={one}")).text for one in asked}

        assert f"Requeue run {number} · PAY-0 was left out" in told["pay-0"]
        assert f"Requeue run {number} · PAY-0 was left out" in told["PAY-0 lead"]
        assert f"Requeue run {number}" in told["PAY-1"]
        assert "left out" not in told["PAY-1"]
        assert f"Requeue run {number}" not in told["PAY-8"]
        for option in ("--message", "--search"):
            assert "(PAY-0 was left out)" in run("rmq_audit", "list", option, "PAY-0").out
        left_out = ParkedMessage.objects.get(business_key="PAY-0").pk
        by_number = (f"{ADMIN}operatoraction/?q=%23{left_out}", f"{ADMIN}operatoraction/?message={left_out}")
        for address in by_number:
            assert f"Requeue run {number} · PAY-0 was left out" in Page(page.get(address)).text
        itself = Page(page.get(f"{LIST}{left_out}/change/")).text
        assert f"Requeue · Requeue run {number} (PAY-0 was left out)" in itself
        assert f"Left out of the requeue · Requeue run {number} PAY-0 was left out by lead · INC-5" in itself

    @pytest.mark.database
    def test_names_the_discard_that_left_a_key_out_on_its_page(self, page: Client) -> None:
        """It decided nothing about it: it is no discard of the message."""
        cause = made.group()
        for number in range(3):
            made.message(cause, business_key=f"PAY-{number}")
        chosen = Selection.of_filter({"group": cause.pk, "state": ["parked"]})
        discard(chosen.leaving_out(key_lists.list_filter(key_lists.store(["PAY-0"], ANN))), ANN, category="test")
        kept = ParkedMessage.objects.get(state="parked")
        told = Page(page.get(f"{LIST}{kept.pk}/change/")).text

        assert kept.business_key == "PAY-0"
        assert "Left out of the discard PAY-0 was left out by ann" in told
        assert "(PAY-0 was left out)" in told
        assert "Discarded by ann" not in told
        assert kept.discarded_at is None

    def test_has_times_operator_keys_left_out_and_failures_by_error(self, page: Client) -> None:
        cause = made.group()
        for number in range(4):
            made.message(cause, business_key=f"PAY-{number}")
        rest = press(page, previewed(page, group=cause.pk), "Leave these out", **{"except": "PAY-0"})
        press(page, rest, "Requeue 3 messages", reason="INC-5")
        run, now = RequeueRun.objects.get(), timezone.now()
        items = list(run.items.all())
        for item, error in zip(items, ("GatewayTimeout", "GatewayTimeout", "Declined"), strict=True):
            ParkedMessage.objects.filter(pk=item.message_id).update(error=error)
        ParkedMessage.objects.filter(pk=items[1].message_id).update(queue="payments.card")
        run.items.update(state="failed")
        times = {"started_at": now - timedelta(seconds=66), "finished_at": now}
        RequeueRun.objects.update(state="finished", sent=3, failed=3, **times)
        told = Page(page.get(f"{ADMIN}requeuerun/{run.pk}/change/"))

        assert f"Started {timezone.localtime(times['started_at']):%Y-%m-%d %H:%M:%S} · by lead" in told.text
        assert f"Ended {timezone.localtime(now):%Y-%m-%d %H:%M:%S} · took 1 min 6 s" in told.text
        assert told.links["1 more left out by 1 key"] == "#rmq-left-out"
        assert "Keys left out by the operator PAY-0" in told.text
        assert "Failed again Now: 3 Parked . Next automatic attempt: none. An operator decides. 2 Gateway" in told.text
        # A guard had counted the failures of two queues, of which one worked.
        places = "payments.card 1 · payments.main 1"
        assert f"2 GatewayTimeout · {places} no answer within 30 s Show GatewayTimeout PAY-" in told.text
        assert "1 Declined · payments.main no answer within 30 s Show Declined PAY-" in told.text

    def test_leads_to_its_messages_by_outcome_and_names_who_paused_and_resumed_it(self, page: Client) -> None:
        rows = [made.message(business_key=f"PAY-{number}") for number in range(3)]
        run = requeue_run([one.pk for one in rows])
        pause_run(run)
        resume_run(run.pk, Actor.of_code("lead"), reason="bank confirmed by phone")
        RequeueItem.objects.filter(message__in=rows[:2]).update(state="processed")
        RequeueItem.objects.filter(message=rows[2]).update(state="failed")
        ParkedMessage.objects.filter(pk__in=[one.pk for one in rows[:2]]).update(state="processed")
        RequeueRun.objects.update(sent=3, processed=2, failed=1)
        told = Page(page.get(f"{ADMIN}requeuerun/{run.pk}/change/"))

        listed = {name: page.get(told.links[f"Show {name}"]).context["cl"].result_list for name in OUTCOMES}
        keys = {name: sorted(one.business_key for one in found) for name, found in listed.items()}
        assert keys == {"Processed": ["PAY-0", "PAY-1"], "Failed again": ["PAY-2"]}
        assert "Operator lead Action Resume requeue run Messages 3 Reason bank confirmed by phone" in told.text

    def test_hides_the_keys_from_a_user_who_may_not_see_messages(self, page: Client) -> None:
        cause = made.group()
        made.message(cause, business_key="PAY-1")
        made.message(cause, business_key="PAY-2")
        rest = press(page, previewed(page, group=cause.pk), "Leave these out", **{"except": "PAY-1"})
        press(page, rest, "Requeue 1 message")
        clerk = client_of(made.person("clerk", "view_requeuerun"))
        told = Page(clerk.get(f"{ADMIN}requeuerun/{RequeueRun.objects.get().pk}/change/")).text

        assert "PAY-1" not in told

    def test_changes_the_rate_up_and_down(self, page: Client) -> None:
        run_page = press(page, previewed(page, message=made.message().pk), "Requeue 1 message")
        faster = press(page, run_page, "Speed up to 40")
        press(page, faster, "Slow to 10")

        assert RequeueRun.objects.get().rate == 10
        assert OperatorAction.objects.filter(action="slow").count() == 2


@pytest.mark.database
class TestAnotherMessageWithTheKeyOfADiscardedOne:
    """Paid by hand and discarded; then its sender published the same payment as a new message."""

    @pytest.fixture(params=["listed keys", "keys that are looked up"])
    def other(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ParkedMessage:
        if request.param != "listed keys":
            monkeypatch.setattr(findings, "MOST_DISCARDED", 0)
        cause = made.group()
        paid, other = (made.message(cause, business_key="PAY-80006") for _ in range(2))
        made.message(cause, business_key="PAY-80007")
        for nameless in (made.message(cause, business_key=""), paid):
            self.discarded(nameless)
        made.message(cause, business_key="")
        return other

    def discarded(self, message: ParkedMessage, category: str = "handled elsewhere") -> None:
        discard(Selection.of_ids([message.pk]), Actor.of_code("lead"), category=category, text="paid by hand")

    def test_is_left_out_of_a_requeue_unless_the_operator_includes_it(
        self, page: Client, other: ParkedMessage, sent: list[Message]
    ) -> None:
        preview = previewed(page, group=other.group_id)
        included = press(page, preview, "Include anyway 1 has the business key")
        press(page, preview, "Requeue 2 messages")
        one = RequeueItem.objects.get(message=other.pk)

        assert "1 has the business key of another message, which an operator discarded" in Page(preview).text
        assert (preview.context["report"].sendable, included.context["report"].sendable) == (2, 3)
        assert one.skip_code == ItemReason.KEY_DISCARDED
        assert "PAY-80006" not in {item.message.business_key for item in RequeueItem.objects.filter(skip_code="")}

    def test_says_so_on_its_page_and_in_the_shell(self, page: Client, other: ParkedMessage) -> None:
        paid = ParkedMessage.objects.get(business_key="PAY-80006", state="discarded")
        shown = page.get(f"{LIST}{other.pk}/change/")
        told = "Another message with its business key was discarded"
        by = f"by lead (Handled elsewhere: paid by hand). #{paid.pk}"
        text = Page(shown).text

        assert text.index(told) < text.index(by) < text.index("Timeline")
        assert f'href="{LIST}{paid.pk}/change/"' in shown.content.decode()
        assert by in run("rmq_parked", "show", str(other.pk)).out
        assert "(--include key_discarded sends it)" in run("rmq_parked", "requeue", str(other.pk), "--dry-run").out
        assert told not in Page(page.get(f"{LIST}{paid.pk}/change/")).text

    def test_is_named_on_the_page_of_the_discarded_one(self, page: Client, other: ParkedMessage) -> None:
        paid = ParkedMessage.objects.get(business_key="PAY-80006", state="discarded")
        told = Page(page.get(f"{LIST}{paid.pk}/change/")).text
        ParkedMessage.objects.filter(pk=other.pk).update(state="requeued", requeued_at=timezone.now())
        later = Page(page.get(f"{LIST}{paid.pk}/change/")).text

        assert f"Another message with its business key is parked. #{other.pk}" in told
        assert "Another message with its business key was requeued" in later

    @pytest.mark.parametrize("category", ["duplicate", "bad data"])
    def test_is_sent_if_the_other_was_discarded_in_its_favour(
        self, page: Client, other: ParkedMessage, category: str
    ) -> None:
        copy = made.message(other.group, business_key="PAY-80007")
        self.discarded(copy, category)

        assert previewed(page, group=other.group_id).context["report"].sendable == 2

    def test_is_like_any_other_once_the_discard_was_undone(self, page: Client, other: ParkedMessage) -> None:
        paid = ParkedMessage.objects.get(business_key="PAY-80006", state="discarded")
        restore(Selection.of_ids([paid.pk]), Actor.of_code("lead"), reason="wrong row")

        assert previewed(page, message=other.pk).context["report"].sendable == 1
        assert "was discarded" not in Page(page.get(f"{LIST}{other.pk}/change/")).text


@pytest.mark.database
def test_a_message_with_the_key_of_one_that_was_processed_is_sent_and_the_preview_says_so(page: Client) -> None:
    cause = made.group()
    done, other = (made.message(cause, business_key="PAY-80006") for _ in range(2))
    ParkedMessage.objects.filter(pk=done.pk).update(state="processed", succeeded_at=timezone.now())
    preview = previewed(page, message=other.pk)

    assert preview.context["report"].sendable == 1
    assert "1 has the business key of another message, which was handled or is on its way" in Page(preview).text
    assert "Another message with its business key was processed" in Page(page.get(f"{LIST}{other.pk}/change/")).text


def test_a_list_of_groups_says_how_many_of_their_messages_may_have_been_handled(page: Client) -> None:
    """Neither list told it, and two of three looked like any failed payment."""
    cause, died, other = made.group(), made.group(title="worker_stopped", reason="worker_stopped"), made.group()
    for unacked in (True, True, False):
        made.message(cause, unacked=unacked)
    made.message(cause, unacked=True, state=State.PROCESSED)
    made.message(died, error="", error_text="")
    made.message(other)
    cards = Page(page.get(f"{ADMIN}errorgroup/")).text
    listed, data = run("rmq_parked", "groups"), run("rmq_parked", "groups", "--json").data

    assert "3 parked · ! 2 may have been handled" in cards
    assert "1 parked · ! may have been handled" in cards
    assert {one["id"]: one["may_have_been_handled"] for one in data["items"]} == {cause.pk: 2, died.pk: 1, other.pk: 0}
    assert "MAY BE DONE" in listed.out
    assert "3 may have been handled: their workers stopped" in listed.err


def test_the_page_of_a_group_says_how_many_of_its_messages_an_earlier_worker_had(page: Client) -> None:
    """Only the preview told it: the group had an ordinary error."""
    cause, other = made.group(), made.group()
    for unacked in (True, True, False):
        made.message(cause, unacked=unacked)
    made.message(other)
    told = "2 may have been handled: their workers stopped or lost their connection before they could say so."
    texts = [Page(page.get(f"{ADMIN}errorgroup/{one.pk}/change/")).text for one in (cause, other)]

    assert [told in text for text in texts] == [True, False]
    assert "may have been handled" not in texts[1]


class TestAKeyWhoseOtherMessageIsNotParked:
    """List of keys and search told of it, and the preview that sends was all green."""

    def test_is_named_before_a_requeue(self, page: Client) -> None:
        cause = made.group()
        made.message(cause, business_key="PAY-1")
        made.message(cause, business_key="PAY-2")
        waits = outgoing(failed=False)
        preview, text = previewed(page, group=cause.pk), "In the outbox, not sent yet: 9f3c-1 (PAY-1)"
        less = press(page, preview, "Leave these out", **{"except": "PAY-1"})

        assert "it is handled as well, so these may be done twice" in Page(preview).text
        assert text in Page(preview).text
        assert f'href="{ADMIN}outboxmessage/{waits.pk}/change/"' in preview.content.decode()
        assert text not in Page(less).text

    @pytest.mark.database
    def test_is_named_if_it_waits_behind_a_blocked_key(self, page: Client) -> None:
        one, first = made.message(made.group(), business_key="PAY-82065"), made.message(made.group())
        blocked(first, waiting=1)
        BlockedMessage.objects.update(shown="PAY-82065")
        text = f"Waits for a blocked ordering key: PAY-82065, behind {first.message_id} (ordering key PAY-1)"

        assert text in Page(previewed(page, group=one.group_id)).text
        assert text not in Page(previewed(page, group=first.group_id)).text
        assert text in run("rmq_parked", "requeue", str(one.pk), "--dry-run").out

    def test_is_not_what_waits_behind_this_message_for_the_key_that_orders_them(self, page: Client) -> None:
        first = made.message(made.group(), business_key="PAY-1")
        blocked(first, waiting=2)
        BlockedMessage.objects.update(shown="PAY-1")
        preview = Page(previewed(page, group=first.group_id)).text

        assert "2 messages wait behind 1 of these by their ordering keys and are handled next" in preview
        assert "may be done twice" not in preview

    @pytest.mark.database
    def test_is_named_if_it_was_handled_twice(self, page: Client) -> None:
        one = made.message(made.group(), business_key="PAY-91001")
        twice = made.tried_again("PAY-91001", at=timezone.now(), verdict="ack")
        twice.pk, twice.pid = None, 13
        twice.save()
        text = "Handled more than once"

        assert f"✕ done twice {text}" in Page(previewed(page, group=one.group_id)).text
        assert f"    done twice: {text}" in run("rmq_parked", "requeue", str(one.pk), "--dry-run").out

    def test_is_not_named_to_who_must_not_see_it_or_of_very_many(
        self, page: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cause = made.group()
        for number in range(3):
            made.message(cause, business_key=f"PAY-{number}")
        outgoing(failed=False)
        blind = client_of(made.person("eve", "view_parkedmessage", "view_errorgroup", "requeue"))
        seen = Page(previewed(page, group=cause.pk)).text
        monkeypatch.setattr("django_rmq_retry.parked.twins.MOST_COMPARED", 2)

        assert ["In the outbox" in one for one in (
            seen, Page(previewed(blind, group=cause.pk)).text, Page(previewed(page, group=cause.pk)).text,
        )] == [True, False, False]  # fmt: skip


class TestAMessageThatDiedWithItsWorker:
    """Its page said that it had reached no handler, and the preview sent it like any other."""

    @pytest.fixture(params=["worker_stopped", "delivery_limit"])
    def crashed(self, request: pytest.FixtureRequest) -> list[ParkedMessage]:
        cause = made.group(title=request.param, reason=request.param)
        detail = "Redelivered 8 times after its workers stopped or lost their connection."
        return [
            made.message(cause, attempts=0, error="", error_text="", detail=detail, business_key=f"PAY-{number}")
            for number in range(3)
        ]

    def test_is_left_out_until_one_button_includes_all_of_them(
        self, page: Client, crashed: list[ParkedMessage], sent: list[Message]
    ) -> None:
        preview = previewed(page, group=crashed[0].group_id)
        included = press(page, preview, "Include anyway 3 may have been handled")
        press(page, included, "Requeue 3 messages", reason="not one was paid")

        assert (
            "3 may have been handled: their workers stopped or lost their connection before they could say so"
            in Page(preview).text
        )
        assert "Nothing to requeue of 3 messages" in Page(preview).text
        assert ("per second" in Page(preview).text, "per second" in Page(included).text) == (False, True)
        assert (preview.context["report"].sendable, included.context["report"].sendable) == (0, 3)
        assert RequeueItem.objects.filter(skip_code="").count() == 3

    def test_is_left_out_of_the_command_too(self, crashed: list[ParkedMessage], sent: list[Message]) -> None:
        chosen = [str(one.pk) for one in crashed]
        told = run("rmq_parked", "requeue", *chosen, "--dry-run").out
        both = run("rmq_parked", "requeue", *chosen, "--include", "worker_stopped", "--dry-run").out

        assert "3 worker stopped, left out (--include worker_stopped sends them)" in told
        assert "left out" not in both

    def test_is_sent_if_its_handler_does_nothing_twice(
        self, page: Client, crashed: list[ParkedMessage], no_handlers: None
    ) -> None:
        """The transaction of ``once`` has either rolled its effect back, or recognizes the message."""

        @handler("payments.main", once=True, name="transfer")
        def transfer(payment: Any) -> None:
            """Nothing."""

        @handler("payments.other", once=True, name="other")
        def other(payment: Any) -> None:
            """Nothing."""

        def sendable(target: str = "") -> int:
            chosen = Selection.of_ids([one.pk for one in crashed])
            return findings.report(chosen, findings.RequeueTerms(target=target)).sendable

        # Another handler knows nothing of what this one has done.
        assert (sendable(), sendable("payments.main"), sendable("payments.other")) == (3, 3, 0)

    def test_shares_its_queue_with_a_handler_that_may_do_it_twice(
        self, crashed: list[ParkedMessage], no_handlers: None
    ) -> None:
        @handler("payments.main", once=True, type="payment.transfer", name="transfer")
        def transfer(payment: Any) -> None:
            """Nothing."""

        @handler("payments.main", name="others")
        def others(payment: Any) -> None:
            """Nothing."""

        assert findings.report(Selection.of_ids([crashed[0].pk])).sendable == 0

    def test_may_have_run_as_its_page_says(self, page: Client, crashed: list[ParkedMessage]) -> None:
        text = Page(page.get(f"{LIST}{crashed[0].pk}/change/")).text

        assert "before it reached a handler" not in text
        assert f"It was parked because no attempt came to an end: {reason_text(crashed[0].reason)}." in text
        assert "Its handler may have begun before its worker stopped, and what it did may remain." in text

    @pytest.mark.parametrize("again", [True, False])
    def test_that_failed_after_its_first_worker_died_says_so(self, page: Client, *, again: bool) -> None:
        """The worker had captured the payment; the next one was refused three times, and it was parked."""
        message = made.message(made.group(), attempts=2, unacked=again)
        made.attempt(message, 1, redelivered=again)
        made.attempt(message, 2)
        shown = page.get(f"{LIST}{message.pk}/change/")

        text = Page(shown).text
        said = (
            "a consumer had it and did not acknowledge it, as one that dies: what that consumer had begun may be done."
        )
        assert (said in text) is again
        assert ("Delivered before to a consumer that did not acknowledge it" in text) is again
        main = [attrs for tag, attrs in Page(shown).tags if tag == "a" and "rmq-main" in attrs.get("class", "")]
        assert bool(main) is not again

    def test_that_failed_after_its_first_worker_died_is_left_out_too(self, page: Client, sent: list[Message]) -> None:
        """Its page told so, and the requeue of its group sent it: it was paid again."""
        cause = made.group()
        died, _other = (made.message(cause, business_key=f"PAY-{again}", unacked=again) for again in (True, False))
        alone, preview = previewed(page, message=died.pk), previewed(page, group=cause.pk)
        told = run("rmq_parked", "requeue", "--group", str(cause.pk), "--dry-run").out
        included = press(page, preview, "Include anyway 1 may have been handled")
        refused = press(page, included, "Requeue 2 messages")
        press(page, preview, "Requeue ")

        assert alone.context["report"].only_reason == "worker_stopped"
        said = "1 may have been handled: a worker stopped or lost its connection before it could say so"
        assert said in Page(preview).text
        assert "1 worker stopped, left out (--include worker_stopped sends it)" in told
        assert "sending them may do it twice" in Page(included).text
        assert "Enter a reason" in Page(refused).text
        skipped = RequeueItem.objects.exclude(skip_code="").values_list("message__business_key", "skip_code")
        assert [*skipped, RequeueItem.objects.count()] == [(died.business_key, "worker_stopped"), 2]

    def test_that_failed_after_its_first_worker_died_is_sent_if_its_handler_does_nothing_twice(
        self, no_handlers: None
    ) -> None:
        @handler("payments.main", once=True, name="transfer")
        def transfer(payment: Any) -> None:
            """Nothing."""

        died = made.message(made.group(), unacked=True)

        assert findings.report(Selection.of_ids([died.pk])).sendable == 1

    def test_has_a_group_that_says_the_same_and_is_told_by_its_queue(
        self, page: Client, crashed: list[ParkedMessage]
    ) -> None:
        one = crashed[0]
        ErrorGroup.objects.filter(pk=one.group_id).update(title=one.reason, culprit="")
        group = Page(page.get(f"/admin/rmq_retry/errorgroup/{one.group_id}/change/")).text
        cards = Page(page.get("/admin/rmq_retry/errorgroup/")).links

        assert "The handler may have begun each of these before its worker stopped" in group
        assert f"{reason_text(one.reason)} \N{MIDDLE DOT} {one.queue}" in cards

    def test_is_offered_for_a_requeue_by_no_main_button(self, page: Client, crashed: list[ParkedMessage]) -> None:
        own, cards = page.get(f"{LIST}{crashed[0].pk}/change/"), page.get("/admin/rmq_retry/errorgroup/")

        assert 'rmq-main" href' not in own.content.decode()
        assert "Requeue…" in Page(own).text
        assert "Requeue one, then the others…" not in Page(cards).text
        assert "Requeue 3…" in Page(cards).text
