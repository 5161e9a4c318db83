"""What RabbitMQ 4.0 and 4.3 do otherwise, as measured on them: on the engine alone, where a machine has only 3.10."""

import pytest

from django_rmq_retry.embedded.engine.behaviour import V3_10, V4_0, V4_3, behaviour
from tests.embedded.engine_rig import EngineClient, EngineRig
from tests.embedded.rig import QUORUM, Arrival, Refusal

DELAYED = {**QUORUM, "x-delayed-retry-type": "all", "x-delayed-retry-min": 300, "x-delayed-retry-max": 700}


def taken(client: EngineClient, queue: str, *, within: float = 5.0) -> Arrival:
    found = client.get(queue, within=within)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("asked", "found"),
    [("3.10", V3_10), ("3.13.7", V3_10), ("4.0", V4_0), ("4.2", V4_0), ("4.3", V4_3), ("4.10", V4_3), ("5.0", V4_3)],
)
def test_a_version_behaves_as_the_newest_known_one_before_it(asked: str, found: object) -> None:
    assert behaviour(asked) is found


def test_a_version_older_than_any_known_is_refused() -> None:
    with pytest.raises(ValueError, match=r"3\.10, 4\.0 or 4\.3, not as '3\.9'"):
        behaviour("3.9")


@pytest.mark.parametrize(("version", "deliveries"), [("3.10", 30), ("4.0", 21), ("4.3", 21)])
def test_the_default_limit_of_version_4_drops_after_21_deliveries(version: str, deliveries: int) -> None:
    rig = EngineRig(version)
    client = rig.connect()
    client.queue("q", QUORUM)
    client.publish("q", "x")
    count = 0
    while count < 30 and (found := client.get("q", within=0)) is not None:
        count += 1
        client.reject(found)

    assert count == deliveries


@pytest.mark.parametrize(("version", "kept"), [("3.10", False), ("4.0", True), ("4.3", True)])
def test_a_limit_of_minus_one_means_none_only_since_version_4(version: str, kept: bool) -> None:
    client = EngineRig(version).connect()
    client.queue("q", {**QUORUM, "x-delivery-limit": -1})
    client.publish("q", "x")
    client.reject(taken(client, "q"))

    assert (client.get("q", within=0) is not None) == kept


@pytest.mark.parametrize(("version", "kept"), [("3.10", True), ("4.0", True), ("4.3", False)])
def test_version_4_3_counts_on_through_dead_lettering_and_loses_the_message(version: str, kept: bool) -> None:
    client = EngineRig(version).connect()
    client.queue("main", {**QUORUM, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "wait"})
    client.queue(
        "wait",
        {**QUORUM, "x-message-ttl": 10, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "main"},
    )
    client.publish("main", "x")
    for _ in range(20):
        client.reject(taken(client, "main"), requeue=False)
    client.reject(taken(client, "main"))

    assert (client.get("main", within=1) is not None) == kept


@pytest.mark.parametrize(("version", "count", "redelivered"), [("3.10", 0, False), ("4.0", 1, True), ("4.3", 1, True)])
def test_a_count_is_shown_behind_a_dead_letter_since_version_4(version: str, count: int, redelivered: bool) -> None:
    client = EngineRig(version).connect()
    client.queue("main", {**QUORUM, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "next"})
    client.queue("next", QUORUM)
    client.publish("main", "x")
    client.reject(taken(client, "main"), requeue=False)
    arrival = taken(client, "next")

    assert (arrival.headers.get("x-delivery-count"), arrival.redelivered) == (count, redelivered)


def test_version_4_3_tells_how_often_a_message_was_acquired() -> None:
    client = EngineRig("4.3").connect()
    client.queue("q", QUORUM)
    client.publish("q", "x")
    client.nack(taken(client, "q"))
    client.reject(taken(client, "q"))
    headers = taken(client, "q").headers

    assert (headers["x-acquired-count"], headers["x-delivery-count"]) == (2, 1)


def test_delayed_retry_grows_with_each_failure_up_to_its_end() -> None:
    rig = EngineRig("4.3")
    client = rig.connect()
    client.queue("q", DELAYED)
    client.publish("q", "x")
    times = []
    for _ in range(4):
        found = taken(client, "q")
        times.append(round(rig.vhost.clock.now, 3))
        client.reject(found)

    assert times == [0.0, 0.3, 0.9, 1.6]


@pytest.mark.parametrize(("kind", "after"), [("all", 0.3), ("returned", 0.3), ("failed", 0.0), ("disabled", 0.0)])
def test_a_nack_is_delayed_by_the_least(kind: str, after: float) -> None:
    rig = EngineRig("4.3")
    client = rig.connect()
    client.queue("q", {**DELAYED, "x-delayed-retry-type": kind})
    client.publish("q", "x")
    client.nack(taken(client, "q"))
    taken(client, "q")

    assert rig.vhost.clock.now == after


def test_a_delayed_message_is_overtaken_not_counted_and_purged() -> None:
    client = EngineRig("4.3").connect()
    client.queue("q", DELAYED)
    for body in "ab":
        client.publish("q", body)
    client.reject(taken(client, "q"))

    assert taken(client, "q").text == "b"
    assert client.queue("q", DELAYED).messages == 0
    assert client.purge("q") == 1


@pytest.mark.parametrize("version", ["3.10", "4.0"])
def test_delayed_retry_is_taken_without_a_word_and_does_nothing_before_4_3(version: str) -> None:
    client = EngineRig(version).connect()
    client.queue("q", DELAYED)
    client.publish("q", "x")
    client.reject(taken(client, "q"))

    assert taken(client, "q", within=0).redelivered


def test_delayed_retry_cannot_be_added_nor_asked_of_a_classic_queue() -> None:
    rig = EngineRig("4.3")
    rig.connect().queue("q", QUORUM)
    with pytest.raises(Refusal, match="inequivalent arg 'x-delayed-retry-type'"):
        rig.connect().queue("q", DELAYED)
    with pytest.raises(Refusal, match="of queue type rabbit_classic_queue"):
        rig.connect().queue("c", {"x-delayed-retry-type": "all"})


def test_a_quorum_queue_of_4_0_serves_two_high_ones_before_a_low_one_that_is_older() -> None:
    client = EngineRig("4.0").connect()
    client.queue("q", QUORUM)
    for body, priority in (("l1", 0), ("l2", 4), ("h1", 5), ("h2", 9), ("h3", 5), ("h4", 5)):
        client.publish("q", body, priority=priority)

    assert [taken(client, "q").text for _ in range(6)] == ["h1", "h2", "l1", "h3", "h4", "l2"]


@pytest.mark.parametrize(("version", "limit"), [("3.10", 128), ("4.0", 16), ("4.3", 16)])
def test_a_message_may_have_so_many_mebibytes(version: str, limit: int) -> None:
    client = EngineRig(version).connect()
    client.queue("q")
    body = bytes(limit * 2**20)
    client.channel.publish("", "q", b"\0\0", body)
    with pytest.raises(Refusal, match=f"message size {len(body) + 1} is larger than configured max size {len(body)}"):
        client.publish("q", "x" * (len(body) + 1))
