"""Expiration of messages and queues, in order and out of it; and length limits."""

import pytest

from tests.embedded.rig import BOTH, Client, Rig

pytestmark = pytest.mark.contract

AWAY = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "end"}


def waiting(client: Client, kind: str, **arguments: object) -> None:
    named = {"x-" + name.replace("_", "-"): value for name, value in arguments.items()}
    client.queue("wait", {**BOTH[kind], **AWAY, **named})
    client.queue("end")


def order(client: Client, count: int) -> list[str]:
    found = [client.get("end") for _ in range(count)]
    return [one.text if one else "nothing" for one in found]


def test_a_short_expiration_waits_behind_a_long_one(rig: Rig, kind: str) -> None:
    client = rig.connect()
    waiting(client, kind)
    client.publish("wait", "long", expiration="500")
    client.publish("wait", "short", expiration="50")
    early = client.get("end", within=0.25)

    assert early is None
    assert order(client, 2) == ["long", "short"]


def test_a_message_behind_one_without_expiration_does_not_expire(rig: Rig, kind: str) -> None:
    client = rig.connect()
    waiting(client, kind)
    client.publish("wait", "stays")
    client.publish("wait", "short", expiration="50")

    assert client.get("end", within=0.3) is None
    assert client.queue("wait", passive=True).messages == 2


def test_taking_the_head_lets_an_overdue_message_expire(rig: Rig, kind: str) -> None:
    client = rig.connect()
    waiting(client, kind)
    client.publish("wait", "stays")
    client.publish("wait", "short", expiration="50")
    rig.wait(0.15)
    taken = client.take("wait")

    assert taken.text == "stays"
    assert order(client, 1) == ["short"]


def test_delivering_the_head_lets_the_next_message_expire(rig: Rig, kind: str) -> None:
    client = rig.connect()
    waiting(client, kind)
    client.publish("wait", "long", expiration="60000")
    client.publish("wait", "short", expiration="50")
    client.consume("wait", prefetch=1)

    assert order(client, 1) == ["short"]


def test_the_lower_of_expiration_and_queue_ttl_applies(rig: Rig, kind: str) -> None:
    client = rig.connect()
    waiting(client, kind, message_ttl=200)
    client.publish("wait", "own", expiration="100")
    client.publish("wait", "queue's", expiration="60000")

    assert order(client, 2) == ["own", "queue's"]


def test_an_unacked_message_expires_only_after_its_requeue(rig: Rig, kind: str) -> None:
    client = rig.connect()
    waiting(client, kind, message_ttl=100)
    client.publish("wait", "x")
    held = client.take("wait")
    assert client.get("end", within=0.3) is None
    client.nack(held)

    assert order(client, 1) == ["x"]


def test_expiration_zero_reaches_a_waiting_consumer(rig: Rig, kind: str) -> None:
    client = rig.connect()
    waiting(client, kind)
    client.publish("wait", "no consumer", expiration="0")
    assert order(client, 1) == ["no consumer"]
    client.consume("wait", no_ack=True)
    client.publish("wait", "consumer", expiration="0")

    assert [one.text for one in client.arrivals(1)] == ["consumer"]


def test_only_version_4_3_expires_each_priority_by_itself(rig: Rig) -> None:
    client = rig.connect()
    waiting(client, "quorum")
    for priority, time in ((0, 450), (2, 250), (3, 100)):
        client.publish("wait", str(time), expiration=str(time), priority=priority)

    assert order(client, 3) == (["100", "250", "450"] if rig.version >= (4, 3) else ["450", "250", "100"])


def test_version_4_expires_high_and_low_priorities_apart(rig: Rig) -> None:
    client = rig.connect()
    waiting(client, "quorum")
    for priority, time in ((0, 450), (5, 250), (9, 100)):
        client.publish("wait", str(time), expiration=str(time), priority=priority)
    expected = {(4, 0): ["250", "100", "450"], (4, 3): ["100", "250", "450"]}

    assert order(client, 3) == expected.get((rig.version[0], rig.version[1]), ["450", "250", "100"])


def test_a_classic_priority_queue_expires_from_its_head_only(rig: Rig) -> None:
    client = rig.connect()
    waiting(client, "classic", max_priority=9)
    for priority, time in ((0, 400), (5, 200), (9, 50)):
        client.publish("wait", str(time), expiration=str(time), priority=priority)

    assert client.get("end", within=0.3) is None
    assert order(client, 3) == ["50", "200", "400"]


def test_a_classic_queue_caps_priorities_at_its_maximum(rig: Rig) -> None:
    client = rig.connect()
    client.queue("q", {"x-max-priority": 3})
    for name, priority in (("a", 0), ("b", 3), ("c", 1), ("d", 9), ("e", None)):
        client.publish("q", name, priority=priority)
    found = [client.get("q") for _ in range(5)]

    assert [one and one.text for one in found] == ["b", "d", "c", "a", "e"]


def test_an_unused_classic_queue_expires_with_its_messages(rig: Rig) -> None:
    client = rig.connect()
    client.queue("q", {**AWAY, "x-expires": 200})
    client.queue("end")
    client.publish("q", "x")
    rig.wait(0.4)

    assert client.publish("q", "x", mandatory=True) == "returned"
    assert client.get("end", within=0.1) is None


def test_a_consumer_keeps_a_queue_alive(rig: Rig) -> None:
    client = rig.connect()
    client.queue("q", {"x-expires": 150})
    tag = client.consume("q")
    rig.wait(0.4)
    assert client.publish("q", "x", mandatory=True) == "ack"
    client.cancel(tag)
    rig.wait(0.4)

    assert client.publish("q", "x", mandatory=True) == "returned"


def test_unacked_messages_do_not_count_towards_the_length(rig: Rig, kind: str) -> None:
    client = rig.connect()
    client.queue("q", {**BOTH[kind], "x-max-length": 1})
    client.publish("q", "a")
    held = client.get("q")
    client.publish("q", "b")
    assert held is not None
    client.ack(held)
    found = client.take()

    assert found.text == "b"


def test_reads_keep_an_expiring_queue_alive_and_publishes_do_not(rig: Rig) -> None:
    client = rig.connect()
    lease = {"x-expires": 2000}
    for name in ("looked-at", "declared", "taken-from", "published-to"):
        client.queue(name, lease)
    for _ in range(4):
        rig.wait(0.8)
        client.queue("looked-at", passive=True)
        client.queue("declared", lease)
        client.get("taken-from", within=0)
        client.publish("published-to", "x")
    outcomes = [
        client.publish(name, mandatory=True) for name in ("looked-at", "declared", "taken-from", "published-to")
    ]

    assert outcomes == ["ack", "ack", "ack", "returned"]
