"""From the list to the run page without JavaScript: what is asked, what is refused, what is sent."""

import re
import time
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.core import signing
from django.test import Client
from django.utils import timezone

from django_rmq_retry import Delivery, Fixed, Message, RetryThenPark, handler
from django_rmq_retry.admin import runs
from django_rmq_retry.handlers import registry
from django_rmq_retry.models import (
    ItemState,
    OperatorAction,
    ParkedMessage,
    RequeueItem,
    RequeueRun,
    RunState,
    RunWait,
    State,
)
from django_rmq_retry.parked import items, run_steering
from django_rmq_retry.parked.actions import hold
from django_rmq_retry.parked.selection import Selection
from django_rmq_retry.topology import Role
from django_rmq_retry.wording import minute
from tests.admin import made
from tests.admin.conftest import client_of, operating
from tests.admin.looking import Page, address_of, main_of, press
from tests.operators.made import BOB, discard_messages, drive_run, requeue_run, selected
from tests.parked.made import copy_failed

pytestmark = pytest.mark.django_db
LIST = "/admin/rmq_retry/parkedmessage/"
PREVIEW = "/admin/rmq_retry/requeuerun/preview/"


def previewed(client: Client, **words: int) -> Any:
    return client.get(PREVIEW, words, follow=True)


def opened(client: Client, response: Any, link: str) -> Any:
    """Follow a link of a page."""
    return client.get(Page(response).links[link])


def test_a_message_is_requeued_in_three_clicks(page: Client, sent: list[Message]) -> None:
    one, _other = made.message(business_key="PAY-1"), made.message()
    listed = page.get(LIST)
    ticked = {"action": "requeue", "_selected_action": [one.pk]}
    preview = page.post(LIST, ticked, follow=True)
    run_page = press(page, preview, "Requeue 1 message")
    run = RequeueRun.objects.get()
    driven = press(page, run_page, "Continue here")

    assert "PAY-1" in Page(listed).text
    assert run_page.redirect_chain[-1][0] == f"/admin/rmq_retry/requeuerun/{run.pk}/change/"
    assert [(message.body, message.routing_key) for message in sent] == [(bytes(one.body), "payments.main")]
    assert "1 of 1 sent" in Page(driven).text
    assert ParkedMessage.objects.get(pk=one.pk).state == State.REQUEUED


def test_a_message_on_hold_is_requeued_only_if_the_operator_includes_it(page: Client, sent: list[Message]) -> None:
    one = made.message(business_key="PAY-1", state=State.ON_HOLD, held_until=timezone.now() + timedelta(hours=2))
    preview = previewed(page, message=one.pk)
    refused = page.post(PREVIEW, {"sel": made.selected(one), "start": "now"})
    included = press(page, preview, "Include anyway")
    press(page, press(page, included, "Requeue 1 message"), "Continue here")

    assert "1 is on hold" in Page(preview).text
    assert "left out" in Page(preview).text
    assert "Nothing is left to requeue." in Page(refused).text
    assert "1 is on hold" in Page(included).text
    assert "left out" not in Page(included).text
    assert len(sent) == 1
    assert ParkedMessage.objects.get(pk=one.pk).state == State.REQUEUED


def test_a_message_on_hold_is_left_out_on_its_own_page_too_which_says_who_holds_it(page: Client) -> None:
    cause = made.group()
    one, _copy = (made.message(cause, business_key="PAY-1", has_siblings=True, content=7) for _ in range(2))
    until = timezone.now() + timedelta(hours=2)
    hold(selected([one.pk]), BOB, until=until, reason="bank is closed")
    shown = page.get(f"/admin/rmq_retry/parkedmessage/{one.pk}/change/")
    preview = page.get(Page(shown).links["Requeue…"], follow=True)
    text = Page(preview).text

    assert "1 is on hold \u2013 left out" in text
    assert f"On hold until {minute(until)}, by bob: bank is closed" in text
    assert "A copy of this message is parked." in text
    assert Page(preview).form_with("Include anyway")
    assert "Nothing would be sent: see the checks above." in text
    assert "Requeue 0 messages" not in text
    assert Page(preview).links["Take off hold…"] == Page(shown).links["Take off hold…"]
    assert [named["class"] for tag, named in Page(shown).tags if "rmq-main" in named.get("class", "")] == [
        "rmq-button rmq-main"
    ]
    assert not RequeueRun.objects.exists()


def test_a_preview_says_who_discarded_a_message_meanwhile_and_not_that_it_arrived_again(page: Client) -> None:
    one, other = made.message(business_key="PAY-1"), made.message()
    preview = page.post(LIST, {"action": "requeue", "_selected_action": [one.pk, other.pk]}, follow=True)
    discard_messages([one.pk], BOB, category="duplicate")
    again = Page(page.get(preview.redirect_chain[-1][0]))

    assert "1 is no longer open \u2013 left out" in again.text
    assert re.search(r"Discarded .* by bob \(.*uplicate.*\): no requeue sends it\.", again.text)
    assert "arrived again" not in again.text
    assert "Include anyway" not in again.text
    assert "Requeue 1 message" in again.text


