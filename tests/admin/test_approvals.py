"""Four eyes in the admin: who asks, who approves, what the second person sees, and what nobody sees."""

import re
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db.models import F
from django.test import Client
from django.utils import timezone
from django.utils.translation import override

from django_rmq_retry import Message
from django_rmq_retry.admin import runs
from django_rmq_retry.breakers.table import BreakerTable, states
from django_rmq_retry.health.rules import Code
from django_rmq_retry.models import (
    ApprovalRequest,
    GatedAct,
    ItemReason,
    MessageVersion,
    OperatorAction,
    ParkedMessage,
    QueueControl,
    RequestState,
    RequeueRun,
    State,
)
from django_rmq_retry.parked import key_lists
from django_rmq_retry.parked.actions import discard, hold, restore, unhold
from django_rmq_retry.parked.approvals import approve, empty_ended, mark
from django_rmq_retry.parked.edit import propose, store
from django_rmq_retry.parked.operators import Actor, Outdated
from django_rmq_retry.parked.selection import EXCEPT, Selection
from django_rmq_retry.policies.breaker import CLOSED
from tests.admin import made
from tests.admin.conftest import QUEUE, client_of, is_north
from tests.admin.looking import Page, follow, main_of, press
from tests.admin.stopped import trip
from tests.commands.running import run
from tests.operators.driving import Clock, Targets
from tests.operators.made import driver_of, requeue_run
from tests.operators.second_person import MAY, actor_of, needing_second_person
from tests.tooling.marks import NIGHTLY_BUT_ON_SQLITE

pytestmark = [pytest.mark.django_db, pytest.mark.database, *NIGHTLY_BUT_ON_SQLITE]
ADMIN = "/admin/rmq_retry/"
REQUESTS = f"{ADMIN}approvalrequest/"
LOOKS = ("view_approvalrequest", "view_requeuerun", "view_operatoraction", "view_all_operatoraction", "view_livestatus")
ALL = (*MAY, *LOOKS, "view_queuecontrol")
HOSTILE = "<script>alert(1)</script>\0\u202e"
Asking = Callable[[Client], str]
"""Asks for an act on the pages for it, and returns the address of the page that follows."""


@pytest.fixture(autouse=True)
def four_eyes(settings: Any) -> None:
    needing_second_person(settings)


@pytest.fixture
def ann() -> User:
    return made.person("ann", *ALL)


@pytest.fixture
def bob() -> User:
    return made.person("bob", *ALL)


def place(response: Any) -> str:
    return str(response.request["PATH_INFO"])


def two() -> list[ParkedMessage]:
    """Two messages whose cause is over: while it lasts, a preview sends one first."""
    cause, parked_at = made.group(), timezone.now() - timedelta(hours=1)
    return [made.message(cause, business_key=f"PAY-{number}", parked_at=parked_at) for number in (1, 2)]


def discarding(client: Client) -> str:
    page = client.get(f"{ADMIN}parkedmessage/discard/", {"sel": made.selected(*two())})
    return place(press(client, page, "Ask for approval", category="duplicate"))


def requeueing(client: Client) -> str:
    page = client.get(f"{ADMIN}requeuerun/preview/", {"sel": made.selected(*two())})
    return place(press(client, page, "Ask for approval", start="now", reason="the bank is back", rate="7"))


def editing(client: Client) -> str:
    one = two()[0]
    page = client.get(f"{ADMIN}parkedmessage/{one.pk}/edit/")
    text = page.context["text"].replace("100.00", "99.00")
    review = press(client, page, "Review the changes", text=text, reason="wrong amount")
    return place(press(client, review, "Ask for approval"))


def editing_many(client: Client) -> str:
    page = client.get(f"{ADMIN}parkedmessage/edit/", {"sel": made.selected(*two())})
    shown = press(client, page, "Preview each result", path="amount", act="set", value="99.00")
    return place(press(client, shown, "Ask for approval", reason="wrong amount"))


def closing(client: Client) -> str:
    trip(QUEUE, wait=300)
    form = {"queue": [QUEUE], "action": "resume", "reason": "the bank is back"}
    return place(client.post(f"{ADMIN}queuecontrol/change_state/", form, follow=True))


def done() -> dict[str, bool]:
    """What was done of all that could be asked for."""
    return {
        "discarding": ParkedMessage.objects.filter(state=State.DISCARDED).count() == 2,
        "requeueing": RequeueRun.objects.filter(rate=7, total=2).exists(),
        "editing": MessageVersion.objects.count() == 1,
        "editing_many": MessageVersion.objects.count() == 2,
        "closing": not states([QUEUE])[QUEUE].circuit.opened,
    }


ACTS = ("Discard", "Requeue", "Edit", "Send one now", "Store")
"""How a button begins that acts at once."""
WHAT_IS_DONE = {
    "discarding": "2 messages will be discarded: no requeue sends them.",
    "requeueing": "2 messages are sent.",
    "editing": "99.00",
    "editing_many": "99.00",
    "closing": "The breaker is closed and the queue is consumed again.",
}
WHAT_IS_ASKED = {
    "discarding": "Discard 2 messages .",
    "requeueing": "Requeue 2 messages .",
    "editing": "Edit PAY-1 ( amount: 100.00 → 99.00 ).",
    "editing_many": "Edit 2 messages ( amount = 99.00 ).",
}
BECAME = {
    "discarding": "Approved: 2 discarded",
    "requeueing": "Approved: Sending, 0 of 2 sent, 0 processed, 0 failed again",
    "editing": "Approved: stored, not sent yet",
    "editing_many": "Approved: 2 stored, not sent yet",
    "closing": "Approved: breaker closed",
}
"""What the list says of approved acts."""
each_act = pytest.mark.parametrize("asking", [discarding, requeueing, editing, editing_many, closing])


@pytest.mark.parametrize("asking", [editing, editing_many])
def test_an_approved_edit_leads_to_the_requeue_that_is_still_to_be_done(asking: Asking, ann: User, bob: User) -> None:
    asking(client_of(ann))
    second = client_of(bob)
    approved = press(second, second.get(f"{REQUESTS}{ApprovalRequest.objects.get().pk}/change/"), "Approve")

    assert "The change is stored, and nothing is sent yet." in Page(approved).text
    assert place(approved).startswith(f"{ADMIN}requeuerun/preview/")


def test_a_request_to_close_a_breaker_ends_once_the_breaker_has_closed_by_itself(ann: User, bob: User) -> None:
    """It waited until it expired, and Live status counted it all day."""
    asked = closing(client_of(ann))
    lead = client_of(made.person("lead", superuser=True))
    before = Page(lead.get(f"{ADMIN}livestatus/")).text
    other = ApprovalRequest.objects.create(
        act=GatedAct.CLOSE_BREAKER, subject="other", wish="{}", by="ann", asked_at=timezone.now(),
        expires_at=timezone.now() + timedelta(days=1),
    )  # fmt: skip
    queue = ApprovalRequest.objects.exclude(pk=other.pk).get().subject
    BreakerTable().put(queue, CLOSED, "host:1")
    request = ApprovalRequest.objects.exclude(pk=other.pk).get()
    shown, listed = Page(client_of(bob).get(asked)), Page(client_of(bob).get(f"{ADMIN}approvalrequest/")).text
    other.delete()
    after = Page(lead.get(f"{ADMIN}livestatus/")).text

    assert (request.state, other.state) == (RequestState.OVER, RequestState.WAITING)
    assert ("for a second person" in before, "for a second person" in after) == (True, False)
    assert "The breaker closed by itself, " in shown.text
    assert "before anybody had decided. Nothing was done." in shown.text
    assert not [words for form in shown.forms for _name, _value, words in form.buttons if words.startswith("Approve")]
    assert "Over: the breaker closed by itself" in listed
    with pytest.raises(Outdated, match="the breaker closed by itself"):
        approve(request.pk, Actor(name="bob", user_id=bob.pk))


