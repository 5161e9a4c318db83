"""The delayed retry of quorum queues: 4.3 has it, the versions before take its arguments and do nothing."""

from itertools import pairwise
from time import monotonic

import pytest

from tests.embedded.engine_rig import EngineRig
from tests.embedded.rig import QUORUM, Client, Refusal, Rig

pytestmark = pytest.mark.contract

DELAYED = {**QUORUM, "x-delayed-retry-type": "all", "x-delayed-retry-min": 300, "x-delayed-retry-max": 700}


def now(rig: Rig) -> float:
    return rig.vhost.clock.now if isinstance(rig, EngineRig) else monotonic()


def waited(rig: Rig, client: Client, way: str) -> float:
    """The delay of a message that was returned in this way."""
    held = client.take()
    start = now(rig)
    if way == "reject":
        client.reject(held)
    else:
        client.nack(held)
    back = client.take()
    client.nack(back, requeue=False)
    return now(rig) - start


def test_a_delayed_retry_grows_with_each_failure_up_to_its_maximum(rig: Rig) -> None:
    client = rig.connect()
    client.queue("q", DELAYED)
    client.publish("q", "x")
    times = []
    for _ in range(4):
        held = client.take()
        times.append(now(rig))
        client.reject(held)
    waits = [later - earlier for earlier, later in pairwise(times)]
    least = (0.3, 0.6, 0.7) if rig.version >= (4, 3) else (0.0, 0.0, 0.0)

    assert [one > nominal - 0.02 for one, nominal in zip(waits, least, strict=True)] == [True] * 3
    assert waits[0] < waits[1] < waits[2] or rig.version < (4, 3)


@pytest.mark.parametrize(
    ("kind", "way", "delayed"),
    [
        ("all", "nack", True),
        ("returned", "nack", True),
        ("failed", "nack", False),
        ("disabled", "nack", False),
        ("all", "reject", True),
        ("failed", "reject", True),
        ("returned", "reject", False),
    ],
)
def test_the_delayed_retry_type_selects_which_returns_are_delayed(rig: Rig, kind: str, way: str, delayed: bool) -> None:
    client = rig.connect()
    # So long that no pause of a busy machine looks like it.
    client.queue(
        "q", {**DELAYED, "x-delayed-retry-type": kind, "x-delayed-retry-min": 1500, "x-delayed-retry-max": 3000}
    )
    client.publish("q", "x")

    assert (waited(rig, client, way) > 1.4) == (delayed and rig.version >= (4, 3))


@pytest.mark.parametrize(
    ("kind", "delayed"), [("all", True), ("failed", True), ("returned", False), ("disabled", False)]
)
@pytest.mark.parametrize("way", ["close_channel", "cut"])
def test_messages_of_a_closed_channel_or_connection_count_as_failed(
    rig: Rig, way: str, kind: str, delayed: bool
) -> None:
    client, other = rig.connect(), rig.connect()
    # So long that no pause of a busy machine looks like it.
    client.queue(
        "q", {**DELAYED, "x-delayed-retry-type": kind, "x-delayed-retry-min": 1500, "x-delayed-retry-max": 3000}
    )
    client.publish("q", "x")
    client.take()
    start = now(rig)
    client.close_channel() if way == "close_channel" else client.cut()
    back = other.take()

    assert back.redelivered
    assert (now(rig) - start > 1.4) == (delayed and rig.version >= (4, 3))


def test_a_delayed_message_is_overtaken_and_not_ready_and_can_be_purged(rig: Rig) -> None:
    client = rig.connect()
    client.queue("q", {**DELAYED, "x-delayed-retry-min": 60_000, "x-delayed-retry-max": 60_000, "x-delivery-limit": 9})
    for body in "ab":
        client.publish("q", body)
    client.reject(client.take())
    next_one = client.take()
    later = rig.version >= (4, 3)

    assert next_one.text == ("b" if later else "a")
    assert client.queue("q", passive=True).messages == (0 if later else 1)
    assert client.purge("q") == 1


def test_delayed_retries_end_at_the_delivery_limit(rig: Rig) -> None:
    client = rig.connect()
    arguments = {**DELAYED, "x-delayed-retry-min": 50, "x-delayed-retry-max": 50, "x-delivery-limit": 2}
    client.queue("q", {**arguments, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    client.queue("dead")
    client.publish("q", "x")
    for _ in range(3):
        client.reject(client.take())
    dead = client.take("dead")

    assert dead.deaths == [("q", "delivery_limit", 1)]


def test_delayed_retry_is_refused_on_existing_and_classic_queues(rig: Rig) -> None:
    rig.connect().queue("q", QUORUM)
    rig.connect().queue("c")
    asks = {"q": DELAYED, "c2": {**DELAYED, "x-queue-type": "classic"}}
    told = {}
    for name, arguments in asks.items():
        try:
            rig.connect().queue(name, arguments)
        except Refusal as refused:
            told[name] = refused.code

    assert told == ({"q": 406, "c2": 406} if rig.version >= (4, 3) else {})


def test_version_4_3_shows_how_often_a_message_was_acquired(rig: Rig) -> None:
    client = rig.connect()
    client.queue("q", QUORUM)
    client.publish("q", "x")
    client.nack(client.take())
    client.reject(client.take())
    headers = client.take().headers

    assert (headers.get("x-acquired-count"), headers["x-delivery-count"]) == (
        (2, 1) if rig.version >= (4, 3) else (None, 2)
    )


def test_a_quorum_queue_of_4_0_serves_two_high_priorities_per_low_one(rig: Rig) -> None:
    client = rig.connect()
    client.queue("q", QUORUM)
    for body, priority in (("l1", 0), ("l2", 4), ("h1", 5), ("h2", 9), ("h3", 5), ("h4", 5)):
        client.publish("q", body, priority=priority)
    orders = {
        (3, 10): ["l1", "l2", "h1", "h2", "h3", "h4"],
        (4, 0): ["h1", "h2", "l1", "h3", "h4", "l2"],
        (4, 3): ["h2", "h1", "h3", "h4", "l2", "l1"],
    }

    assert [client.take().text for _ in range(6)] == orders[rig.version[0], rig.version[1]]
