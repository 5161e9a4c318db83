"""The page of one message: everything is there, nothing of it runs, nothing is seen that may not be seen."""

import hashlib
import json
import re
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from django.utils.translation import override

from django_rmq_retry import CeleryTask, Delivery, handler
from django_rmq_retry.attempts.history import failures_of
from django_rmq_retry.markup import NOTHING, name, wrapping
from django_rmq_retry.messages import encode_properties
from django_rmq_retry.messages.identity import attempt_identities
from django_rmq_retry.messages.reasons import Reason
from django_rmq_retry.models import (
    Attempt,
    MessageVersion,
    OperatorAction,
    ParkedMessage,
    RequeueItem,
    RequeueRun,
    State,
)
from django_rmq_retry.models.controls import IS_GONE
from django_rmq_retry.parked import edit
from tests.admin import made
from tests.admin.conftest import SUPPORT, client_of, operating, support
from tests.admin.looking import EVIL, Page, address_of, own_queries, scripts_in
from tests.commands.running import run
from tests.messages.celery_calls import recorded
from tests.operators.invariants import check_audit_log
from tests.operators.made import ANN, discard_messages
from tests.parked.arrivals import by_us, store, the_record

pytestmark = pytest.mark.django_db
LISTED = "/admin/rmq_retry/parkedmessage/"
IBAN = "DE89370400440532013000"


def test_the_page_takes_thirteen_queries(page: Client) -> None:
    one = made.message(business_key="PAY-1")
    for number in range(1, 6):
        made.attempt(one, number)
    with CaptureQueriesContext(connection) as queries:
        response = page.get(address_of(one))

    assert response.status_code == 200
    assert len(own_queries(queries)) <= 13, own_queries(queries)


def test_the_message_page_shows_each_attempt_with_its_time(page: Client, settings: Any) -> None:
    operating(settings, ERROR_LABELS={"GatewayTimeout": "The bank did not answer."})
    one = made.message(business_key="PAY-1")
    for number in range(1, 6):
        made.attempt(one, number)
    text = Page(page.get(address_of(one))).text

    assert "It failed 5 times, then it was parked: retries exhausted." in text
    assert "The bank did not answer." in text
    assert "Attempt 5 failed payments.main · worker-3:812 · 30.0 s · a1b2c3" in text
    assert "Next attempt after 3 min 30 s" in text
    assert "bank/gateway.py:17 in post raise GatewayTimeout(host)" in text
    assert text.index("Attempt 5 failed") < text.index("Attempts 1-4: same error") < text.index("Published")


def test_attempts_with_the_error_of_the_one_above_are_folded_and_others_shown_in_full(page: Client) -> None:
    """Ten equal attempts hid the one that had failed in another way."""
    one = made.message(business_key="PAY-1", attempts=6)
    for number in range(1, 7):
        made.attempt(one, number, error_text="503 Service Unavailable" if number == 4 else one.error_text)
    text = Page(page.get(address_of(one))).text
    events = ["Attempt 6 failed", "Attempt 5: same error Show it", "Attempt 4 failed", "503 Service Unavailable"]
    events += ["Attempt 3 failed", "Attempts 1, 2: same error Show all 2", "Published"]
    places = [text.index(event) for event in events]

    assert places == sorted(places)
    assert text.count("GatewayTimeout: no answer within 30 s Traceback") == 2
    # What is folded is all there.
    assert text.count("Full traceback") == text.count("Log lines INFO payments: posting order 17") == 6
    assert text.count("Next attempt after 3 min 30 s") == 5


@pytest.mark.parametrize("between", ["requeued", "handled"])
def test_attempts_are_not_folded_over_what_happened_between_them(page: Client, between: str) -> None:
    one = made.message(business_key="PAY-1", attempts=1)
    made.attempt(one, 1, at=one.parked_at - timedelta(hours=2))
    if between == "handled":
        made.attempt(one, 1, at=one.parked_at - timedelta(hours=1), verdict="ack", error="", error_text="", chain=[])
    made.attempt(one, 1, cycle=2 if between == "requeued" else 1)
    text = Page(page.get(address_of(one))).text

    assert text.count("Attempt 1 failed") == 2
    assert "same error" not in text


def test_the_body_stands_beside_the_timeline_before_the_details(page: Client) -> None:
    """It stood below both, on the second screen."""
    one = made.message(business_key="PAY-1")
    text = page.get(address_of(one)).content.decode()
    places = [text.index(f'id="rmq-{name}"') for name in ("timeline", "body", "facts", "headers", "activity")]

    assert places == sorted(places)


def handled(one: ParkedMessage, verdict: str, minute: int, **fields: Any) -> None:
    """An attempt after a requeue that did not fail."""
    at = one.parked_at + timedelta(minutes=minute)
    made.attempt(one, at=at, verdict=verdict, cycle=2, wait=0, error="", error_text="", chain=[], **fields)


def test_a_message_that_was_handled_twice_says_so_first_and_in_its_timeline(page: Client) -> None:
    one = made.message(business_key="PAY-1", state=State.PROCESSED, cycle=2)
    handled(one, "ack", 1, host="vm", pid=356)
    before = Page(page.get(address_of(one))).text
    handled(one, "ack", 2, host="vm", pid=355)
    ParkedMessage.objects.update(succeeded_at=one.parked_at + timedelta(minutes=2))
    text = Page(page.get(address_of(one))).text

    assert "Handled twice" not in before
    assert "Handled again" not in before
    second = r"[\d -]*\d\d:\d\d:\d\d"
    assert re.search(rf"! Handled twice .*Handled twice: {second} by vm:356, {second} by vm:355\. Processed", text)
    assert text.count("Attempt 1 succeeded") == 1
    assert text.index("Handled again: attempt 1 succeeded") < text.index("Attempt 1 succeeded")
    assert "Handled twice" in run("rmq_parked", "show", str(one.pk)).out


