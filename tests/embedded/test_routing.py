"""The route of a message: exchange types, bindings, alternates, copies."""

from collections.abc import Mapping
from decimal import Decimal

import pytest

from tests.embedded.rig import Client, Rig

pytestmark = pytest.mark.contract


def queues(client: Client, *names: str) -> None:
    for name in names:
        client.queue(name)


def counts(client: Client, *names: str) -> list[int]:
    return [client.queue(name, passive=True).messages for name in names]


@pytest.mark.parametrize(
    ("pattern", "key", "passes"),
    [
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("a.*", "a.b.c", False),
        ("a.#", "a", True),
        ("#.z", "a.b.z", True),
        ("#", "", True),
        ("*", "", False),
        ("a.#.z", "a.z", True),
        ("*.*", "a.", True),
        ("", "", True),
        ("a.b", "a.B", False),
        ("Card.#", "card.paid", False),
    ],
)
def test_a_topic_exchange_routes_by_words(rig: Rig, pattern: str, key: str, passes: bool) -> None:
    client = rig.connect()
    client.exchange("e", "topic")
    queues(client, "q")
    client.bind("q", "e", pattern)

    assert (client.publish(key, "x", exchange="e", mandatory=True) == "ack") == passes


@pytest.mark.parametrize("kind", ["direct", "topic"])
def test_a_key_in_another_case_is_another_key(rig: Rig, kind: str) -> None:
    client = rig.connect()
    client.exchange("e", kind)
    queues(client, "lower", "upper", "LOWER")
    client.bind("lower", "e", "paid.card")
    client.bind("upper", "e", "paid.Card")
    for key in ("paid.card", "paid.Card", "PAID.CARD"):
        client.publish(key, "x", exchange="e")

    assert client.publish("PAID.CARD", "x", exchange="e", mandatory=True) == "returned"
    assert client.publish("Lower", "x", mandatory=True) == "returned"
    assert counts(client, "lower", "upper", "LOWER") == [1, 1, 0]


@pytest.mark.parametrize(
    ("asked", "headers", "passes"),
    [
        ({"x-match": "all", "a": 1, "b": "z"}, {"a": 1, "b": "z", "c": 0}, True),
        ({"a": 1, "b": "z"}, {"a": 1}, False),
        ({"x-match": "any", "a": 1, "b": "z"}, {"a": 1}, True),
        ({"x-match": "any", "a": 1}, {"a": 2}, False),
        ({"x-match": "all", "a": None}, {"a": "whatever"}, True),
        ({"x-match": "all", "x-a": 1}, {}, True),
        ({"x-match": "any", "x-a": 1}, {"x-a": 1}, False),
        ({"x-match": "any-with-x", "x-a": 1}, {"x-a": 1}, True),
        ({"x-match": "all-with-x", "x-a": 1}, {"x-a": 2}, False),
        ({"x-match": "all", "a": True}, {"a": 1}, False),
        ({"x-match": "all", "a": "1"}, {"a": 1}, False),
        ({"a": Decimal(1)}, {"a": 1}, False),
        ({"a": 1}, {"a": Decimal(1)}, False),
        ({"a": Decimal(1)}, {"a": Decimal(1)}, True),
        ({"a": b"z"}, {"a": "z"}, True),
        ({"a": [1]}, {"a": [True]}, False),
        ({"a": [1, "z"]}, {"a": [1, "z"]}, True),
        ({"a": {"b": 1}}, {"a": {"b": True}}, False),
        ({"a": {"b": 1}}, {"a": {"b": 1}}, True),
        ({}, {"a": 1}, True),
        ({"x-match": "any"}, {"a": 1}, False),
    ],
)
def test_a_headers_exchange_compares_headers(
    rig: Rig, asked: Mapping[str, object], headers: Mapping[str, object], passes: bool
) -> None:
    client = rig.connect()
    client.exchange("e", "headers")
    queues(client, "q")
    client.bind("q", "e", "", asked)

    assert (client.publish("", "x", exchange="e", mandatory=True, headers=headers) == "ack") == passes