@each_act
def test_a_button_asks_and_a_second_person_approves(asking: Asking, ann: User, bob: User) -> None:
    name = asking.__name__
    asked = asking(client_of(ann))
    own = client_of(ann).get(asked)
    before = done()[name]
    second = client_of(bob)
    status = second.get(f"{ADMIN}livestatus/")
    there = next(link for words, link in Page(status).links.items() if words.startswith("Open the request"))
    page = second.get(there)
    approved = press(second, page, "Approve", remark="seen")
    lists = Page(second.get(REQUESTS)).text

    assert asked == there == f"{REQUESTS}{ApprovalRequest.objects.get().pk}/change/"
    assert "You asked for this yourself." in Page(own).text
    assert "1 request has waited for a second person" in Page(status).text
    assert WHAT_IS_DONE[name] in Page(page).text
    assert (before, approved.status_code, done()[name]) == (False, 200, True)
    assert "is approved." in Page(approved).text
    assert BECAME[name] in lists
    assert "Nothing waits for a second person." in lists


@pytest.mark.parametrize(
    ("asking", "what"), [(discarding, "Discard 2 messages"), (requeueing, "Requeue 2 messages"), (closing, "Close a")]
)
def test_title_and_button_say_what_is_done_and_only_a_second_person_remarks(
    asking: Asking, what: str, ann: User, bob: User
) -> None:
    asked = asking(client_of(ann))
    own, others = (Page(client_of(user).get(asked)) for user in (ann, bob))

    assert f"{ApprovalRequest.objects.get()}: {what}" in others.text
    assert others.form_with(f"Approve: {what}")
    assert ("Remark" in own.text, "Remark" in others.text) == (False, True)
    assert "Approval requests" in others.links


