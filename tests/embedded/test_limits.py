"""Lengths: in messages and in bytes, with each of the three overflow behaviours."""

import pytest

from tests.embedded.rig import BOTH, QUORUM, Client, Rig
from tests.tooling.waiting import wait_until

pytestmark = pytest.mark.contract

AWAY = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
LIMITS = [{"x-max-length": 2}, {"x-max-length-bytes": 10}]


def texts(client: Client, queue: str, count: int) -> str:
    found = [client.get(queue, within=1) for _ in range(count)]
    return "".join(one.text[:1] if one else "-" for one in found)


def filled(rig: Rig, client: Client, bodies: str, **arguments: object) -> list[str]:
    """Publish bodies of five bytes each; the outcomes."""
    client.queue("q", {**AWAY, **arguments})
    client.queue("dead")
    outcomes = []
    for body in bodies:
        outcomes.append(client.publish("q", body * 5))
        # A quorum queue reports to its publishers a moment later that it is full.
        rig.wait(0.05)
    return outcomes


@pytest.mark.parametrize("limit", LIMITS, ids=["length", "bytes"])
def test_the_head_is_dropped_and_dead_lettered(rig: Rig, kind: str, limit: dict[str, object]) -> None:
    client = rig.connect()
    wider = 4 if rig.version >= (4, 3) and kind == "quorum" and "x-max-length-bytes" in limit else 0
    limits = {name: value + wider for name, value in limit.items() if isinstance(value, int)}
    outcomes = filled(rig, client, "abcd", **{**BOTH[kind], **limits})

    assert outcomes == ["ack"] * 4
    assert (texts(client, "dead", 2), texts(client, "q", 2)) == ("ab", "cd")


@pytest.mark.parametrize("limit", LIMITS, ids=["length", "bytes"])
def test_a_full_queue_nacks_publishes(rig: Rig, kind: str, limit: dict[str, object]) -> None:
    client = rig.connect()
    outcomes = filled(rig, client, "abcde", **{**BOTH[kind], **limit, "x-overflow": "reject-publish"})
    too_many = 1 if kind == "quorum" and not (rig.version >= (4, 3) and "x-max-length-bytes" in limit) else 0
    taken = 2 + too_many

    assert outcomes == ["ack"] * taken + ["nack"] * (5 - taken)
    assert texts(client, "q", 4) == "abc-" if too_many else "ab--"
    assert client.get("dead", within=0.1) is None


@pytest.mark.parametrize(("target", "full", "after"), [("classic", 2, 2), ("quorum", 3, 6)])
def test_only_a_full_quorum_queue_accepts_dead_letters(rig: Rig, kind: str, target: str, full: int, after: int) -> None:
    client = rig.connect()
    filled(rig, client, "abcde", **{**BOTH[target], "x-max-length": 2, "x-overflow": "reject-publish"})
    client.queue("source", {**BOTH[kind], "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"})
    before = client.queue("q", passive=True).messages
    for body in "fgh":
        client.publish("source", body)
        found = client.take("source")
        client.reject(found, requeue=False)
    rig.wait(0.3)
    wait_until(lambda: client.queue("q", passive=True).messages == after)

    assert before == full
    assert client.queue("source", passive=True).messages == 0


def test_a_full_queue_refuses_at_least_once_dead_letters(rig: Rig) -> None:
    client = rig.connect()
    filled(rig, client, "abcd", **{**QUORUM, "x-max-length": 2, "x-overflow": "reject-publish"})
    careful = {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
    client.queue("source", {**QUORUM, **careful, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"})
    # The worker that carries such dead letters learns from its first that the queue is full.
    for body in "ef":
        client.publish("source", body)
        found = client.take("source")
        client.reject(found, requeue=False)
        rig.wait(0.3)

    assert client.queue("q", passive=True).messages in (3, 4)


@pytest.mark.parametrize("limit", LIMITS, ids=["length", "bytes"])
def test_a_full_classic_queue_nacks_and_dead_letters(rig: Rig, limit: dict[str, object]) -> None:
    client = rig.connect()
    outcomes = filled(rig, client, "abcd", **limit, **{"x-overflow": "reject-publish-dlx"})

    assert outcomes == ["ack", "ack", "nack", "nack"]
    assert (texts(client, "dead", 2), texts(client, "q", 2)) == ("cd", "ab")


def test_a_message_above_the_byte_limit_is_dead_lettered(rig: Rig, kind: str) -> None:
    client = rig.connect()
    client.queue("q", {**BOTH[kind], **AWAY, "x-max-length-bytes": 4})
    client.queue("dead")
    client.publish("q", "abcde")
    dead = client.take("dead")

    assert dead.deaths == [("q", "maxlen", 1)]
    assert client.get("q", within=0.1) is None


@pytest.mark.parametrize(("limit", "kept"), [(23, 1), (24, 2)])
def test_a_quorum_queue_counts_the_bytes_of_the_properties_too_since_version_4_3(
    rig: Rig, limit: int, kept: int
) -> None:
    client = rig.connect()
    client.queue("q", {**QUORUM, "x-max-length-bytes": limit})
    for body in "ab":
        client.publish("q", body * 5, message_id="1234")
    rig.wait(0.2)

    assert client.queue("q", passive=True).messages == (kept if rig.version >= (4, 3) else 2)


def test_the_smaller_of_both_limits_counts(rig: Rig, kind: str) -> None:
    client = rig.connect()
    filled(rig, client, "abcd", **{**BOTH[kind], "x-max-length": 1, "x-max-length-bytes": 1000})

    assert texts(client, "q", 2) == "d-"


def test_a_message_requeued_to_a_full_queue_is_dropped_from_the_head(rig: Rig, kind: str) -> None:
    client = rig.connect()
    client.queue(
        "q", {**BOTH[kind], **AWAY, "x-max-length": 1, **({"x-delivery-limit": 9} if kind == "quorum" else {})}
    )
    client.queue("dead")
    client.publish("q", "a")
    held = client.get("q")
    client.publish("q", "b")
    assert held is not None
    client.nack(held)

    assert (texts(client, "dead", 1), texts(client, "q", 2)) == ("a", "b-")


def test_a_dead_letter_loop_of_dropped_messages_ends(rig: Rig, kind: str) -> None:
    client = rig.connect()
    client.queue(
        "q", {**BOTH[kind], "x-max-length": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "wait"}
    )
    client.queue("wait", {"x-message-ttl": 50, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"})
    for body in "ab":
        client.publish("q", body)
    rig.wait(0.4)

    assert texts(client, "q", 2) == "b-"
    assert client.queue("wait", passive=True).messages == 0
