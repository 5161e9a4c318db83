"""A queue that is paused and resumed, while others flow: on a real broker."""

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry.amqp import Line
from django_rmq_retry.messages import DONE, Instruction, Settlement
from tests.amqp.line_between import between
from tests.amqp.live import consuming
from tests.amqp.one_queue import depth, fill, queue, quiet
from tests.tooling.waiting import longer, wait_until

pytestmark = pytest.mark.contract

LINE = Line(queue="q", prefetch=3)
OTHER = Line(queue="other", prefetch=3)
ORDERED = Line(queue="q", prefetch=1, ordered=True)
KEYED = Line(queue="q", prefetch=3, keyed=True)
AUTO = Line(queue="q", prefetch=3, auto_ack=True)


def consumers(amqp: BlockingChannel, name: str = "q") -> int:
    return amqp.queue_declare(name, passive=True).method.consumer_count or 0


@pytest.mark.parametrize("kind", ["quorum", "classic"])
def test_a_paused_queue_is_not_consumed_and_unacked_messages_can_be_settled(
    broker_url: str, amqp: BlockingChannel, kind: str
) -> None:
    queue(amqp, kind=kind)
    queue(amqp, "other", kind=kind)
    fill(amqp, b"1", b"2", b"3", b"4", b"5")
    with consuming(broker_url, LINE, OTHER) as (source, seen):
        first, *rest = [seen.next() for _ in range(3)]
        source.pause("q")
        source.give_back(rest)
        wait_until(lambda: depth(amqp) == 4)
        source.settle(first, DONE)
        wait_until(lambda: not consumers(amqp))
        fill(amqp, b"beside", name="other")
        beside = seen.next()
        source.settle(beside, DONE)
        paused = quiet(seen)
        source.resume("q")
        bodies = set()
        for _ in range(4):
            arrival = seen.next()
            bodies.add(arrival.body)
            source.settle(arrival, DONE)
        source.stop()
        assert seen.has_closed.wait(longer(5))

    assert (first.body, beside.body, paused) == (b"1", b"beside", True)
    assert bodies == {b"2", b"3", b"4", b"5"}
    assert (depth(amqp), depth(amqp, "other")) == (0, 0)


def test_a_queue_paused_before_the_start_is_never_subscribed(broker_url: str, amqp: BlockingChannel) -> None:
    queue(amqp)
    queue(amqp, "other")
    fill(amqp, b"1")
    fill(amqp, b"2", name="other")
    with consuming(broker_url, LINE, OTHER) as (source, seen):
        source.pause("q")
        assert seen.next().body == b"2"
        assert quiet(seen)
        taken = consumers(amqp)
        source.stop()
        assert seen.has_closed.wait(longer(5))

    assert (taken, depth(amqp)) == (0, 1)


def test_a_resume_with_prefetch_one_takes_a_single_probe_message(broker_url: str, amqp: BlockingChannel) -> None:
    queue(amqp)
    fill(amqp, *(str(number).encode() for number in range(6)))
    with consuming(broker_url, LINE) as (source, seen):
        unacked = [seen.next() for _ in range(3)]
        source.pause("q")
        source.give_back(unacked)
        wait_until(lambda: depth(amqp) == 6)
        while not quiet(seen, 0.1):
            pass
        source.resume("q", prefetch=1)
        trial = seen.next()
        alone = quiet(seen)
        source.resume("q")
        source.settle(trial, DONE)
        rest = [seen.next() for _ in range(3)]
        source.give_back(rest)
        source.stop()
        assert seen.has_closed.wait(longer(5))

    assert alone
    assert len({one.body for one in rest} - {trial.body}) == 3
    wait_until(lambda: depth(amqp) == 5)


@pytest.mark.parametrize("line", [ORDERED, KEYED], ids=["ordered", "keyed"])
def test_an_ordered_line_resumes_in_order(broker_url: str, amqp: BlockingChannel, line: Line) -> None:
    queue(amqp, ordered=True)
    fill(amqp, *(str(number).encode() for number in range(6)))
    with consuming(broker_url, line) as (source, seen):
        in_flight = [seen.next() for _ in range(line.prefetch)]
        source.pause("q")
        source.give_back(in_flight)
        wait_until(lambda: depth(amqp) == 6)
        source.resume("q")
        bodies = []
        for _ in range(6):
            arrival = seen.next()
            bodies.append(arrival.body)
            source.settle(arrival, DONE)
        source.stop()
        assert seen.has_closed.wait(longer(5))

    assert bodies == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_a_pause_returns_a_waiting_unacked_message_to_its_place(broker_url: str, amqp: BlockingChannel) -> None:
    queue(amqp, ordered=True)
    fill(amqp, b"1", b"2")
    with consuming(broker_url, ORDERED) as (source, seen):
        held = seen.next()
        source.settle(held, Settlement(instruction=Instruction.KEEP, hold=600))
        source.pause("q")
        wait_until(lambda: depth(amqp) == 2)
        source.resume("q")
        again = seen.next()
        source.stop()
        assert seen.has_closed.wait(longer(5))

    assert (again.body, again.redelivered) == (b"1", True)