@pytest.mark.parametrize("asking", [discarding, requeueing])
def test_the_second_person_types_a_large_number_too(
    asking: Asking, ann: User, bob: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asking(client_of(ann))
    monkeypatch.setattr("django_rmq_retry.admin.requeue_form.TYPED_FROM", 1)
    second = client_of(bob)
    refused = press(second, second.get(asked), "Approve", typed="3")
    before = done()[asking.__name__]
    approved = press(second, refused, "Approve", typed="2")

    assert (refused.status_code, before) == (422, False)
    assert "Type 2 to confirm the number of messages." in Page(refused).text
    assert (approved.status_code, done()[asking.__name__]) == (200, True)
    assert "Type 2 to confirm" not in Page(client_of(ann).get(asked)).text


@each_act
def test_the_page_before_says_that_a_second_person_is_needed(asking: Asking, ann: User, settings: Any) -> None:
    client, seen, asks = client_of(ann), [], []
    pages = {
        "discarding": "parkedmessage/discard",
        "requeueing": "requeuerun/preview",
        "editing_many": "parkedmessage/edit",
    }
    for limits in (settings.RMQ_RETRY["FOUR_EYES"], {"REQUEUE": 10**6}):
        settings.RMQ_RETRY = {**settings.RMQ_RETRY, "FOUR_EYES": limits}
        name = asking.__name__
        if name == "closing":
            page = client.get(f"{ADMIN}queuecontrol/")
        elif name == "editing":
            form = client.get(f"{ADMIN}parkedmessage/{two()[0].pk}/edit/")
            page = press(client, form, "Review the changes", text="{}", reason="r")
        else:
            page = client.get(f"{ADMIN}{pages[name]}/", {"sel": made.selected(*two())})
            if name == "editing_many":
                page = press(client, page, "Preview each result", path="amount", act="set", value="1")
        shown = Page(page)
        buttons = [words for form in shown.forms for _name, _value, words in form.buttons]
        seen.append("second person has to approve" in shown.text)
        asks.append(any(words.startswith("Ask for approval") for words in buttons))
        assert not (asks[-1] and any(words.startswith(ACTS) for words in buttons)), buttons

    assert seen == [True, False]
    # The button that resumes a queue does so where no breaker is open.
    assert asks == [name != "closing", False]


def test_a_breaker_that_closed_itself_leaves_nothing_to_approve(ann: User, bob: User) -> None:
    """The page offered to close it, the click was refused, and the request waited for a day."""
    first, second = client_of(ann), client_of(bob)
    asked = closing(first)
    waiting = Page(second.get(f"{ADMIN}queuecontrol/"))
    QueueControl.objects.update(opened=False)
    over, own = Page(second.get(asked)), Page(first.get(asked))
    freed = Page(second.get(f"{ADMIN}queuecontrol/"))

    number = ApprovalRequest.objects.get().pk
    link = f"Request {number} to close the breaker, by ann, waits for a second person."
    assert (waiting.links[link], "to close the breaker" in freed.text) == (asked, False)
    assert "The queue is consumed again: its breaker has closed since. Nothing is left to do." in over.text
    assert "Nothing of it is left to do. Reject it." in over.text
    assert "Nothing of it is left to do. Withdraw it." in own.text
    assert WHAT_IS_DONE["closing"] not in over.text


@each_act
def test_the_enter_key_in_the_remark_neither_approves_nor_rejects(asking: Asking, ann: User, bob: User) -> None:
    asked = asking(client_of(ann))
    second = client_of(bob)
    shown = second.get(asked)
    form = next(form for form in Page(shown).forms if "approve" in form.action)
    name, value, _words = form.buttons[0]
    again = second.post(form.action, {**form.values, name: value, "remark": "not yet"})

    assert [len([form for form in Page(shown).forms if "approvalrequest" in form.action])] == [1]
    assert 'value="not yet"' in again.content.decode()
    assert ApprovalRequest.objects.get().state == "waiting"


@each_act
def test_a_second_person_rejects_with_a_reason(asking: Asking, ann: User, bob: User) -> None:
    asked = asking(client_of(ann))
    second = client_of(bob)
    refused = press(second, second.get(asked), "Reject", remark=" ")
    rejected = press(second, second.get(asked), "Reject", remark="paid already")
    page = Page(client_of(ann).get(asked))
    late = second.post(f"{REQUESTS}{ApprovalRequest.objects.get().pk}/approve/")

    assert (rejected.status_code, late.status_code) == (200, 422)
    assert "Enter a reason" in Page(refused).text
    assert "paid already" in page.text
    assert "Rejected" in page.text
    assert [form for form in page.forms if "approve" in form.action] == []
    assert not done()[asking.__name__]


def test_an_own_request_cannot_be_approved_by_its_address_either(ann: User, page: Client, lead: User) -> None:
    for user, client in ((ann, client_of(ann)), (lead, page)):
        asked = discarding(client)
        answer = client.post(asked.replace("change", "approve"))
        withdrawn = press(client, client.get(asked), "Withdraw", remark="wrong ones")
        act, message = OperatorAction.objects.latest("pk"), ParkedMessage.objects.latest("pk")
        told = Page(client.get(f"{ADMIN}parkedmessage/{message.pk}/change/")).text

        # It was told as a rejection everywhere but on the page of the request.
        assert "is withdrawn. Nothing was done." in Page(withdrawn).text
        assert (act.get_action_display(), f"Withdrawn by {user}" in told) == ("Withdraw: Discard", True)
        assert (answer.status_code, "You asked for this yourself." in Page(answer).text) == (403, True)
        assert (withdrawn.status_code, ApprovalRequest.objects.latest("pk").decided_by) == (200, user.username)
    assert not done()["discarding"]


def test_both_names_are_told_of_the_run_of_the_message_and_in_the_audit_log(
    ann: User, bob: User, sent: list[Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "CLICK_SECONDS", 5.0)
    asked = requeueing(client_of(ann))
    second = client_of(bob)
    run = place(press(second, second.get(asked), "Approve"))
    page = second.get(run)
    press(second, page, "Continue here")
    one = ParkedMessage.objects.filter(state=State.REQUEUED).first()
    assert one is not None
    message = second.get(f"{ADMIN}parkedmessage/{one.pk}/change/")
    act = OperatorAction.objects.get(action="requeue")

    assert len(sent) == 2
    for shown in (page, second.get(run), message, second.get(f"{ADMIN}operatoraction/{act.pk}/change/")):
        assert "ann, approved by bob" in Page(shown).text
    assert "ann, approved by bob" in Page(second.get(f"{ADMIN}operatoraction/")).text


def test_the_second_person_ticks_the_doubtful_keys_too(ann: User, bob: User) -> None:
    some = two()
    keys = key_lists.store(["PAY-9"], actor_of(ann), key_lists.look_up(["PAY-9"]))
    chosen = Selection.of_filter({"group": some[0].group_id, "state": ["parked"], EXCEPT: key_lists.list_filter(keys)})
    request = made.asked(lambda actor: discard(chosen, actor, category="test"), actor_of(ann))
    second, there = client_of(bob), f"{REQUESTS}{request.pk}/change/"
    refused = press(second, second.get(there), "Approve")
    mark = refused.context["left"].mark
    approved = press(second, refused, "Approve", checked=mark)

    assert (refused.status_code, approved.status_code) == (422, 200)
    assert (
        "Check 1 key that matches no message, several, one elsewhere or on hold, and tick it: PAY-9."
        in Page(refused).text
    )
    assert done()["discarding"]


def test_a_request_shows_no_message_and_no_body_that_its_reader_may_not_see(ann: User, settings: Any) -> None:
    discarded, edited = discarding(client_of(ann)), editing(client_of(ann))
    reader = client_of(made.person("reader", "view_approvalrequest"))
    hidden = [Page(reader.get(one)).text for one in (discarded, edited, REQUESTS)]
    settings.RMQ_RETRY = {**settings.RMQ_RETRY, "OPERATORS": {"EDITABLE": {"*": True}, "PERMIT": is_north}}
    south = client_of(made.person("south", *ALL))
    hidden += [Page(south.get(one)).text for one in (discarded, edited, REQUESTS)]

    assert [text for text in hidden if "PAY-1" in text or "99.00" in text] == []
    assert "You need the permission" in hidden[1]


@each_act
def test_hostile_texts_are_shown_inert(asking: Asking, ann: User, bob: User, monkeypatch: pytest.MonkeyPatch) -> None:
    real = made.message
    monkeypatch.setattr(
        made, "message", lambda *args, **fields: real(*args, **{**fields, "business_key": HOSTILE.replace("\0", "")})
    )
    asked = asking(client_of(ann))
    ApprovalRequest.objects.update(by=HOSTILE.replace("\0", ""))
    second = client_of(bob)
    shown = [second.get(asked).content.decode(), second.get(REQUESTS).content.decode()]
    rejected = second.post(asked.replace("change", "reject"), {"remark": HOSTILE})
    shown += [second.get(asked).content.decode(), second.get(REQUESTS).content.decode()]

    assert (rejected.status_code, ApprovalRequest.objects.get().state) == (302, "rejected")
    assert [page for page in shown if "<script>alert" in page or "\u202e" in page] == []


def test_where_no_act_needs_a_second_person_the_index_does_not_name_it(page: Client, settings: Any) -> None:
    def named() -> bool:
        return "approvalrequest" in page.get(ADMIN).content.decode()

    used = named()
    settings.RMQ_RETRY = {name: value for name, value in settings.RMQ_RETRY.items() if name != "FOUR_EYES"}

    assert (used, named()) == (True, False)
    assert "In this project no act needs a second person" in Page(page.get(REQUESTS)).text


def test_requests_that_still_wait_are_listed_without_four_eyes(ann: User, page: Client, settings: Any) -> None:
    discarding(client_of(ann))
    settings.RMQ_RETRY = {name: value for name, value in settings.RMQ_RETRY.items() if name != "FOUR_EYES"}
    request = ApprovalRequest.objects.get()
    shown, status, index = (Page(page.get(address)) for address in (REQUESTS, f"{ADMIN}livestatus/", ADMIN))

    assert str(request) in shown.links
    assert "In this project no act needs a second person" not in shown.text
    assert "No act needs a second person any more (setting FOUR_EYES)." in shown.text
    assert f"{REQUESTS}{request.pk}/change/" in status.links.values()
    assert REQUESTS in index.links.values()


def test_what_was_asked_for_before_four_eyes_ended_is_still_decided_by_another(
    ann: User, page: Client, settings: Any
) -> None:
    own = client_of(ann)
    discarding(own)
    settings.RMQ_RETRY = {name: value for name, value in settings.RMQ_RETRY.items() if name != "FOUR_EYES"}
    address = f"{REQUESTS}{ApprovalRequest.objects.get().pk}"
    alone = own.post(f"{address}/approve/", {"seen": mark(ApprovalRequest.objects.get())})
    rejected = page.post(f"{address}/reject/", {"remark": "was paid already"})

    assert "Another person has to approve it." in Page(alone).text
    assert (rejected.status_code, ApprovalRequest.objects.get().state) == (302, "rejected")
    assert ParkedMessage.objects.filter(state="discarded").count() == 0
    assert "approvalrequest" not in page.get(ADMIN).content.decode()


def test_several_requests_are_one_finding(ann: User, page: Client) -> None:
    for asking in (discarding, requeueing):
        asking(client_of(ann))
    status = Page(page.get(f"{ADMIN}livestatus/"))

    assert "2 requests wait for a second person, the oldest for" in status.text
    assert status.links["Approval requests"] == REQUESTS


@pytest.mark.parametrize("asking", [discarding, requeueing, editing, editing_many])
def test_the_page_of_a_message_names_the_request_that_waits(asking: Asking, ann: User, bob: User) -> None:
    """A colleague who opens the message must not ask again, nor act against it."""
    asked = asking(client_of(ann))
    one, request = ParkedMessage.objects.order_by("pk")[0], ApprovalRequest.objects.get()
    second = client_of(bob)
    page = Page(second.get(f"{ADMIN}parkedmessage/{one.pk}/change/"))
    unasked = Page(second.get(f"{ADMIN}parkedmessage/{made.message().pk}/change/")).text
    press(second, second.get(asked), "Reject", remark="paid already")
    later = Page(second.get(f"{ADMIN}parkedmessage/{one.pk}/change/")).text

    assert f"ann asks for: {WHAT_IS_ASKED[asking.__name__]}" in page.text
    assert request.reason_in_words in page.text
    assert "It has waited for a second person since " in page.text
    assert page.links[f"Request {request.pk}"] == asked
    assert "asks for" not in unasked + later


def test_the_page_of_a_message_names_a_request_by_a_filter_for_its_members_only(ann: User, bob: User) -> None:
    some = two()
    chosen = Selection.of_filter({"group": some[0].group_id, "state": ["parked"]})
    made.asked(lambda actor: discard(chosen, actor, category="test"), actor_of(ann))
    later = made.message(some[0].group)
    named = [
        "ann asks for" in Page(client_of(bob).get(f"{ADMIN}parkedmessage/{one.pk}/change/")).text
        for one in (*some, later)
    ]

    assert named == [True, True, False]


@pytest.mark.parametrize("by_group", [True, False])
def test_group_card_and_preview_name_the_request_that_waits(ann: User, page: Client, *, by_group: bool) -> None:
    """Who requeues from there must know that a colleague has asked to discard them."""
    some = two()
    ours = {"group": some[0].group_id, "state": ["parked"]}
    chosen = Selection.of_filter(ours) if by_group else Selection.of_ids([one.pk for one in some])
    made.asked(lambda actor: discard(chosen, actor, category="test"), actor_of(ann))
    made.message(some[0].group)
    other = made.message(made.group(title="OtherError"))
    preview, group = f"{ADMIN}requeuerun/preview/?group=", f"{ADMIN}errorgroup/"
    places = [f"{group}{some[0].group_id}/change/", group, f"{preview}{some[0].group_id}"]
    texts = [Page(page.get(place, follow=True)).text for place in places]
    others = [f"{group}{other.group_id}/change/", f"{preview}{other.group_id}"]

    for text in texts:
        assert text.count("ann asks for: Discard 2 messages") == 1
        assert ". Test. It has waited for a second person since " in text
    assert not any("asks for" in Page(page.get(place, follow=True)).text for place in others)


def test_the_finding_on_parked_messages_names_the_request_that_is_to_discard_them(ann: User, page: Client) -> None:
    """ "A parked message waits for an operator" stood there, who had done all that one person can."""
    address = discarding(client_of(ann))
    editing(client_of(ann))
    before = Page(page.get(f"{ADMIN}livestatus/"))
    ApprovalRequest.objects.update(state=RequestState.REJECTED)
    after = Page(page.get(f"{ADMIN}livestatus/")).text

    [number] = [one.pk for one in ApprovalRequest.objects.filter(act=GatedAct.DISCARD)]
    assert f"Request {number} is to discard 2 of them." in before.text
    assert address in before.links.values()
    assert before.text.count("of them.") == 1
    assert "of them." not in after


def test_a_second_person_sees_what_the_author_saw_of_a_discard_and_a_link_to_the_cause(ann: User, bob: User) -> None:
    some = two()
    asked = client_of(ann).get(f"{ADMIN}parkedmessage/discard/?group={some[0].group_id}", follow=True)
    address = place(press(client_of(ann), asked, "Ask for approval", category="duplicate"))
    shown = Page(client_of(made.person("cleo", *ALL, "view_errorgroup")).get(address))
    without = Page(client_of(bob).get(address))

    effect = "2 messages will be discarded: no requeue sends them."
    summary = f"{effect} 2 business keys are affected. Their bodies are kept until "
    assert summary in Page(asked).text
    assert summary in shown.text
    assert summary in without.text
    group = f"{ADMIN}errorgroup/{some[0].group_id}/change/"
    assert group in shown.links.values()
    assert group not in without.links.values()


def test_an_edit_of_a_message_that_was_requeued_meanwhile_can_only_be_rejected(ann: User, bob: User) -> None:
    address = editing(client_of(ann))
    ParkedMessage.objects.update(state=State.PROCESSED, revision=F("revision") + 1)
    second = client_of(bob)
    shown = second.get(address)

    assert "Nothing of it is left to do. Reject it." in Page(shown).text
    with pytest.raises(AssertionError, match="no button says 'Approve"):
        Page(shown).form_with("Approve")
    assert "rmq-main" in shown.content.decode()
    rejected = press(second, shown, "Reject", remark="it was processed")
    assert "Rejected" in Page(rejected).text


@pytest.mark.parametrize("off", [True, False])
def test_a_second_person_sees_that_a_requeue_has_no_guard(ann: User, bob: User, *, off: bool) -> None:
    asked = client_of(ann).get(f"{ADMIN}requeuerun/preview/", {"sel": made.selected(*two())})
    request = press(client_of(ann), asked, "Ask for approval", start="now", reason="x", stop_at="100" if off else "50")

    text = Page(client_of(bob).get(place(request))).text
    assert ("guard off: the requeue run continues however many messages fail again" in text) is off


@pytest.mark.parametrize(("asking", "destroys"), [(discarding, True), (requeueing, False)])
def test_list_and_page_say_how_many_of_its_messages_are_left(
    asking: Asking, ann: User, bob: User, *, destroys: bool
) -> None:
    """The button said 2,960, and the list and the head of the page 2,990."""
    address = asking(client_of(ann))
    discard(Selection.of_ids([ParkedMessage.objects.latest("pk").pk]), actor_of(bob), category="duplicate")
    second = client_of(bob)
    before = second.get(address)
    listed = Page(second.get(REQUESTS)).text
    button = Page(before).form_with("Approve: ")
    after = press(second, before, "Approve: ")
    decided = Page(second.get(REQUESTS)).text
    request = ApprovalRequest.objects.get()
    final = Page(second.get(address)).text

    content = before.content.decode()
    assert button
    assert "Messages 1 of 2" in listed
    assert "Messages 1 of 2" in Page(before).text
    assert f"{request}: {'Discard' if destroys else 'Requeue'} 1 message" in Page(before).text
    assert after.status_code == 200
    became = "1 discarded · 1 left out" if destroys else "Sending, 0 of 2 sent, 0 processed, 0 failed again, 1 left out"
    assert f"Approved: {became}" in decided
    assert f"{became}." in final
    assert ("rmq-destroys" in content, "rmq-main" in content) == (destroys, not destroys)
    assert "rmq-danger" not in content


@pytest.mark.parametrize("asking", [discarding, requeueing])
def test_a_second_person_sees_no_message_among_those_meant_that_is_left_out(
    asking: Asking, ann: User, bob: User
) -> None:
    """It stood among "the 10 oldest", as if it were sent."""
    address, left = asking(client_of(ann)), ParkedMessage.objects.latest("pk")
    discard(Selection.of_ids([left.pk]), actor_of(bob), category="duplicate")
    shown = client_of(bob).get(address).content.decode().partition('id="rmq-sample"')[2]

    assert ("PAY-1" in shown, "PAY-2" in shown) == (True, False)


def test_a_second_person_reads_of_a_requeue_what_the_author_read(ann: User, bob: User) -> None:
    """What still fails, and examples of what is left out, were only on the page of the author."""
    growing, now = made.group(), timezone.now()
    for number in range(3):
        made.message(growing, business_key=f"PAY-{number}", parked_at=now - timedelta(seconds=30))
    made.message(growing, business_key="PAY-HELD", state=State.ON_HOLD, parked_at=now - timedelta(minutes=9))
    chosen = {"sel": made.selected(*ParkedMessage.objects.all())}
    author = client_of(ann).get(f"{ADMIN}requeuerun/preview/", chosen)
    address = place(press(client_of(ann), author, "Ask for approval", reason="the bank is back"))
    second = client_of(bob).get(address)

    for answer in (author, second):
        checks = Page(answer).text
        assert "Still failing: " in checks
        assert "PAY-HELD On hold until " in checks


def test_a_request_for_one_message_names_its_key_and_its_queue(ann: User, bob: User, settings: Any) -> None:
    """It was "#26"."""
    settings.RMQ_RETRY = {**settings.RMQ_RETRY, "FOUR_EYES": {"DISCARD": 1}}
    one = two()[0]
    page = client_of(ann).get(f"{ADMIN}parkedmessage/discard/", {"sel": made.selected(one)})
    shown = Page(client_of(bob).get(place(press(client_of(ann), page, "Ask for approval", category="duplicate"))))
    listed = Page(client_of(bob).get(REQUESTS)).text
    unseen = Page(client_of(made.person("cleo", "view_approvalrequest")).get(REQUESTS)).text

    assert f"Discard 1 message PAY-1 · {QUEUE}" in listed
    assert ("PAY-1" in unseen, f"#{one.pk}" in unseen) == (False, True)
    assert f"Subject PAY-1 #{one.pk} · {QUEUE}" in shown.text
    assert shown.links["PAY-1"] == f"{ADMIN}parkedmessage/{one.pk}/change/"
    assert OperatorAction.objects.get().subject == "PAY-1"


@pytest.mark.parametrize("end", ["Reject", "expire", "edit again"])
def test_an_edit_that_was_never_made_still_says_what_it_would_have_changed(ann: User, bob: User, end: str) -> None:
    """Nobody could read any more what had been rejected, once the request had let go of the edited message."""
    address, second = editing(client_of(ann)), client_of(bob)
    one = ParkedMessage.objects.order_by("pk")[0]
    if end == "Reject":
        press(second, second.get(address), "Reject", remark="the amount is right")
    elif end == "expire":
        ApprovalRequest.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    else:
        store(one.pk, Actor.of_code("fix"), propose(one, text="{}"), version=1, reason="empty")
    empty_ended()
    request = ApprovalRequest.objects.get()
    pages = [Page(second.get(place_of_it)).text for place_of_it in (address, REQUESTS)]
    reader = client_of(made.person("reader", "view_approvalrequest", "view_parkedmessage"))
    hidden = [Page(reader.get(place_of_it)).text for place_of_it in (address, REQUESTS)]

    assert (bytes(request.body) == b"") == (end != "edit again")
    assert ["amount: 100.00 → 99.00" in text for text in pages] == [True, True]
    assert ["99.00" in text for text in hidden] == [False, False]


def test_an_edit_that_waits_and_one_that_was_approved_show_their_change_in_one_line(ann: User, bob: User) -> None:
    address = editing(client_of(ann))
    second = client_of(bob)
    waits, listed = Page(second.get(address)).text, Page(second.get(REQUESTS)).text
    press(second, second.get(address), "Approve")
    over = Page(second.get(address))
    act = Page(second.get(f"{ADMIN}operatoraction/{OperatorAction.objects.get(action='edit').pk}/change/"))

    for text in (waits, listed, over.text, act.text):
        assert "amount: 100.00 → 99.00" in text
    assert "Request 1: Edit PAY-1" in waits
    assert over.links["PAY-1"] == f"{ADMIN}parkedmessage/{ParkedMessage.objects.order_by('pk')[0].pk}/change/"
    assert act.links["Request 1"] == address


@pytest.mark.parametrize(
    ("state", "sent", "became"),
    [
        (State.PARKED, False, "stored, not sent yet"),
        (State.ON_HOLD, False, "stored, not sent yet"),
        (State.REQUEUEING, True, "being sent"),
        (State.REQUEUED, True, "sent, its outcome is not known yet"),
        (State.PROCESSED, True, "processed"),
        (State.PARKED, True, "sent, and failed again"),
        (State.DISCARDED, False, "stored, then discarded"),
    ],
)
def test_an_approved_edit_says_what_became_of_its_message(
    ann: User, bob: User, state: State, became: str, *, sent: bool
) -> None:
    """ "Approved and carried out" stood there, and nothing had been sent."""
    address = editing(client_of(ann))
    second = client_of(bob)
    press(second, second.get(address), "Approve")
    later = timezone.now() + timedelta(seconds=1)
    ParkedMessage.objects.filter(version=2).update(state=state, requeued_at=later if sent else None)

    assert f"Approved: {became}" in Page(second.get(REQUESTS)).text
    assert re.search(rf"Approved by bob, \d\d:\d\d: {became}\.", Page(second.get(address)).text)


def test_an_approved_edit_of_many_counts_and_names_the_messages_that_it_left_out(ann: User, bob: User) -> None:
    """ "4 stored" stood beside "3 of 4"."""
    address, second = editing_many(client_of(ann)), client_of(bob)
    left = ParkedMessage.objects.latest("pk")
    hold(Selection.of_ids([left.pk]), actor_of(bob), until=timezone.now() + timedelta(hours=1), reason="look at it")
    press(second, second.get(address), "Approve")
    page = Page(second.get(address))

    assert "1 stored, not sent yet · 1 left out" in page.text
    assert "1 stored, not sent yet · 1 left out" in Page(second.get(REQUESTS)).text
    assert "Left out PAY-2 It had changed since that was asked for: Hold by bob, " in page.text
    assert page.links["Requeue what was edited…"].startswith(f"{ADMIN}requeuerun/preview/")


@pytest.mark.parametrize("asking", [discarding, editing, editing_many, closing])
def test_a_decided_request_leads_to_what_was_done(asking: Asking, ann: User, bob: User) -> None:
    address, second = asking(client_of(ann)), client_of(bob)
    press(second, second.get(address), "Approve", remark="as the bank's list says")
    page = Page(second.get(address))
    act = Page(second.get(page.links["Act in the audit log"]))

    assert "as the bank's list says" in page.text
    assert "ann, approved by bob" in act.text
    assert act.links["Request 1"] == address
    if asking in (discarding, editing_many):
        numbers = [str(one.pk) for one in ParkedMessage.objects.order_by("pk")]
        assert f"Record numbers {' '.join(numbers)} " in page.text
        assert [one.links[numbers[1]] for one in (page, act)] == [f"{ADMIN}parkedmessage/{numbers[1]}/change/"] * 2
    reader = Page(client_of(made.person("reader", "view_approvalrequest")).get(address))
    assert "Act in the audit log" not in reader.links


@pytest.mark.parametrize(
    ("by", "ending"),
    [
        ("bob", "Rejected by bob, {at}: the customer was paid already. Nothing was done."),
        ("ann", "Withdrawn by ann, {at}: the customer was paid already. Nothing was done."),
        ("", "Expired at {at}: nobody had decided on it. Nothing was done."),
    ],
)
def test_what_was_not_approved_says_why_and_can_be_asked_for_again(ann: User, bob: User, by: str, ending: str) -> None:
    address, viewer = discarding(client_of(ann)), client_of(ann)
    if by:
        decider = client_of(ann if by == "ann" else bob)
        press(
            decider,
            decider.get(address),
            "Withdraw" if by == "ann" else "Reject",
            remark="the customer was paid already.",
        )
    else:
        ApprovalRequest.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    page, listed = Page(viewer.get(address)), Page(viewer.get(REQUESTS)).text

    at = timezone.localtime(ApprovalRequest.objects.get().ended_at).strftime("%H:%M")
    assert ending.format(at=at) in page.text
    assert ending.partition(" ")[0] in listed
    assert ("the customer was paid already" in listed) == bool(by)
    again = Page(viewer.get(page.links["Ask for it again…"], follow=True))
    assert again.form_with("Ask for approval")


def test_the_list_says_how_messages_were_chosen_in_the_language_of_the_reader(ann: User, bob: User) -> None:
    """A German list had "type payment.transfer"."""
    two()
    chosen = Selection.of_filter({"type": "payment.transfer", "state": ["parked"]})
    made.asked(lambda actor: discard(chosen, actor, category="test"), actor_of(ann))
    with override("de"):
        assert "Nachrichtentyp payment.transfer" in Page(client_of(bob).get(REQUESTS)).text


def test_a_discard_of_which_nothing_was_left_is_not_said_to_be_carried_out(ann: User, bob: User) -> None:
    address, second = discarding(client_of(ann)), client_of(bob)
    page = second.get(address)
    both = Selection.of_ids(ParkedMessage.objects.values_list("pk", flat=True))
    hold(both, actor_of(bob), until=timezone.now() + timedelta(hours=1), reason="look at it")
    press(second, page, "Approve")
    text = Page(second.get(address)).text

    assert "carried out" not in text
    assert re.search(r"Approved by bob, \d\d:\d\d, but nothing was left to do: 2 left out\.", text)


def test_what_an_edit_changes_is_shown_to_nobody_who_may_not_see_the_body(ann: User) -> None:
    editing(client_of(ann))
    reader = client_of(made.person("reader", "view_approvalrequest", "view_parkedmessage"))
    one = ParkedMessage.objects.order_by("pk")[0]
    pages = [
        REQUESTS,
        f"{REQUESTS}{ApprovalRequest.objects.get().pk}/change/",
        f"{ADMIN}parkedmessage/{one.pk}/change/",
    ]

    for text in (Page(reader.get(place)).text for place in pages):
        assert "Edit PAY-1" in text
        assert "99.00" not in text


def test_a_count_of_messages_is_said_once_in_the_list(ann: User, bob: User) -> None:
    discarding(client_of(ann))
    text = Page(client_of(bob).get(REQUESTS)).text

    assert "Discard 2 messages" in text
    assert text.count("2 messages") == 1


def test_the_finding_on_parked_messages_has_one_button_and_links_to_what_it_names(ann: User, page: Client) -> None:
    """Four equal buttons stood there, and none said what to do first."""
    address = discarding(client_of(ann))
    shown = page.get(f"{ADMIN}livestatus/")
    [need] = [one for one in shown.context["needs"] if one.problem.code == Code.PARKED]
    row = shown.content.decode().partition('class="rmq-needs"')[2].partition("</li>")[0]

    assert need.buttons[0].label == "Open the group"
    assert row.count("rmq-button") == 2, "the list of buttons, and one button"
    assert address in [one.address for one in need.links]
    assert f'<a href="{address}">Open the request' in row


def test_the_act_of_a_request_shows_one_seal(ann: User, page: Client) -> None:
    discarding(client_of(ann))
    asked = OperatorAction.objects.get(action="ask")
    text = Page(page.get(f"{ADMIN}operatoraction/{asked.pk}/change/")).text

    assert text.count("Seal ") == 1
    assert asked.seal in text


def test_a_preview_says_how_many_of_its_messages_a_request_is_about(ann: User, bob: User) -> None:
    some = two()
    made.asked(lambda actor: discard(Selection.of_ids([one.pk for one in some]), actor, category="test"), actor_of(ann))
    preview = client_of(bob).get(f"{ADMIN}requeuerun/preview/", {"sel": made.selected(some[0])})

    assert "ann asks for: Discard 2 messages , 1 of these. Test." in Page(preview).text


def test_who_may_see_no_requests_learns_of_one_without_a_link(ann: User) -> None:
    discarding(client_of(ann))
    page = Page(
        client_of(made.person("reader", "view_parkedmessage")).get(
            f"{ADMIN}parkedmessage/{ParkedMessage.objects.order_by('pk')[0].pk}/change/"
        )
    )

    assert "ann asks for" in page.text
    assert [address for address in page.links.values() if "approvalrequest" in address] == []


@pytest.mark.parametrize("wish", ["no JSON", "[]", '{"selection": 7, "terms": {}}', '{"terms": {}}'])
@pytest.mark.parametrize("ask", [discarding, requeueing, editing])
def test_a_request_that_something_else_has_overwritten_is_one_sentence_and_can_be_rejected(
    ann: User, bob: User, page: Client, ask: Asking, wish: str
) -> None:
    """Its page, each page of its messages, and Live status failed with a server error."""
    address = ask(client_of(ann))
    known = ApprovalRequest.objects.get()
    ApprovalRequest.objects.update(wish=wish)
    second = client_of(bob)
    shown, one = second.get(address), ParkedMessage.objects.order_by("pk")[0]
    others = [REQUESTS, f"{ADMIN}parkedmessage/{one.pk}/change/", f"{ADMIN}errorgroup/", f"{ADMIN}livestatus/"]

    said = (
        f"What Request {known.pk} asks for cannot be read: its row in the database was changed. Reject it, ask again."
    )
    assert Page(shown).text.count(said) == 1
    assert [page.get(other).status_code for other in others] == [200] * 4
    approved = second.post(f"{REQUESTS}{known.pk}/approve/", {"seen": mark(known)})
    assert approved.status_code == 422
    assert f"Nothing was done: by the audit log, Request {known.pk} is not what was asked for." in Page(approved).text
    press(second, second.get(address), "Reject", remark="overwritten")
    known.refresh_from_db()
    assert known.state == RequestState.REJECTED


def test_the_audit_log_names_an_edit_by_its_business_key(ann: User, bob: User) -> None:
    """ "#242" stood there, which nobody searches for."""
    address = editing(client_of(ann))
    second = client_of(bob)
    press(second, second.get(address), "Approve")
    acts = OperatorAction.objects.filter(action__in=("ask", "approve", "edit")).order_by("number")

    assert [(act.action, act.subject) for act in acts] == [("ask", "PAY-1"), ("edit", "PAY-1"), ("approve", "PAY-1")]


def test_who_must_not_see_the_message_of_an_edit_reads_its_number(ann: User) -> None:
    address = editing(client_of(ann))
    one = ParkedMessage.objects.order_by("pk")[0]
    reader = client_of(made.person("reader", "view_approvalrequest"))

    for text in (Page(reader.get(place)).text for place in (address, REQUESTS)):
        assert "PAY-1" not in text
    assert f"#{one.pk}" in Page(reader.get(address)).text


@pytest.mark.parametrize("address", ["errorgroup/", "errorgroup/{group}/change/", "parkedmessage/{message}/change/"])
def test_a_request_is_named_as_long_as_it_waits_also_if_no_act_needs_a_second_person_any_more(
    ann: User, page: Client, settings: Any, address: str
) -> None:
    discarding(client_of(ann))
    settings.RMQ_RETRY = {**settings.RMQ_RETRY, "FOUR_EYES": {}}
    one = ParkedMessage.objects.order_by("pk")[0]
    shown = page.get(ADMIN + address.format(group=one.group_id, message=one.pk))

    assert "ann asks for: Discard 2 messages" in Page(shown).text


def payments(count: int, **fields: Any) -> list[ParkedMessage]:
    """Payments of one cause that is over, the oldest first."""
    cause, parked_at = made.group(title="GatewayTimeout"), timezone.now() - timedelta(hours=1)
    times = [parked_at + timedelta(seconds=number) for number in range(count)]
    return [
        made.message(cause, business_key=f"PAY-{number}", parked_at=at, **fields) for number, at in enumerate(times)
    ]


@pytest.mark.parametrize("early", [True, False], ids=["before it was asked for", "afterwards"])
@pytest.mark.parametrize("act", ["requeuerun/preview", "parkedmessage/discard"])
def test_a_request_that_has_shrunk_names_what_is_missing_and_has_one_count(
    act: str, ann: User, bob: User, page: Client, *, early: bool
) -> None:
    """50 were asked for, its lines added to 49, and run, live status and title had three numbers."""
    some = payments(12)
    author, second = client_of(ann), client_of(bob)
    preview = author.get(f"{ADMIN}{act}/?group={some[0].group_id}", follow=True)
    if early:
        discard(Selection.of_ids([some[3].pk]), actor_of(bob), category="test")
    address = place(press(author, preview, "Ask for approval", category="duplicate", reason="the bank is back"))
    if not early:
        discard(Selection.of_ids([some[3].pk]), actor_of(bob), category="test")
    shown, status = Page(second.get(address)), Page(page.get(f"{ADMIN}livestatus/")).text
    press(second, second.get(address), "Approve")
    ended = Page(second.get(address)).text
    request, verb = ApprovalRequest.objects.get(), "Requeue" if "requeue" in act else "Discard"

    assert f"{request}: {verb} 11 messages" in shown.text
    assert "Messages 11 of 12" in shown.text
    assert "1 is no longer open \u2013 left out PAY-3 Discarded " in shown.text
    assert " by bob (Test): no requeue sends it." in shown.text
    assert shown.links["PAY-3"] == f"{ADMIN}parkedmessage/{some[3].pk}/change/"
    assert f"{request} is to {verb.lower()} some of them." in status
    counted = "0 of 12 sent, 0 processed, 0 failed again"
    became = f"{counted}, 1 left out" if "requeue" in act else "11 discarded · 1 left out"
    assert became in ended
    if verb == "Requeue":
        run = Page(second.get(f"{ADMIN}requeuerun/{request.run}/change/")).text
        assert "0 of 12 sent" in run
        assert "Requeue · GatewayTimeout · bank.gateway:post Messages 12" in run


def test_a_discard_that_lost_a_message_counts_the_keys_of_the_others(ann: User, bob: User) -> None:
    some = payments(12)
    page = client_of(ann).get(f"{ADMIN}parkedmessage/discard/", {"sel": made.selected(*some)})
    address = place(press(client_of(ann), page, "Ask for approval", category="duplicate"))
    discard(Selection.of_ids([some[3].pk]), actor_of(bob), category="test")
    shown = Page(client_of(bob).get(address)).text

    assert "11 messages will be discarded: no requeue sends them. 11 business keys are affected." in shown
    assert f"#{some[9].pk}, …" in shown


@pytest.mark.parametrize("act", ["requeuerun/preview", "parkedmessage/discard"])
def test_the_timeline_tells_how_a_request_ended_and_why_it_left_the_message_out(
    act: str, ann: User, bob: User, page: Client
) -> None:
    """It ended with "Approval asked for by ann"."""
    some = payments(3)
    author, second = client_of(ann), client_of(bob)
    preview = author.get(f"{ADMIN}{act}/", {"sel": made.selected(*some)})
    address = place(press(author, preview, "Ask for approval", category="duplicate", reason="the bank is back"))
    store(some[1].pk, Actor.of_code("fix"), propose(some[1], text='{"amount": 1.00}'), version=1, reason="amount")
    press(second, second.get(address), "Approve", remark="phoned")
    shown = Page(page.get(f"{ADMIN}parkedmessage/{some[1].pk}/change/"))
    left = "Left out of the requeue · Requeue run 1 It was changed after it was chosen."
    if "discard" in act:
        left = "Left out of the discard · Request 1 It had changed since that was asked for: Edit by fix, "

    assert re.search(rf"{re.escape(left)}.* Approved by bob · Request 1 phoned .*Approval asked for by ann", shown.text)
    assert shown.links["Request 1"] == address


@pytest.mark.parametrize(("ask", "act"), [(editing, "an edit"), (discarding, "a discard")])
def test_what_waits_for_a_second_person_is_left_out_of_a_requeue_unless_it_is_included(
    ask: Asking, act: str, ann: User, bob: User
) -> None:
    """One press sent the body that a colleague had repaired, and the repair waited for its second person."""
    ask(client_of(ann))
    one, code = ParkedMessage.objects.get(business_key="PAY-1"), f"{act.split()[1]}_asked"
    client, asked = client_of(bob), ApprovalRequest.objects.get()
    preview = client.get(f"{ADMIN}requeuerun/preview/", {"message": one.pk}, follow=True)
    included = press(client, preview, f"Include anyway {act} of 1 waits")
    dry = run("rmq_parked", "requeue", str(one.pk), "--dry-run").out

    assert f"{act} of 1 waits for a second person \N{EN DASH} left out · {asked} (ann)" in Page(preview).text
    assert (preview.context["report"].sendable, included.context["report"].sendable) == (0, 1)
    assert f"--include {code} sends it" in dry


@pytest.mark.parametrize("ask", [editing, discarding])
def test_where_all_wait_for_a_second_person_the_main_button_opens_the_request(
    ask: Asking, ann: User, bob: User
) -> None:
    """Nothing would be sent, and the page had no button but "Cancel"."""
    ask(client_of(ann))
    client, one = client_of(bob), ParkedMessage.objects.get(business_key="PAY-1")
    preview = client.get(f"{ADMIN}requeuerun/preview/", {"message": one.pk}, follow=True)

    assert main_of(preview) == [f"Open request {ApprovalRequest.objects.get().pk}"]
    assert follow(client, preview, "Open request").status_code == 200


def test_where_several_requests_wait_the_main_button_lists_them(ann: User, bob: User) -> None:
    some = two()
    for one in some:
        made.asked(partial(discard, Selection.of_ids([one.pk]), category="test"), actor_of(ann))
    client = client_of(bob)
    preview = client.get(f"{ADMIN}requeuerun/preview/", {"group": some[0].group_id}, follow=True)
    blind = client_of(made.person("eve", "view_parkedmessage", "view_errorgroup", "requeue"))

    assert main_of(preview) == ["Open 2 requests"]
    assert follow(client, preview, "Open 2 requests").request["PATH_INFO"] == f"{ADMIN}approvalrequest/"
    assert main_of(blind.get(f"{ADMIN}requeuerun/preview/", {"group": some[0].group_id}, follow=True)) == []


class TestAnApprovedDiscardThatLeftAMessageOut:
    """The bank had paid it by hand; when its hold was over, one click paid it again."""

    @pytest.fixture(params=["named", "of a group"])
    def address(self, request: pytest.FixtureRequest, ann: User, bob: User) -> str:
        some = two()
        author, second = client_of(ann), client_of(bob)
        chosen = {"sel": made.selected(*some)} if request.param == "named" else {"group": some[0].group_id}
        page = author.get(f"{ADMIN}parkedmessage/discard/", chosen, follow=True)
        address = place(press(author, page, "Ask for approval", category="handled elsewhere", text="bank paid by hand"))
        dave = Actor.of_code("dave")
        hold(Selection.of_ids([some[1].pk]), dave, until=timezone.now() + timedelta(hours=1), reason="look at it")
        press(second, second.get(address), "Approve")
        return address

    @pytest.fixture
    def missed(self, address: str) -> ParkedMessage:
        del address
        left = ParkedMessage.objects.get(business_key="PAY-2")
        unhold(Selection.of_ids([left.pk]), Actor.of_code("dave"))
        return left

    @pytest.mark.database
    def test_names_it_with_the_reason_on_its_page(self, address: str, bob: User) -> None:
        shown = Page(client_of(bob).get(address))

        assert "1 discarded · 1 left out" in shown.text
        assert "Left out PAY-2 It had changed since that was asked for: Hold by dave, " in shown.text
        assert "parkedmessage/" in shown.links["PAY-2"]

    @pytest.mark.database
    def test_warns_on_its_page_and_leaves_it_out_of_a_requeue_unless_it_is_included(
        self, missed: ParkedMessage, bob: User
    ) -> None:
        why = r"\(Handled elsewhere: bank paid by hand, bob, [^)]*\)"
        told = f"A discard of this message was approved {why}, but not done"
        client = client_of(bob)
        page = Page(client.get(f"{ADMIN}parkedmessage/{missed.pk}/change/"))
        preview = client.get(f"{ADMIN}requeuerun/preview/", {"message": missed.pk}, follow=True)
        included = press(client, preview, "Include anyway 1 should have been discarded")

        assert re.search(told, page.text[: page.text.index("Timeline")])
        assert re.search(told, Page(preview).text)
        assert (preview.context["report"].sendable, included.context["report"].sendable) == (0, 1)
        assert re.search(told, run("rmq_parked", "show", str(missed.pk)).out)
        dry = run("rmq_parked", "requeue", str(missed.pk), "--dry-run").out
        assert "1 discard missed, left out (--include discard_missed sends it)" in dry
        assert re.search(told, dry)

    def test_is_forgotten_once_it_was_discarded_all_the_same(
        self, missed: ParkedMessage, address: str, bob: User
    ) -> None:
        one = Selection.of_ids([missed.pk])
        discard(one, Actor.of_code("dave"), category="test")
        page = Page(client_of(bob).get(address)).text
        restore(Selection.of_ids([missed.pk]), Actor.of_code("dave"))
        client = client_of(bob)
        preview = client.get(f"{ADMIN}requeuerun/preview/", {"message": missed.pk}, follow=True)

        assert "Discarded " in page[page.index("Left out") :]
        assert preview.context["report"].sendable == 1


def test_a_run_that_had_listed_a_message_before_its_discard_was_approved_does_not_send_it(
    ann: User, bob: User, sent: list[Message]
) -> None:
    """The run was started after the message was edited, and the discard asked for before."""
    some = two()
    author, second = client_of(ann), client_of(bob)
    page = author.get(f"{ADMIN}parkedmessage/discard/", {"sel": made.selected(*some)})
    address = place(press(author, page, "Ask for approval", category="handled elsewhere"))
    store(some[1].pk, Actor.of_code("fix"), propose(some[1], text='{"amount": 1.00}'), version=1, reason="amount")
    listed = requeue_run(
        Selection.of_ids([some[1].pk]), Actor.of_code("fix"), reason="again", include=("discard_asked",)
    )
    press(second, second.get(address), "Approve")
    driver_of(listed, clock=Clock(), targets=Targets()).step()

    assert (listed.items.get().skip_code, sent) == (ItemReason.CHANGED, [])


def test_the_timeline_tells_that_a_request_expired(ann: User, page: Client) -> None:
    discarding(client_of(ann))
    ApprovalRequest.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    one = ParkedMessage.objects.order_by("pk")[0]

    assert "Request 1 expired" in Page(page.get(f"{ADMIN}parkedmessage/{one.pk}/change/")).text


def test_a_run_and_its_request_link_each_other(ann: User, bob: User) -> None:
    address = requeueing(client_of(ann))
    second = client_of(bob)
    run = Page(press(second, second.get(address), "Approve"))
    request = Page(second.get(address))

    assert run.links["Request 1"] == address
    assert request.links["Requeue run 1"] == f"{ADMIN}requeuerun/1/change/"
    assert "Sending, 0 of 2 sent, 0 processed, 0 failed again. Requeue run 1" in request.text
    RequeueRun.objects.update(unconfirmed=2)
    assert "0 failed again, 2 not confirmed. Requeue run 1" in Page(second.get(address)).text


@pytest.mark.parametrize("asking", [discarding, requeueing])
def test_a_request_of_which_nothing_is_left_has_no_button_that_approves_nothing(
    asking: Asking, ann: User, bob: User
) -> None:
    address = asking(client_of(ann))
    discard(Selection.of_ids(ParkedMessage.objects.values_list("pk", flat=True)), Actor.of_code("job"), category="test")
    shown = Page(client_of(bob).get(address))

    assert "Nothing of it is left to do. Reject it." in shown.text
    assert [words for form in shown.forms for _name, _value, words in form.buttons if words.startswith("Approve")] == []
    assert shown.form_with("Reject")