def test_a_preview_of_a_group_that_has_shrunk_says_so_and_by_whom(page: Client) -> None:
    cause = made.group()
    one = made.message(cause, business_key="PAY-1")
    made.message(cause)
    preview = previewed(page, group=cause.pk)
    discard_messages([one.pk], BOB, category="duplicate")
    again = Page(page.get(preview.redirect_chain[-1][0]))

    assert "1 of the chosen messages no longer matches the filter \u2013 left out PAY-1 Discarded " in again.text
    assert " by bob (Duplicate): no requeue sends it." in again.text
    assert again.links["PAY-1"] == f"/admin/rmq_retry/parkedmessage/{one.pk}/change/"
    assert "no longer match" not in Page(preview).text
    assert Page(press(page, preview, "Requeue 2 messages")).text.count("1 left out") == 2


def test_a_preview_says_by_whom_its_group_has_shrunk_if_it_cannot_tell_which_messages_left(page: Client) -> None:
    cause = made.group()
    one = made.message(cause, business_key="PAY-1")
    made.message(cause)
    preview = previewed(page, group=cause.pk)
    discard_messages([one.pk], BOB, category="duplicate")
    ParkedMessage.objects.filter(pk=one.pk).delete()
    again = Page(page.get(preview.redirect_chain[-1][0])).text

    assert "1 of the chosen messages no longer matches the filter \u2013 left out · Discard by bob" in again


def test_the_preview_changes_nothing_and_can_be_shared(page: Client, sent: list[Message]) -> None:
    cause = made.group()
    for _ in range(3):
        made.message(cause)
    response = previewed(page, group=cause.pk)
    address = response.redirect_chain[-1][0]
    other = client_of(made.person("other", "requeue"))

    assert "Requeue 3 messages" in Page(response).text
    assert "Requeue 3 messages" in Page(other.get(address)).text
    assert (RequeueRun.objects.count(), OperatorAction.objects.count(), sent) == (0, 0, [])


def test_messages_parked_after_the_preview_are_not_in_the_run(page: Client) -> None:
    cause = made.group()
    first = made.message(cause)
    preview = previewed(page, group=cause.pk)
    made.message(cause)
    press(page, preview, "Requeue 1 message")

    assert [item.message_id for item in RequeueItem.objects.all()] == [first.pk]


def test_a_second_click_sends_no_copy(page: Client, sent: list[Message]) -> None:
    cause = made.group()
    made.message(cause)
    preview = previewed(page, group=cause.pk)
    press(page, press(page, preview, "Requeue 1 message"), "Continue here")
    again = press(page, preview, "Requeue 1 message")

    assert again.status_code == 422
    assert "Nothing is left to requeue." in Page(again).text
    assert RequeueRun.objects.count() == 1
    assert len(sent) == 1


@pytest.mark.parametrize("kind", ["nothing", "rubbish", "of another"])
def test_a_forged_selection_is_refused(page: Client, kind: str) -> None:
    made.message()
    another = signing.dumps({"ids": {"1": 1}}, salt="another")
    token = {"nothing": "", "rubbish": "rubbish", "of another": another}[kind]
    shown, started = page.get(PREVIEW, {"sel": token}), page.post(PREVIEW, {"sel": token, "start": "now"})

    assert (shown.status_code, started.status_code) == (400, 400)
    assert "Choose the messages again." in Page(started).text
    assert not RequeueRun.objects.exists()


