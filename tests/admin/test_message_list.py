"""The list of messages: few queries, exact searches, filters that a selection understands, actions that only ask."""

import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
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
from django_rmq_retry.attempts.buffer import Buffer
from django_rmq_retry.consumer.recorder import Recorder
from django_rmq_retry.models import (
    Attempt,
    BlockedMessage,
    EarlyRetry,
    KeyList,
    ParkedMessage,
    QueueControl,
    RequeueRun,
    State,
)
from django_rmq_retry.parked import shelves
from django_rmq_retry.parked.actions import hold
from django_rmq_retry.parked.retention import delete_resolved
from django_rmq_retry.parked.selection import Selection
from django_rmq_retry.policies import discard
from tests.admin import made
from tests.admin.conftest import client_of
from tests.admin.looking import Page, address_of, follow, own_queries
from tests.admin.pasting import pasted
from tests.attempts.attempted import CHARGE, failure, success
from tests.commands.running import parked
from tests.handlers.factories import delivery
from tests.operators.made import ANN

pytestmark = pytest.mark.django_db
LIST = "/admin/rmq_retry/parkedmessage/"
HOUR = timedelta(hours=1)
STILL = "… may still be handled"
NAMED = replace(CHARGE, keys=lambda _message: ["PAY-80", "CUST-7"])


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """A recorder that writes when the test says so."""
    monkeypatch.setattr(Buffer, "_begin", lambda _buffer: None)
    return Recorder()


def shown(response: Any) -> set[str]:
    return {word for word in Page(response).text.split() if word.startswith("PAY-")}


def keys_of(response: Any) -> set[str]:
    return {row.business_key for row in response.context["cl"].result_list}


def selection(response: Any) -> Selection:
    """The values that an action passes to the page that asks for confirmation."""
    return Selection.read(parse_qs(urlsplit(response.headers["Location"]).query)["sel"][0])


def test_the_list_takes_five_queries_and_reads_no_body(page: Client) -> None:
    for number in range(60):
        made.message(business_key=f"PAY-{number}")
    with CaptureQueriesContext(
        connection,
    ) as queries:
        response = page.get(LIST)

    assert response.status_code == 200
    asked = own_queries(queries)
    assert len(asked) == 5, asked
    asked = [sql for sql in asked if "rmq_retry_attempt" not in sql]
    assert not [sql for sql in asked if '"body"' in sql or "DISTINCT" in sql]
    assert all("LIMIT" in sql for sql in asked)


def choices(response: Any, name: str) -> dict[str, str]:
    """The choices of a filter but for *All*: value and label."""
    (spec,) = (one for one in response.context["cl"].filter_specs if one.parameter_name == name)
    return dict(spec.lookup_choices)


def test_filters_offer_what_is_parked_with_its_number_those_of_most_messages_first(page: Client) -> None:
    timeout, broken = made.group(), made.group(title="TypeError", reason="permanent")
    untold = made.group(title="rejected", reason="rejected", culprit="")
    for cause in (timeout, broken, broken, untold):
        made.message(cause, type="refund" if cause is broken else "payment.transfer")
    made.message(made.group(title="KeyError", reason="expired"), state=State.DISCARDED, type="gone")
    response = page.get(LIST)
    narrowed = page.get(LIST, {"queue": "payments.main"})

    assert list(choices(response, "error").values()) == ["TypeError (2)", "GatewayTimeout (1)"]
    assert set(choices(response, "type").values()) == {"refund (2)", "payment.transfer (2)"}
    assert set(choices(response, "reason")) == {"retries_exhausted", "permanent", "rejected"}
    assert set(choices(narrowed, "type").values()) == {"refund", "payment.transfer"}
    assert set(choices(page.get(LIST, {"state": "discarded"}), "reason")) == {"expired"}


def test_an_empty_list_leads_to_the_other_states_in_which_its_filter_has_messages(page: Client) -> None:
    for state in (State.PROCESSED, State.PROCESSED, State.ON_HOLD):
        made.message(error="KeyError", state=state)
    response = Page(page.get(LIST, {"error": "KeyError"}))

    assert "No message with this status matches. With another status: On hold (1) · Processed (2)" in response.text
    assert shown(page.get(LIST + response.links["Processed (2)"])) == shown(
        page.get(LIST, {"error": "KeyError", "state": "processed"})
    )
    assert "No message matches." in Page(page.get(LIST, {"error": "TypeError"})).text