def test_the_first_of_two_handlings_says_that_its_acknowledgement_was_lost(page: Client) -> None:
    """It said that an earlier consumer had had the message, which nobody had: its own connection was cut off."""
    one = made.message(business_key="PAY-1", state=State.PROCESSED, cycle=2)
    handled(one, "ack", 1, redelivered=True, number=2)
    before = Page(page.get(address_of(one))).text
    handled(one, "ack", 2, redelivered=True, number=2, pid=9)
    text = Page(page.get(address_of(one))).text
    again, lost = (
        "Delivered before to a consumer that did not acknowledge it",
        "Its connection was lost before its acknowledgement arrived",
    )

    assert (again in before, lost in before) == (True, False)
    assert (text.count(again), text.count(lost)) == (1, 1)
    assert text.index("Handled again: attempt 2 succeeded") < text.index(again) < text.index("Attempt 2 succeeded")
    assert text.index("Attempt 2 succeeded") < text.index(lost)


def test_a_first_attempt_that_failed_and_was_cut_off_does_not_say_that_another_had_its_message(page: Client) -> None:
    """Both attempts said it, and an operator looked for a third consumer."""
    one = made.message(business_key="PAY-1", attempts=2)
    at = one.parked_at - timedelta(minutes=9)
    made.attempt(one, 1, redelivered=True, at=at, wait=30)
    made.attempt(one, 1, redelivered=True, at=at + timedelta(minutes=1), wait=30, error_text="refused")
    made.attempt(one, 2, at=at + timedelta(minutes=2), error_text="closed")
    text = Page(page.get(address_of(one))).text
    again, lost = (
        "Delivered before to a consumer that did not acknowledge it",
        "Its connection was lost before its acknowledgement arrived",
    )

    assert (text.count(again), text.count(lost)) == (1, 1)
    assert text.index(again) < text.index(lost)


@pytest.mark.parametrize("written", [True, False], ids=["sent", "sent by a worker that it killed at once"])
def test_the_timeline_keeps_each_parking_of_a_message_that_kills_its_workers(page: Client, *, written: bool) -> None:
    """It has no attempts: after its second requeue the timeline began with that, as if it had never been parked."""
    now = timezone.now()
    first, second, third = (now - timedelta(minutes=ago) for ago in (50, 30, 10))
    one = made.message(
        made.group(reason="crashed"), business_key="PAY-1", cycle=3, recorded_at=first, parked_at=third,
        requeued_at=third - timedelta(minutes=5),
    )  # fmt: skip
    for place, (cycle, ended) in enumerate(((2, second), (3, third))):
        run_of = RequeueRun.objects.create(created_at=first, by="ann", state="finished")
        item = {"run": run_of, "message": one, "revision": 1, "place": place, "state": "failed"}
        sent = ended - timedelta(minutes=5) if written else None
        RequeueItem.objects.create(**item, cycle=cycle, sent_at=sent, ended_at=ended)
    text = Page(page.get(address_of(one))).text
    events = re.findall(r"■ Parked(?=:)?|→ Requeued by ann", text[text.index("Timeline") :])

    assert events == ["■ Parked", "→ Requeued by ann", "■ Parked", "→ Requeued by ann", "■ Parked"]


def test_a_message_of_a_run_that_was_perhaps_handled_twice_says_so_first(page: Client) -> None:
    """Its page began with "Processed", although it was one of those that the run doubted, and was paid twice."""
    one = made.message(business_key="PAY-1", state=State.PROCESSED, cycle=2, succeeded_at=timezone.now())
    run = RequeueRun.objects.create(created_at=timezone.now(), by="ann", state="finished")
    item = {"run": run, "message": one, "revision": 1, "cycle": 2, "place": 0, "state": "processed"}
    RequeueItem.objects.create(**item, handled=1, redelivered=True)
    text = Page(page.get(address_of(one))).text

    assert "Perhaps handled twice: a consumer that was lost had it first. Processed" in text
    assert "! Perhaps handled twice" in text


def test_the_timeline_has_each_lost_consumer_that_had_begun_the_message(page: Client) -> None:
    """Only a list of its run knew that another consumer had paid before: the message and its command told of one."""
    one = made.message(business_key="PAY-1", state=State.PROCESSED, cycle=2, parked_at=timezone.now())
    had = made.in_flight(message_id=one.message_id, seconds=-20)
    made.consumer(seconds=100, ended_at=timezone.now(), in_flight=[had])
    made.consumer(pid=9, in_flight=[had])
    handled(one, "ack", 1, pid=355)
    address = address_of(one)
    with CaptureQueriesContext(connection) as before:
        untold = Page(page.get(address)).text
    Attempt.objects.update(redelivered=True)
    with CaptureQueriesContext(connection) as after:
        text = Page(page.get(address)).text
    told, data = (run("rmq_parked", "show", str(one.pk), *options) for options in ((), ("--json",)))

    assert "Begun by" not in untold
    assert len(own_queries(after)) == len(own_queries(before)) + 1
    assert text.count("Begun by") == 1
    assert ("Perhaps handled" in untold, "! Perhaps handled twice" in text) == (False, True)
    assert text.index("Attempt 1 succeeded") < text.index("! Begun by worker-3:4711") < text.index("Parked: ")
    assert "worker-3:4711 had begun it at " in told.out
    assert [item["process"] for item in data.data["begun"]] == ["worker-3:4711"]


