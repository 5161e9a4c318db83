"""A single active consumer where consumers have priorities: who it is, and who is next."""

import pytest

from tests.embedded.rig import BOTH, Arrival, Client, Rig

pytestmark = pytest.mark.contract


def single(client: Client, kind: str) -> None:
    client.queue("q", {**BOTH[kind], "x-single-active-consumer": True})


def join(client: Client, tag: str, priority: int) -> None:
    client.consume("q", tag=tag, prefetch=5, arguments={"x-priority": priority})


def joined(client: Client, **priorities: int) -> None:
    for tag, priority in priorities.items():
        join(client, tag, priority)


def taker(client: Client) -> str:
    """The client that gets a message now and settles it."""
    client.publish("q", "x")
    (found,) = client.arrivals(1)
    client.ack(found)
    return found.consumer


def given(client: Client, count: int) -> list[tuple[str, str]]:
    return [(one.consumer, one.text) for one in client.arrivals(count)]


def nothing(client: Client) -> bool:
    return client.arrivals(1, within=0.3) == []


def overtaken(rig: Rig, bodies: str) -> tuple[Client, list[Arrival]]:
    """A low consumer holds these when a high one comes, and then another message."""
    client = rig.connect()
    single(client, "quorum")
    join(client, "low", 0)
    for body in bodies:
        client.publish("q", body)
    held = client.arrivals(len(bodies))
    join(client, "high", 5)
    client.publish("q", "z")
    return client, held


def test_the_highest_priority_consumer_is_next_except_in_quorum_on_3_10(rig: Rig, kind: str) -> None:
    client = rig.connect()
    single(client, kind)
    joined(client, first=0, second=0, low=-1, high=5, equal=5)
    seen = []
    for _ in range(5):
        seen.append(taker(client))
        client.cancel(seen[-1])
    if kind == "classic":
        assert seen == ["first", "high", "equal", "second", "low"]
    elif rig.version >= (4, 0):
        assert seen == ["high", "equal", "first", "second", "low"]
    else:
        assert seen == ["first", "second", "low", "high", "equal"]


def test_a_preempted_consumer_is_first_of_its_priority_again(rig: Rig) -> None:
    client = rig.connect()
    single(client, "quorum")
    joined(client, first=0, second=0, high=5)
    before = taker(client)
    client.cancel("high")

    assert before == ("high" if rig.version >= (4, 0) else "first")
    assert taker(client) == "first"


@pytest.mark.parametrize("way", ["ack", "drop"])
def test_a_preempted_consumer_settles_its_messages_and_gets_no_more(rig: Rig, way: str) -> None:
    client, held = overtaken(rig, "ab")
    if rig.version < (4, 0):
        assert given(client, 1) == [("low", "z")]
        return

    assert nothing(client)
    client.ack(held[0])
    assert nothing(client)
    client.ack(held[1]) if way == "ack" else client.nack(held[1], requeue=False)
    assert given(client, 1) == [("high", "z")]


@pytest.mark.parametrize("way", ["nack", "reject"])
def test_a_preempted_consumers_requeue_stalls_version_4_0(rig: Rig, way: str) -> None:
    client, (held,) = overtaken(rig, "a")
    early = given(client, 1) if rig.version < (4, 0) else []
    client.nack(held) if way == "nack" else client.reject(held)
    if (4, 0) <= rig.version < (4, 3):
        assert nothing(client)
        join(client, "third", 1)
    late = given(client, 1 if early else 2)

    assert early + late == ([("low", "z"), ("low", "a")] if rig.version < (4, 0) else [("high", "a"), ("high", "z")])


def test_a_preempted_consumer_resumes_when_the_higher_one_leaves(rig: Rig) -> None:
    client, (held,) = overtaken(rig, "a")
    early = given(client, 1) if rig.version < (4, 0) else []
    client.cancel("high")
    assert nothing(client)
    client.ack(held)

    assert early or given(client, 1) == [("low", "z")]


def test_a_preempted_consumer_may_be_cancelled_with_unacked_messages(rig: Rig) -> None:
    client, (held,) = overtaken(rig, "a")
    early = given(client, 1) if rig.version < (4, 0) else []
    client.cancel("low")
    assert early or given(client, 1) == [("high", "z")]
    client.nack(held)

    assert given(client, 1) == [("high", "a")]


def six(rig: Rig, kind: str) -> tuple[Client, Client, str, list[Arrival]]:
    """Six messages for a single active consumer that holds three of them, and another that waits for its turn."""
    first, second = rig.connect(), rig.connect()
    # Without a limit a quorum queue of RabbitMQ 3 puts returned messages last.
    limit = {"x-delivery-limit": 9} if kind == "quorum" else {}
    first.queue("q", {**BOTH[kind], **limit, "x-single-active-consumer": True})
    for body in "123456":
        first.publish("q", body)
    tag = first.consume("q", prefetch=3)
    held = first.arrivals(3)
    second.consume("q", prefetch=9)
    return first, second, tag, held


def rest(client: Client) -> str:
    """The messages that a client gets, one after the other, settling each."""
    found = ""
    while arrived := client.arrivals(1, within=1):
        found += arrived[0].text
        client.ack(arrived[0])
    return found


def hands_over(rig: Rig, kind: str) -> bool:
    """Classic queues of RabbitMQ 3 give the next consumer nothing when an active one is cancelled."""
    return kind == "quorum" or rig.version >= (4, 0)


@pytest.mark.parametrize("way", ["close", "cut", "nack"])
def test_unacked_messages_of_a_cancelled_consumer_are_requeued_in_order(rig: Rig, kind: str, way: str) -> None:
    first, second, tag, held = six(rig, kind)
    first.ack(held[0])
    held += first.arrivals(1)
    first.cancel(tag)
    taken = [one.text for one in second.arrivals(2, within=1)]
    if way == "close":
        first.close_channel()
    elif way == "cut":
        first.cut()
    else:
        first.nack(held[-1], multiple=True)

    assert (taken, rest(second)) == ((["5", "6"], "234") if hands_over(rig, kind) else ([], "23456"))


def test_messages_requeued_before_a_channel_closes_come_first(rig: Rig, kind: str) -> None:
    first, second, tag, held = six(rig, kind)
    first.ack(held[0])
    held += first.arrivals(1)
    first.cancel(tag)
    before = len(second.arrivals(2, within=1))
    first.nack(held[-1])
    between = len(second.arrivals(3, within=1))
    first.close_channel()

    assert (before, between, rest(second)) == ((2, 1, "23") if hands_over(rig, kind) else (0, 3, "23"))


def test_a_single_active_consumer_gets_its_requeued_messages_again(rig: Rig, kind: str) -> None:
    first, second, tag, held = six(rig, kind)
    first.nack(held[-1], multiple=True)
    again = first.arrivals(3)
    first.cancel(tag)
    taken = "".join(one.text for one in second.arrivals(3, within=1))
    first.nack(again[-1], multiple=True)

    assert ("".join(one.text for one in again), taken, rest(second)) == (
        ("123", "456", "123") if hands_over(rig, kind) else ("123", "", "123456")
    )