def test_a_list_tells_its_order_and_leads_to_its_next_page(page: Client) -> None:
    for _ in range(51):
        made.message()
    first = Page(page.get(LIST))
    following = next(address for text, address in first.links.items() if text.startswith("Next page"))
    second = Page(page.get(LIST + following))

    assert "51 messages latest first" in first.text
    assert "Next page" not in second.text
    assert "oldest first" in Page(page.get(LIST, {"o": "7"})).text


def test_long_keys_that_differ_at_their_ends_can_be_told_apart(page: Client) -> None:
    for number in (1, 2):
        made.message(business_key=f"customer-statement-2026-11-DE89370400440532013000-0000{number}")
    cells = page.get(LIST).content.decode()

    assert [f"</span>000-0000{number}</span>" in cells for number in (1, 2)] == [True, True]
    assert 'title="customer-statement-2026-11-DE89370400440532013000-00001"' in cells


def test_every_queue_with_records_can_be_chosen(page: Client) -> None:
    made.message(queue="payments.renamed", business_key="PAY-1")
    made.message(queue="payments.other", business_key="PAY-2", state=State.PROCESSED)
    made.message(queue="", business_key="PAY-3")

    every, parked = choices(page.get(LIST, {"state": "all"}), "queue"), choices(page.get(LIST), "queue")
    assert {"payments.renamed", "payments.other"} <= every.keys()
    assert "" not in every
    assert parked == {"payments.renamed": "payments.renamed (1)"}
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
    assert "No business key or id begins with “neither”." in Page(page.get(LIST, {"q": "neither"})).text


def test_the_list_is_narrowed_to_an_error_that_has_parked_messages(page: Client) -> None:
    for error in ("GatewayTimeout", "CardDeclined"):
        made.message(made.group(title=error), error=error, business_key=f"of {error}")
    made.group(title="Solved")
    listed = page.get(LIST)
    one = page.get(LIST + Page(listed).links["CardDeclined (1)"])

    assert [row.business_key for row in one.context["cl"].result_list] == ["of CardDeclined"]
    assert "Solved" not in Page(listed).text


def test_a_search_says_how_many_messages_of_a_customer_are_in_each_state(page: Client) -> None:
    for state in (State.PARKED, State.PARKED, State.PROCESSED, State.DISCARDED):
        made.message(state=state, keys=["PAY", "CUST-7"])

    assert "4 messages: 2 Parked · 1 Processed · 1 Discarded" in Page(page.get(LIST, {"q": "CUST-7"})).text
    assert "2 messages:" not in Page(page.get(LIST)).text


def test_several_remarks_of_a_row_are_told_apart(page: Client) -> None:
    made.message(unconfirmed=True, succeeded_at=timezone.now(), version=2)

    assert "may have been delivered · handled already · edited" in Page(page.get(LIST)).text


def test_a_payment_whose_body_cannot_be_read_is_found_by_its_content(page: Client) -> None:
    """It said "No message matches" of a payment that was parked, because no key could be read from its body."""
    cut = made.message(business_key="", body=b'{"reference": "CUT-2", "amo')
    made.message(business_key="", body=b'{"reference": "CUT-21", "amo')
    found = Page(page.get(LIST, {"q": "cut-2"}))

    assert "In the content of parked messages without a business key:" in found.text
    assert [one for one in found.links.values() if one.endswith("/change/")] == [f"{LIST}{cut.pk}/change/"]
    assert "No message matches." not in found.text


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
    assert "deleted records, messages discarded from the outbox, and what was checked" in Page(neither).text
    assert KeyList.objects.count() == 1