def test_a_search_shows_no_tick_for_a_message_that_was_perhaps_handled_twice(page: Client) -> None:
    """It was "✓ processed", and only its own page told of the doubt."""
    for key in ("PAY-1", "PAY-10"):
        one = made.message(business_key=key, state=State.PROCESSED, cycle=2, succeeded_at=timezone.now())
        run_of = RequeueRun.objects.create(created_at=timezone.now(), by="ann", state="finished")
        item = {"run": run_of, "message": one, "revision": 1, "cycle": 2, "place": 0, "state": "processed"}
        RequeueItem.objects.create(**item, handled=1, redelivered=key == "PAY-1")
    text = Page(page.get(LISTED, {"q": "PAY-"})).text
    listed = run("rmq_parked", "list", "--begins", "PAY-").out

    assert (text.count("! Processed"), text.count("✓ Processed"), text.count("perhaps handled twice")) == (1, 1, 1)
    assert listed.count("perhaps handled twice, GatewayTimeout") == 1


def test_a_list_says_which_messages_may_have_been_handled(page: Client) -> None:
    """Only the preview and the page of each told it."""
    for unacked in (True, False):
        made.message(business_key=f"PAY-{unacked}", unacked=unacked)
    made.message(made.group(title="worker_stopped", reason="worker_stopped"), error="", error_text="")

    assert Page(page.get(LISTED)).text.count("may have been handled") == 2
    assert run("rmq_parked", "list").out.count("may have been handled") == 2
    assert Page(page.get(LISTED, {"doubt": "handled"})).text.count("may have been handled") == 2
    assert run("rmq_parked", "list", "--doubt", "handled", "--json").data["total"] == 2
    assert Page(page.get(LISTED, {"doubt": "rubbish"})).text.count("may have been handled") == 0


def test_the_page_of_a_message_that_killed_its_workers_tells_of_each_of_them(page: Client) -> None:
    """Eight workers had paid it: "0 attempts, parked without a failed attempt", and a time line without one of them."""
    now = timezone.now()
    group = made.group(title="worker_stopped", reason="worker_stopped")
    facts = {"attempts": 0, "error": "", "error_text": "", "published_at": now - timedelta(minutes=5), "parked_at": now}
    one = made.message(group, detail="Redelivered 8 times after its workers stopped or lost their connection.", **facts)
    times = {"fault": IS_GONE, "ended_at": now - timedelta(seconds=170)}
    for pid, ago, queues in ((7, 180, ["payments.main"]), (8, 180, ["mail"]), (9, 600, ["payments.main"])):
        made.consumer(pid=pid, seconds=ago, queues=queues, **times)
    seen = Page(page.get(f"{LISTED}{one.pk}/change/")).text

    assert "0 · cycle 1 · at least 8 begun without an end" in seen
    assert "It was parked because no attempt came to an end: " in seen
    assert "! may have been handled" in seen
    assert seen.count("A consumer of its queue was lost, perhaps with this message: worker-3:7") == 1
    assert seen.count("A consumer of its queue was lost") == 1


def test_a_message_that_died_with_its_worker_was_tried_at_least_once(page: Client) -> None:
    """Its row said "Attempts 0" of a payment that eight workers had begun."""
    one = made.message(made.group(reason="worker_stopped"), attempts=0, error="", error_text="")
    other = made.message(
        one.group,
        attempts=0,
        error="",
        detail="Redelivered 8 times after its workers stopped or lost their connection.",
    )
    cells = re.findall(r"Attempts</span> ([^<]+)<", page.get(LISTED).content.decode())

    assert sorted(cells) == ["1+", "8+"]
    assert "\t8+\t" in run("rmq_parked", "list", str(other.pk)).out
    assert "\t1+\t" in run("rmq_parked", "list", str(one.pk)).out


def test_a_message_is_handled_twice_although_the_first_process_was_killed_before_it_wrote_its_attempt(
    page: Client,
) -> None:
    """Its page said "Processed" and no more, while the run that led there counted it as handled twice."""
    one = made.message(business_key="PAY-1", state=State.PROCESSED, cycle=2, succeeded_at=timezone.now())
    handled(one, "ack", 1, host="vm", pid=356)
    sent = RequeueRun.objects.create(state="finished", by="ann", created_at=timezone.now(), sent=1, processed=1)
    item = RequeueItem.objects.create(
        run=sent, message=one, place=1, revision=1, cycle=2, handled=1, state="processed", sent_at=timezone.now()
    )
    listed = f"{LISTED}?state=processed"
    before = [Page(page.get(address)).text for address in (address_of(one), listed)]
    RequeueItem.objects.filter(pk=item.pk).update(handled=2)
    opened, text = Page(page.get(address_of(one))), Page(page.get(address_of(one))).text
    told, data = run("rmq_parked", "show", str(one.pk)).out, run("rmq_parked", "show", str(one.pk), "--json").data

    assert not any("handled twice" in said.lower() for said in before)
    assert re.search(r"! Handled twice .*Handled twice: [\d :-]+ by vm:356, once at an unknown time\. Processed", text)
    assert re.search(rf"Check whether that did harm\. .* Requeue run {sent.pk}", text)
    assert f"/admin/rmq_retry/requeuerun/{sent.pk}/change/" in opened.links.values()
    assert "once at an unknown time. Processed" in told
    assert f"It was handled twice in requeue run {sent.pk}." in told
    assert "Check whether that did harm." in told
    assert (data["handled"], data["handled_twice_in_run"]) == (2, sent.pk)
    assert "no answer within 30 s handled twice" in Page(page.get(listed)).text


def test_an_attempt_whose_parking_was_interrupted_is_not_shown_as_a_parking(page: Client) -> None:
    """An outage came before the copy was confirmed; the message was delivered again and failed once more."""
    one = made.message(attempts=2)
    made.attempt(one, 1)
    lost = made.attempt(one, 2, at=one.parked_at - timedelta(minutes=2), interrupted=True)
    made.attempt(one, 2)
    text = Page(page.get(address_of(one))).text

    said = "Attempt 2 failed; parking was interrupted, and the broker delivered the message again"
    assert (text.count(said), text.count("Parked: ")) == (1, 1)
    assert "same error" not in text.partition(said)[0], "it is not folded into the attempt after it"
    assert "park (interrupted: delivered again)" in run("rmq_parked", "show", str(one.pk), "--attempts", "all").out
    Attempt.objects.filter(pk=lost.pk).update(interrupted=False)
    assert Page(page.get(address_of(one))).text.count("Parked: ") == 2