def test_a_selection_older_than_an_hour_is_refused(page: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    token = made.selected(made.message())
    later = time.time() + 3601
    monkeypatch.setattr("django.core.signing.time.time", lambda: later)
    started = page.post(PREVIEW, {"sel": token, "start": "now"})

    assert started.status_code == 400
    assert "older than an hour" in Page(started).text


def test_findings_are_counted_and_can_be_included(page: Client, settings: Any) -> None:
    operating(settings, REQUEUE_MAX_AGE=3600)
    cause = made.group()
    for age in (1, 2, 300):
        made.message(cause, published_at=timezone.now() - timedelta(minutes=age))
    preview = previewed(page, group=cause.pk)
    included = press(page, preview, "Include anyway", rate="7", reason="typed")
    slow, free = (press(page, preview, "Include anyway", rate="0.1", wait=wait) for wait in ("1", ""))

    assert "→ at least 30 s" in Page(slow).text, "with a depth limit of 3 about 5 s were 39"
    assert "→ about 30 s" in Page(free).text
    assert "1 is older than the age limit for requeues" in Page(preview).text
    assert "Requeue 2 messages" in Page(preview).text
    assert "Requeue 3 messages" in [said for form in Page(included).forms for _n, _v, said in form.buttons]
    _form, values = Page(included).form_with("Requeue 3 messages")
    assert (values["rate"], values["reason"]) == ("7", "typed")
    assert not RequeueRun.objects.exists()
    press(page, included, "Requeue 3 messages")
    assert RequeueItem.objects.filter(state=ItemState.PENDING).count() == 3


def test_a_permanent_error_needs_an_extra_confirmation(page: Client) -> None:
    cause = made.group(reason="permanent")
    made.message(cause)
    preview = previewed(page, group=cause.pk)
    fixed = press(page, preview, "Count again", fixed="1")

    assert "1 has a permanent error" in Page(preview).text
    with pytest.raises(AssertionError, match="no button says 'Requeue"):
        Page(preview).form_with("Requeue")
    press(page, fixed, "Requeue 1 message")
    assert RequeueItem.objects.get().state == ItemState.PENDING


def test_what_a_handler_parked_on_purpose_says_so_with_its_words(page: Client) -> None:
    """A preview of frozen accounts had no word against it, though each would be parked again."""
    cause = made.group(title="parked_by_handler", reason="parked_by_handler")
    for number in range(2):
        frozen = {"reason": "parked_by_handler", "error": "", "detail": f"The account of C-{number} is frozen."}
        made.message(cause, business_key=f"PAY-{number}", **frozen)
    told = Page(previewed(page, group=cause.pk)).text

    assert "2 were parked by their handler on purpose, which may do so again" in told
    assert "PAY-0 “The account of C-0 is frozen.”" in told
    assert "Requeue 2 messages" in told


def test_a_preview_that_would_send_nothing_keeps_the_guard_for_the_next_one(page: Client) -> None:
    """It shows no terms of a run, but what is included next is a run all the same."""
    cause = made.group(reason="permanent")
    for _ in range(3):
        made.message(cause)
    nothing = previewed(page, group=cause.pk, canary=1)
    fixed = press(page, nothing, "Count again", fixed="1")
    _form, values = Page(fixed).form_with("Send one now")

    assert (values["guard"], values["stop_at"]) == ("1", "20")
    press(page, fixed, "Send one now")
    assert (RequeueRun.objects.get().stop_at, RequeueRun.objects.get().canary) == (20, True)


def test_many_messages_need_a_reason_and_more_need_their_number(page: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    cause = made.group()
    for _ in range(101):
        made.message(cause)
    preview = previewed(page, group=cause.pk)
    silent = press(page, preview, "Requeue 101 messages")
    monkeypatch.setattr("django_rmq_retry.admin.requeue_form.TYPED_FROM", 100)
    wrong = press(page, previewed(page, group=cause.pk), "Requeue 101 messages", reason="INC-5", typed="100")
    right = press(page, wrong, "Requeue 101 messages", typed="101")

    assert (silent.status_code, wrong.status_code) == (422, 422)
    assert "Enter a reason: it is required for more than 100 messages." in Page(silent).text
    assert "Type 101 to confirm the number of messages." in Page(wrong).text
    assert right.redirect_chain
    assert RequeueRun.objects.get().reason == "INC-5"


def test_sending_one_first_starts_a_run_that_waits_for_it(page: Client, sent: list[Message]) -> None:
    cause = made.group()
    for _ in range(3):
        made.message(cause)
    preview = previewed(page, group=cause.pk, canary=1)
    run_page = press(page, preview, "Send one now, the other 2 after it was processed")
    driven = press(page, run_page, "Continue here")

    assert RequeueRun.objects.get().canary
    assert len(sent) == 1
    assert "One message was sent. The others follow when it has been processed." in Page(driven).text


@pytest.mark.parametrize(
    ("button", "state", "said"),
    [
        ("Pause", RunState.PAUSED, "Paused"),
        ("Slow to 5", RunState.RUNNING, "5 per"),
    ],
)
def test_a_run_is_controlled_by_its_buttons(page: Client, button: str, state: str, said: str) -> None:
    run_page = press(page, previewed(page, message=made.message().pk), "Requeue 1 message")
    after = press(page, run_page, button)

    assert RequeueRun.objects.get().state == state
    assert said in Page(after).text
    assert OperatorAction.objects.count() == 2


def test_a_run_that_is_paused_keeps_what_it_has_not_sent_until_it_is_stopped(page: Client) -> None:
    run = requeue_run([made.message().pk], reason="x")
    run_steering.pause_run(run.pk, BOB)
    asked = page.get(f"/admin/rmq_retry/requeuerun/{run.pk}/control/?action=stop")

    assert "1 message was not sent and stays parked." in Page(asked).text
    assert "until you press Stop" not in Page(asked).text


def test_a_run_is_stopped_on_a_page_that_asks_for_the_reason(page: Client) -> None:
    run_page = press(page, previewed(page, message=made.message().pk), "Requeue 1 message")
    asked = opened(page, run_page, "Stop…")
    assert RequeueRun.objects.get().state == RunState.RUNNING
    assert "About 1 message is not sent yet; sending goes on until you press Stop." in Page(asked).text
    refused = press(page, asked, "Stop requeue run", reason=" ")
    assert (refused.status_code, RequeueRun.objects.get().state) == (422, RunState.RUNNING)
    stopped = press(page, asked, "Stop requeue run", reason="wrong ones")

    assert RequeueRun.objects.get().state == RunState.STOPPED
    assert "wrong ones" in Page(stopped).text
    assert OperatorAction.objects.order_by("-number")[0].reason == "wrong ones"


def test_after_a_failed_canary_another_one_goes_first_and_the_rest_without_a_test_needs_a_reason(
    page: Client, sent: list[Message]
) -> None:
    cause = made.group()
    for _ in range(3):
        made.message(cause)
    preview = previewed(page, group=cause.pk, canary=1)
    run_page = press(page, preview, "Send one now, the other 2 after it was processed")
    run = drive_run(RequeueRun.objects.get(), for_seconds=0.3)
    item = run.items.get(place=1)
    copy_failed(item.message_id, item.cycle)
    drive_run(run)
    driven = page.get(run_page.request["PATH_INFO"])
    shown = Page(driven)
    again = opened(page, driven, "Send one again, the other one after it was processed…")
    untested = opened(page, driven, "Resume without a test…")
    refused = press(page, untested, "Resume requeue run")
    pressed = press(page, again, "Send one again, the other one after it was processed")

    main = [given["href"] for tag, given in shown.tags if tag == "a" and "rmq-main" in given.get("class", "")]
    assert main == [shown.links["Send one again, the other one after it was processed…"]]
    assert "Speed up" not in shown.text, "what has just failed is not to be sent faster"
    assert "The test message failed again." in Page(untested).text
    assert refused.status_code == 422
    assert pressed.status_code == 200
    run = drive_run(run, for_seconds=0.3)
    assert (run.awaits_canary, run.unsent, len(sent)) == (True, 1, 2)


def test_a_paused_run_sends_nothing_until_it_is_resumed(page: Client, sent: list[Message]) -> None:
    run_page = press(page, previewed(page, message=made.message().pk), "Requeue 1 message")
    paused = press(page, run_page, "Pause")
    run = RequeueRun.objects.get()
    page.post(f"/admin/rmq_retry/requeuerun/{run.pk}/send/")
    before = len(sent)
    resumed = press(page, opened(page, paused, "Resume…"), "Resume requeue run")
    press(page, resumed, "Continue here")

    assert (before, len(sent)) == (0, 1)


def test_the_page_reports_that_another_operator_was_faster(page: Client) -> None:
    run_page = press(page, previewed(page, message=made.message().pk), "Requeue 1 message")
    press(page, opened(page, run_page, "Stop…"), "Stop requeue run", reason="wrong ones")
    late = press(page, run_page, "Pause")

    assert "Nothing was changed." in Page(late).text


def test_the_script_receives_the_changed_part_of_the_page(page: Client, sent: list[Message]) -> None:
    press(page, previewed(page, message=made.message().pk), "Requeue 1 message")
    run = RequeueRun.objects.get()
    shown = page.get(f"/admin/rmq_retry/requeuerun/{run.pk}/change/?fragment=1")
    driven = page.post(f"/admin/rmq_retry/requeuerun/{run.pk}/send/?fragment=1")

    assert b"<html" not in shown.content
    assert b"data-rmq-send" in shown.content
    assert b"<html" not in driven.content
    assert len(sent) == 1


def test_only_the_page_of_its_starter_drives_a_run(page: Client) -> None:
    press(page, previewed(page, message=made.message().pk), "Requeue 1 message")
    run = RequeueRun.objects.get()
    other = client_of(made.person("other", "view_requeuerun", "requeue"))
    seen = other.get(f"/admin/rmq_retry/requeuerun/{run.pk}/change/")

    assert b"data-rmq-send" not in seen.content
    assert b"Continue here" in seen.content


def test_a_planned_run_with_a_test_says_so_on_its_button(page: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    made.broker_seen(monkeypatch, away="connection refused")
    cause = made.group()
    for _ in range(2):
        made.message(cause)
    preview = previewed(page, group=cause.pk, canary=1)
    press(page, preview, "Send one when the broker is back, the others after it was processed")
    run = RequeueRun.objects.get()

    assert (run.state, run.canary) == (RunState.PLANNED, True)


def test_the_preview_without_a_broker_offers_to_plan_the_run(page: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    made.broker_seen(monkeypatch, away="connection refused")
    preview = previewed(page, message=made.message().pk)
    planned = press(page, preview, "Start when the broker is back")

    assert "No connection to the broker (" in Page(preview).text
    with pytest.raises(AssertionError, match="no button says 'Requeue"):
        Page(preview).form_with("Requeue 1 message")
    assert RequeueRun.objects.get().state == RunState.PLANNED
    assert "Starts when the broker is back" in Page(planned).text


def test_the_failed_messages_of_a_run_are_selected_by_one_button(page: Client) -> None:
    press(page, previewed(page, message=made.message().pk), "Requeue 1 message")
    run = RequeueRun.objects.get()
    RequeueItem.objects.update(state=ItemState.FAILED)
    RequeueRun.objects.update(failed=1, sent=1)
    shown = page.get(f"/admin/rmq_retry/requeuerun/{run.pk}/change/")
    preview = page.get(Page(shown).links["Requeue the 1 that failed again…"], follow=True)
    token = parse_qs(urlsplit(preview.redirect_chain[-1][0]).query)["sel"][0]

    assert "Requeue 1 message" in Page(preview).text
    assert Selection.read(token).filter["failed_of_run"] == run.pk


def test_what_a_stopped_run_has_not_sent_is_requeued_by_one_button(page: Client) -> None:
    """An operator had to find the group again, and the rest in it."""
    cause = made.group()
    first, second, other = (made.message(cause) for _ in range(3))
    run = requeue_run([first.pk, second.pk], reason="x")
    before = page.get(f"/admin/rmq_retry/requeuerun/{run.pk}/change/")
    run_steering.stop_run(run.pk, BOB, reason="wrong rate")
    discard_messages([first.pk])
    shown = page.get(f"/admin/rmq_retry/requeuerun/{run.pk}/change/")
    preview = page.get(Page(shown).links["Requeue the 1 that were not sent…"], follow=True)
    token = parse_qs(urlsplit(preview.redirect_chain[-1][0]).query)["sel"][0]

    assert "not sent…" not in Page(before).text
    assert list(Selection.read(token).queryset()) == [second]
    assert other.open


def test_what_a_later_run_has_sent_is_no_longer_what_the_stopped_one_has_not(page: Client) -> None:
    """Weeks later its page still offered "the 2 that were not sent": another run had sent one, which failed again."""
    cause = made.group()
    first, second = (made.message(cause) for _ in range(2))
    run = requeue_run([first.pk, second.pk], reason="x")
    run_steering.stop_run(run.pk, BOB, reason="wrong rate")
    later = requeue_run([first.pk], reason="x")
    later.items.update(state=ItemState.FAILED, sent_at=timezone.now())
    RequeueRun.objects.filter(pk=later.pk).update(state=RunState.FINISHED, sent=1, failed=1)
    shown = Page(page.get(f"/admin/rmq_retry/requeuerun/{run.pk}/change/"))
    preview = page.get(shown.links["Requeue the 1 that were not sent…"], follow=True)

    assert preview.context["report"].total == 1
    assert f"Requeue run {run.pk} was stopped by {BOB.name} (wrong rate), 1 of these not sent." in Page(preview).text
    assert "Now: 2 Parked . Sent later by: " in shown.text
    assert shown.links[f"Requeue run {later.pk}"] == f"/admin/rmq_retry/requeuerun/{later.pk}/change/"


def test_the_page_of_a_group_names_a_stopped_run_and_what_it_has_not_sent(page: Client) -> None:
    """Nothing but the page of the run said that a part of the group was left behind."""
    cause, other = made.group(), made.group()
    mine = [made.message(cause).pk for _ in range(3)]
    theirs = made.message(other).pk
    run = requeue_run([*mine, theirs], reason="x")
    group = f"/admin/rmq_retry/errorgroup/{cause.pk}/change/"
    before = Page(page.get(group)).text
    run_steering.stop_run(run.pk, BOB, reason="five were paid by phone")
    discard_messages(mine[:1])
    shown = Page(page.get(group))
    preview = Page(page.get(shown.links["Requeue 2…"], follow=True)).text
    discard_messages(mine[1:])
    after = Page(page.get(group)).text

    said = f"Requeue run {run.pk} was stopped by {BOB.name} (five were paid by phone), 2 of these not sent."
    assert shown.links[said] == f"/admin/rmq_retry/requeuerun/{run.pk}/change/"
    assert said in preview
    assert "was stopped" not in before + after
    assert said.replace("2 of", "1 of") in Page(page.get(f"/admin/rmq_retry/errorgroup/{other.pk}/change/")).text


def test_a_run_that_left_many_behind_is_named_without_a_number(page: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(items, "MOST_UNSENT_COUNTED", 1)
    cause = made.group()
    run = requeue_run([made.message(cause).pk for _ in range(2)], reason="x")
    run_steering.stop_run(run.pk, BOB, reason="wrong rate")
    shown = Page(page.get(f"/admin/rmq_retry/errorgroup/{cause.pk}/change/"))

    card = Page(page.get("/admin/rmq_retry/errorgroup/"))
    discard_messages(list(run.parts.values_list("message", flat=True)))
    made.message(cause, parked_at=timezone.now())
    after = Page(page.get("/admin/rmq_retry/errorgroup/")).text

    said = f"Requeue run {run.pk} was stopped by {BOB.name} (wrong rate), and many were not sent."
    assert said in shown.links
    assert said in card.links
    # What is parked now is younger than the run.
    assert "was stopped" not in after


def test_cards_and_the_live_status_name_a_stopped_run_with_its_reason(page: Client) -> None:
    cause, other = made.group(title="BankDown"), made.group(title="Once")
    mine = [made.message(cause).pk for _ in range(3)]
    run = requeue_run([*mine, made.message(other).pk], reason="x")
    before = Page(page.get("/admin/rmq_retry/livestatus/")).text
    run_steering.stop_run(run.pk, BOB, reason="some were paid by phone")
    cards = Page(page.get("/admin/rmq_retry/errorgroup/")).text
    live = Page(page.get("/admin/rmq_retry/livestatus/"))
    discard_messages(mine)
    after = Page(page.get("/admin/rmq_retry/livestatus/")).text

    said = f"Requeue run {run.pk} was stopped by {BOB.name} (some were paid by phone)"
    assert "was stopped" not in before
    assert f"{said}, 3 of these not sent." in cards
    assert f"{said}, 1 of these not sent." in cards
    assert "; 1 Once. " in live.text
    assert (
        f"BankDown: payments.main 3. Once: payments.main 1. {said}, and 4 of its parked messages were not sent."
        in live.text
    )
    assert live.links[f"Open requeue run {run.pk}"] == f"/admin/rmq_retry/requeuerun/{run.pk}/change/"
    assert f"{said}, and 1 of its parked messages was not sent. " in after


def test_of_two_stopped_runs_over_the_same_messages_the_earlier_one_says_so(page: Client) -> None:
    """Both were named with their numbers, whose sum was more than what is parked."""
    cause, other = made.group(title="BankDown"), made.group(title="Once")
    mine = [made.message(cause).pk for _ in range(3)]
    first = requeue_run([*mine, made.message(other).pk], reason="x")
    run_steering.stop_run(first.pk, BOB, reason="some were paid by phone")
    second = requeue_run(mine[:2], reason="y")
    run_steering.stop_run(second.pk, BOB, reason="wrong rate")
    cards, live = (Page(page.get(f"/admin/rmq_retry/{one}/")).text for one in ("errorgroup", "livestatus"))
    group = Page(page.get(f"/admin/rmq_retry/errorgroup/{cause.pk}/change/")).text

    one = f"Requeue run {first.pk} was stopped by {BOB.name} (some were paid by phone), "
    two = f"Requeue run {second.pk} was stopped by {BOB.name} (wrong rate), "
    also = "2 of them are among those of a later one."
    left = "of its parked messages were not sent."
    assert f"{two}and 2 {left} {one}and 4 {left} {also}" in live
    for text in (cards, group):
        assert f"{two}2 of these not sent." in text
        assert f"{one}3 of these not sent. {also}" in text
    assert cards.count(f"{one}1 of these not sent.") == 1
    assert cards.count(also) == 1


def test_while_a_run_has_to_send_them_the_next_step_is_to_open_it(page: Client) -> None:
    """A group whose messages were all in a colleague's paused run had "Requeue one" as its main button."""
    cause = made.group()
    one, _other = (made.message(cause) for _ in range(2))
    run = requeue_run([one.pk], reason="x")
    RequeueRun.objects.filter(pk=run.pk).update(state=RunState.PAUSED, wait=RunWait.GUARD, started_at=timezone.now())
    pages = [page.get(f"/admin/rmq_retry/errorgroup/{cause.pk}/change/"), page.get(address_of(one))]
    main = [[told for _tag, told in Page(shown).tags if "rmq-main" in told.get("class", "")] for shown in pages]

    assert [[one["href"] for one in some] for some in main] == [[f"/admin/rmq_retry/requeuerun/{run.pk}/change/"]] * 2
    assert "Requeue 2…" in Page(page.get("/admin/rmq_retry/errorgroup/")).links


def put_on_hold(messages: list[ParkedMessage]) -> None:
    hold(selected([one.pk for one in messages]), BOB, until=timezone.now() + timedelta(hours=1), reason="x")


def test_a_preview_of_what_is_in_a_colleagues_paused_run_leads_to_that_run(page: Client) -> None:
    """It promised to send all of them, and only a line above said that the run had them, too."""
    cause = made.group()
    run = requeue_run([made.message(cause).pk for _ in range(2)], reason="x")
    made.message(cause)
    RequeueRun.objects.filter(pk=run.pk).update(state=RunState.PAUSED, wait=RunWait.GUARD, started_at=timezone.now())
    paused = previewed(page, group=cause.pk, canary=1)

    assert main_of(paused) == [f"Open requeue run {run.pk}"]
    assert "2 of them are in a paused requeue run, too: the run that comes first sends them" in Page(paused).text


@pytest.mark.parametrize("why", ["permanent", "held", "sent"])
def test_where_all_are_left_out_for_one_reason_the_main_button_ends_it(page: Client, why: str) -> None:
    """The cure of a permanent error was a small tick in a row of text, and "Cancel" the only button."""
    cause = made.group(reason="permanent" if why == "permanent" else "retries_exhausted")
    messages = [made.message(cause) for _ in range(3)]
    run = requeue_run([one.pk for one in messages], reason="x") if why == "sent" else None
    if why == "held":
        put_on_hold(messages)
    shown = page.get(PREVIEW, {"sel": made.selected(*messages), "canary": "1"}, follow=True)
    main = {
        "permanent": "I fixed the cause: show what would be sent",
        "held": "Take 3 off hold…",
        "sent": f"Open requeue run {run.pk if run else 0}",
    }[why]

    assert "Nothing to requeue of 3 messages" in Page(shown).text
    assert main_of(shown) == [main]
    if why == "permanent":
        assert main_of(press(page, shown, main)) == ["Send one now, the other 2 after it was processed"]
    else:
        assert opened(page, shown, main).status_code == 200


def long_parked(count: int, **fields: Any) -> list[ParkedMessage]:
    """Messages of one cause that has not failed for hours, so nothing but a choice asks for a test."""
    then = timezone.now() - timedelta(hours=5)
    cause = made.group(last_seen=then, reason=fields.get("reason", "retries_exhausted"))
    return [made.message(cause, parked_at=then, **fields) for _ in range(count)]


@pytest.mark.parametrize("why", ["permanent", "worker_stopped", "held"])
def test_what_a_check_had_left_out_is_tested_with_one_message_first(page: Client, why: str) -> None:
    """After "Requeue all" of a group and "I fixed the cause" the main button sent all of them at once."""
    reason = {"permanent": "permanent", "worker_stopped": "worker_stopped", "held": "retries_exhausted"}[why]
    messages = long_parked(3, reason=reason)
    if why == "held":
        put_on_hold(messages[:2])
    everything = Selection.of_filter({"group": messages[0].group_id}).token()
    shown = page.get(PREVIEW, {"sel": everything}, follow=True)
    button = "I fixed the cause: show" if why == "permanent" else "Include anyway"

    assert main_of(press(page, shown, button)) == ["Send one now, the other 2 after it was processed"]


def test_what_shares_a_business_key_needs_no_test_to_be_sent_together(page: Client) -> None:
    cause = long_parked(3, business_key="CUST-7")[0].group_id
    together = press(page, previewed(page, group=cause), "Send them together")

    assert main_of(together) == ["Requeue 3 messages"]


def test_the_preview_of_one_message_tells_all_reasons_to_leave_it_out_at_once(page: Client) -> None:
    """It told the hold, with a blue button that ends it; that a worker had perhaps done it stood on the next page."""
    one = made.message(business_key="PAY-7", reason="worker_stopped", unconfirmed=True, version=2)
    put_on_hold([one])
    preview = previewed(page, message=one.pk)
    included = press(page, preview, "Include anyway 1 is on hold")
    reasons = ["on_hold", "unconfirmed", "worker_stopped"]

    assert [finding.name for finding in preview.context["report"].findings] == reasons
    assert all(finding.left_out for finding in preview.context["report"].findings)
    assert [finding.name for finding in included.context["report"].findings] == reasons
    assert main_of(preview) == []
    assert ">Nothing to requeue: PAY-7</h1>" in preview.content.decode()
    assert "Examples" not in Page(preview).text


def test_the_title_of_a_preview_counts_what_was_chosen_and_what_goes(page: Client) -> None:
    """Of 14 ticked ones it said "Requeue 12 messages" above a button "Requeue 8 messages"."""
    cause = made.group()
    messages = [made.message(cause, business_key=f"PAY-{number}") for number in range(4)]
    put_on_hold(messages[:1])
    preview = page.get(PREVIEW, {"sel": made.selected(*messages)}, follow=True)
    less = press(page, preview, "Leave these out", **{"except": "PAY-3"})

    assert ">Requeue 2 of 4 messages</h1>" in less.content.decode()
    assert main_of(less) == ["Send one now, the other one after it was processed"]


def test_without_a_broker_the_main_button_is_the_one_that_works(page: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    made.broker_seen(monkeypatch, away="connection refused")
    cause = made.group()
    for _ in range(2):
        made.message(cause)

    assert main_of(previewed(page, group=cause.pk, canary=1)) == [
        "Send one when the broker is back, the others after it was processed"
    ]


def test_a_run_that_paused_itself_is_named_with_its_cause_on_card_and_group(page: Client) -> None:
    cause = made.group()
    run = requeue_run([made.message(cause).pk for _ in range(2)], reason="x")
    RequeueRun.objects.filter(pk=run.pk).update(state=RunState.PAUSED, wait=RunWait.GUARD, started_at=timezone.now())
    card = Page(page.get("/admin/rmq_retry/errorgroup/")).text
    group = Page(page.get(f"/admin/rmq_retry/errorgroup/{cause.pk}/change/")).text
    live = Page(page.get("/admin/rmq_retry/livestatus/")).text

    why = "More messages failed again than the requeue run allows."
    assert f"is paused with messages of this group. {why}" in card
    assert f"is paused with 2 of these. {why}" in group
    # Nothing else says since when.
    assert f"2 messages not sent yet. Since {minute(timezone.now())[:2]}" in live


@pytest.mark.parametrize("most", [1000, 1])
def test_a_later_run_hides_a_stopped_one_only_for_the_messages_that_it_sends(
    page: Client, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """While any run had some of them, the reason of the stop was nowhere, and the others were sent without it."""
    monkeypatch.setattr(items, "MOST_UNSENT_COUNTED", most)
    cause = made.group()
    mine = [made.message(cause).pk for _ in range(3)]
    stopped = requeue_run(mine, reason="x")
    run_steering.stop_run(stopped.pk, BOB, reason="some were paid by phone")
    addresses = (f"errorgroup/{cause.pk}/change/", f"requeuerun/preview/?group={cause.pk}", "errorgroup/")
    run = requeue_run(mine[:1], reason="y")
    some = [Page(page.get(f"/admin/rmq_retry/{one}", follow=True)).text for one in addresses]
    run_steering.stop_run(run.pk, BOB, reason="")
    requeue_run(mine, reason="z")
    every = [Page(page.get(f"/admin/rmq_retry/{one}", follow=True)).text for one in addresses]

    said = f"Requeue run {stopped.pk} was stopped by {BOB.name} (some were paid by phone), "
    said += "2 of these not sent." if most > 1 else "and many"
    assert [said in one for one in some] == [True] * 3
    assert ["was stopped" in one for one in every] == [False] * 3


def test_a_page_of_a_group_keeps_one_main_button_and_the_lesser_ones_in_a_menu(page: Client, settings: Any) -> None:
    operating(settings, EDITABLE={"payment.*": True})
    cause = made.group()
    for _ in range(2):
        made.message(cause)
    shown = page.get(f"/admin/rmq_retry/errorgroup/{cause.pk}/change/")
    content = shown.content.decode()

    assert [one.label for one in shown.context["buttons"]] == [
        *("Requeue one, then the others…", "Requeue 2…", "Note…", "Discard 2…")
    ]
    assert [one.label for one in shown.context["menu"]] == ["Hold…", "Edit 2…"]
    assert content.count('id="rmq-actions"') == 1
    assert content.count("rmq-main") == 1


@pytest.mark.parametrize(
    ("state", "offered"),
    [
        ({"unconfirmed": True}, False),
        ({"discarded_at": timezone.now()}, False),
        ({"queue": "gone"}, False),
        ({"reason": "permanent"}, True),
    ],
    ids=["unconfirmed", "arrived again", "unhandled", "permanent"],
)
def test_the_page_of_a_group_offers_to_send_one_first_only_if_one_would_be_sent(
    page: Client, state: dict[str, Any], offered: bool
) -> None:
    cause = made.group()
    for _ in range(2):
        made.message(cause, **state)
    shown = page.get(f"/admin/rmq_retry/errorgroup/{cause.pk}/change/")

    assert ("Requeue one, then the others…" in Page(shown).links) == offered
    assert shown.content.decode().count("rmq-main") == offered
    assert "Requeue 2…" in Page(shown).links


def test_the_page_of_a_group_offers_to_send_one_first_only_if_one_is_no_copy(page: Client) -> None:
    """All others are copies of a message that was processed, so a requeue would leave all of them out."""
    cause, alike = made.group(), {"content": 7, "has_siblings": True}
    for _ in range(2):
        made.message(cause, **alike)
    address = f"/admin/rmq_retry/errorgroup/{cause.pk}/change/"
    first = Page(page.get(address)).links
    made.message(made.group(title="other"), state=State.PROCESSED, **alike)
    none = Page(page.get(address)).links
    made.message(cause)
    other = Page(page.get(address)).links

    assert ["Requeue one, then the others…" in links for links in (first, none, other)] == [True, False, True]


def test_what_a_stopped_run_has_not_sent_is_counted_up_to_a_limit(
    page: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page took 17 s for 2,990 messages of a database without statistics, and asks for them every second."""
    for module in (items, runs):
        monkeypatch.setattr(module, "MOST_UNSENT_COUNTED", 1)
    numbers = [made.message().pk for _ in range(3)]
    run = requeue_run(numbers, reason="x")
    run_steering.stop_run(run.pk, BOB, reason="wrong rate")
    # What was counted up to the limit would leave the third one without a button.
    discard_messages(numbers[:2])
    shown = page.get(f"/admin/rmq_retry/requeuerun/{run.pk}/change/")
    preview = page.get(Page(shown).links["Requeue those that were not sent…"], follow=True)

    assert "Requeue 1 message" in Page(preview).text


def test_the_list_of_runs_shows_the_result_of_each(page: Client) -> None:
    empty = page.get("/admin/rmq_retry/requeuerun/")
    press(page, previewed(page, message=made.message().pk), "Requeue 1 message")
    full = page.get("/admin/rmq_retry/requeuerun/")

    assert "Nothing was requeued yet." in Page(empty).text
    assert "Sending" in Page(full).text
    assert "Reason \N{EN DASH}" in Page(full).text


@pytest.mark.parametrize("role", [Role.QUARANTINE, Role.PARKED, Role.WAITING])
def test_an_internal_queue_is_refused_as_a_target(page: Client, sent: list[Message], role: Role) -> None:
    @handler("ledger.post", policy=RetryThenPark(attempts=2, backoff=Fixed(10)))
    def post(message: Delivery) -> None:
        """Nothing."""

    queue = next(name for name, one in registry.topology().queues.items() if one.role is role)
    preview = previewed(page, message=made.message().pk)
    started = press(page, preview, "Requeue 1 message", target=queue)

    assert list(preview.context["targets"]) == ["payments.main", "ledger.post"]
    assert started.status_code == 422
    assert f"'{queue}' is not a declared queue." in Page(started).text
    assert sent == []


@pytest.mark.parametrize("address", ["requeuerun/preview", "parkedmessage/discard", "parkedmessage/hold"])
def test_a_page_that_asks_shows_the_oldest_keys_unfolded(page: Client, address: str) -> None:
    cause, now = made.group(), timezone.now()
    some = [
        made.message(cause, business_key=f"PAY-{number:02}", parked_at=now - timedelta(hours=1, minutes=-number))
        for number in range(12)
    ]
    content = page.get(f"/admin/rmq_retry/{address}/", {"sel": made.selected(*some)}).content.decode()
    seen, _summary, folded = content.partition("The 10 oldest")[2].partition("<details>")

    assert [*re.findall(r"PAY-\d\d", seen)] == [f"PAY-{number:02}" for number in range(10)]
    assert "The next 2" in folded
    assert [*re.findall(r"PAY-\d\d", folded)] == ["PAY-10", "PAY-11"]