UNKNOWN = "when its process was last heard of, outcome unknown"
ELSEWHERE = [
    ("out-2", "In the outbox, not sent: OUT-2", "outboxmessage/"),
    ("OUT-", "In the outbox, not sent: OUT-2", "outboxmessage/"),
    ("acc-5", "In the outbox, not sent: OUT-2", "outboxmessage/"),
    ("acc-6", "Blocked ordering key: ACC-6, where PAY-60 goes first", "blockedkey/?q=ACC-6"),
    ("pay-60", "Blocked ordering key: ACC-6, where PAY-60 goes first", "blockedkey/?q=ACC-6"),
    ("pay-61", "Waits for a blocked ordering key: PAY-61, behind PAY-60 (ordering key ACC-6)", "blockedkey/?q=ACC-6"),
    ("pay-7", "In a halted queue: REF-7 (PAY-70), first in bank.main", "queuecontrol/?q=bank.main"),
    ("ref-7", "In a halted queue: REF-7, first in bank.main", "queuecontrol/?q=bank.main"),
    ("pay-8000", f"In a handler on a:1 {UNKNOWN}: PAY-8000 (bank.main)", "consumerprocess/"),
    ("pay-8001", "In a handler on b:2: PAY-8001 (bank.main)", "consumerprocess/"),
    ("9f3c-8001", "In a handler on b:2: PAY-8001 (bank.main)", "consumerprocess/"),
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
    assert f"No record has the key or id {asked}, but it was found: " in printed.err
    assert printed.code == 5, "the code of a key that never came is 6"


def test_a_message_of_the_outbox_is_found_by_its_business_key(page: Client) -> None:
    @handler("refunds", keys=lambda message: [message.data["payment"], "CUST-7"])
    def transfer(body: object) -> None: ...

    row = {"message_id": "9f3c-1", "routing_key": "refunds", "body": b'{"payment": "PAY-80", "to": "DE1"}', "size": 34}
    made.outgoing(**row, failed_at=None)

    for asked, why in (("pay-80", ""), ("9f3c", ""), ("cust-7", " (CUST-7)"), ("de1", " (in its content)")):
        told = Page(page.get(LIST, {"q": asked})).text
        assert f"In the outbox, not sent yet: PAY-80, 9f3c-1{why}" in told


def test_a_message_behind_a_blocked_key_is_found_by_its_business_key(page: Client) -> None:
    """It was not found, as its id is another: whoever paid it by hand let it be paid again once the key was free."""

    @handler("refunds", keys=lambda message: message.data["payment"])
    def transfer(body: object) -> None: ...

    row = {"shown": "9f3c-1", "name": "m1", "identity": "message:1", "digest": "1", "waiting_since": timezone.now()}
    key = made.blocked_key(key="ACC-6", queue="refunds")
    BlockedMessage.objects.create(block=key, body=b'{"payment": "PAY-80"}', properties=b"\0\0", **row)

    waits = "Waits for a blocked ordering key: 9f3c-1 (PAY-80), behind 9f3c-0 (ordering key ACC-6)"
    assert waits in Page(page.get(LIST, {"q": "pay-80"})).text
    assert f"PAY-80 {STILL} {waits}" in Page(pasted(page, "PAY-80")).text


@pytest.mark.database
@pytest.mark.parametrize("few", [20, 0], ids=["few keys", "many keys"])
def test_a_key_is_found_in_what_waits_for_a_queue_of_another_project(
    few: int, page: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a handler of this project could tell its business key: a payment in the outbox was "Not found"."""
    monkeypatch.setattr("django_rmq_retry.parked.key_match.FEW", few)
    monkeypatch.setattr("django_rmq_retry.parked.key_match.KEYS_AT_ONCE", few or 1)
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

    assert f"pay-80 {STILL} {outbox}" in text
    assert f"Ledger/7 Ü {STILL} Waits for a blocked ordering key: {behind}" in text
    assert f"9F3C-1 {STILL} In the outbox, not sent: 9f3c-1 " in text
    assert f"acc-6 {STILL} Blocked ordering key: ACC-6, where" in text
    assert "Not found (2) PAY-8 PAY Also" in text
    assert outbox in Page(page.get(LIST, {"q": "pay-80"})).text
    assert f"{outbox}\n" in parked("list", "--search", "pay-80").err
    assert "In the outbox" not in Page(page.get(LIST, {"q": "pay-8"})).text


def test_a_search_reads_the_latest_contents_only_and_says_how_many(
    page: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_rmq_retry.parked.shelves.MOST_READ", 2)
    monkeypatch.setattr("django_rmq_retry.parked.shelves.MOST_DECODED", 1)
    for number in range(2):
        made.outgoing(message_id=f"9f3c-{number}", body=b'{"payment": "PAY-%d"}' % number)
    every = Page(page.get(LIST, {"q": "PAY-9"})).text
    made.outgoing(message_id="9f3c-2")
    text = Page(pasted(page, "PAY-0\nPAY-1\n9f3c-0")).text

    assert "Also searched: the outbox; " in every
    assert "Not found (1) PAY-0 Also searched: the outbox, but not the contents of more than the latest 2 " in text
    assert "Elsewhere (2)" in text


def test_a_message_that_waits_for_a_retry_is_found_by_its_id_and_each_of_its_keys(
    page: Client, recorder: Recorder
) -> None:
    """It was not parked, and would be paid by its retry; of its keys only the first was stored."""
    recorder.note(failure(delivery(message_id="9f3c-80"), subscription=NAMED))
    recorder.buffer.flush()
    answer = pasted(page, "9F3C-80\npay-80\nCUST-7\nCUST-70")
    text = Page(answer).text

    waits = rf"{STILL} Attempt 1 failed \([\w.]+\), and the next one is due at \d\d:\d\d"
    for key, why in (("9F3C-80", ""), ("pay-80", ""), ("CUST-7", "CUST-7, ")):
        assert re.search(rf"{key} {waits}: PAY-80, 9f3c-80 \({why}payments\)", text), text
    assert "Not found (1) CUST-70" in text
    assert 'href="/admin/rmq_retry/queuecontrol/?q=payments"' in answer.content.decode()
    assert ", and the next one is due at" in Page(page.get(LIST, {"q": "cust"})).text
    for words in (("show",), ("list", "--search"), ("list", "--json", "--key"), ("list", "--jsonl", "--search")):
        told, never = parked(*words, "PAY-80"), parked(*words, "PAY-81")
        assert (told.code, never.code) == (5, 6), "a script paid it: the code was that of a key that never came"
        if "--json" in words:
            assert told.data["elsewhere"][0]["became"] == "may still be handled"
        elif "--jsonl" not in words:
            last = told.err.splitlines()[-1]
            assert last == "No record has the key or id PAY-80, but it was found: may still be handled."


def test_a_search_for_a_customer_finds_what_waits_beside_what_is_parked(page: Client, recorder: Recorder) -> None:
    """It showed two parked payments, and nothing of the third, which would be made by its retry."""
    for number in range(2):
        made.message(business_key=f"PAY-{number}", keys=[f"PAY-{number}", "CUST-7"])
    recorder.note(failure(delivery(message_id="9f3c-80"), subscription=NAMED))
    recorder.buffer.flush()
    found, listed = page.get(LIST, {"q": "CUST-7"}), pasted(page, "CUST-7")

    assert keys_of(found) == {"PAY-0", "PAY-1"}
    assert f"Found elsewhere: {STILL} Attempt 1 failed" in Page(found).text
    assert "Found several times 1" in Page(listed).text
    assert f"CUST-7 {STILL} Attempt 1 failed" in Page(listed).text


def test_a_key_that_is_parked_and_waits_for_a_retry_is_told_on_each_page_and_does_not_jump(
    page: Client, recorder: Recorder
) -> None:
    """The parked one was discarded as paid by hand, "will never be handled"; then the other was paid by its retry."""
    one = made.message(business_key="PAY-80")
    alone = page.get(LIST, {"q": "PAY-80"})
    recorder.note(failure(delivery(message_id="9f3c-80"), subscription=NAMED))
    recorder.buffer.flush()
    found, listed = page.get(LIST, {"q": "PAY-80"}), pasted(page, "PAY-80")
    asked = page.get(f"{LIST}discard/?message={one.pk}", follow=True)
    of_list = follow(page, listed, "Discard 1")
    preview = page.get("/admin/rmq_retry/requeuerun/preview/", {"message": one.pk}, follow=True)

    waits = f"{STILL} Attempt 1 failed"
    assert (alone.status_code, found.status_code, keys_of(found)) == (302, 200, {"PAY-80"})
    assert all(waits in Page(each).text for each in (found, listed, asked, page.get(f"{LIST}{one.pk}/change/")))
    assert "Elsewhere 1" in Page(listed).text
    assert "1 key names a message that is not parked, so it is not among these" in Page(of_list).text
    assert of_list.context["left"].doubtful == ["PAY-80"]
    assert "it is handled as well, so these may be done twice. Leave them out until you know:" in Page(preview).text
    assert waits in Page(preview).text


def test_a_parked_message_is_not_named_again_by_its_own_attempts(page: Client, recorder: Recorder) -> None:
    """It was found dead after an attempt whose retry had come: nothing else waits."""
    recorder.note(failure(delivery(message_id="9f3c-80"), subscription=NAMED))
    recorder.buffer.flush()
    own = Attempt.objects.get()
    Attempt.objects.update(next_at=timezone.now() - timedelta(minutes=1))
    made.message(business_key="PAY-80", identity=own.identity)
    made.blocked_key(key="ACC-6", blocker="PAY-80")

    assert page.get(LIST, {"q": "PAY-80"}).status_code == 302
    assert pasted(page, "PAY-80").context["answer"].complete


def test_a_search_that_finds_more_than_it_names_says_so(page: Client, recorder: Recorder) -> None:
    for number in range(21):
        recorder.note(failure(delivery(message_id=f"9f3c-{number}"), subscription=NAMED))
        recorder.buffer.flush()
    few, many = Page(page.get(LIST, {"q": "9f3c-2"})).text, Page(page.get(LIST, {"q": "9f3c-"})).text
    more = "There are more, which are not shown here."

    assert [more in text for text in (few, many, Page(pasted(page, "9f3c-7")).text)] == [False, True, False]


def test_a_retry_that_a_run_sent_early_is_not_promised_to_come_when_it_was_due(page: Client) -> None:
    now = timezone.now()
    made.tried_again("m-97026", at=now - timedelta(minutes=9), verdict="retry")
    Attempt.objects.update(next_at=now + timedelta(minutes=14), error="BankDown")
    run = RequeueRun.objects.create(by="ann", created_at=now, state="running")
    sent = {"identity": "message:m-97026", "shown": "m-97026", "state": "sent"}
    EarlyRetry.objects.create(run=run, sent_at=now - timedelta(minutes=5), **sent)
    text = Page(page.get(LIST, {"q": "m-97026"})).text

    assert f"Attempt 1 failed (BankDown), and requeue run {run.pk} sent it at " in text
    assert "before it was due: what became of it is not known" in text
    assert "the next one is due" not in text


def test_a_search_that_finds_nothing_says_that_keys_are_compared_from_their_beginning(page: Client) -> None:
    made.message(business_key="PAY-81873")

    assert "No business key or id begins with “81873”." in Page(page.get(LIST, {"q": "81873"})).text


def test_a_search_without_rows_offers_no_filter(page: Client) -> None:
    made.message(business_key="PAY-1")
    one, none = page.get(LIST, {"q": "P"}), page.get(LIST, {"q": "nothing"})
    narrowed = page.get(LIST, {"q": "nothing", "state": "parked"})

    assert ["rmq-filter" in some.content.decode() for some in (one, none, narrowed)] == [True, False, True]


def test_a_retry_that_is_long_due_is_found_with_its_time(page: Client, recorder: Recorder) -> None:
    recorder.note(failure(delivery(message_id="9f3c-80"), subscription=NAMED))
    recorder.buffer.flush()
    Attempt.objects.update(next_at=timezone.now() - timedelta(days=3))

    assert (
        ", and the next one has been due for 3 d: PAY-80, 9f3c-80 (CUST-7, payments)"
        in Page(page.get(LIST, {"q": "CUST-7"})).text
    )


def test_a_message_that_a_retry_has_handled_is_found_and_said_to_be_done(page: Client, recorder: Recorder) -> None:
    """It was "Not found": nothing told whether the bank had made the payment."""
    arrived = {number: delivery(message_id="9f3c-80", attempt=number) for number in (1, 2)}
    recorder.note(failure(arrived[1], subscription=NAMED))
    recorder.note(success(arrived[2]))
    recorder.buffer.flush()

    said = r"Handled at .* by attempt 2: PAY-80, 9f3c-80 \(CUST-7, payments\)"
    assert re.search(said, Page(page.get(LIST, {"q": "CUST-7"})).text)
    assert re.search(said, parked("show", "CUST-7").err)


def test_a_payment_that_two_processes_have_made_is_found_by_its_key(page: Client, recorder: Recorder) -> None:
    """A frozen process and the one that got its message had both paid: "No message matches"."""
    cut_off = replace(delivery(message_id="9f3c-80"), token=(SimpleNamespace(stale=True), 1))
    recorder.note(replace(success(cut_off), subscription=NAMED, seconds=133.7))
    recorder.note(replace(success(delivery(message_id="9f3c-80", redelivered=True)), subscription=NAMED))
    recorder.buffer.flush()
    Attempt.objects.filter(seconds__gt=1).update(host="frozen", pid=7)
    said = r"Handled more than once: .* by frozen:7, .* by \S+:\d+: PAY-80, 9f3c-80 \(payments\)"

    for asked in ("pay-80", "9f3c-80"):
        assert re.search(said, Page(page.get(LIST, {"q": asked})).text)
        assert re.search(said, parked("show", asked).err)


@pytest.mark.parametrize("apart", [False, True], ids=["in its queue", "in quarantine"])
def test_a_payment_that_came_back_from_a_worker_is_found_by_its_key(
    page: Client, recorder: Recorder, apart: bool
) -> None:
    arrival = replace(delivery(message_id="9f3c-80"), redelivered=not apart, quarantined=apart)
    recorder.note(replace(success(arrival), subscription=NAMED))
    recorder.buffer.flush()
    text = Page(page.get(LIST, {"q": "PAY-80"})).text

    assert re.search(r"Handled at .* by \S+:\d+, delivered before to a consumer that did not .* it: PAY-80", text)
    assert STILL not in Page(pasted(page, "PAY-80")).text


@pytest.mark.parametrize(
    ("made_of_it", "said"),
    [
        (success, r"handled again at \S+ by \S+:\d+: it may have been done twice"),
        (failure, r"tried again at \S+ by \S+:\d+"),
    ],
)
def test_what_a_killed_process_had_in_its_handler_says_what_another_one_made_of_it(
    page: Client, recorder: Recorder, made_of_it: Any, said: str
) -> None:
    """It "may still be handled, outcome unknown" for half an hour after it had been paid a second time."""
    entry = made.in_flight(queue="payments", key="PAY-80", message_id="9f3c-80", seconds=70)
    made.consumer(host="a", pid=7, seconds=60, in_flight=[entry])
    recorder.note(made_of_it(delivery(message_id="9f3c-80", redelivered=True)))
    recorder.buffer.flush()
    text = Page(page.get(LIST, {"q": "PAY-80"})).text

    assert re.search(rf"In a handler on a:7 when its process was last heard of, and {said}", text), text
    assert "outcome unknown" not in text
    assert (STILL in Page(pasted(page, "PAY-80")).text) == (made_of_it is failure)
    assert ("! perhaps done twice In a handler" in text, "✓ done" in text) == (made_of_it is success, False)


def test_what_a_killed_process_had_is_called_unknown_and_not_still_to_be_handled(page: Client) -> None:
    """It "may still be handled" by a process that had been dead for an hour."""
    made.consumer(host="a", pid=7, seconds=3600, in_flight=[made.in_flight(key="PAY-80", message_id="9f3c-80")])
    text = Page(page.get(LIST, {"q": "PAY-80"})).text

    assert "! outcome unknown In a handler on a:7" in text
    assert STILL not in text
    assert "! outcome unknown" in Page(pasted(page, "PAY-80")).text


@pytest.mark.parametrize(
    ("stop", "waits"),
    [
        ({"opened": True, "probe_at": datetime(2030, 1, 1, 12, tzinfo=UTC)}, "breaker of its queue .* at 2030-01-01"),
        ({"paused": True}, "its queue is paused: "),
    ],
)
def test_a_retry_whose_queue_is_stopped_is_not_called_due(
    page: Client, recorder: Recorder, stop: dict[str, Any], waits: str
) -> None:
    """It "has been due for 8 min", as if a consumer had missed it."""
    recorder.note(failure(delivery(message_id="9f3c-80"), subscription=NAMED))
    recorder.buffer.flush()
    Attempt.objects.update(next_at=timezone.now() - timedelta(minutes=8))
    QueueControl.objects.create(queue="payments", **stop)
    text = Page(page.get(LIST, {"q": "PAY-80"})).text

    assert re.search(rf"Attempt 1 failed \(BankDown\), and the next one waits.*{waits}", text), text
    assert "has been due" not in text


def test_a_message_that_its_handler_discarded_at_a_retry_is_found(page: Client, recorder: Recorder) -> None:
    arrived = {number: delivery(message_id="9f3c-80", attempt=number) for number in (1, 2)}
    recorder.note(failure(arrived[1], subscription=NAMED))
    recorder.note(failure(arrived[2], subscription=NAMED, verdict=discard("superseded")))
    recorder.buffer.flush()

    assert "Discarded by its handler at " in Page(page.get(LIST, {"q": "CUST-7"})).text


def test_of_equal_messages_without_an_id_none_is_said_to_be_done(page: Client, recorder: Recorder) -> None:
    """One of them may still wait."""
    recorder.note(failure(delivery(), subscription=NAMED))
    recorder.note(success(delivery(attempt=2)))
    recorder.buffer.flush()

    assert "Handled at" not in Page(page.get(LIST, {"q": "CUST-7"})).text


def test_a_message_whose_record_was_deleted_is_found_by_its_key(page: Client) -> None:
    """Its decision took a second search, of the audit log, which the page only offered."""
    keys = ["PAY-80", "CUST-7"]
    made.message(business_key="PAY-80", keys=keys, state=State.DISCARDED, resolved_at=timezone.now())
    delete_resolved(timezone.now() + timedelta(days=1))
    answer, customer = page.get(LIST, {"q": "pay-80"}), page.get(LIST, {"q": "cust-7"})

    assert re.search(r"Was parked; its record was deleted at \S+: PAY-80", Page(answer).text)
    assert "/admin/rmq_retry/operatoraction/?q=PAY-80" in answer.content.decode()
    assert "PAY-80 ✓ done Was parked; its record was deleted" in Page(pasted(page, "PAY-80")).text
    assert re.search(r"its record was deleted at \S+: PAY-80 \(CUST-7\)", Page(customer).text)
    assert "/admin/rmq_retry/operatoraction/?q=PAY-80" in customer.content.decode()


def test_a_search_says_where_it_did_not_look_and_what_leaves_no_record(page: Client) -> None:
    """That nothing was found was taken for "it never came", of a payment that had been made at the first attempt."""
    clerk = client_of(made.person("clerk", "view_parkedmessage"))
    every, few = (Page(one.get(LIST, {"q": "PAY-9"})).text for one in (page, clerk))
    printed = [parked("show", "PAY-9").err, parked("list", "--search", "PAY-9").err, parked("list", "--key", "P").err]

    also = "Also searched: the outbox; blocked keys and the messages behind them; messages that were tried or"
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
    assert "No parked message has exactly the key or id “pay-8000”. These are others" in Page(begun).text
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
        {"status", "kind", "queue", "attempts"},
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
        ({"state": State.ON_HOLD, "held_until": datetime(2031, 12, 24, 12, 0, tzinfo=UTC)}, "On hold"),
    ],
)
def test_the_status_of_a_message_in_the_list_is_short(page: Client, fields: dict[str, Any], said: str) -> None:
    """Rows were two to four lines high, of a date or a sentence in the badge."""
    made.message(business_key="PAY-1", **fields)
    text = Page(page.get(LIST, {"state": "all"})).text

    assert f"{said} PAY-1" in text


def test_a_wide_screen_shows_which_of_the_parked_messages_was_discarded_before(page: Client) -> None:
    """The column of the status was left out because all were parked, and the mark with it."""
    made.message(business_key="PAY-80006", discarded_at=timezone.now())
    made.message(business_key="PAY-80007")
    answer = page.get(LIST)

    assert "status" in answer.context["cl"].same
    assert "no answer within 30 s discarded before" in Page(answer).text


@pytest.mark.parametrize("asked", ["set-7", "SET-7", "\N{LATIN SMALL LETTER LONG S}et-7"])
def test_among_many_of_the_outbox_the_case_of_a_name_is_ignored(
    page: Client, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    monkeypatch.setattr(shelves, "MOST_DECODED", 1)
    for name in ("Set-71", "sEt-72", "SET-73", "other", "ret-7", "et-7"):
        made.outgoing(message_id=name)
    answer = page.get(LIST, {"q": asked})

    assert {one.name for one, _address in answer.context["cl"].addressed} == {"Set-71", "sEt-72", "SET-73"}


@pytest.mark.parametrize("words", [{"state": "on_hold"}, {"state": "all"}, {"q": "PAY-1"}])
def test_a_row_on_hold_says_who_holds_it_and_why(page: Client, words: dict[str, str]) -> None:
    """It said until when only: whom to ask stood on the page of each message."""
    held = [made.message(business_key=key) for key in ("PAY-11", "PAY-12")]
    made.message(business_key="PAY-13")
    until = timezone.now() + HOUR
    hold(Selection.of_ids([one.pk for one in held]), ANN, until=until, reason="INC-553: bank calls back")
    answer = Page(page.get(LIST, words))

    assert answer.text.count("ann: INC-553: bank calls back") == 2
    assert answer.links["ann: INC-553: bank calls back"] in [f"{address_of(one)}#rmq-timeline" for one in held]


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
