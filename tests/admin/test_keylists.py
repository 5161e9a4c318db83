"""A list of keys, pasted: the match of each, requeue or discard of exactly these, and all except these."""

import re
from datetime import timedelta
from html import unescape
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from django.test import Client
from django.utils import timezone

from django_rmq_retry import Message
from django_rmq_retry.amqp.levels import Level
from django_rmq_retry.models import (
    BusinessKey,
    ErrorGroup,
    KeyList,
    OperatorAction,
    ParkedMessage,
    RequeueItem,
    RequeueRun,
    State,
)
from django_rmq_retry.parked.findings import RequeueReport, report
from django_rmq_retry.topology.declarations import Role
from tests.admin import made
from tests.admin.conftest import client_of, is_north, operating
from tests.admin.looking import Page, follow, press
from tests.admin.pasting import ADMIN, FORM, KEYS, LIST, PREVIEW, pasted, previewed, state
from tests.operators.invariants import check_audit_log

pytestmark = pytest.mark.django_db


def tiles(response: Any) -> dict[str, int]:
    told = response.context["answer"]
    return {name: len(getattr(told, name)) for name in ("keys", "found", "missing", "several", "closed")}


def mains(response: Any) -> list[str]:
    """The main buttons of a page, in their order."""
    found = re.findall(r'class="rmq-button rmq-main"[^>]*>([^<]+)<', response.content.decode())
    return [unescape(one).strip() for one in found]


def test_the_key_list_page_is_one_click_away_and_explained(page: Client) -> None:
    for where in ("parkedmessage/", "errorgroup/", "livestatus/", "errorgroup/help/"):
        found = follow(page, page.get(ADMIN + where), "A list of keys")
        assert Page(found).form_with("Look up the keys")[1]["keys"] == "", where

    assert "Newlines, commas, semicolons and tabs separate keys" in Page(page.get(f"{ADMIN}errorgroup/help/")).text


def test_a_pasted_list_shows_the_result_of_each_key(page: Client) -> None:
    for key in ("PAY-1", "PAY-2", "CUST-7", "CUST-7"):
        made.message(business_key=key)
    made.message(business_key="PAY-3", state=State.PROCESSED)
    made.message(business_key="PAY-4", state=State.ON_HOLD)
    told = pasted(page, "PAY-1, PAY-2;PAY-3\tPAY-4\nCUST-7\nPAY-9\nPAY-1")
    text = Page(told).text

    assert tiles(told) == {"keys": 6, "found": 2, "missing": 1, "several": 1, "closed": 1}
    assert told.context["answer"].held == ["PAY-4"]
    assert "Not found (1) PAY-9" in text
    assert "Processed" in text
    assert "The buttons above do not apply to 1 message on hold." in text
    assert Page(told).form_with("Look up the keys")[1]["keys"] == "PAY-1\nPAY-2\nPAY-3\nPAY-4\nCUST-7\nPAY-9"


@pytest.fixture
def cut() -> ParkedMessage:
    """A payment whose body was cut, so that no business key is known of it."""
    cause = made.group(reason="undecodable_body")
    return made.message(cause, body=b'{"payment": "CUT-2", "amount": 12', business_key="", message_id="7be0")


def test_a_key_that_stands_in_a_body_which_cannot_be_read_is_found_as_a_search_finds_it(
    page: Client, cut: ParkedMessage
) -> None:
    made.message(business_key="PAY-1")
    told = pasted(page, "PAY-1, CUT-2, PAY-9")
    text = Page(told).text

    assert tiles(told) == {"keys": 3, "found": 1, "missing": 1, "several": 0, "closed": 0}
    assert "In a content (1) These stand in the content of parked messages" in text
    assert f"CUT-2 #{cut.pk} 7be0" in text
    assert "Not found (1) PAY-9" in text
    assert Page(told).links[f"#{cut.pk} 7be0"] == f"{LIST}{cut.pk}/change/"


def test_a_key_that_stands_in_a_body_which_cannot_be_read_leaves_nothing_out_and_has_to_be_checked(
    page: Client, cut: ParkedMessage
) -> None:
    preview = previewed(page, group=cut.group_id)
    answer = press(page, preview, "Leave these out", **{"except": "CUT-2"})

    assert "1 key stands only in the content of a parked message without a business key" in Page(answer).text
    assert f"CUT-2 → #{cut.pk}" in Page(answer).text
    assert "was not found" not in Page(answer).text
    assert "I have checked 1 key" in Page(answer).text


