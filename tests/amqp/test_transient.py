"""Queues that live and die with their consumers: on a real broker."""

from collections.abc import Callable
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry import Broadcast, Exchange, InPlace, Queue, RetryThenPark
from django_rmq_retry.amqp import Line
from django_rmq_retry.amqp import source as room
from django_rmq_retry.consumer.lines import consumed_lines
from django_rmq_retry.errors import QueueUnusable
from django_rmq_retry.handlers import Subscription, WorkQueue, work_queues_of
from django_rmq_retry.messages import DONE, Instruction, Settlement
from tests.amqp.declared import declare
from tests.amqp.line_between import between
from tests.amqp.live import Seen, consuming
from tests.handlers.factories import topology_of
from tests.tooling.vhosts import Vhost
from tests.tooling.waiting import wait_until

pytestmark = [pytest.mark.contract, pytest.mark.on_both]
NEWS = Exchange("news", "topic")
Tell_all = Callable[..., None]


def joined(queue: Queue) -> WorkQueue:
    made = Subscription(
        name="cache", run=lambda _: None, queue=queue, policy=RetryThenPark(via=InPlace()), park="cache.parked"
    )
    return work_queues_of([made])[0]


def line_of(vhost: Vhost, queue: Queue, *, prefetch: int = 10) -> Line:
    """Its line, with declared all that is not its consumer's own."""
    work_queue = joined(queue)
    declare(vhost, topology_of(*work_queue.subscriptions))
    [line] = consumed_lines(work_queue, prefetch)
    return line


def copies(*keys: str) -> Broadcast:
    return Broadcast("cache", bindings=[NEWS.bind(key) for key in keys])


def queues(vhost: Vhost) -> list[str]:
    return sorted(vhost.queues())


def subscribed(source: Any) -> None:
    wait_until(lambda: source.ready, what="a subscription")


@pytest.fixture
def tell(amqp: BlockingChannel) -> Tell_all:
    amqp.confirm_delivery()

    def tell(body: bytes, *, key: str = "eur", exchange: str = "news", mandatory: bool = True) -> None:
        amqp.basic_publish(exchange, key, body, mandatory=mandatory)

    return tell


def test_each_consumer_gets_a_copy_and_leaves_no_queue(vhost: Vhost, tell: Tell_all) -> None:
    line = line_of(vhost, copies("eur", "usd.*"))
    assert queues(vhost) == ["cache.parked"]
    tell(b"0", mandatory=False)
    with consuming(vhost.url, line) as (one, first), consuming(vhost.url, line) as (two, second):
        subscribed(one)
        subscribed(two)
        tell(b"1")
        tell(b"2", key="usd.cash")
        arrivals = [seen.next() for seen in (first, second) for _ in range(2)]

        assert [(arrival.queue, arrival.body) for arrival in arrivals] == [("cache", b"1"), ("cache", b"2")] * 2
        assert len([name for name in queues(vhost) if name.startswith("amq.gen")]) == 2
    wait_until(lambda: queues(vhost) == ["cache.parked"])


def test_a_copy_can_be_attempted_again_and_requeued(vhost: Vhost, tell: Tell_all) -> None:
    with consuming(vhost.url, line_of(vhost, copies("eur"))) as (source, seen):
        subscribed(source)
        tell(b"1")
        first = seen.next()
        source.settle(first, Settlement(instruction=Instruction.KEEP, hold=0.01))
        again = seen.next()
        assert (again, again.redelivered) == (first, False)
        source.give_back([again])
        back = seen.next()
        assert (back.body, back.redelivered) == (b"1", True)
        source.settle(back, DONE)


def test_after_a_pause_a_consumer_gets_messages_published_meanwhile(vhost: Vhost, tell: Tell_all) -> None:
    with consuming(vhost.url, line_of(vhost, copies("eur"))) as (source, seen):
        subscribed(source)
        source.pause("cache")
        wait_until(lambda: not source._lines, what="the pause")
        tell(b"1")
        source.resume("cache", prefetch=1)

        assert seen.next().body == b"1"
        assert len(queues(vhost)) == 2


def test_after_a_closed_channel_a_consumer_continues_on_the_same_queue(vhost: Vhost, tell: Tell_all) -> None:
    with consuming(vhost.url, line_of(vhost, copies("eur"))) as (source, seen):
        subscribed(source)
        before, unknown = queues(vhost), 99999
        line: Any = source._lines["cache"]
        seen.io.call(lambda: line._channel.basic_ack(unknown))
        wait_until(lambda: not line.open, what="the channel is closed")
        tell(b"1")

        assert seen.next().body == b"1"
        assert queues(vhost) == before


def test_after_its_queue_is_deleted_a_consumer_declares_a_new_one(vhost: Vhost, tell: Tell_all) -> None:
    with consuming(vhost.url, line_of(vhost, copies("eur"))) as (source, seen):
        subscribed(source)
        line: Any = source._lines["cache"]
        first = source._named["cache"]
        seen.io.call(lambda: line._channel.queue_delete(first))
        wait_until(lambda: source._named.get("cache", first) != first, what="a new queue")
        tell(b"1")

        assert seen.next().body == b"1"
        assert first not in queues(vhost)