def test_a_queue_is_untouched_while_it_is_consumed_and_nothing_of_it_is_here(
    broker_url: str, amqp: BlockingChannel
) -> None:
    """Of one that is paused, or of all once the deliveries have stopped, messages may wait at the broker."""
    queue(amqp)
    with consuming(broker_url, LINE) as (source, seen):
        wait_until(lambda: source.untouched("q"))
        before = source.untouched("q")
        fill(amqp, b"1")
        begun = seen.next()
        unacked = source.untouched("q")
        source.settle(begun, DONE)
        wait_until(lambda: source.untouched("q"))
        after = source.untouched("q")
        source.pause("q")
        wait_until(lambda: source.untouched("q") is None)
        source.resume("q")
        wait_until(lambda: source.untouched("q"))
        source.quiesce()
        wait_until(lambda: source.untouched("q") is None)
        source.stop()
        assert seen.has_closed.wait(longer(5))

    assert unacked is None
    assert before != after


@pytest.mark.parametrize("line", [LINE, KEYED, AUTO], ids=["plain", "keyed", "ack=auto"])
def test_of_a_paused_queue_it_is_known_how_many_messages_are_left_here(
    broker_url: str, amqp: BlockingChannel, line: Line
) -> None:
    queue(amqp)
    fill(amqp, b"1", b"2", b"3")
    with consuming(broker_url, line) as (source, seen):
        begun, given_back, last = [seen.next() for _ in range(3)]
        flowing = source.unsettled("q")
        source.pause("q")
        wait_until(lambda: source.unsettled("q") == 3)
        source.give_back([given_back])
        source.settle(last, DONE)
        wait_until(lambda: source.unsettled("q") == 1)
        source.settle(begun, DONE)
        wait_until(lambda: source.unsettled("q") == 0)
        source.resume("q")
        wait_until(lambda: source.unsettled("q") is None)
        source.stop()
        assert seen.has_closed.wait(longer(5))

    assert flowing is None


def test_a_pause_outlives_the_connection(broker_url: str, amqp: BlockingChannel) -> None:
    queue(amqp)
    queue(amqp, "other")
    with between(broker_url) as way, consuming(way.url, LINE, OTHER) as (source, seen):
        wait_until(lambda: consumers(amqp) == 1)
        source.pause("q")
        wait_until(lambda: not consumers(amqp))
        fill(amqp, b"1")
        way.cut()
        wait_until(lambda: len(seen.servers) > 1)
        fill(amqp, b"2", name="other")
        assert seen.next().body == b"2"
        assert quiet(seen)
        source.resume("q")
        assert seen.next().body == b"1"
        source.stop()
        assert seen.has_closed.wait(longer(5))


def test_repeated_probes_add_no_delivery_count(broker_url: str, amqp: BlockingChannel) -> None:
    """Each trial takes a message and leaves a copy of it; a paused consumer has no unacked message."""
    queue(amqp)
    fill(amqp, b"1", b"2")
    with consuming(broker_url, LINE) as (source, seen):
        source.pause("q")
        while not quiet(seen, 0.2):
            pass
        wait_until(lambda: depth(amqp) == 2)
        for _ in range(30):
            source.resume("q", prefetch=1)
            trial = seen.next()
            source.pause("q")
            amqp.basic_publish("", "q", trial.body, pika.BasicProperties(delivery_mode=2), mandatory=True)
            source.settle(trial, DONE)
        wait_until(lambda: depth(amqp) == 2)
        source.resume("q")
        last = [seen.next() for _ in range(2)]
        source.stop()
        assert seen.has_closed.wait(longer(5))

    assert max(int(one.headers.get("x-delivery-count", 0)) for one in last) <= 1  # type: ignore[call-overload]
