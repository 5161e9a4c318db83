"""A message on its way, and one arrival of it."""

import struct
from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest

from django_rmq_retry import Delivery
from django_rmq_retry.errors import UndecodableHeaders
from django_rmq_retry.messages import Properties
from tests.handlers.factories import delivery


def test_a_delivery_without_properties_has_none() -> None:
    one = Delivery(queue="payments", body=b"{}")

    assert (one.id, one.type, one.correlation_id, one.reply_to) == (None, None, None, None)
    assert one.properties == Properties()
    assert one.attempt == 1
    assert not one.redelivered


def test_a_delivery_with_undecodable_headers_can_be_created() -> None:
    one = delivery(raw=struct.pack(">HI", 0x2000, 99) + b"x", body=b"{}")

    assert repr(one) == "<Delivery queue='payments' attempt=1 bytes=2>"
    with pytest.raises(UndecodableHeaders, match="the header table is cut off"):
        _ = one.headers


@pytest.mark.parametrize("name", ["attempt", "data", "redelivered", "anything"])
def test_a_delivery_is_immutable(name: str) -> None:
    one = delivery()
    with pytest.raises(FrozenInstanceError):
        setattr(one, name, 7)
    with pytest.raises(FrozenInstanceError):
        delattr(one, name)

    assert one.attempt == 1


def test_ready_returns_the_delivery_with_its_attempt_and_data() -> None:
    one = delivery(message_id="m-1", redelivered=True, exchange="bank", routing_key="pay.card")
    ready = one.for_attempt(attempt=3, data={"a": 1}, key="A")

    assert (ready.attempt, ready.data, ready.key) == (3, {"a": 1}, "A")
    assert (ready.token, ready.raw, ready.body) == (one.token, one.raw, one.body)
    assert (ready.exchange, ready.routing_key, ready.redelivered) == ("bank", "pay.card", True)
    assert (one.attempt, one.data, one.key) == (1, None, None)


def test_a_delivery_that_has_arrived_has_the_fields_of_any_other() -> None:
    given: dict[str, Any] = {
        "queue": "q",
        "body": b"{}",
        "raw": b"\0\0",
        "exchange": "bank",
        "routing_key": "pay",
        "redelivered": True,
        "token": (None, 7),
    }

    assert values(Delivery.arrived(**given)) == values(Delivery(**given))


def test_a_copy_for_an_attempt_changes_no_other_field() -> None:
    one = Delivery(queue="q", body=b"{}", redelivered=True, quarantined=True, token=(None, 7), exchange="bank")
    changed = {"attempt": 3, "data": {"a": 1}, "key": "A", "state": "pool"}

    assert values(one.for_attempt(**changed)) == values(one) | changed  # type: ignore[arg-type]


def values(one: Delivery) -> dict[str, object]:
    return {field.name: getattr(one, field.name) for field in fields(one)}


def test_two_deliveries_are_never_equal() -> None:
    one, other = delivery(), delivery()

    assert one != other
    assert one.token != other.token


def test_the_repr_of_a_delivery_never_contains_its_body() -> None:
    assert "4000" not in repr(delivery(body=b"card 4000 1234"))