def test_after_a_lost_connection_a_consumer_declares_a_new_queue(vhost: Vhost, tell: Tell_all) -> None:
    line = line_of(vhost, copies("eur"))
    with between(vhost.url) as wire, consuming(wire.url, line) as (source, seen):
        subscribed(source)
        [first] = [name for name in queues(vhost) if name != "cache.parked"]
        wire.cut()
        wait_until(lambda: len(seen.servers) == 2)
        wait_until(lambda: first not in queues(vhost) and len(queues(vhost)) == 2 and source._named)
        tell(b"1")

        assert seen.next().body == b"1"


@pytest.mark.parametrize(("lives", "comes_again"), [({"exclusive": True}, False), ({"durable": False}, True)])
def test_a_message_here_outlives_its_connection_only_if_its_queue_does_not(
    vhost: Vhost, tell: Tell_all, lives: dict[str, Any], comes_again: bool
) -> None:
    line = line_of(vhost, Queue("cache", type="classic", bindings=[NEWS.bind("eur")], **lives))
    with between(vhost.url) as wire, consuming(wire.url, line) as (source, seen):
        subscribed(source)
        tell(b"1")
        first = seen.next()
        source.settle(first, Settlement(instruction=Instruction.KEEP, hold=0.5))
        wire.cut()
        wait_until(lambda: not first.token[0].open)
        after = seen.next()

        assert (first.is_stale, after.redelivered) == (comes_again, comes_again)
        assert (after.token == first.token) is not comes_again
        source.settle(after, DONE)


@pytest.mark.parametrize("lives", [{"auto_delete": True}, {"durable": False}])
def test_consumers_declare_and_share_a_named_transient_queue(
    vhost: Vhost, tell: Tell_all, lives: dict[str, Any]
) -> None:
    line = line_of(vhost, Queue("cache", type="classic", bindings=[NEWS.bind("eur")], **lives), prefetch=1)
    assert queues(vhost) == ["cache.parked"]
    with consuming(vhost.url, line) as (one, first), consuming(vhost.url, line) as (two, second):
        subscribed(one)
        subscribed(two)
        tell(b"1")
        tell(b"2")

        assert sorted([first.next().body, second.next().body]) == [b"1", b"2"]
        assert queues(vhost) == ["cache", "cache.parked"]
    left = ["cache.parked"] if "auto_delete" in lives else ["cache", "cache.parked"]
    wait_until(lambda: queues(vhost) == left)


def test_a_consumer_waits_until_a_named_exclusive_queue_is_free(
    vhost: Vhost, tell: Tell_all, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "RESUBSCRIBE_SECONDS", 0.05)
    line = line_of(vhost, Queue("cache", type="classic", exclusive=True, bindings=[NEWS.bind("eur")]))
    with consuming(vhost.url, line) as (one, _):
        subscribed(one)
        with consuming(vhost.url, line) as (two, second):
            wait_until(lambda: two._tries.get("cache", 0) > 1, what="it is refused")
            one.stop()
            subscribed(two)
            tell(b"1")

            assert (second.next().body, second.failures) == (b"1", [])


def test_a_transient_queue_with_other_arguments_is_reported_at_once(vhost: Vhost, amqp: BlockingChannel) -> None:
    amqp.queue_declare("cache", durable=True)
    line = line_of(vhost, Queue("cache", type="classic", auto_delete=True, bindings=[NEWS.bind("eur")]))
    with consuming(vhost.url, line) as (_, seen):
        wait_until(lambda: seen.failures)

    [error] = seen.failures
    assert isinstance(error, QueueUnusable)
    assert "Queue 'cache' cannot be consumed: it was declared otherwise (PRECONDITION_FAILED" in str(error)
    assert str(error).endswith("Delete the old queue, or give this one another name.")


def test_an_exchange_that_is_missing_is_reported_at_once(vhost: Vhost) -> None:
    [line] = consumed_lines(joined(copies("eur")), 1)
    seen: Seen
    with consuming(vhost.url, line) as (_, seen):
        wait_until(lambda: seen.failures)

    assert "Declare it with `manage.py rmq_declare`." in str(seen.failures[0])


def test_a_message_that_expires_in_a_transient_queue_is_parked(vhost: Vhost, amqp: BlockingChannel) -> None:
    amqp.confirm_delivery()
    with consuming(vhost.url, line_of(vhost, copies("eur"), prefetch=1)) as (source, seen):
        subscribed(source)
        for _ in range(2):
            amqp.basic_publish("news", "eur", b"1", pika.BasicProperties(expiration="50"), mandatory=True)
        seen.next()
        wait_until(lambda: amqp.queue_declare("cache.parked", passive=True).method.message_count == 1)
