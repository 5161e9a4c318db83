"""Invalid addresses, and pages that no cache may store: a response in words, and nothing in a cache."""

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from tests.admin.test_permissions import ADDRESSES, NAMES, ask, world

pytestmark = pytest.mark.django_db(transaction=True)
GETS = [(address, name) for address, name in zip(ADDRESSES, NAMES, strict=True) if address[0] == "get"]
PAGES = [address for address, _name in GETS]
HUGE = "99999999999999999999999"
"""More than a column holds."""
KEYS = ("p", "o", "q", "e", "sel", "message", "group", "run", "ids", "state", "since", "after", "before", "id__in")
ANSWERS = {200, 302, 400, 403, 404, 409, 410, 422}


@pytest.mark.parametrize("address", PAGES, ids=[name for _address, name in GETS])
def test_no_page_fails_on_random_input(address: Any, page: Client) -> None:
    page.raise_request_exception = False
    known = world()
    url = reverse(f"admin:rmq_retry_{address[1]}", args=[known[address[2]]] if address[2] else [])
    asked = [{key: HUGE} for key in KEYS] + [dict.fromkeys(KEYS, "abc"), dict.fromkeys(KEYS, "\x00")]
    answers = {str(words): page.get(url, words).status_code for words in asked}

    assert {words: code for words, code in answers.items() if code not in ANSWERS} == {}


@pytest.mark.parametrize("pk", ["0", "-1", "abc", "99999999999999999999999", "1%00", "%F0%9F%92%A5", "1 OR 1=1"])
@pytest.mark.parametrize("kind", ["parkedmessage", "errorgroup", "requeuerun", "operatoraction"])
def test_an_invalid_id_never_causes_a_server_error(kind: str, pk: str, page: Client) -> None:
    page.raise_request_exception = False
    answer = page.get(f"/admin/rmq_retry/{kind}/{pk}/change/")

    assert answer.status_code in {302, 403, 404, 410}


@pytest.mark.parametrize("address", PAGES, ids=[name for _address, name in GETS])
def test_no_page_is_cacheable(address: Any, page: Client) -> None:
    answer = ask(page, world(), address)

    assert "no-store" in answer["Cache-Control"]
