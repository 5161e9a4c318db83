"""The bar above the list of messages: what was parked since it was opened, counted by the list's own filters."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_rmq_retry.admin import message_list
from django_rmq_retry.models import ParkedMessage, State
from tests.admin import made
from tests.admin.conftest import client_of, is_north, operating
from tests.admin.looking import Page, own_queries

pytestmark = [pytest.mark.django_db, pytest.mark.database]
LIST = "/admin/rmq_retry/parkedmessage/"


def asked(response: Any) -> str:
    """The request that the open list repeats."""
    return next(attrs["data-rmq-live"] for _tag, attrs in Page(response).tags if "data-rmq-live" in attrs)


def bar(client: Client, address: str) -> Page:
    response = client.get(f"{address}&fragment=1")
    assert response.status_code == 200
    return Page(response)


def ago(minutes: float) -> datetime:
    return timezone.now() - timedelta(minutes=minutes)


def test_the_bar_counts_messages_parked_after_the_list_was_opened(page: Client) -> None:
    made.message(parked_at=ago(1))
    address = asked(page.get(LIST))
    before = bar(page, address)
    for _ in range(7):
        made.message(parked_at=timezone.now())
    after = bar(page, address)

    assert before.text == ""
    assert after.links == {"Show 7 new parked messages": "?"}


def test_late_records_and_messages_parked_again_count_as_new(page: Client) -> None:
    again = made.message(parked_at=ago(5))
    made.message(parked_at=ago(1))
    address = asked(page.get(LIST))
    made.message(parked_at=ago(3))
    ParkedMessage.objects.filter(pk=again.pk).update(parked_at=timezone.now(), cycle=2)

    assert bar(page, address).text == "Show 2 new parked messages"


def test_a_listed_message_with_a_fast_clock_does_not_count_as_new(page: Client) -> None:
    made.message(parked_at=ago(-2))
    made.message(parked_at=ago(60))

    assert bar(page, asked(page.get(LIST))).text == ""


def test_the_bar_keeps_the_filters_and_links_to_the_first_page(page: Client) -> None:
    for number in range(60):
        made.message(queue="payments.main", parked_at=ago(number + 1))
    address = asked(page.get(LIST, {"queue": "payments.main", "p": "2"}))
    made.message(queue="payments.main", parked_at=timezone.now())
    made.message(queue="ledger.post", parked_at=timezone.now())
    made.message(queue="payments.main", parked_at=timezone.now(), state=State.DISCARDED)

    assert bar(page, address).links == {"Show 1 new parked message": "?queue=payments.main"}


def test_the_bar_of_an_empty_list_counts_every_message(page: Client) -> None:
    address = asked(page.get(LIST))
    made.message(parked_at=ago(10))

    assert bar(page, address).text == "Show 1 new parked message"


@pytest.mark.parametrize("words", [{"state": "discarded"}, {"q": "PAY"}])
def test_a_list_without_parked_messages_has_no_bar(page: Client, words: dict[str, str]) -> None:
    made.message(state=State.DISCARDED)

    assert b"data-rmq-live" not in page.get(LIST, words).content


def test_the_bar_counts_up_to_its_limit(page: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_list, "MOST_NEWER", 3)
    address = asked(page.get(LIST))
    for _ in range(9):
        made.message(parked_at=timezone.now())
    with CaptureQueriesContext(connection) as queries:
        text = bar(page, address).text

    assert text == "Show 3+ new parked messages"
    (count,) = own_queries(queries)
    assert count.endswith("LIMIT 4")


def test_the_bar_does_not_count_hidden_messages(settings: Any) -> None:
    operating(settings, PERMIT=is_north)
    clerk = client_of(made.person("clerk", "view_parkedmessage"))
    address = asked(clerk.get(LIST))
    for kind in ("north", "south"):
        made.message(type=kind, parked_at=timezone.now())
    with CaptureQueriesContext(connection) as queries:
        text = bar(clerk, address).text

    assert text == "Show 1 new parked message"
    assert len(own_queries(queries)) == 2, own_queries(queries)


@pytest.mark.parametrize("words", ["", "since=today&after=1", "since=2026-11-21T03:00:00Z&after=x", "after=1"])
def test_an_invalid_query_of_the_bar_is_refused(page: Client, words: str) -> None:
    assert page.get(f"{LIST}newer/?{words}").status_code == 400