def test_a_delivery_that_once_spared_is_no_second_handling(page: Client) -> None:
    one = made.message(business_key="PAY-1", state=State.PROCESSED, cycle=2)
    handled(one, "ack", 1)
    handled(one, "duplicate", 2)
    text = Page(page.get(address_of(one))).text

    assert "Handled twice" not in text
    assert "Delivered again, and not handled again (once=True)" in text
    assert "Attempt 1 failed" not in text


def test_a_twin_without_an_id_that_was_handled_is_no_second_handling(page: Client) -> None:
    one = made.message(state=State.PROCESSED, message_id="", cycle=2)
    twin = attempt_identities(one.queue, bytes(one.body))[0]
    made.attempt(one, 2, verdict="ack", identity=twin, message_id="")
    handled(one, "ack", 1, message_id="")
    text = Page(page.get(address_of(one))).text

    assert "Attempt 2 succeeded" in text
    assert "Handled twice" not in text


def test_the_message_page_shows_every_key_explains_before_its_buttons_and_copies_nothing_empty(page: Client) -> None:
    one = made.message(business_key="PAY-1", keys=["PAY-1", "CUST-0211"], message_id="", attempts=3)
    made.attempt(one, 3, seconds=0.0031)
    answer = page.get(address_of(one))
    text = Page(answer).text

    assert "Business key PAY-1, CUST-0211" in text
    assert text.index("An operator decides.") < text.index("Requeue… More… Edit")
    assert "· 3 ms ·" in text
    assert "data-rmq-copy" not in answer.content.decode().partition("rmq-facts")[2].partition("</dl>")[0]


@pytest.mark.parametrize("protocol", [1, 2])
@pytest.mark.usefixtures("no_handlers")
def test_the_page_of_a_failed_celery_task_shows_its_name_and_arguments(page: Client, protocol: int) -> None:
    @handler("celery", codec=CeleryTask(), name="charge")
    def charge(message: Delivery) -> None:
        """Nothing."""

    body, properties = recorded(protocol, "plain")
    store(by_us(id=None, handler="charge", queue="celery", body=body, raw=encode_properties(properties)))
    text = Page(page.get(address_of(the_record()))).text

    assert "Business key payments.tasks.charge, task-1" in text
    assert '"amount": "9.90"' in text


def test_names_may_wrap_at_their_dots_only(page: Client) -> None:
    long = "payments.transfer.to.the.northern.branch"
    dead = {"queue": long, "reason": "rejected", "count": 2, "exchange": "", "routing-keys": ["pay.in"]}
    dead["time"] = timezone.now()
    one = made.message(queue=long, properties=made.properties({"x-death": [dead]}))
    shown = page.get(address_of(one)).content.decode()

    parts = long.replace(".", ".<wbr>")
    assert f'<th scope="row" class="rmq-id"><span class="rmq-name">{parts}</span></th>' in shown
    assert name("payments.transfer") == '<span class="rmq-name rmq-whole">payments.transfer</span>'
    assert name("a.b" + "c" * 60) == f'<span class="rmq-break">a.<wbr>b{"c" * 60}</span>'
    several = "1.986 LongNameOfAnError · bank.gateway:post"
    assert wrapping(several) == f'<span class="rmq-name">{several.replace("k.", "k.<wbr>")}</span>'
    assert wrapping("bank.gateway") == '<span class="rmq-name">bank.<wbr>gateway</span>'


def test_the_page_of_a_message_without_a_handler_shows_no_attempts(page: Client) -> None:
    one = made.message(attempts=0, reason="no_handler", error="")
    text = Page(page.get(address_of(one))).text

    assert "It was parked before it reached a handler: no handler." in text
    assert "not recorded" not in text


def test_the_message_page_escapes_all_message_contents(page: Client) -> None:
    cause = made.group(title=EVIL, culprit=EVIL, note=EVIL, noted_by=EVIL, plain=EVIL, noted_at=timezone.now())
    texts = dict.fromkeys(
        ("message_id", "correlation_id", "type", "business_key", "handler", "queue", "parked_in", "exchange"), EVIL
    )
    one = made.message(
        cause, **texts, routing_key=EVIL, content_type=EVIL, error=EVIL, error_text=EVIL, detail=EVIL, reason=EVIL[:60],
        hold_reason=EVIL, resolution=EVIL, body=EVIL.encode(),
        properties=made.properties({EVIL[:90]: EVIL, "x-y": [EVIL]}),
    )  # fmt: skip
    frames = [{"file": EVIL, "line": EVIL, "function": EVIL, "code": EVIL, "own": True}]
    made.attempt(
        one, error=EVIL, error_text=EVIL, host=EVIL, deploy=EVIL[:90], logs=EVIL, fingerprint=cause.fingerprint,
        chain=[{"error": EVIL, "text": EVIL, "frames": frames}],
    )  # fmt: skip
    pages = [
        address_of(one),
        "/admin/rmq_retry/parkedmessage/",
        "/admin/rmq_retry/errorgroup/",
        "/admin/rmq_retry/errorgroup/?by=queue",
        "/admin/rmq_retry/errorgroup/?by=type",
        f"/admin/rmq_retry/errorgroup/{cause.pk}/change/",
        f"/admin/rmq_retry/errorgroup/{cause.pk}/note/",
        f"/admin/rmq_retry/requeuerun/preview/?message={one.pk}",
        f"/admin/rmq_retry/parkedmessage/discard/?group={cause.pk}",
        f"/admin/rmq_retry/parkedmessage/hold/?message={one.pk}",
        "/admin/rmq_retry/livestatus/",
    ]
    for address in pages:
        response = page.get(address, follow=True)

        assert response.status_code == 200
        assert scripts_in(response) == [], address
        assert b"<script>alert" not in response.content
        assert b"<img src=x" not in response.content


