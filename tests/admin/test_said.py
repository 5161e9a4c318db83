"""What a handler says that parks a message without an error is told wherever the text of an error is."""

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_rmq_retry.messages.reasons import UNEXPLAINED, Reason
from django_rmq_retry.models import BlockedKey, ItemState, ParkedMessage, RequeueItem
from django_rmq_retry.parked.erasure import erase
from tests.admin import made
from tests.admin.conftest import client_of, operating
from tests.admin.looking import Page, address_of
from tests.commands.running import parked
from tests.operators.made import ANN, discard_messages, requeue_run

pytestmark = pytest.mark.django_db
ADMIN = "/admin/rmq_retry"
WHY = "amount is not a number: '8,50'"
WORDS = "parked by the handler"


def told(detail: str = WHY) -> ParkedMessage:
    cause = made.group(title=Reason.REQUESTED, reason=Reason.REQUESTED, culprit="")
    return made.message(cause, error="", error_text="", detail=detail, attempts=1, business_key="PAY-1")


def test_the_lists_the_pages_and_the_commands_tell_it(page: Client) -> None:
    """They said "parked by the handler", and nothing else."""
    one = told()
    group = f"{ADMIN}/errorgroup/{one.group_id}/change/"
    preview = page.get(f"{ADMIN}/requeuerun/preview/", {"group": one.group_id}, follow=True)

    assert WHY in Page(page.get(f"{ADMIN}/errorgroup/")).text
    assert f"Newest message PAY-1 {WHY}" in Page(page.get(group)).text
    assert f"{WORDS}: {WHY}" in Page(page.get(f"{ADMIN}/parkedmessage/")).text
    assert f"{WORDS}. Reason: {WHY}" in Page(page.get(address_of(one))).text
    assert f"{WORDS}: {WHY} · payments.main" in Page(preview).text
    assert f"{Reason.REQUESTED}: {WHY}" in parked("list").out
    assert f"{WORDS}: {WHY}\n" in parked("show", str(one.pk)).out


def test_the_command_of_the_groups_and_the_blocked_keys_tell_it(page: Client) -> None:
    one = told()
    facts = {"handler": "transfer", "queue": one.queue, "key": "CUST-7", "digest": "d", "since": timezone.now()}
    BlockedKey.objects.create(**facts, identity=one.identity, blocker=one.message_id, parked=True)

    assert f"{WORDS}: {WHY}" in parked("groups").out
    assert f"{WORDS}: {WHY}" in Page(page.get(f"{ADMIN}/blockedkey/")).text


def test_blocked_keys_read_the_errors_of_all_that_wait_for_a_retry_at_once(page: Client) -> None:
    def queries_for(number: int) -> int:
        name = f"9f3c-{number}"
        facts = {"handler": "transfer", "queue": "payments.main", "key": name, "digest": name, "since": timezone.now()}
        BlockedKey.objects.create(**facts, identity=f"message:{name}", blocker=name)
        made.tried_again(name, at=timezone.now(), verdict="RETRY", error="Timeout", error_text="no answer")
        with CaptureQueriesContext(connection) as queries:
            text = Page(page.get(f"{ADMIN}/blockedkey/")).text
        assert text.count("no answer") == number
        return len(queries)

    queries_for(1)
    assert queries_for(2) == queries_for(3)


def test_who_edits_it_reads_it(page: Client, settings: object) -> None:
    operating(settings, EDITABLE={"payment.*": True})

    assert f"Reason: {WHY} Timeline" in Page(page.get(address_of(told(), "edit"))).text


def test_the_page_of_a_run_tells_it_of_what_failed_again(page: Client) -> None:
    run = requeue_run([told().pk], reason="x")
    RequeueItem.objects.update(state=ItemState.FAILED, sent_at=timezone.now())
    run.failed = 1
    run.save()

    assert f"1 {WORDS} · payments.main {WHY}" in Page(page.get(f"{ADMIN}/requeuerun/{run.pk}/change/")).text


def test_the_timeline_of_an_attempt_without_an_error_begins_with_the_words(page: Client) -> None:
    """ ": amount is not a number" stood below "Attempt 1 failed"."""
    made.attempt(one := told(), 1, error_text=WHY, chain=[])
    text = Page(page.get(address_of(one))).text

    assert f": {WHY}" not in text.replace(f"Reason: {WHY}", "")
    assert f"a1b2c3 {WHY}" in text


def test_a_park_without_words_is_named_once(page: Client) -> None:
    told(UNEXPLAINED)
    pages = [Page(page.get(f"{ADMIN}/{name}/")).text for name in ("errorgroup", "parkedmessage")]

    assert [(WORDS in text, UNEXPLAINED in text) for text in pages] == [(True, False)] * 2


def test_the_detail_of_another_reason_stays_in_the_timeline(page: Client) -> None:
    """A consumer writes it, in English, and the reason says the same."""
    made.message(made.group(title=Reason.EXPIRED, reason=Reason.EXPIRED), error="", error_text="", detail=WHY)

    assert all(WHY not in Page(page.get(f"{ADMIN}/{name}/")).text for name in ("errorgroup", "parkedmessage"))


def test_it_is_shown_to_whom_an_error_is_and_erased_with_the_texts(page: Client) -> None:
    one = told()
    looker = Page(client_of(made.person("looker", "view_errorgroup")).get(f"{ADMIN}/errorgroup/")).text
    discard_messages([one.pk], ANN, category="duplicate")
    listed = f"{ADMIN}/parkedmessage/?state=all"
    before = Page(page.get(listed)).text
    erase(["PAY-1"], ANN, reason="request 12")

    assert WHY not in looker
    assert (WHY in before, WHY in Page(page.get(listed)).text) == (True, False)
