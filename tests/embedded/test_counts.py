"""The delivery count of a message, and the part of it that a dead letter keeps; versions differ widely."""

import pytest

from tests.embedded.rig import BOTH, QUORUM, Arrival, Client, Rig

pytestmark = pytest.mark.contract

WAYS = {
    # what happened to its deliveries: the count behind the dead letter from a quorum queue of 4.0, from 4.3
    "reject": (1, 1),
    "nack": (1, 0),
    "back reject": (1, 2),
    "back back nack": (1, 2),
    "nacked reject": (1, 1),
    "nacked nacked nack": (1, 0),
    "recovered reject": (1, 1),
    "cut nack": (2, 1),
    "cut back cut reject": (3, 4),
    "expire": (0, 0),
    "back expire": (0, 1),
    "cut expire": (1, 1),
}


def told(arrival: Arrival) -> tuple[int | None, int | None, bool]:
    """x-delivery-count, x-acquired-count, redelivered."""
    headers = arrival.headers
    return headers.get("x-delivery-count"), headers.get("x-acquired-count"), arrival.redelivered


def suffer(rig: Rig, client: Client, ways: str) -> Client:
    """Publish to `a` and let that happen to the message; the client that is left."""
    client.publish("a", "x", expiration="400" if "expire" in ways else None)
    for way in ways.split():
        if way == "expire":
            break
        held = client.take("a")
        if way == "cut":
            client.cut()
            client = rig.connect()
        elif way == "recovered":
            client.recover()
        elif way in ("back", "reject"):
            client.reject(held, requeue=way == "back")
        else:
            client.nack(held, requeue=way == "nacked")
    return client


@pytest.mark.parametrize("target", sorted(BOTH))
def test_a_dead_letter_shows_its_delivery_count(rig: Rig, kind: str, target: str) -> None:
    client = rig.connect()
    client.queue("a", {**BOTH[kind], "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "b"})
    client.queue("b", BOTH[target])
    found = {}
    for ways in WAYS:
        client = suffer(rig, client, ways)
        arrival = client.take("b")
        found[ways] = told(arrival)
        client.ack(arrival)

    assert found == {ways: expected(rig, kind, target, *counts) for ways, counts in WAYS.items()}


def expected(rig: Rig, kind: str, target: str, older: int, newer: int) -> tuple[int | None, int | None, bool]:
    if rig.version >= (4, 3):
        return (newer or None, newer or None, newer > 0) if target == "quorum" else (None, None, newer > 0)
    if rig.version >= (4, 0):
        shown = older if (kind, target) == ("quorum", "quorum") else 0
        return shown or None, None, shown > 0
    return (0 if target == "quorum" else None), None, False


def test_a_delivery_count_passes_through_a_classic_queue(rig: Rig) -> None:
    client = rig.connect()
    client.queue("a", {**QUORUM, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "b"})
    client.queue("b", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "c"})
    client.queue("c", QUORUM)
    client = suffer(rig, client, "reject")
    client.reject(client.take("b"), requeue=False)
    arrival = client.take("c")

    assert told(arrival) == {3: (0, None, False), (4, 0): (1, None, True)}.get(
        3 if rig.version < (4, 0) else rig.version, (2, 2, True)
    )


@pytest.mark.parametrize("wait", sorted(BOTH))
def test_the_count_continues_through_wait_queues_since_version_4(rig: Rig, wait: str) -> None:
    client = rig.connect()
    client.queue("main", {**QUORUM, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "wait"})
    back = {"x-message-ttl": 10, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "main"}
    client.queue("wait", {**BOTH[wait], **back})
    client.publish("main", "x")
    counts = []
    for _ in range(6):
        arrival = client.take("main")
        counts.append(arrival.headers.get("x-delivery-count"))
        client.reject(arrival, requeue=False)

    assert counts == ([None, 1, 2, 3, 4, 5] if rig.version >= (4, 0) else [0, 0, 0, 0, 0, 0])


def test_the_delivery_limit_includes_other_queues_since_version_4_3(rig: Rig) -> None:
    client = rig.connect()
    client.queue("a", {**QUORUM, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "b"})
    client.queue("b", {**QUORUM, "x-delivery-limit": 2})
    client = suffer(rig, client, "back reject")
    deliveries = 0
    while (found := client.get("b", within=0.3)) is not None:
        deliveries += 1
        client.reject(found)

    assert deliveries == (1 if rig.version >= (4, 3) else 3)


def test_a_message_over_the_delivery_limit_has_no_count_on_4_0(rig: Rig) -> None:
    client = rig.connect()
    limited = {**QUORUM, "x-delivery-limit": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "b"}
    client.queue("a", limited)
    client.queue("b", QUORUM)
    client = suffer(rig, client, "back back")
    arrival = client.take("b")

    assert arrival.deaths == [("a", "delivery_limit", 1)]
    assert told(arrival) == {3: (0, None, False), (4, 0): (None, None, False)}.get(
        3 if rig.version < (4, 0) else rig.version, (2, 2, True)
    )


def test_a_requeue_in_the_next_queue_shows_that_queues_count(rig: Rig) -> None:
    client = rig.connect()
    client.queue("a", {**QUORUM, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "b"})
    client.queue("b", QUORUM)
    client = suffer(rig, client, "back reject")
    client.reject(client.take("b"))
    arrival = client.take("b")

    assert told(arrival) == ((3, 1, True) if rig.version >= (4, 3) else (1, None, True))


def test_the_default_limit_of_version_4_drops_after_21_deliveries(rig: Rig) -> None:
    client = rig.connect()
    client.queue("q", QUORUM)
    client.publish("q", "x")
    deliveries = 0
    while deliveries < 25 and (found := client.get("q", within=0.3)) is not None:
        deliveries += 1
        client.reject(found)

    assert deliveries == (21 if rig.version >= (4, 0) else 25)


def test_a_limit_of_minus_one_means_none_only_since_version_4(rig: Rig) -> None:
    client = rig.connect()
    client.queue("q", {**QUORUM, "x-delivery-limit": -1})
    client.publish("q", "x")
    client.reject(client.take())

    assert (client.get("q", within=0.3) is not None) == (rig.version >= (4, 0))


def test_version_4_3_counts_across_dead_lettering_and_drops_the_message(rig: Rig) -> None:
    client = rig.connect()
    client.queue("main", {**QUORUM, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "wait"})
    client.queue(
        "wait", {**QUORUM, "x-message-ttl": 10, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "main"}
    )
    client.publish("main", "x")
    for _ in range(20):
        client.reject(client.take("main"), requeue=False)
    client.reject(client.take("main"))

    assert (client.get("main", within=1) is not None) == (rig.version < (4, 3))