def test_keys_of_messages_that_were_not_parked_are_shown_with_their_place(page: Client) -> None:
    """A payment that waited behind a blocked key was "Not found"; it was paid elsewhere, unblocked and paid again."""
    made.message(business_key="PAY-1")
    made.not_parked()
    told = pasted(page, "PAY-1\nOUT-2\nPAY-60\nPAY-61\nPAY-70\nPAY-9")
    text = Page(told).text

    assert tiles(told) == {"keys": 6, "found": 1, "missing": 1, "several": 0, "closed": 0}
    assert "Elsewhere (4)" in text
    assert (
        "PAY-61 … may still be handled Waits for a blocked ordering key: PAY-61, behind PAY-60 (ordering key ACC-6)"
        in text
    )
    assert "Not found (1) PAY-9" in text
    assert "Also searched: the outbox" in text
    for leads in ("outboxmessage/", "blockedkey/?q=ACC-6", "queuecontrol/?q=bank.main"):
        assert f'href="/admin/rmq_retry/{leads}' in told.content.decode()

    preview = follow(page, told, "Requeue 1")
    assert "4 keys name messages that are not parked" in Page(preview).text
    assert "PAY-61 → Waits for a blocked ordering key: PAY-61, behind PAY-60 (ordering key ACC-6)" in Page(preview).text


def test_places_that_a_user_may_not_see_are_not_named(page: Client) -> None:
    made.not_parked()
    clerk = client_of(made.person("clerk", "view_parkedmessage", "view_blockedkey"))
    every, few = (pasted(one, "OUT-2\nPAY-61") for one in (page, clerk))

    assert ["OUT-2 … may still be handled In the outbox" in Page(one).text for one in (every, few)] == [True, False]
    assert ["Not found (1) OUT-2" in Page(one).text for one in (every, few)] == [False, True]
    assert ["Elsewhere (1) " in Page(one).text for one in (every, few)] == [False, True]


def test_only_the_listed_messages_are_requeued(page: Client, sent: list[Message]) -> None:
    for number in range(4):
        made.message(business_key=f"PAY-{number}")
    preview = follow(page, pasted(page, "PAY-1\nPAY-2\nPAY-9"), "Requeue 2")
    run_page = press(page, preview, "Requeue 2 messages", reason="INC-553", checked=preview.context["left"].mark)
    press(page, run_page, "Continue here")
    run = RequeueRun.objects.get()

    assert "named by 3 keys" in Page(preview).text
    assert "named by 3 keys" in Page(run_page).text
    assert sorted(item.message.business_key for item in RequeueItem.objects.filter(run=run)) == ["PAY-1", "PAY-2"]
    assert len(sent) == 2
    assert OperatorAction.objects.get(run=run.pk).facts["selection"]["filter"]["keys"]["count"] == 3


def test_only_the_listed_messages_are_discarded_or_put_on_hold(page: Client) -> None:
    for number in range(5):
        made.message(business_key=f"PAY-{number}")
    press(
        page, follow(page, pasted(page, "PAY-0 PAY-2"), "Discard 2"), "Discard 2 messages", category="handled elsewhere"
    )
    done = press(page, follow(page, pasted(page, "PAY-1 PAY-3"), "Hold 2"), "Hold 2 messages", span="2h")

    assert "2 messages" in Page(done).text
    assert [state(f"PAY-{number}") for number in range(5)] == ["discarded", "on_hold"] * 2 + ["parked"]
    assert [act.count for act in OperatorAction.objects.all()] == [2, 2]


def test_the_audit_log_has_the_keys_and_the_messages_of_an_action(page: Client) -> None:
    rows = [made.message(business_key=f"PAY-{number}") for number in range(3)]
    preview = follow(page, pasted(page, "PAY-0\nPAY-1\nPAY-2\nPAY-9"), "Discard 3")
    rest = press(page, preview, "Leave these out", **{"except": "PAY-1"})
    press(page, rest, "Discard 2 messages", category="handled elsewhere", checked=rest.context["left"].mark)
    act = OperatorAction.objects.get()
    answer = Page(page.get(f"{ADMIN}operatoraction/{act.pk}/change/"))
    told, links = answer.text, answer.links
    ParkedMessage.objects.all().delete()

    assert act.facts["messages"] == f"{rows[0].pk} {rows[2].pk}"
    assert links["PAY-9"] == f"{ADMIN}parkedmessage/?state=all&q=PAY-9"
    assert told.count("Handled elsewhere") == 1
    assert "Keys of the list PAY-0 PAY-1 PAY-2 PAY-9 Keys left out by the operator PAY-1" in told
    told_of_selection = told.partition("Selection ")[2]
    for words in ("named by 4 keys", "except those named by 1 key"):
        assert words in told_of_selection
    assert not re.search(r"\d\dT\d\d:|as_of|True|None", told)
    again = Page(page.get(f"{ADMIN}operatoraction/{act.pk}/change/")).text
    assert "Keys of the list PAY-0 PAY-1 PAY-2 PAY-9 Keys left out by the operator PAY-1" in again
    check_audit_log()