def test_direction_marks_are_shown_as_escape_codes(page: Client) -> None:
    # PostgreSQL stores no NUL in a text.
    one = made.message(business_key="PAY-1\u202e", error_text="a\x02b", body=b'{"a": "\xe2\x80\xae\x01"}')
    content = page.get(address_of(one)).content.decode()

    assert "\u202e" not in content
    assert "PAY-1\\u202e" in content
    assert "␁" in content
    assert "\x02" not in content


@pytest.mark.parametrize(
    "body",
    [
        b'{"amount": 100.00, "id": 12345678901234567890, "a": 1, "a": 2}',
        b"\x00\x01\xff\xfe<script>",
        b"",
        b"\r\n\r\nx\r",
        b'{"x":1E400}',
        b"<script>alert(1)</script>",
    ],
)
def test_a_download_has_the_exact_bytes_and_is_logged(page: Client, lead: User, body: bytes) -> None:
    one = made.message(body=body)
    seen = page.get(address_of(one))
    response = page.post(address_of(one, "body"))
    act = OperatorAction.objects.get()

    assert seen.status_code == 200
    assert response.content == body
    assert response.headers["Content-Type"] == "application/octet-stream"
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert response.headers["Content-Disposition"].startswith("attachment;")
    assert (act.action, act.actor_id, act.message) == ("download", lead.pk, one.pk)
    assert hashlib.sha256(bytes(ParkedMessage.objects.get(pk=one.pk).body)).hexdigest() == one.sha256


def test_a_large_body_is_cut_on_the_page_and_whole_in_the_download(page: Client) -> None:
    body = b'{"x": "' + b"y" * 5_000_000 + b'"}'
    one = made.message(body=body)
    shown = page.get(address_of(one))

    assert len(shown.content) < 400_000
    assert "Only its beginning is shown." in Page(shown).text
    assert page.post(address_of(one, "body")).content == body


@pytest.mark.parametrize(
    ("body", "whole", "masked"),
    [
        (b"[" * 8000 + b"]" * 8000, "too deeply to be formatted", "too deeply to find its confidential fields"),
        (b'{"a":' * 8000 + b"1" + b"}" * 8000, "too deeply to be formatted", "too deeply to find"),
        (b"[" * 100 + b"1," * 30_000 + b"1" + b"]" * 100, "too deeply to be formatted", "too deeply to be formatted"),
        (b"[" + b'{"pan":1},' * 50_000 + b"1]", "Only its beginning is shown.", "49,900 more fields are hidden."),
    ],
)
def test_a_hostile_body_cannot_make_the_page_huge_or_slow(page: Client, body: bytes, whole: str, masked: str) -> None:
    one = made.message(body=body)
    for client, said in ((page, whole), (support(), masked)):
        begun = time.process_time()
        response = client.get(address_of(one))

        assert said in Page(response).text
        assert len(response.content) < 500_000
        assert time.process_time() - begun < 10


def test_a_masked_field_is_not_in_the_page_without_the_permission() -> None:
    properties = made.properties({"authorization": "Bearer abc", "card": {"pan": "4111222233334444", "kind": "debit"}})
    one = made.message(properties=properties)
    content = support().get(address_of(one)).content.decode()

    assert IBAN not in content
    assert "12345678901234567890" in content
    assert "Bearer abc" not in content
    assert "4111222233334444" not in content
    assert "debit" in content


@pytest.mark.parametrize("body", [b"iban=DE89370400440532013000", b"\xff" + IBAN.encode(), f'"{IBAN}"'.encode()])
def test_a_body_that_cannot_be_masked_is_not_shown(body: bytes) -> None:
    one = made.message(body=body, properties=b"\x20\x00\x00\x00\x00\x1a" + IBAN.encode())
    content = support().get(address_of(one)).content.decode()

    assert IBAN not in content
    assert IBAN.encode().hex(" ") not in content
    assert "it is not shown." in content


def test_revealing_a_masked_field_needs_the_permission_and_is_logged() -> None:
    one = made.message(body=b'[{"iban": "DE11"}, {"iban": "DE22"}]')
    clerk = support("reveal_field")
    first = clerk.get(address_of(one)).content.decode()
    shown = clerk.post(address_of(one, "reveal"), {"place": "[1].iban"}).content.decode()
    act = OperatorAction.objects.get()

    assert "DE22" not in first
    assert "DE22" in shown
    assert "DE11" not in shown
    assert (act.action, act.message, act.facts) == ("reveal", one.pk, {"place": "[1].iban"})
    check_audit_log()
    assert "DE22" not in clerk.get(address_of(one)).content.decode()


def test_a_masked_header_can_be_revealed() -> None:
    one = made.message(properties=made.properties({"authorization": "Bearer abc"}))
    clerk = support("reveal_field")

    assert "Bearer abc" in clerk.post(address_of(one, "reveal"), {"place": "headers.authorization"}).content.decode()


@pytest.mark.parametrize("place", ["", "amount", "nothing", "headers.nothing"])
def test_only_masked_fields_can_be_revealed(place: str) -> None:
    assert support("reveal_field").post(address_of(made.message(), "reveal"), {"place": place}).status_code == 404
    assert not OperatorAction.objects.exists()


def test_tracebacks_and_logs_need_their_permission() -> None:
    one = made.message()
    made.attempt(one, 5)
    hidden = support().get(address_of(one)).content.decode()
    seen = client_of(made.person("developer", *SUPPORT, "view_traceback")).get(address_of(one)).content.decode()

    assert "GatewayTimeout(host)" not in hidden
    assert "posting order 17" not in hidden
    assert "Can see tracebacks" in hidden
    assert "GatewayTimeout(host)" in seen
    assert "posting order 17" in seen


