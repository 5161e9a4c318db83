"""The links from the page of a message to the tracing system."""

from typing import Any

import pytest
from django.test import Client

from tests.admin import made
from tests.admin.conftest import linking, operating, support
from tests.admin.looking import Page, address_of

pytestmark = pytest.mark.django_db
CREATION = f"00-{1:032x}-{1:016x}-01"
FIRST = f"00-{2:032x}-{2:016x}-03"
UNSAMPLED = f"00-{3:032x}-{3:016x}-02"
URL = "https://jaeger.bank/trace/{trace_id}?q=%7Bx%7D&y"


@pytest.fixture(autouse=True)
def tracing(settings: Any) -> None:
    linking(settings, TRACE=URL)


def links(response: Any) -> list[tuple[str, str]]:
    """The address and the rel of each link to the tracing system."""
    tags = [attrs for tag, attrs in Page(response).tags if tag == "a"]
    return [(attrs["href"], attrs.get("rel", "")) for attrs in tags if "jaeger" in attrs.get("href", "")]


def address(number: int) -> str:
    return URL.replace("{trace_id}", f"{number:032x}")


def test_each_attempt_and_the_creation_of_a_message_link_to_their_traces(page: Client) -> None:
    one = made.message(attempts=2, properties=made.properties({"traceparent": CREATION}))
    made.attempt(one, 1, traceparent=FIRST)
    made.attempt(one, 2)
    response = page.get(address_of(one))

    assert links(response) == [(address(2), "noopener"), (address(1), "noopener")]
    assert "Trace Attempt 1 failed" in Page(response).text
    assert "Trace traceparent" in Page(response).text


def test_a_trace_that_was_not_sampled_has_no_link(page: Client) -> None:
    one = made.message(properties=made.properties({"traceparent": UNSAMPLED}))
    made.attempt(one, 1, traceparent=UNSAMPLED)

    assert links(page.get(address_of(one))) == []


@pytest.mark.parametrize(
    "forged", ['"><script>alert(1)</script>', CREATION + "\n", f"00-{'/' * 32}-{1:016x}-01", 7, b"\xff", [CREATION]]
)
def test_a_forged_creation_context_has_no_link(page: Client, forged: object) -> None:
    one = made.message(properties=made.properties({"traceparent": forged}))

    assert links(page.get(address_of(one))) == []


def test_without_the_setting_there_is_no_link(page: Client, settings: Any) -> None:
    linking(settings)
    one = made.message(properties=made.properties({"traceparent": CREATION}))
    made.attempt(one, 1, traceparent=FIRST)

    assert "Trace " not in Page(page.get(address_of(one))).text


def test_a_masked_creation_context_has_no_link_until_it_is_revealed(settings: Any) -> None:
    operating(settings, MASK=["*.traceparent"])
    linking(settings, TRACE=URL)
    one = made.message(properties=made.properties({"traceparent": CREATION}))
    operator = support("reveal_field")

    assert links(operator.get(address_of(one))) == []
    assert links(operator.post(address_of(one, "reveal"), {"place": "headers.traceparent"})) == [
        (address(1), "noopener")
    ]