def test_the_subject_of_an_act_on_a_list_is_the_list_and_its_records_are_links(page: Client) -> None:
    cause = made.group()
    rows = [made.message(cause, business_key=f"PAY-{number}") for number in range(3)]
    preview = follow(page, pasted(page, "PAY-0\nPAY-1\nPAY-2\nPAY-8\nPAY-9"), "Discard 3")
    press(page, preview, "Discard 3 messages", category="handled elsewhere", checked=preview.context["left"].mark)
    act = OperatorAction.objects.get()
    ParkedMessage.objects.filter(pk=rows[2].pk).delete()
    made.message(business_key="PAY-9")
    answer, log = page.get(f"{ADMIN}operatoraction/{act.pk}/change/"), page.get(f"{ADMIN}operatoraction/")
    shown = Page(answer)

    assert act.group == cause.pk
    assert "Subject list of 5 keys (2 matched no parked message)" in shown.text
    assert "list of 5 keys (2 matched no parked message)" in Page(log).text
    assert "2 keys matched no parked message when the list was pasted: PAY-8 PAY-9" in shown.text
    assert shown.text.count("Record numbers") == 1
    ends = [str(rows[0].pk), str(rows[2].pk)]
    assert [shown.links[end] for end in ends] == [f"{ADMIN}parkedmessage/{end}/change/" for end in ends]


def test_the_audit_log_does_not_tell_which_keys_exist_to_whom_may_not_see_all(page: Client, settings: Any) -> None:
    for number in range(2):
        made.message(business_key=f"PAY-{number}")
    preview = follow(page, pasted(page, "PAY-0\nPAY-1\nPAY-9"), "Discard 2")
    press(page, preview, "Discard 2 messages", category="handled elsewhere", checked=preview.context["left"].mark)
    operating(settings, PERMIT=is_north)
    reader = client_of(made.person("reader", "view_operatoraction", "view_all_operatoraction", "view_parkedmessage"))
    act = OperatorAction.objects.get()
    for address in (f"{ADMIN}operatoraction/", f"{ADMIN}operatoraction/{act.pk}/change/"):
        text = Page(reader.get(address)).text
        assert "list of 3 keys" in text
        assert "matched" not in text


def test_the_listed_messages_are_exported_in_any_state(page: Client) -> None:
    made.message(business_key="PAY-1")
    made.message(business_key="PAY-2", state=State.PROCESSED)
    made.message(business_key="PAY-3")
    form = follow(page, pasted(page, "PAY-1,PAY-2"), "Export 2")
    lines = b"".join(press(page, form, "Export 2 messages").streaming_content).decode().splitlines()

    assert sorted(line.split(",")[3] for line in lines) == ["PAY-1", "PAY-2", "business_key"]


def test_messages_on_hold_are_included_on_request(page: Client) -> None:
    made.message(business_key="PAY-1")
    made.message(business_key="PAY-2", state=State.ON_HOLD)
    told = pasted(page, "PAY-1\nPAY-2")
    both = follow(page, told, "Include messages on hold")

    assert [one for one in Page(told).links if one.startswith("Discard ") and "go on" not in one] == ["Discard 1…"]
    assert [one for one in Page(both).links if one.startswith("Discard ") and "go on" not in one] == ["Discard 2…"]
    assert "sent, too Leave out" in Page(follow(page, both, "Requeue 2")).text


@pytest.mark.parametrize("act", ["Discard", "Requeue"])
def test_a_key_of_a_message_on_hold_is_checked_before_an_act_that_leaves_it(page: Client, act: str) -> None:
    """The bank had paid 30. One was on hold and stayed, which nobody was told: it was paid when its hold had ended."""
    made.message(business_key="PAY-1")
    made.message(business_key="PAY-2", state=State.ON_HOLD)
    asked = follow(page, pasted(page, "PAY-1\nPAY-2"), f"{act} 1…")
    told = Page(asked).text
    refused = Page(press(page, asked, act, category="test", reason="INC-5")).text

    assert "1 key of the list names a message on hold, which is not among these: PAY-2" in told
    assert "I have checked 1 key that matches no message, several, one elsewhere or on hold." in told
    assert "Check 1 key that matches no message, several, one elsewhere or on hold, and tick it: PAY-2." in refused
    assert state("PAY-1") == "parked"


def test_keys_of_messages_on_hold_are_counted_apart_from_those_that_are_closed(page: Client) -> None:
    """ "Found, and parked 1 · Not open 13" stood above "Requeue 7…", which took six on hold, too."""
    made.message(business_key="PAY-1")
    for number in (2, 3):
        made.message(business_key=f"PAY-{number}", state=State.ON_HOLD)
    made.message(business_key="PAY-4", state=State.DISCARDED)
    both = follow(page, pasted(page, "PAY-1\nPAY-2\nPAY-3\nPAY-4"), "Include messages on hold")
    text = Page(both).text

    assert "Found, and parked 1 On hold 2 Not found 0 Found several times 0 Not open 1" in text
    assert "The buttons above apply to 2 messages on hold, too." in text
    assert any(link.startswith("Requeue 3") for link in Page(both).links)


