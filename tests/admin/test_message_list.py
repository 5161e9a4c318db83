"""The list of messages: few queries, exact searches, filters that a selection understands, actions that only ask."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_rmq_retry import handler
from django_rmq_retry.admin import message_list
from django_rmq_retry.admin.messages import ParkedMessageAdmin
from django_rmq_retry.models import BlockedMessage, KeyList, ParkedMessage, State
from django_rmq_retry.parked.selection import Selection
from tests.admin import made
from tests.admin.conftest import client_of
from tests.admin.looking import Page, own_queries
from tests.admin.pasting import pasted
from tests.commands.running import parked

pytestmark = pytest.mark.django_db
LIST = "/admin/rmq_retry/parkedmessage/"


def shown(response: Any) -> set[str]:
    return {word for word in Page(response).text.split() if word.startswith("PAY-")}


def keys_of(response: Any) -> set[str]:
    return {row.business_key for row in response.context["cl"].result_list}


def selection(response: Any) -> Selection:
    """The values that an action passes to the page that asks for confirmation."""
    return Selection.read(parse_qs(urlsplit(response.headers["Location"]).query)["sel"][0])


def test_the_list_takes_four_queries_and_reads_no_body(page: Client) -> None:
    for number in range(60):
        made.message(business_key=f"PAY-{number}")
    with CaptureQueriesContext(
        connection,
    ) as queries:
        response = page.get(LIST)

    assert response.status_code == 200
    asked = own_queries(queries)
    assert len(asked) == 4, asked
    asked = [sql for sql in asked if "rmq_retry_attempt" not in sql]
    assert not [sql for sql in asked if '"body"' in sql or "DISTINCT" in sql]
    assert all("LIMIT" in sql for sql in asked)


def test_every_queue_with_records_can_be_chosen(page: Client) -> None:
    made.message(queue="payments.renamed", business_key="PAY-1")
    made.message(queue="payments.other", business_key="PAY-2", state=State.PROCESSED)
    made.message(queue="", business_key="PAY-3")

    response = page.get(LIST)
    chosen = next(one for one in response.context["cl"].filter_specs if one.parameter_name == "queue")
    assert {"payments.renamed", "payments.other"} <= {value for value, _label in chosen.lookup_choices}
    assert "" not in {value for value, _label in chosen.lookup_choices}
    assert shown(page.get(LIST, {"queue": "payments.renamed"})) == {"PAY-1"}


def test_the_list_shows_parked_messages_and_filters_show_the_rest(page: Client) -> None:
    made.message(business_key="PAY-1")
    made.message(business_key="PAY-2", state=State.PROCESSED)
    made.message(business_key="PAY-3", state=State.ON_HOLD, held_until=timezone.now() + timedelta(hours=1))

    assert shown(page.get(LIST)) == {"PAY-1"}
    assert shown(page.get(LIST, {"state": "processed"})) == {"PAY-2"}
    assert shown(page.get(LIST, {"state": "all"})) == {"PAY-1", "PAY-2", "PAY-3"}


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ({"queue": "payments.main"}, {"PAY-1", "PAY-3"}),
        ({"queue": "unknown.queue"}, {"PAY-2"}),
        ({"type": "refund"}, {"PAY-2"}),
        ({"reason": "expired"}, {"PAY-3"}),
        ({"parked": "1h"}, {"PAY-1", "PAY-3"}),
        ({"cycle_min": "2"}, {"PAY-1"}),
        ({"parked_before": "2020-01-01T00:00:00+00:00"}, set()),
        ({"parked_before": "rubbish"}, set()),
        ({"cycle_min": "rubbish"}, set()),
    ],
)
def test_filters_narrow_the_list_and_can_be_removed(page: Client, words: dict[str, str], found: set[str]) -> None:
    now = timezone.now()
    made.message(business_key="PAY-1", cycle=2)
    made.message(business_key="PAY-2", queue="unknown.queue", type="refund", parked_at=now - timedelta(hours=2))
    made.message(business_key="PAY-3", reason="expired")
    response = page.get(LIST, words)

    assert shown(response) == found
    chips = [link for said, link in Page(response).links.items() if said.endswith("remove")]
    assert len(chips) == 1
    assert shown(page.get(LIST + chips[0])) == {"PAY-1", "PAY-2", "PAY-3"}


@pytest.mark.parametrize("asked", ["PAY-88121", "9f3c-exact", "corr-exact", "ACC-7", " PAY-88121 "])
def test_one_exact_match_opens_the_message_in_any_state(page: Client, asked: str) -> None:
    made.message()
    fields: dict[str, Any] = {"message_id": "9f3c-exact", "correlation_id": "corr-exact", "state": State.PROCESSED}
    one = made.message(business_key="PAY-88121", keys=["PAY-88121", "ACC-7"], **fields)

    assert page.get(LIST, {"q": asked}).headers["Location"] == f"{LIST}{one.pk}/change/"


def test_two_matches_are_listed(page: Client) -> None:
    made.message(business_key="PAY-1", correlation_id="both")
    made.message(business_key="PAY-2", correlation_id="both", state=State.DISCARDED)

    assert shown(page.get(LIST, {"q": "both"})) == {"PAY-1", "PAY-2"}
    assert "No message matches." in Page(page.get(LIST, {"q": "neither"})).text


def test_a_search_ignores_case_takes_several_keys_and_says_where_it_looked(page: Client) -> None:
    one, two = made.message(business_key="PAY-80014"), made.message(business_key="PAY-80021")
    lower = page.get(LIST, {"q": " pay-80014 "}, follow=True)
    several = page.get(LIST, {"q": f"PAY-80014 {two.message_id} PAY-9"}, follow=True)
    neither = page.get(LIST, {"q": "PAY-7 PAY-9"})

    assert lower.redirect_chain[-1][0].endswith(f"/{one.pk}/change/")
    assert "A list of keys" in Page(several).text
    assert [f"#{number}" in Page(several).text for number in (one.pk, two.pk)] == [True, True]
    assert "PAY-9" in Page(several).text
    assert "Searched: business keys and message ids, also by how they begin, correlation ids and" in Page(neither).text
    assert "operatoraction/?q=PAY-7%20PAY-9" in neither.content.decode()
    assert KeyList.objects.count() == 1


UNKNOWN = "when its process was last heard of, outcome unknown"
ELSEWHERE = [
    ("out-2", "In the outbox, not sent: OUT-2", "outboxmessage/"),
    ("OUT-", "In the outbox, not sent: OUT-2", "outboxmessage/"),
    ("acc-5", "In the outbox, not sent: OUT-2", "outboxmessage/"),
    ("acc-6", "Blocked ordering key: ACC-6, where PAY-60 goes first", "blockedkey/?q=ACC-6"),
    ("pay-60", "Blocked ordering key: ACC-6, where PAY-60 goes first", "blockedkey/?q=ACC-6"),
    ("pay-61", "Waits for a blocked ordering key: PAY-61, behind PAY-60 (ordering key ACC-6)", "blockedkey/?q=ACC-6"),
    ("pay-7", "In a halted queue: PAY-70, first in bank.main", "queuecontrol/?q=bank.main"),
    ("ref-7", "In a halted queue: REF-7, first in bank.main", "queuecontrol/?q=bank.main"),
    ("pay-8000", f"In a handler on a {UNKNOWN}: PAY-8000 (bank.main)", "consumerprocess/"),
    ("pay-8001", "In a handler on b: PAY-8001 (bank.main)", "consumerprocess/"),
    ("9f3c-8001", "In a handler on b: PAY-8001 (bank.main)", "consumerprocess/"),
    ("PAY-9 OUT-2", "In the outbox, not sent: OUT-2", "outboxmessage/"),
]


@pytest.mark.parametrize(("asked", "said", "leads"), ELSEWHERE)
def test_a_search_finds_what_has_no_record(page: Client, asked: str, said: str, leads: str) -> None:
    """A payment in the outbox was not found, "of all messages that are stored"."""
    made.not_parked()
    answer = page.get(LIST, {"q": asked})
    printed = parked("show", asked)

    assert said in Page(answer).text, Page(answer).text
    assert f'href="/admin/rmq_retry/{leads}' in answer.content.decode()
    assert said in printed.err, printed.err
    assert printed.err.endswith(f"There is no record of {asked}.")


def test_a_message_of_the_outbox_is_found_by_its_business_key(page: Client) -> None:
    @handler("refunds", keys=lambda message: message.data["payment"])
    def transfer(body: object) -> None: ...

    row = {"message_id": "9f3c-1", "routing_key": "refunds", "body": b'{"payment": "PAY-80"}', "size": 21}
    made.outgoing(**row, failed_at=None)

    assert "In the outbox, not sent yet: 9f3c-1" in Page(page.get(LIST, {"q": "pay-80"})).text


def test_a_message_behind_a_blocked_key_is_found_by_its_business_key(page: Client) -> None:
    """It was not found, as its id is another: whoever paid it by hand let it be paid again once the key was free."""

    @handler("refunds", keys=lambda message: message.data["payment"])
    def transfer(body: object) -> None: ...

    row = {"shown": "9f3c-1", "name": "m1", "identity": "message:1", "digest": "1", "waiting_since": timezone.now()}
    key = made.blocked_key(key="ACC-6", queue="refunds")
    BlockedMessage.objects.create(block=key, body=b'{"payment": "PAY-80"}', properties=b"\0\0", **row)

    waits = "Waits for a blocked ordering key: 9f3c-1 (PAY-80), behind 9f3c-0 (ordering key ACC-6)"
    assert waits in Page(page.get(LIST, {"q": "pay-80"})).text
    assert f"PAY-80 {waits}" in Page(pasted(page, "PAY-80")).text


@pytest.mark.database
@pytest.mark.parametrize("few", [20, 0], ids=["few keys", "many keys"])
def test_a_key_is_found_in_what_waits_for_a_queue_of_another_project(
    few: int, page: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a handler of this project could tell its business key: a payment in the outbox was "Not found"."""
    monkeypatch.setattr("django_rmq_retry.parked.key_match.FEW", few)
    monkeypatch.setattr("django_rmq_retry.parked.key_match.KEYS_AT_ONCE", few)
    row = {"shown": "9f3c-2", "name": "m2", "identity": "message:2", "digest": "2", "waiting_since": timezone.now()}
    key = made.blocked_key(key="ACC-6", queue="ledger")
    body = json.dumps({"text": "order\nLEDGER/7 Ü"}).encode()
    BlockedMessage.objects.create(block=key, body=body, properties=b"\0\0", **row)
    made.outgoing(message_id="9f3c-1", routing_key="ledger", body=b'{"payment": "PAY-80", "no": 17}')
    text = Page(pasted(page, "PAY-8\npay-80\nLedger/7 Ü\nPAY\n9F3C-1\nacc-6")).text
    outbox, behind = (
        "In the outbox, not sent: 9f3c-1 (in its content)",
        "9f3c-2 (in its content), behind 9f3c-0 (ordering key ACC-6)",
    )

    assert f"pay-80 {outbox}" in text
    assert f"Ledger/7 Ü Waits for a blocked ordering key: {behind}" in text
    assert "9F3C-1 In the outbox, not sent: 9f3c-1 " in text
    assert "acc-6 Blocked ordering key: ACC-6, where" in text
    assert "Not found (2) PAY-8 PAY Also" in text
    assert outbox in Page(page.get(LIST, {"q": "pay-80"})).text
    assert f"{outbox}\n" in parked("list", "--search", "pay-80").err
    assert "In the outbox" not in Page(page.get(LIST, {"q": "pay-8"})).text