def test_undecodable_properties_are_shown_as_bytes_with_the_reason(page: Client) -> None:
    one = made.message(properties=b"\x20\x00\x00\x00\x00\xff\x03abc")
    text = Page(page.get(address_of(one))).text

    assert "They cannot be decoded: " in text
    assert "20 00 00 00 00 ff 03 61 62 63" in text


def test_a_disabled_button_states_why(settings: Any) -> None:
    operating(settings, CONTACT="payments-oncall")
    seen = Page(support().get(address_of(made.message())))
    disabled = [attrs for tag, attrs in seen.tags if tag == "button" and "disabled" in attrs]

    assert (
        "Discard…: You need the permission “Can discard and restore messages”. Contact: payments-oncall." in seen.text
    )
    assert {attrs["aria-describedby"] for attrs in disabled} <= {attrs.get("id", "") for _tag, attrs in seen.tags}


def test_an_edited_message_shows_its_version_and_the_original(page: Client) -> None:
    one = made.message(body=b'{"amount": 1}', version=2)
    fields: dict[str, Any] = {"properties": made.properties(), "sha256": "", "at": timezone.now(), "by": "ann"}
    MessageVersion.objects.create(message=one, number=2, body=b'{"amount": 2}', **fields)
    edited, original = page.get(address_of(one)), page.get(address_of(one), {"version": "1"})

    assert ("&quot;amount&quot;: 2" in edited.content.decode()) is True
    assert ("&quot;amount&quot;: 1" in original.content.decode()) is True
    assert page.post(address_of(one, "body")).content == b'{"amount": 2}'
    assert page.post(address_of(one, "body"), {"version": "1"}).content == b'{"amount": 1}'


def test_an_edited_message_says_first_who_changed_what_and_why(page: Client, settings: Any) -> None:
    settings.RMQ_RETRY = {**settings.RMQ_RETRY, "OPERATORS": {"EDITABLE": {"*": True}}}
    one = made.message(body=b'{"amount": "8,50"}', content_type="application/json", business_key="PAY-1")
    edit.store(one.pk, ANN, edit.propose(one, text='{"amount": 8.50}'), version=1, reason="comma")
    told = Page(page.get(address_of(one)))

    assert "Parked edited" in told.text
    found = re.search(r"Edited by ann, [^;]+; the edited message was not sent yet\. Reason: comma\.", told.text)
    assert found is not None
    assert found.end() < told.text.index('amount: "8,50" → 8.50') < told.text.index("Earlier: It failed")
    assert told.links["show the original"] == "?version=1#rmq-body"


def test_a_discarded_message_says_first_until_when_it_can_be_restored(page: Client, settings: Any) -> None:
    """It said that it "stays parked", because the broker had not confirmed a requeue before."""
    settings.RMQ_RETRY = {**settings.RMQ_RETRY, "OPERATORS": {"RESOLVED_DAYS": 30}}
    one = made.message(unconfirmed=True)
    discard_messages([one.pk], category="duplicate")
    told = Page(page.get(address_of(one))).text

    until = timezone.localdate() + timedelta(days=30)
    assert re.search(rf"by ann \(Duplicate\): no requeue sends it\. It can be restored until {until}\.", told)
    assert "It stays parked" not in told


@pytest.mark.parametrize(("number", "said"), [(1, "Nach 1 Versuch aufgegeben"), (5, "Nach 5 Versuchen aufgegeben")])
def test_the_page_speaks_the_language_of_the_reader(page: Client, number: int, said: str) -> None:
    one = made.message(detail=f"Gave up after {number} attempt{'s' * (number > 1)}: GatewayTimeout: no answer")
    made.attempt(one, 5)
    with override("de"):
        told = Page(page.get(address_of(one))).text

    assert f"{said}: GatewayTimeout: no answer" in told
    assert "worker-3:812 · 30,0 s" in told


def test_size_and_digest_are_those_of_the_version_that_is_shown(page: Client) -> None:
    first, second = b'{"amount": 1}', b'{"amount": 12}'
    one = made.message(body=first, version=2, size=len(first), sha256=hashlib.sha256(first).hexdigest())
    fields: dict[str, Any] = {"properties": made.properties(), "at": timezone.now(), "by": "ann"}
    MessageVersion.objects.create(message=one, number=2, body=second, **fields)
    edited, original = (Page(page.get(address_of(one), words)).text for words in ({}, {"version": "1"}))
    page.post(address_of(one, "body"))

    for text, body in ((edited, second), (original, first)):
        assert f"{len(body)} bytes" in text
        assert hashlib.sha256(body).hexdigest()[:16] in text
    assert OperatorAction.objects.get(action="download").facts["sha256"] == hashlib.sha256(second).hexdigest()


def deaths(queue: str, count: int) -> bytes:
    entry = {"queue": queue, "reason": "rejected", "count": count, "exchange": "", "routing-keys": [queue]}
    return made.properties({"x-death": [entry]})


def test_the_x_death_header_is_shown_in_a_table(page: Client) -> None:
    at_noon = datetime(2026, 11, 22, 12, tzinfo=UTC)
    loop: dict[str, Any] = {
        "queue": "payments.wait", "reason": "expired", "count": 3, "exchange": "again", "routing-keys": ["pay", "cash"],
        "time": at_noon, "original-expiration": "60000",
    }  # fmt: skip
    plain = {"queue": "payments.main", "reason": "rejected", "count": 2, "exchange": "", "routing-keys": []}
    one = made.message(properties=made.properties({"x-death": [loop, plain]}))
    text = Page(page.get(address_of(one))).text

    first = f"{timezone.localtime(at_noon):%Y-%m-%d %H:%M:%S}"
    told = f"Reason expired Count 3 First time {first} Exchange again Routing keys pay, cash"
    names = ("First time", "Exchange", "Routing keys", "Original expiration (ms)")
    assert f"payments.wait {told} Original expiration (ms) 60000" in text
    assert f"payments.main Reason rejected Count 2 {' '.join(f'{name} {NOTHING}' for name in names)}" in text