def test_a_customers_key_is_left_out_before_the_payments_of_a_list_are_discarded(page: Client) -> None:
    for number in range(3):
        made.message(keys=[f"PAY-{number}", "CUST-7"], business_key=f"PAY-{number}")
    made.message(business_key="PAY-3")
    told = pasted(page, "PAY-0\nPAY-3\nCUST-7")
    left = press(page, told, "Leave this key out")

    assert (
        "1 key names different messages, 3 together: it may be the key of a customer, not of one message."
        in Page(told).text
    )
    assert mains(told) == ["Leave this key out"]
    assert "Discard these 2, then go on to the error groups…" in Page(left).text
    assert mains(left) == []
    assert Page(left).form_with("Look up the keys")[1]["keys"] == "PAY-0\nPAY-3"


def test_copies_of_a_payment_are_not_taken_for_a_customers_payments(page: Client) -> None:
    """They were left out of the discard with one click, and a requeue would have paid what was paid by hand."""
    for _ in range(2):
        made.message(business_key="PAY-1", content=7)
    for content in (8, 9):
        made.message(business_key="PAY-2", content=content)
    told = pasted(page, "PAY-1\nPAY-2")
    left = press(page, told, "Leave this key out")
    preview = follow(page, left, "Discard these 2")

    assert "1 key names different messages, 2 together" in Page(told).text
    assert "PAY-1 copies of one message" in Page(told).text
    assert "PAY-2 different messages" in Page(told).text
    assert "Discard these 2, then go on to the error groups…" in Page(left).text
    assert mains(left) == []
    assert "1 key names copies of one message, which its sender published several times." in Page(left).text
    assert "the key of a customer" not in Page(left).text
    assert "PAY-1 (2 copies of one message)" in Page(preview).text


def test_the_button_for_one_payment_is_in_the_singular(page: Client) -> None:
    made.message(business_key="PAY-1")

    assert "Discard 1 message, then go on to the error groups…" in Page(pasted(page, "PAY-1")).text


def test_keys_that_all_name_several_messages_are_not_left_out(page: Client) -> None:
    for _ in range(2):
        made.message(business_key="CUST-7")

    assert mains(pasted(page, "CUST-7\nPAY-9")) == []


def test_the_preview_repeats_keys_that_match_several_messages(page: Client) -> None:
    one, two = made.message(keys=["CUST-7", "PAY-1"]), made.message(keys=["CUST-7", "PAY-2"])
    told = pasted(page, "CUST-7")
    preview = follow(page, told, "Requeue 2")

    assert f"#{one.pk}" in Page(told).text
    assert f"#{two.pk}" in Page(told).text
    assert "1 key of the list matches several messages: all of them are chosen: CUST-7 (2)" in Page(preview).text


def test_a_key_in_another_case_is_a_suggestion_and_not_a_match(page: Client) -> None:
    made.message(business_key="PAY-1")
    told = pasted(page, "pay-1")

    assert tiles(told)["missing"] == 1
    assert "These keys differ from stored keys only in upper and lower case: pay-1 → PAY-1" in Page(told).text
    assert not [one for one in Page(told).links if one.startswith("Discard ") and "go on" not in one]
    assert tiles(press(page, told, "Look up the stored ones"))["found"] == 1


def test_a_button_splits_the_keys_at_spaces(page: Client) -> None:
    for number in (1, 2, 3):
        made.message(business_key=f"PAY-{number}")
    told = pasted(page, "PAY-1 PAY-2\nPAY-3")
    apart = press(page, told, "Separate at spaces too: 1 key")

    assert tiles(told)["found"] == 1
    assert tiles(apart)["found"] == 3


def test_a_message_waiting_in_a_run_can_be_discarded_by_its_key(page: Client) -> None:
    cause = made.group()
    for number in range(3):
        made.message(cause, business_key=f"PAY-{number}")
    run_page = press(page, previewed(page, group=cause.pk), "Requeue 3 messages")
    told = pasted(page, "PAY-1")
    press(page, follow(page, told, "Discard 1"), "Discard ", category="handled elsewhere")
    press(page, run_page, "Continue here")

    assert "1 message waits in a requeue run." in Page(told).text
    assert [state(f"PAY-{number}") for number in range(3)] == ["requeued", "discarded", "requeued"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "Paste at least one business key or message id."),
        (" ,;\n", "Paste at least one business key or message id."),
        ("\n".join(f"PAY-{number}" for number in range(10_001)), "The list has 10001 keys; at most 10000 are allowed"),
        ("x" * 4_000_001, "The text has 4000001 characters; at most 4000000 are allowed."),
    ],
    ids=["nothing", "separators", "too many", "too long"],
)
def test_an_invalid_list_stays_in_the_form(page: Client, text: str, said: str) -> None:
    told = pasted(page, text)

    assert told.status_code == 422
    assert said in Page(told).text
    assert Page(told).form_with("Look up the keys")[1]["keys"] == text
    assert not KeyList.objects.exists()