@pytest.mark.parametrize(
    ("first", "second", "alike"),
    [
        (1, True, False),
        (False, 0, False),
        (1, Decimal(1), False),
        ([1], [True], False),
        ({"b": 1}, {"b": True}, False),
        ("z", b"z", True),
    ],
)
def test_bindings_with_values_of_different_types_are_distinct(
    rig: Rig, first: object, second: object, alike: bool
) -> None:
    client = rig.connect()
    client.exchange("e", "headers")
    queues(client, "q")

    def outcomes() -> list[str]:
        said: list[Mapping[str, object]] = [{"a": first}, {"a": second}]
        return [client.publish("", "x", exchange="e", mandatory=True, headers=headers) for headers in said]

    client.bind("q", "e", "", {"a": first})
    client.bind("q", "e", "", {"a": second})
    both = outcomes()
    client.unbind("q", "e", "", {"a": second})

    assert both == ["ack", "ack"]
    assert outcomes() == ["ack", "ack" if alike else "returned"]


def test_exchanges_bound_in_a_circle_route_a_message_once(rig: Rig) -> None:
    client = rig.connect()
    client.exchange("a", "fanout")
    client.exchange("b", "topic")
    client.exchange("c", "direct", internal=True)
    queues(client, "q", "r")
    client.bind_exchange("b", "a")
    client.bind_exchange("c", "b", "k.#")
    client.bind_exchange("a", "c", "k.x")
    client.bind("q", "a")
    client.bind("q", "c", "k.x")
    client.bind("r", "c", "k.x")
    client.publish("k.x", "x", exchange="a")

    assert counts(client, "q", "r") == [1, 1]


def test_an_alternate_exchange_gets_unroutable_messages(rig: Rig) -> None:
    client = rig.connect()
    client.exchange("spare", "fanout")
    client.exchange("e", "direct", arguments={"alternate-exchange": "spare"})
    client.exchange("lame", "direct", arguments={"alternate-exchange": "nowhere"})
    queues(client, "q", "rest")
    client.bind("q", "e", "a")

    assert client.publish("b", "x", exchange="e", mandatory=True) == "returned"
    client.bind("rest", "spare")
    outcomes = [client.publish(key, "x", exchange="e", mandatory=True) for key in ("a", "b")]
    assert outcomes == ["ack", "ack"]
    assert client.publish("b", "x", exchange="lame", mandatory=True) == "returned"
    assert counts(client, "q", "rest") == [1, 1]


def test_the_predeclared_exchanges_are_there(rig: Rig) -> None:
    client = rig.connect()
    for name, kind in {"direct": "direct", "topic": "topic", "fanout": "fanout", "match": "headers"}.items():
        client.exchange(f"amq.{name}", kind, durable=True)
    client.exchange("amq.headers", "headers", durable=True)


def test_a_deleted_queue_takes_its_bindings_along(rig: Rig) -> None:
    client = rig.connect()
    client.exchange("e", "direct")
    queues(client, "q")
    client.bind("q", "e", "a")
    client.delete_queue("q")
    queues(client, "q")

    assert client.publish("a", "x", exchange="e", mandatory=True) == "returned"


def test_an_auto_delete_exchange_goes_with_its_last_binding(rig: Rig) -> None:
    client = rig.connect()
    client.exchange("e", "direct", auto_delete=True)
    queues(client, "q")
    client.bind("q", "e", "a")
    client.bind("q", "e", "b")
    client.unbind("q", "e", "a")
    client.exchange("e", passive=True)
    client.delete_queue("q")
    client.exchange("e", "topic", auto_delete=True)


def test_a_message_with_no_queue_is_returned_only_if_mandatory(rig: Rig) -> None:
    client = rig.connect()

    assert client.publish("nowhere", "x") == "ack"
    assert client.publish("nowhere", "x", mandatory=True) == "returned"


def test_a_full_queue_nacks_a_fanout_that_another_queue_accepted(rig: Rig) -> None:
    client = rig.connect()
    client.exchange("e", "fanout")
    client.queue("full", {"x-max-length": 0, "x-overflow": "reject-publish"})
    queues(client, "free")
    for name in ("full", "free"):
        client.bind(name, "e")

    assert client.publish("", "x", exchange="e") == "nack"
    assert counts(client, "full", "free") == [0, 1]