def test_headers_and_properties_repeat_nothing_that_the_page_tells_above(page: Client) -> None:
    """x-death stood there twice, and the id, the type and the time of publishing once more."""
    entry = {"queue": "payments.wait", "reason": "expired", "count": 3, "exchange": "", "routing-keys": ["pay"]}
    published = datetime(2026, 11, 22, 12, tzinfo=UTC)
    fields: dict[str, Any] = {"message_id": "9f3c-once", "type": "payment", "timestamp": int(published.timestamp())}
    one = made.message(
        published_at=published,
        message_id="9f3c-once",
        type="payment",
        properties=made.properties({"x-death": [entry]}, app_id="ledger", **fields),
    )
    below = Page(page.get(address_of(one))).text.partition("Headers and properties")[2]

    assert "payments.wait" in below
    assert "ledger" in below
    assert not any(text in below for text in ("count = 3", "9f3c-once", str(fields["timestamp"]), "It has no headers"))


@pytest.mark.parametrize(
    "entry", ["hello", [1], [{"queue": EVIL}], [{"queue": EVIL, "reason": EVIL, "count": -1}], None, b"\xff"]
)
def test_an_invalid_x_death_header_is_reported(page: Client, entry: object) -> None:
    one = made.message(properties=made.properties({"x-death": entry}))
    response = page.get(address_of(one))

    assert "Its x-death header is invalid: no broker writes it like that." in Page(response).text
    assert b"<script>alert" not in response.content


def test_a_forged_x_death_header_is_truncated_and_escaped(page: Client) -> None:
    entry = {"queue": EVIL * 50, "reason": EVIL, "count": 2**63 - 1, "exchange": EVIL, "routing-keys": [EVIL] * 2000}
    one = made.message(
        properties=made.properties(
            {"x-death": [{**entry, "time": datetime(9999, 12, 31, tzinfo=UTC), "original-expiration": EVIL}] * 25}
        )
    )
    response = page.get(address_of(one))

    assert "5 more entries are not shown." in Page(response).text
    assert b"<script>alert" not in response.content
    assert len(response.content) < 200_000


@pytest.mark.parametrize(
    ("attempts", "death", "said"),
    [
        (5, 0, "reports 5 attempts, but the history has 3. 2 attempts were not recorded: their consumer crashed"),
        (3, 4, "reports 4 attempts, but the history has 3. 1 attempt was not recorded: its consumer crashed"),
        (3, 2**40, "reports 2147483647 attempts, but the history has 3."),
    ],
)
def test_page_and_command_report_missing_attempts(page: Client, attempts: int, death: int, said: str) -> None:
    one = made.message(attempts=attempts, cycle=2, properties=deaths("payments.main", death))
    for number in (1, 2, 3):
        made.attempt(one, number, cycle=2)
    for number in range(1, 6):
        made.attempt(one, number, cycle=1)
    made.attempt(one, 4, cycle=2, verdict="ack")
    made.attempt(one, 3, cycle=2)

    assert said in Page(page.get(address_of(one))).text
    assert said in run("rmq_parked", "show", str(one.pk)).err


def test_a_complete_history_reports_no_missing_attempts(page: Client) -> None:
    told = made.message(attempts=25, properties=deaths("payments.main", 25))
    for number in range(1, 26):
        made.attempt(told, number)
    elsewhere = made.message(attempts=0, properties=deaths("another.queue", 7))
    odd = made.message(attempts=0, properties=b"\xff\xff")
    requeued = made.message(state=State.REQUEUED, cycle=2, requeued_at=timezone.now())

    for message in (told, elsewhere, odd, requeued):
        assert "not recorded" not in Page(page.get(address_of(message))).text
        assert json.loads(run("rmq_parked", "show", str(message.pk), "--json").out)["lost_attempts"] == 0


def test_an_unknown_message_answers_404(page: Client) -> None:
    assert page.get("/admin/rmq_retry/parkedmessage/17/change/").status_code == 404
    assert page.get("/admin/rmq_retry/parkedmessage/999999999999999999999999/change/").status_code == 404
    assert page.get("/admin/rmq_retry/parkedmessage/x/change/").status_code == 404


def test_the_next_and_previous_links_stay_in_the_same_state(page: Client) -> None:
    now = timezone.now()
    old, one, new = (made.message(parked_at=now - timedelta(minutes=m)) for m in (3, 2, 1))
    made.message(parked_at=now - timedelta(seconds=90), state=State.PROCESSED)
    links = Page(page.get(address_of(one))).links

    assert (
        links["\N{SINGLE LEFT-POINTING ANGLE QUOTATION MARK} newer"],
        links["older \N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK}"],
    ) == (address_of(new), address_of(old))