def test_a_list_above_the_django_form_limit_is_accepted(page: Client, settings: Any) -> None:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 1000
    made.message(business_key="PAY-7")
    told = pasted(page, "\n".join(f"PAY-{number}" for number in range(500)))

    assert tiles(told) == {"keys": 500, "found": 1, "missing": 499, "several": 0, "closed": 0}


def test_a_large_list_still_needs_a_csrf_token(lead: Any, settings: Any) -> None:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 1000
    client = Client(enforce_csrf_checks=True)
    client.force_login(lead)
    token = Page(client.get(KEYS)).form_with("Look up the keys")[1]["csrfmiddlewaretoken"]
    text = "\n".join(f"PAY-{number}" for number in range(500))

    def code(address: str, **words: str) -> int:
        return client.post(address, urlencode(words), content_type=FORM).status_code

    assert [code(KEYS, keys="PAY-1"), code(KEYS, keys=text), code(PREVIEW, **{"except": text})] == [403, 403, 403]
    assert code(KEYS, keys=text, csrfmiddlewaretoken=token) == 302


def test_a_form_above_ten_megabytes_is_refused_with_413(page: Client) -> None:
    told = pasted(page, "x" * 10_500_000)

    assert told.status_code == 413
    assert "The form is larger than 10 MB. Nothing was done. Go back: your text is still there." in Page(told).text


def test_a_list_is_visible_only_to_the_operator_who_pasted_it(page: Client) -> None:
    made.message(business_key="PAY-1")
    address = pasted(page, "PAY-1").redirect_chain[-1][0]
    other = client_of(made.person("other", superuser=True))

    assert page.get(address).status_code == 200
    assert [other.get(address).status_code, page.get(f"{KEYS}?list=999").status_code] == [404, 404]
    assert [page.get(f"{KEYS}?list={odd}").status_code for odd in ("x", "-1", "9" * 30)] == [404, 404, 404]


def test_keys_of_hidden_messages_are_reported_as_not_found(settings: Any) -> None:
    made.message(business_key="NORTH-1", type="north")
    hidden = made.message(business_key="SOUTH-1", type="south")
    rule = lambda _user, verb, message: message.type == "north" or verb != "view"  # noqa: E731
    operating(settings, PERMIT=rule)
    clerk = client_of(made.person("clerk", "view_parkedmessage", "requeue", "discard"))
    told = pasted(clerk, f"NORTH-1\nSOUTH-1\nsouth-1\n{hidden.message_id}\nnobody")

    assert tiles(told) == {"keys": 5, "found": 1, "missing": 4, "several": 0, "closed": 0}
    assert dict(told.context["alike"]) == {}
    assert f"#{hidden.pk}" not in told.content.decode()
    assert [one for one in Page(told).links if one.startswith("Discard ") and "go on" not in one] == ["Discard 1…"]


def test_disabled_buttons_state_why() -> None:
    made.message(business_key="PAY-1")
    told = pasted(client_of(made.person("clerk", "view_parkedmessage")), "PAY-1")

    assert "Requeue 1…: You need the permission “Can requeue messages”." in Page(told).text


def test_hostile_keys_are_escaped(page: Client) -> None:
    key = '<script>alert("1")</script>\u202e'
    made.message(business_key=key)
    told = pasted(page, f'"{key.replace(chr(34), chr(34) * 2)}"\n<b>absent</b>,\x00')

    assert tiles(told) == {"keys": 3, "found": 1, "missing": 2, "several": 0, "closed": 0}
    assert "<script>alert" not in told.content.decode()
    assert "<b>absent" not in told.content.decode()


def two_payments() -> ErrorGroup:
    cause = made.group()
    for key in ("PAY-1", "PAY-2"):
        made.message(cause, business_key=key)
    return cause


def test_a_discard_says_which_causes_its_messages_have(page: Client) -> None:
    """It named the ten oldest, which were all of one cause: nineteen of another one were invisible."""
    old, late = made.group(title="AccountClosed"), made.group(title="GatewayTimeout")
    now = timezone.now()
    ticked = [made.message(old, parked_at=now - timedelta(minutes=13)) for _ in range(12)]
    ticked += [made.message(late, parked_at=now - timedelta(minutes=1)) for _ in range(3)]
    asked = page.get(f"{LIST}discard/", {"sel": made.selected(*ticked)})

    causes = [(name.partition(" ")[0], count) for _group, name, count, *_times in asked.context["causes"]]
    assert causes == [("AccountClosed", 12), ("GatewayTimeout", 3)]
    assert f"{ADMIN}errorgroup/{late.pk}/change/" in Page(asked).links.values()


