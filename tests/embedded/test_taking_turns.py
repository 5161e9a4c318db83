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
    """Who gets a message now, and deals with it."""
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


def test_the_highest_is_next_but_in_quorum_queues_of_3_10(rig: Rig, kind: str) -> None:
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


def test_who_gave_way_is_the_first_of_its_rank_again(rig: Rig) -> None:
    client = rig.connect()
    single(client, "quorum")
    joined(client, first=0, second=0, high=5)
    before = taker(client)
    client.cancel("high")

    assert before == ("high" if rig.version >= (4, 0) else "first")
    assert taker(client) == "first"


@pytest.mark.parametrize("way", ["ack", "drop"])
def test_who_gives_way_deals_with_what_it_holds_and_gets_nothing_more(rig: Rig, way: str) -> None:
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
def test_what_who_gives_way_returns_stalls_version_4_0_until_somebody_comes_or_goes(rig: Rig, way: str) -> None:
    client, (held,) = overtaken(rig, "a")
    early = given(client, 1) if rig.version < (4, 0) else []
    client.nack(held) if way == "nack" else client.reject(held)
    if (4, 0) <= rig.version < (4, 3):
        assert nothing(client)
        join(client, "third", 1)
    late = given(client, 1 if early else 2)

    assert early + late == ([("low", "z"), ("low", "a")] if rig.version < (4, 0) else [("high", "a"), ("high", "z")])


def test_who_gives_way_takes_again_when_the_higher_one_has_left(rig: Rig) -> None:
    client, (held,) = overtaken(rig, "a")
    early = given(client, 1) if rig.version < (4, 0) else []
    client.cancel("high")
    assert nothing(client)
    client.ack(held)

    assert early or given(client, 1) == [("low", "z")]


def test_who_gives_way_may_leave_with_what_it_holds(rig: Rig) -> None:
    client, (held,) = overtaken(rig, "a")
    early = given(client, 1) if rig.version < (4, 0) else []
    client.cancel("low")
    assert early or given(client, 1) == [("high", "z")]
    client.nack(held)

    assert given(client, 1) == [("high", "a")]