def test_a_message_that_failed_again_shows_its_first_failure_and_parking_and_is_no_second_copy(page: Client) -> None:
    now = timezone.now()
    first, again = now - timedelta(minutes=20), now - timedelta(minutes=5)
    one = made.message(cycle=2, copies=2, attempts=1, failed_at=again, parked_at=again, requeued_at=again)
    begun = first - timedelta(minutes=1)
    made.attempt(one, 1, cycle=1, started_at=begun, verdict="retry", seconds=2)
    made.attempt(one, 2, cycle=1, started_at=first, verdict="park")
    made.attempt(one, 1, cycle=2, started_at=again, verdict="park")
    run = RequeueRun.objects.create(by="ann", created_at=now, reason="INC-553", total=1, state="paused", wait="guard")
    RequeueItem.objects.create(run=run, message=one, place=1, revision=1, state="pending")
    text = Page(page.get(address_of(one))).text
    ParkedMessage.objects.update(copies=3)

    assert f"First failed {timezone.localtime(begun + timedelta(seconds=2)):%Y-%m-%d %H:%M:%S}" in text
    assert "2 · cycle 1, 1 · cycle 2" in text
    assert text.count("Parked: ") == 2
    assert "copies of it came" not in text
    assert f"Requeue run {run.pk} by ann is paused and has not sent it." in text
    assert "2 copies of it came, as after a lost connection." in Page(page.get(address_of(one))).text


def test_a_message_whose_worker_died_says_how_often(page: Client) -> None:
    """It said "It arrived 2 times", which of such a message reads as if two workers had taken it."""
    told = "Redelivered 3 times after its workers stopped or lost their connection."
    one = made.message(reason=Reason.CRASHED, detail=told, copies=2, attempts=0, error="", error_text="")
    text = Page(page.get(address_of(one))).text

    assert "worker died. At least 3 times a worker took it and stopped, or lost its connection. Its handler may" in text
    assert "2 copies of it came" in text


@pytest.mark.parametrize("attempts", [3, 12])
def test_two_parked_copies_of_one_message_are_counted_alike_everywhere(page: Client, attempts: int) -> None:
    one = made.message(copies=2, attempts=attempts)
    for copy in (0, 1):
        for number in range(1, attempts + 1):
            made.attempt(one, number, at=one.parked_at - timedelta(minutes=60 * (2 - copy) - 2 * number))
    made.message(one.group, attempts=1)
    text = Page(page.get(address_of(one))).text
    addresses = "/admin/rmq_retry/parkedmessage/", f"/admin/rmq_retry/errorgroup/{one.group_id}/change/"
    lists = [Page(page.get(address)).text for address in addresses]

    assert f"It failed {2 * attempts} times, then it was parked" in text
    assert [f"Attempts {2 * attempts} " in told for told in lists] == [True, True]
    assert str(2 * attempts) in {line[6] for line in run("rmq_parked", "list").lines}
    assert f"{2 * attempts} · cycle 1" in text
    assert "2 copies of it came, as after a lost connection. Its failures are those of all copies." in text
    assert f"after {2 * attempts} attempts." in run("rmq_parked", "show", str(one.pk)).out


def test_attempts_that_only_the_message_reports_are_counted_in_its_details_too(page: Client) -> None:
    one = made.message(attempts=5)
    for number in (1, 2, 5):
        made.attempt(one, number)
    requeued = made.message(attempts=4, state=State.REQUEUED, cycle=2, requeued_at=timezone.now())
    text = Page(page.get(address_of(one))).text

    assert "It failed 5 times, then it was parked" in text
    assert "5 · cycle 1" in text
    assert "4 · cycle 1" in Page(page.get(address_of(requeued))).text


def test_a_message_without_an_id_counts_no_attempts_of_its_twin(page: Client) -> None:
    one = made.message(message_id="", attempts=2)
    twin = attempt_identities(one.queue, bytes(one.body))[0]
    for number in (1, 2, 1, 2):
        made.attempt(one, number, identity=twin, message_id="")
    text = Page(page.get(address_of(one))).text

    assert "It failed 2 times, then it was parked" in text
    assert "2 · cycle 1" in text


@pytest.mark.parametrize("requeued", [{}, {"state": State.REQUEUED, "cycle": 2}])
def test_a_message_without_an_id_that_the_broker_parked_failed_as_often_as_the_broker_counts(
    page: Client, requeued: dict[str, Any]
) -> None:
    now = timezone.now()
    times: dict[str, Any] = {"parked_at": now - timedelta(minutes=1), **({"requeued_at": now} if requeued else {})}
    one = made.message(
        message_id="", attempts=0, by="broker", properties=deaths("payments.main", 3), **times, **requeued
    )
    twin = attempt_identities(one.queue, bytes(one.body))[0]
    for number in (1, 2, 3):
        made.attempt(one, number, identity=twin, message_id="")
    text = Page(page.get(address_of(one))).text

    assert "It failed 3 times, then it was parked" in text
    assert "3 · cycle 1" in text
    assert failures_of([one]) == {one.pk: 3}


def test_the_first_failure_is_that_of_the_timeline_if_the_message_reports_a_later_one(page: Client) -> None:
    at = timezone.now().replace(microsecond=0) - timedelta(hours=1)
    one = made.message(attempts=1, failed_at=at + timedelta(minutes=4))
    made.attempt(one, 1, at=at - timedelta(seconds=4), seconds=4.2)
    told, data = run("rmq_parked", "show", str(one.pk)).out, run("rmq_parked", "show", str(one.pk), "--json").data

    first = f"{timezone.localtime(at):%Y-%m-%d %H:%M:%S}"
    assert f"First failed {first}" in Page(page.get(address_of(one))).text
    assert re.findall(r"^(\w*failed\w*) +(.+)$", told, re.MULTILINE) == [("first_failed", first)]
    assert datetime.fromisoformat(data["first_failed"]) == at + timedelta(milliseconds=200)


def test_the_group_of_a_message_on_hold_counts_as_on_its_own_page(page: Client) -> None:
    """ "RateLimited (15 parked)" stood on the page of a message, and "0 parked · 15 on hold" on that of the group."""
    first, second = (made.message(state=State.ON_HOLD) for _number in range(2))
    third = made.message(second.group)
    told = [Page(page.get(f"/admin/rmq_retry/parkedmessage/{one.pk}/change/")).text for one in (first, third)]

    assert "(0 parked · 1 on hold)" in told[0]
    assert "(1 parked · 1 on hold)" in told[1]