def test_a_search_reads_the_latest_contents_only_and_says_how_many(
    page: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_rmq_retry.parked.elsewhere.MOST_READ", 2)
    monkeypatch.setattr("django_rmq_retry.parked.elsewhere.MOST_DECODED", 1)
    for number in range(2):
        made.outgoing(message_id=f"9f3c-{number}", body=b'{"payment": "PAY-%d"}' % number)
    every = Page(page.get(LIST, {"q": "PAY-9"})).text
    made.outgoing(message_id="9f3c-2")
    text = Page(pasted(page, "PAY-0\nPAY-1\n9f3c-0")).text

    assert "Also searched: the outbox; " in every
    assert "Not found (1) PAY-0 Also searched: the outbox, but not the contents of more than the latest 2 " in text
    assert "Elsewhere (2)" in text


def test_a_message_that_waits_for_a_retry_is_found_by_its_id_and_key(page: Client) -> None:
    """It was not parked, and would be paid by its retry."""
    one, now = made.message(), timezone.now()
    waits: dict[str, Any] = {"at": now, "next_at": now + timedelta(minutes=3), "verdict": "retry"}
    made.attempt(one, 1, identity="one", message_id="9f3c-80", business_key="PAY-80", **waits)
    made.attempt(one, 1, identity="late", business_key="PAY-82", **{**waits, "next_at": now - timedelta(hours=5)})
    made.attempt(one, 1, identity="two", message_id="9f3c-81", **{**waits, "at": now - timedelta(minutes=1)})
    made.attempt(one, 2, identity="two", message_id="9f3c-81", at=now, verdict="ack")
    answer = pasted(page, "9F3C-80\n9f3c-81\npay-80\nPAY-82")

    assert "9F3C-80 Failed, and waits for its retry: 9f3c-80 (payments.main)" in Page(answer).text
    assert "pay-80 Failed, and waits for its retry: PAY-80 (payments.main)" in Page(answer).text
    assert "PAY-82 Failed, and waits for its retry: PAY-82 (payments.main)" in Page(answer).text
    assert "Not found (1) 9f3c-81" in Page(answer).text
    assert 'href="/admin/rmq_retry/queuecontrol/?q=payments.main"' in answer.content.decode()


def test_a_search_says_where_it_did_not_look_and_what_leaves_no_record(page: Client) -> None:
    """That nothing was found was taken for "it never came", of a payment that had been made at the first attempt."""
    clerk = client_of(made.person("clerk", "view_parkedmessage"))
    every, few = (Page(one.get(LIST, {"q": "PAY-9"})).text for one in (page, clerk))
    printed = [parked("show", "PAY-9").err, parked("list", "--search", "PAY-9").err, parked("list", "--key", "P").err]

    also = "Also searched: the outbox; blocked keys and the messages behind them; waiting retries, by message id or"
    unseen = "Not searched: messages that wait in a queue of RabbitMQ, and contents beyond their first 16 KB or that"
    assert [also in text for text in (every, few, *printed)] == [True, False, True, True, True]
    assert [unseen in text for text in (every, few, *printed)] == [True] * 5


def test_the_beginning_of_a_key_or_id_finds_what_begins_with_it(page: Client) -> None:
    for key, state in (("PAY-80007", State.PARKED), ("pay-80008", State.PROCESSED), ("XPAY-80009", State.PARKED)):
        made.message(business_key=key, state=state, message_id=f"id-{key}")
    begun = page.get(LIST, {"q": "pay-8000"})
    by_id = page.get(LIST, {"q": "id-X"})
    exact = page.get(LIST, {"q": "PAY-80007"})

    assert keys_of(begun) == {"PAY-80007", "pay-80008"}
    assert "No business key or id is exactly “pay-8000”." in Page(begun).text
    assert keys_of(by_id) == {"XPAY-80009"}
    assert exact.status_code == 302


@pytest.mark.database
@pytest.mark.parametrize(
    ("begins", "expected"),
    [
        ("PAY-8", {"pay-81", "PAY-82"}),
        ("id-", {"pay-81", "PAY-82", "pay-9"}),
        ("p", {"pay-81", "PAY-82", "pay-9", "q"}),
    ],
    ids=["keys", "ids", "both"],
)
def test_a_beginning_that_fits_many_finds_them_all(
    begins: str, expected: set[str], page: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_rmq_retry.parked.selection.MOST_SEARCHED_IDS", 1)
    for key, name in (("pay-81", "id-1"), ("PAY-82", "id-2"), ("pay-9", "id-3"), ("q", "p-4"), ("r", "r-5")):
        made.message(business_key=key, message_id=name)

    assert keys_of(page.get(LIST, {"q": begins})) == expected


@pytest.mark.parametrize("text", ["PAY_8", "PAY%", "100%", "Ä-Straße", "\\", "'"])
def test_the_beginning_of_a_key_is_no_pattern(page: Client, text: str) -> None:
    made.message(business_key=f"{text}-1")
    made.message(business_key="PAY-8-1")
    made.message(business_key="PAYX8-1")

    assert keys_of(page.get(LIST, {"q": text.swapcase()})) == {f"{text}-1"}


def test_an_action_on_what_a_beginning_found_takes_no_more_and_says_so(page: Client) -> None:
    for number in range(3):
        made.message(business_key=f"PAY-800{number}")
    made.message(business_key="PAY-9")
    ticked = {"action": "discard", "select_across": "1", "_selected_action": "1"}
    asks = page.post(f"{LIST}?q=PAY-800", ticked, follow=True)

    assert asks.context["selection"].filter["begins"] == "PAY-800"
    assert asks.context["count"] == 3


def test_a_search_looks_up_ids_by_their_indexes(page: Client) -> None:
    made.message()
    with CaptureQueriesContext(connection) as queries:
        page.get(LIST, {"q": "nothing has this"})

    plans = []
    for sql in own_queries(queries):
        if "UNION" in sql:
            with connection.cursor() as cursor:
                cursor.execute(f"EXPLAIN QUERY PLAN {sql}")
                plans.append(" / ".join(str(row[-1]) for row in cursor.fetchall()))

    assert plans
    assert [plan for plan in plans if "SCAN rmq_retry_parkedmessage" in plan] == []
    assert [plan for plan in plans if "SCAN rmq_retry_businesskey" in plan] == []


def test_columns_that_say_the_same_in_each_row_are_left_out_of_a_wide_screen(page: Client) -> None:
    for number in range(3):
        made.message(business_key=f"PAY-{number}", queue="one")
    made.message(business_key="PAY-8", queue="two", type="other", attempts=3)
    made.message(business_key="PAY-9", queue="one", type="", unconfirmed=True, state=State.ON_HOLD)
    asked: tuple[dict[str, str], ...] = ({}, {"queue": "one"}, {"state": "all"}, {"state": State.ON_HOLD})
    found = [set(page.get(LIST, words).context["cl"].same) for words in asked]

    assert found == [
        {"status"},
        {"status", "kind", "queue", "attempts"},
        set(),
        {"badge", "kind", "queue", "attempts"},
    ]


def test_selecting_all_tells_how_many_match_and_not_how_many_the_pages_show(
    page: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It offered "Select all 1000 parked messages" of 1,300, and an action then took all 1,300."""
    monkeypatch.setattr(message_list, "MOST_PAGED_MESSAGES", 2)
    monkeypatch.setattr(ParkedMessageAdmin, "list_per_page", 1)
    cause = made.group()
    for _ in range(3):
        made.message(cause)
    counted, uncounted = (Page(page.get(LIST, words)).text for words in ({}, {"state": "all"}))

    assert "Select all 3 that match" in counted
    assert "Select all 2+ that match" in uncounted


def test_an_action_on_ticked_messages_is_one_button(page: Client) -> None:
    """Each took three clicks: the list of actions, one of them, and Run."""
    one = made.message(business_key="PAY-1")
    seen = Page(page.get(LIST))
    _form, pressed = seen.form_with("Discard…")
    actions = [given["value"] for tag, given in seen.tags if tag == "input" and given.get("name") == "action"]
    asks = page.post(LIST, {**pressed, "action": actions, "_selected_action": one.pk}, follow=True)

    assert "Discard PAY-1" in Page(asks).text


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"state": State.REQUEUED}, "Requeued"),
        ({"state": State.ON_HOLD, "held_until": datetime(2031, 12, 24, 12, 0, tzinfo=UTC)}, "On hold until 12-24"),
    ],
)
def test_the_status_of_a_message_in_the_list_is_short(page: Client, fields: dict[str, Any], said: str) -> None:
    """Rows were two to four lines high, of a date or a sentence in the badge."""
    made.message(business_key="PAY-1", **fields)
    text = Page(page.get(LIST, {"state": "all"})).text

    assert f"{said} PAY-1" in text


def test_a_wide_screen_shows_which_of_the_parked_messages_was_discarded_before(page: Client) -> None:
    """The column was left out because all were parked; a phone and the page of the group had the mark."""
    made.message(business_key="PAY-80006", discarded_at=timezone.now())
    made.message(business_key="PAY-80007")
    answer = page.get(LIST)

    assert "status" not in answer.context["cl"].same
    assert "discarded before" in Page(answer).text


def test_a_span_of_time_narrows_the_list_by_the_readers_clock(page: Client, settings: Any) -> None:
    settings.TIME_ZONE = "Europe/Prague"
    noon = datetime(2026, 6, 1, 12, 0, tzinfo=UTC)
    for hours in range(3):
        made.message(business_key=f"PAY-{hours}", parked_at=noon + timedelta(hours=hours))
    span = {"parked_after": "2026-06-01T14:30", "parked_before": "2026-06-01T15:30"}
    answer = page.get(LIST, span)

    assert shown(answer) == {"PAY-1"}
    assert Selection.of_filter(answer.context["cl"].words()).filter["parked_after"] == "2026-06-01T14:30:00+02:00"
    assert shown(page.get(LIST, {"parked_after": "at noon"})) == set()
    assert "No message matches." in Page(page.get(LIST, {"parked_after": "2026-06-01T25:30"})).text


def test_the_error_of_a_row_has_its_whole_text_in_its_title(page: Client) -> None:
    made.message(error="GatewayTimeout", error_text="no answer " * 20)
    text = page.get(LIST).content.decode()

    assert f'title="GatewayTimeout: {("no answer " * 20).strip()}"' in text


def test_an_empty_list_states_that_nothing_is_parked(page: Client) -> None:
    assert "✓ Nothing is parked." in Page(page.get(LIST)).text


def test_the_count_stops_at_its_limit(page: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_list, "MOST_PAGED_MESSAGES", 100)
    now = timezone.now()
    for number in range(103):
        # The last one of the second page and the next one were parked at the same time.
        parked_at = now - timedelta(minutes=99 if number == 100 else number)
        made.message(business_key=f"PAY-{number}", type="refund", parked_at=parked_at)
    made.message(business_key="PAY-other", type="transfer", parked_at=now - timedelta(minutes=200))
    first, last = page.get(LIST, {"type": "refund"}), page.get(LIST, {"type": "refund", "p": "2"})
    (older,) = [link for said, link in Page(last).links.items() if said.startswith("Older")]

    assert "103 messages match; the pages show the first 100." in Page(first).text
    assert "Older" not in Page(first).text
    # The newer row is the one with the higher number.
    assert {"PAY-98", "PAY-100"} < shown(last)
    assert shown(page.get(LIST + older)) == {"PAY-99", "PAY-100", "PAY-101", "PAY-102"}


def test_the_number_of_parked_messages_is_told_where_counters_know_it(
    page: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_list, "MOST_PAGED_MESSAGES", 2)
    cause = made.group()
    for number in range(5):
        made.message(cause, business_key=f"PAY-{number}", queue="a" if number < 4 else "b")
    made.message(made.group())
    words: list[dict[str, str]] = [{}, {"group": str(cause.pk), "queue": "a"}, {"parked": "7d"}]
    texts = [Page(page.get(LIST, chosen)).text for chosen in words]

    assert "6 messages match; the pages show the first 2." in texts[0]
    assert "4 messages match; the pages show the first 2." in texts[1]
    assert "2+ messages match; the pages show the first 2." in texts[2]


@pytest.mark.parametrize(
    ("action", "path"),
    [
        ("requeue", "/admin/rmq_retry/requeuerun/preview/"),
        ("discard", f"{LIST}discard/"),
        ("hold", f"{LIST}hold/"),
        ("export", f"{LIST}export/"),
    ],
)
def test_an_action_opens_its_confirmation_page_and_changes_nothing(page: Client, action: str, path: str) -> None:
    one, _other = made.message(), made.message()
    response = page.post(LIST, {"action": action, "_selected_action": [one.pk]})

    assert urlsplit(response.headers["Location"]).path == path
    assert list(selection(response).queryset()) == [one]
    assert page.get(response.headers["Location"]).status_code == 200
    assert set(ParkedMessage.objects.values_list("state", "revision")) == {("parked", 1)}


def test_select_all_excludes_messages_parked_later(page: Client) -> None:
    meant = [made.message(type="refund"), made.message(type="refund")]
    made.message(type="transfer")
    made.message(type="refund", state=State.DISCARDED)
    ticked = {"action": "requeue", "select_across": "1", "_selected_action": [meant[0].pk]}
    chosen = selection(page.post(f"{LIST}?type=refund", ticked))
    made.message(type="refund")

    assert {one.pk for one in chosen.queryset()} == {one.pk for one in meant}
    assert chosen.count == 2


def test_ids_that_were_not_listed_are_ignored(page: Client) -> None:
    made.message()
    response = page.post(LIST, {"action": "requeue", "_selected_action": ["-1", "999999"]})

    assert selection(response).count == 0
