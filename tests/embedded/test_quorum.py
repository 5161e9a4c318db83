"""Quorum queues where they differ from classic ones."""

import pytest

from tests.embedded.rig import QUORUM, Rig

pytestmark = pytest.mark.contract


def test_requeued_messages_keep_the_order_of_their_return(rig: Rig) -> None:
    client = rig.connect()
    client.queue("q", {**QUORUM, "x-delivery-limit": 9})
    for body in "abcd":
        client.publish("q", body)
    held = [client.get("q") for _ in range(3)]
    for one in (held[2], held[0]):
        assert one is not None
        client.reject(one)
    found = [client.get("q") for _ in range(3)]

    assert "".join(one.text for one in found if one) == "cad"


def test_a_full_queue_accepts_publishes_again_at_four_fifths(rig: Rig) -> None:
    client = rig.connect()
    client.queue("q", {**QUORUM, "x-max-length": 10, "x-overflow": "reject-publish"})
    outcomes = []
    for _ in range(12):
        outcomes.append(client.publish("q", "x"))
        rig.wait(0.05)
    for _ in range(2):
        assert client.get("q", no_ack=True) is not None
    rig.wait(0.1)
    still = client.publish("q", "x")
    assert client.get("q", no_ack=True) is not None
    rig.wait(0.1)

    assert outcomes == ["ack"] * 11 + ["nack"]
    assert (still, client.publish("q", "x")) == ("nack", "ack")


def test_a_limit_drops_the_head_without_a_dead_letter_exchange(rig: Rig) -> None:
    client = rig.connect()
    client.queue("q", {**QUORUM, "x-max-length": 2, "x-overflow": "reject-publish-dlx"})
    outcomes = [client.publish("q", body) for body in "abc"]
    rig.wait(0.1)
    found = [client.get("q") for _ in range(2)]

    assert outcomes == ["ack"] * 3
    assert "".join(one.text for one in found if one) == "bc"


def test_a_cut_connection_counts_as_a_failed_delivery(rig: Rig) -> None:
    client, other = rig.connect(), rig.connect()
    client.queue("q", {**QUORUM, "x-delivery-limit": 9})
    client.publish("q", "x")
    assert client.get("q") is not None
    client.cut()
    found = other.take()

    assert (found.headers["x-delivery-count"], found.redelivered) == (1, True)


def test_a_requeued_message_goes_before_higher_priorities(rig: Rig) -> None:
    client = rig.connect()
    client.queue("q", {**QUORUM, "x-delivery-limit": 9})
    for body, priority in {"a": 0, "b": 4}.items():
        client.publish("q", body, priority=priority)
    held = [client.get("q"), client.get("q")]
    for body, priority in {"c": 5, "d": 0}.items():
        client.publish("q", body, priority=priority)
    for one in sorted((one for one in held if one), key=lambda one: one.text):
        client.nack(one)
    found = [client.get("q") for _ in range(4)]

    assert "".join(one.text for one in found if one) == "abcd"


def test_a_requeued_message_expires_only_after_the_one_before_it(rig: Rig) -> None:
    client = rig.connect()
    client.queue("q", {**QUORUM, "x-delivery-limit": 9, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "d"})
    client.queue("d")
    client.publish("q", "a", priority=5, expiration="60000")
    client.publish("q", "b", priority=4, expiration="700")
    held = [client.get("q"), client.get("q")]
    for one in held:
        assert one is not None
        client.nack(one)
    rig.wait(1.0)

    assert client.get("d", within=0.5) is None


def test_a_message_without_a_priority_has_4_on_version_4_3(rig: Rig) -> None:
    client = rig.connect()
    client.queue("q", QUORUM)
    for priority in (2, 3, None, 4, None, 5, 0, None):
        client.publish("q", "-" if priority is None else str(priority), priority=priority)
    found = [client.get("q") for _ in range(8)]
    orders = {(3, 10): "23-4-50-", (4, 0): "523-4-0-", (4, 3): "5-4--320"}

    assert "".join(one.text for one in found if one) == orders[rig.version[0], rig.version[1]]


def test_without_a_priority_expiry_does_not_wait_for_low_ones_on_4_3(rig: Rig) -> None:
    client = rig.connect()
    client.queue("q", {**QUORUM, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    client.queue("dead")
    client.publish("q", "low", priority=0, expiration="60000")
    client.publish("q", "none", expiration="100")
    alone = rig.version >= (4, 3)
    dead = client.get("dead", within=5.0 if alone else 0.5)

    assert (dead and dead.text) == ("none" if alone else None)


@pytest.mark.slow
def test_an_unused_queue_is_deleted_at_a_tick_of_five_seconds(rig: Rig) -> None:
    client = rig.connect()
    client.queue("q", {**QUORUM, "x-expires": 1000})
    rig.wait(2.5)
    assert client.publish("q", "x", mandatory=True) == "ack"
    rig.wait(5)

    assert client.publish("q", "x", mandatory=True) == "returned"


def test_several_returned_at_once_keep_their_order(rig: Rig) -> None:
    client = rig.connect()
    client.queue("q", {**QUORUM, "x-delivery-limit": 9})
    for body in "abcd":
        client.publish("q", body)
    held = [client.get("q") for _ in range(3)]
    assert held[2] is not None
    client.nack(held[2], multiple=True)
    found = [client.get("q") for _ in range(4)]

    assert "".join(one.text for one in found if one) == "abcd"