class TestAllExceptThese:
    def test_one_pasted_list_excludes_thirty_payments_of_a_group(self, page: Client, sent: list[Message]) -> None:
        cause = made.group()
        for number in range(40):
            made.message(cause, business_key=f"PAY-{number}")
        paid = [f"PAY-{number}" for number in range(30)]
        preview = press(page, previewed(page, group=cause.pk), "Leave these out", **{"except": "\n".join(paid)})
        run_page = press(page, preview, "Requeue 10 messages")
        press(page, run_page, "Continue here")

        assert "30 messages are left out by their keys." in Page(preview).text
        assert "40 = 10 to send + 30 left out by their keys" in Page(preview).text
        assert "30 more left out by 30 keys" in Page(run_page).text
        assert len(sent) == 10
        assert {state(key) for key in paid} == {"parked"}

    def test_the_preview_lists_the_keys_that_excluded_nothing(self, page: Client) -> None:
        cause = made.group()
        for key in ("PAY-1", "PAY-2", "CUST-7", "CUST-7"):
            made.message(cause, business_key=key)
        made.message(business_key="PAY-3", state=State.PROCESSED)
        text = "PAY-1, pay-2, PAY-3, PAY-9, CUST-7"
        preview = press(page, previewed(page, group=cause.pk), "Leave these out", **{"except": text})
        said = Page(preview).text

        assert "3 messages are left out by their keys." in said
        assert "2 keys were not found, so no message is left out for them: pay-2 PAY-9" in said
        assert "1 of them differs from a stored key in upper and lower case only: pay-2 → PAY-2" in said
        assert "1 key matches a message that is not among these anyway: PAY-3 (Processed)" in said
        assert "1 key matches several messages: all of them are left out: CUST-7 (2)" in said

    @pytest.mark.parametrize(
        ("what", "button", "typed", "became"),
        [
            ("discard", "Discard ", {"category": "test"}, "discarded"),
            ("hold", "Hold ", {"span": "2h"}, "on_hold"),
            ("export", "Export ", {"form": "jsonl", "reason": "INC-553"}, "parked"),
        ],
    )
    def test_every_action_form_can_exclude_keys(
        self, page: Client, what: str, button: str, typed: Any, became: str
    ) -> None:
        asked = previewed(page, f"{LIST}{what}/", group=two_payments().pk)
        done = press(page, press(page, asked, "Leave these out", **{"except": "PAY-1"}, **typed), button, **typed)
        lines = b"".join(done.streaming_content).decode() if done.streaming else '"PAY-2"'

        assert (state("PAY-1"), state("PAY-2")) == ("parked", became)
        assert ('"PAY-2"' in lines, '"PAY-1"' in lines) == (True, False)

    @pytest.mark.database
    def test_a_message_that_gets_an_excluded_key_meanwhile_is_not_sent(
        self, page: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The page reads once which messages the keys leave out; the run matches the keys itself."""
        cause = two_payments()
        made.message(keys=["CUST-9"], state=State.PROCESSED)
        preview = press(page, previewed(page, group=cause.pk), "Leave these out", **{"except": "PAY-1, CUST-9"})

        def reported(*given: Any) -> RequeueReport:
            found = report(*given)
            BusinessKey.objects.create(message=ParkedMessage.objects.get(business_key="PAY-2"), value="CUST-9")
            return found

        monkeypatch.setattr("django_rmq_retry.admin.requeue_form.report", reported)
        stopped = press(page, preview, "Requeue 1 message")

        assert "None of the chosen messages exists any more." in Page(stopped).text
        assert not RequeueItem.objects.exists()

    def test_excluded_keys_also_apply_to_ticked_messages(self, page: Client) -> None:
        rows = [made.message(business_key=f"PAY-{number}") for number in range(3)]
        ticked = {"action": "requeue", "_selected_action": [row.pk for row in rows]}
        rest = press(page, page.post(LIST, ticked, follow=True), "Leave these out", **{"except": "PAY-0"})
        press(page, rest, "Requeue 2 messages")

        assert sorted(item.message_id for item in RequeueItem.objects.all()) == [rows[1].pk, rows[2].pk]

    def test_nothing_is_done_if_the_excluded_keys_differ_from_the_preview(self, page: Client) -> None:
        """A user who pastes a list and does not press the button sends nothing."""
        cause = two_payments()
        preview = previewed(page, group=cause.pk)
        stopped = press(page, preview, "Requeue 2 messages", **{"except": "PAY-1", "reason": "INC-553"})
        asked = previewed(page, f"{LIST}discard/", group=cause.pk)
        kept = press(page, asked, "Discard 2 messages", **{"except": "PAY-1", "category": "test", "text": "of old"})

        assert not RequeueRun.objects.exists()
        assert (state("PAY-1"), state("PAY-2")) == ("parked", "parked")
        assert "Nothing was done, because the keys to leave out had changed." in Page(stopped).text
        assert Page(stopped).form_with("Requeue 1 message")[1]["reason"] == "INC-553"
        assert "Nothing was done, because the keys to leave out had changed." in Page(kept).text
        values = Page(kept).form_with("Discard ")[1]
        assert (values["category"], values["text"], values["except"]) == ("test", "of old", "PAY-1")

    def test_the_url_of_the_preview_keeps_the_excluded_keys(self, page: Client) -> None:
        cause = two_payments()
        made.message(cause, business_key="PAY-3")
        words = {"except": "PAY-1", "rate": "5", "reason": "INC-553", "order": "key"}
        rest = press(page, previewed(page, group=cause.pk), "Leave these out", **words)
        shared = client_of(made.person("other", superuser=True)).get(rest.redirect_chain[-1][0])
        values = Page(shared).form_with("Requeue 2 messages")[1]

        assert (values["except"], values["rate"], values["reason"], values["order"]) == ("PAY-1", "5", "INC-553", "key")
        assert "typed" not in parse_qs(urlsplit(rest.redirect_chain[-1][0]).query)
        whole = press(page, rest, "Leave these out", **{"except": ""})
        assert (rest.context["report"].total, whole.context["report"].total) == (2, 3)

    def test_excluding_every_message_disables_the_button(self, page: Client) -> None:
        cause = made.group()
        made.message(cause, business_key="PAY-1")
        found = {}
        for name in ("discard", "hold", "export"):
            asked = previewed(page, f"{LIST}{name}/", group=cause.pk)
            rest = press(page, asked, "Leave these out", **{"except": "PAY-1"})
            found[name] = [said for form in Page(rest).forms for _name, _value, said in form.buttons if "0" in said]
            assert Page(rest).form_with("Leave these out")[1]["except"] == "PAY-1"
        rest = press(page, previewed(page, group=cause.pk), "Leave these out", **{"except": "PAY-1"})

        assert found == {"discard": [], "hold": [], "export": []}
        assert (rest.context["report"].total, rest.context["disabled"]) == (0, True)

    def test_too_many_excluded_keys_stay_in_the_form_and_nothing_is_done(self, page: Client) -> None:
        cause = made.group()
        made.message(cause, business_key="PAY-1")
        text = "\n".join(f"PAY-{number}" for number in range(10_001))
        stopped = press(page, previewed(page, group=cause.pk), "Requeue 1 message", **{"except": text})
        asked = previewed(page, f"{LIST}discard/", group=cause.pk)
        kept = press(page, asked, "Discard ", **{"except": text, "category": "test"})

        for response in (stopped, kept):
            assert response.status_code == 422
            assert "The list has 10001 keys; at most 10000 are allowed." in Page(response).text
            assert Page(response).form_with("Leave these out")[1]["except"] == text
        assert state("PAY-1") == "parked"
        assert not RequeueRun.objects.exists()

    def test_messages_parked_after_the_preview_are_not_sent(self, page: Client) -> None:
        cause = two_payments()
        rest = press(page, previewed(page, group=cause.pk), "Leave these out", **{"except": "PAY-1"})
        soon = timezone.now() + timedelta(seconds=1)
        made.message(cause, business_key="PAY-1", parked_at=soon)
        made.message(cause, business_key="PAY-3", parked_at=soon)
        press(page, rest, "Requeue 1 message")

        assert [item.message.business_key for item in RequeueItem.objects.all()] == ["PAY-2"]

    def test_excluded_keys_of_hidden_messages_are_reported_as_not_found(self, settings: Any) -> None:
        cause = made.group()
        made.message(cause, business_key="NORTH-1", type="north")
        made.message(cause, business_key="SOUTH-1", type="south")
        rule = lambda _user, verb, message: message.type == "north" or verb != "view"  # noqa: E731
        operating(settings, PERMIT=rule)
        clerk = client_of(made.person("clerk", "view_parkedmessage", "requeue"))
        rest = press(clerk, previewed(clerk, group=cause.pk), "Leave these out", **{"except": "NORTH-1, SOUTH-1"})

        assert "1 message is left out by its key." in Page(rest).text
        assert "1 key was not found, so no message is left out for it: SOUTH-1" in Page(rest).text


def test_a_customers_key_in_the_list_is_said_to_be_one(page: Client) -> None:
    """It names all payments of the customer, which nobody wants who pastes payments that were made by hand."""
    for number in range(3):
        made.message(business_key=f"PAY-{number}", keys=[f"PAY-{number}", "CUST-7"])
    told = Page(pasted(page, "PAY-1\nCUST-7")).text
    payments = Page(pasted(page, "PAY-1\nPAY-2")).text

    assert "1 key names different messages, 3 together: it may be the key of a customer, not of one message." in told
    assert "CUST-7 different messages #" in told
    assert "the key of a customer" not in payments


def test_a_customers_key_that_names_one_message_now_is_said_to_be_one(page: Client) -> None:
    made.message(business_key="PAY-1", keys=["PAY-1", "CUST-7"])

    assert "A customer's key names all messages of that customer" in (text := Page(pasted(page, "CUST-7")).text)
    assert "are parked: CUST-7 (1 message)" in text


def test_a_correlation_id_or_number_in_the_list_is_not_just_not_found(page: Client) -> None:
    one, _two = (made.message(business_key=f"PAY-{number}", correlation_id="order-9") for number in (1, 2))
    told = pasted(page, f"order-9\n#{one.pk}\nPAY-9")

    assert tiles(told)["missing"] == 3
    said = Page(told).text.partition("correlation ids or numbers of messages. A list does not choose by them: ")[2]
    assert said.startswith(f"order-9 #{one.pk} PAY-1 ■ Parked · #")
    assert f"■ Parked #{one.pk} #{one.pk} PAY-1 ■ Parked The list" in said
    assert "correlation ids or numbers" not in Page(pasted(page, "PAY-9")).text


def test_a_key_that_is_not_found_may_belong_to_a_message_that_waits_for_a_retry(page: Client) -> None:
    now = timezone.now()
    for name in ("one", "two"):
        waits: dict[str, Any] = {"identity": name, "at": now, "next_at": now + timedelta(minutes=3)}
        made.attempt(made.message(business_key=f"PAY-{name}"), 1, **waits)
    made.attempt(made.message(business_key="PAY-3"), 1, identity="late", at=now, next_at=now - timedelta(minutes=3))
    said = "2 messages wait in RabbitMQ and may have some of these keys."

    assert said in Page(pasted(page, "PAY-one, PAY-9")).text
    # A copy of what is parked may wait there too.
    assert said in Page(pasted(page, "PAY-one")).text
    assert said in Page(page.get(LIST, {"q": "PAY-9"})).text
    assert said not in Page(page.get(LIST, {"q": "PAY-3"}, follow=True)).text


def test_a_key_that_is_not_found_may_belong_to_a_message_that_is_ready_in_a_halted_queue(
    page: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = Level(queue="payments.main.retry.1m", role=Role.WAITING, ready=13)
    made.broker_seen(monkeypatch, Level(queue="payments.main", role=Role.WORK, ready=4), waits)

    made.message(business_key="PAY-1")
    found = pasted(page, "PAY-1")
    said = "17 messages wait in RabbitMQ and may have some of these keys."

    assert said in Page(pasted(page, "PAY-9")).text
    assert said in Page(found).text
    assert said in Page(follow(page, found, "Discard 1…")).text


def test_a_correlation_id_of_a_hidden_message_stays_unknown(settings: Any) -> None:
    operating(settings, PERMIT=is_north)
    made.message(business_key="PAY-1", correlation_id="order-9", type="south")
    reader = client_of(made.person("north", "view_parkedmessage", "discard"))

    assert "correlation ids or numbers" not in Page(pasted(reader, "order-9")).text


def test_a_list_says_which_of_its_messages_may_have_been_handled(page: Client) -> None:
    """It said "Found, and parked" of payments that a worker may have made before it died."""
    for key, unacked in (("PAY-1", True), ("PAY-2", False)):
        made.message(business_key=key, keys=[key], unacked=unacked)
    told = "1 may have been handled: a worker stopped or lost its connection before it could say so:"

    assert f"{told} PAY-1 " in Page(pasted(page, "PAY-1 PAY-2".replace(" ", "\n"))).text
    assert "may have been handled" not in Page(pasted(page, "PAY-2")).text


def test_a_list_shows_no_tick_for_a_message_that_was_handled_twice_or_perhaps_was(page: Client) -> None:
    """Outside of runs it said "done twice", and of what a run sent "✓ Processed"."""
    run_of = RequeueRun.objects.create(created_at=timezone.now(), by="ann", state="finished")
    for place, (handled, again) in enumerate(((2, False), (1, True), (1, False))):
        one = made.message(business_key=f"PAY-{place}", state=State.PROCESSED, cycle=2)
        item = {"run": run_of, "message": one, "revision": 1, "cycle": 2, "place": place, "state": "processed"}
        RequeueItem.objects.create(**item, handled=handled, redelivered=again)
    made.message(business_key="PAY-3", keys=["PAY-3"], unacked=True)
    text = Page(pasted(page, "PAY-0\nPAY-1\nPAY-2\nPAY-3")).text

    for told in (
        "PAY-0 ! Processed handled twice PAY-1",
        "PAY-1 ! Processed perhaps handled twice PAY-2",
        "PAY-2 ✓ Processed ",
        "PAY-3 ■ Parked may have been handled ",
    ):
        assert told in text
