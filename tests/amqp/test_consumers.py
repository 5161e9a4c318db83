"""A consuming connection whose queue, channel or broker goes away: on a real broker."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry import Delivery
from django_rmq_retry.amqp import CONFIRMED, Line, transport
from django_rmq_retry.amqp import source as room
from django_rmq_retry.amqp.session import NamedDeclaration
from django_rmq_retry.errors import QueueUnusable
from django_rmq_retry.messages import DONE, Instruction, Settlement
from django_rmq_retry.topology import ExchangeDeclaration, QueueDeclaration
from tests.amqp.line_between import between
from tests.amqp.live import Held, Seen, consuming, to
from tests.amqp.one_queue import LINE, depth, fill, queue, quiet
from tests.tooling.vhosts import Vhost
from tests.tooling.waiting import longer, wait_until

pytestmark = pytest.mark.contract

ORDERED = Line(queue="q", prefetch=1, ordered=True)
AGAIN = Settlement(instruction=Instruction.KEEP, hold=0.1)


@pytest.mark.parametrize("kind", ["quorum", "classic"])
def test_an_acknowledged_message_leaves_its_queue(broker_url: str, amqp: BlockingChannel, kind: str) -> None:
    queue(amqp, kind=kind)
    fill(amqp, *(str(number).encode() for number in range(50)))
    with consuming(broker_url, LINE) as (source, seen):
        bodies = []
        for _ in range(50):
            arrival = seen.next()
            bodies.append(int(arrival.body))
            source.settle(arrival, DONE)
        source.stop()
        assert seen.has_closed.wait(longer(5))

    assert bodies == list(range(50))
    assert depth(amqp) == 0
    assert seen.servers[0].product == "RabbitMQ"


def test_no_more_than_the_prefetch_is_unacked(broker_url: str, amqp: BlockingChannel) -> None:
    queue(amqp)
    fill(amqp, b"1", b"2", b"3")
    with consuming(broker_url, Line(queue="q", prefetch=2)) as (source, seen):
        first = seen.next()
        seen.next()
        assert quiet(seen)
        source.settle(first, DONE)

        assert seen.next().body == b"3"


def test_a_stop_gives_back_all_unacked_messages(broker_url: str, amqp: BlockingChannel) -> None:
    queue(amqp)
    fill(amqp, b"1", b"2", b"3", b"4")
    with consuming(broker_url, LINE) as (source, seen):
        arrivals = [seen.next() for _ in range(4)]
        source.settle(arrivals[1], DONE)
        source.settle(arrivals[2], Settlement(instruction=Instruction.REQUEUE, hold=60))
        source.quiesce()
        source.give_back([arrivals[3]])
        source.stop()
        assert seen.has_closed.wait(longer(5))

    assert wait_until(lambda: depth(amqp) == 3)


@pytest.fixture
def after_subscribing(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """Calls to make on the I/O thread, one right after each subscription was asked for."""
    calls: list[Callable[[], None]] = []
    opened: Any = room.OpenLine  # type: ignore[attr-defined]  # the class of the lines that a source opens
    subscribe = opened.subscribe

    def subscribe_and_call(line: object) -> None:
        subscribe(line)
        if calls:
            calls.pop()()

    monkeypatch.setattr(opened, "subscribe", subscribe_and_call)
    return calls


def test_a_stop_right_after_subscribing_closes_the_connection(
    broker_url: str, amqp: BlockingChannel, after_subscribing: list[Callable[[], None]]
) -> None:
    queue(amqp, kind="classic")

    def stop() -> None:
        source.stop()

    for _ in range(5):
        after_subscribing.append(stop)
        with consuming(broker_url, LINE) as (source, seen):
            assert seen.has_closed.wait(longer(5))


def test_a_pause_right_after_subscribing_can_be_resumed(
    broker_url: str, amqp: BlockingChannel, after_subscribing: list[Callable[[], None]]
) -> None:
    queue(amqp, kind="classic")
    paused = threading.Event()

    def pause() -> None:
        source.pause("q")
        seen.io.call(paused.set)

    for _ in range(5):
        paused.clear()
        after_subscribing.append(pause)
        with consuming(broker_url, LINE) as (source, seen):
            assert paused.wait(longer(5))
            source.resume("q")
            fill(amqp, b"1")
            source.settle(seen.next(), DONE)
            source.stop()
            assert seen.has_closed.wait(longer(5))


def test_a_quiesced_consumer_takes_no_new_message(broker_url: str, amqp: BlockingChannel) -> None:
    queue(amqp)
    with consuming(broker_url, LINE) as (source, seen):
        fill(amqp, b"1")
        source.settle(seen.next(), DONE)
        source.quiesce()
        heard = threading.Event()
        seen.io.call(heard.set)
        assert heard.wait(longer(5))
        fill(amqp, b"2", b"3")

        assert quiet(seen)
        assert wait_until(lambda: depth(amqp) == 2)


@pytest.mark.parametrize("ordered", [False, True])
def test_unacked_messages_are_redelivered_after_a_lost_connection(
    broker_url: str, amqp: BlockingChannel, ordered: bool
) -> None:
    queue(amqp, ordered=ordered)
    fill(amqp, b"1", b"2")
    with between(broker_url) as line, consuming(line.url, ORDERED if ordered else LINE) as (source, seen):
        before = seen.next()
        line.cut()
        wait_until(lambda: len(seen.servers) == 2)
        # Of the old channel: on the new one this tag belongs to another delivery, or to none.
        again = next(one for one in iter(seen.next, None) if one.redelivered)
        for settlement in (
            DONE,
            Settlement(instruction=Instruction.REQUEUE),
            Settlement(instruction=Instruction.REJECT),
        ):
            source.settle(before, settlement)
        source.settle(again, DONE)
        source.stop()
        assert seen.has_closed.wait(longer(5))

    assert again.body == before.body
    assert depth(amqp) == 1


def test_a_copy_confirmed_after_a_lost_connection_acknowledges_nothing(broker_url: str, amqp: BlockingChannel) -> None:
    queue(amqp)
    fill(amqp, b"1")
    held = Held()
    with between(broker_url) as line, consuming(line.url, LINE, publisher=held) as (source, seen):
        source.settle(seen.next(), Settlement(instruction=Instruction.ACK, copy=to("parked")))
        _, done = held.sent.get(timeout=5)
        line.cut()
        again = seen.next()
        seen.io.call(lambda: done(CONFIRMED))
        source.stop()
        assert seen.has_closed.wait(longer(15))

    assert again.redelivered
    assert wait_until(lambda: depth(amqp) == 1)


def test_a_queue_that_was_deleted_and_declared_again_is_consumed_again(broker_url: str, amqp: BlockingChannel) -> None:
    queue(amqp)
    with consuming(broker_url, LINE) as (source, seen):
        fill(amqp, b"1")
        source.settle(seen.next(), DONE)
        amqp.queue_delete("q")
        # RabbitMQ 3.10 forgets to cancel where a quorum queue is declared again within a millisecond.
        wait_until(lambda: not source._lines, what="the broker cancels")
        queue(amqp)
        fill(amqp, b"2")

        assert seen.next().body == b"2"
        assert seen.failures == []


def test_a_deleted_queue_raises_queue_unusable_after_some_attempts(
    broker_url: str, amqp: BlockingChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "RESUBSCRIBE_SECONDS", 0.02)
    queue(amqp)
    with consuming(broker_url, LINE) as (_, seen):
        fill(amqp, b"1")
        seen.next()
        amqp.queue_delete("q")
        (error,) = wait_until(lambda: seen.failures)

    assert isinstance(error, QueueUnusable)
    assert "rmq_declare" in str(error)


def test_a_missing_queue_raises_at_once_at_the_start(broker_url: str) -> None:
    with consuming(broker_url, LINE) as (_, seen):
        (error,) = wait_until(lambda: seen.failures, 2)

    assert isinstance(error, QueueUnusable)
    assert str(error) == "Queue 'q' cannot be consumed: it does not exist. Declare it with `manage.py rmq_declare`."


NEEDS: tuple[NamedDeclaration, ...] = (
    ExchangeDeclaration(name="back"),
    *(QueueDeclaration(name=name) for name in ("q", "wait", "parked")),
)


def test_a_start_names_everything_missing_and_consumes_nothing(broker_url: str, amqp: BlockingChannel) -> None:
    queue(amqp)
    queue(amqp, "parked")
    fill(amqp, b"1")
    with consuming(broker_url, LINE, needs=NEEDS) as (_, seen):
        (error,) = wait_until(lambda: seen.failures)
        assert quiet(seen)

    assert str(error) == (
        "The broker lacks 2 queues or exchanges of the handlers: exchange 'back', queue 'wait'. No message was taken. "
        "Declare them with `manage.py rmq_declare`."
    )
    assert depth(amqp) == 1


def test_a_missing_external_queue_is_not_said_to_be_declared_by_this_project(broker_url: str) -> None:
    needs = (QueueDeclaration(name="q", existing=True), QueueDeclaration(name="parked"))
    with consuming(broker_url, LINE, needs=needs) as (_, seen):
        (both,) = wait_until(lambda: seen.failures)
    with consuming(broker_url, LINE, needs=needs[:1]) as (_, seen):
        (one,) = wait_until(lambda: seen.failures)

    external = (
        "The queue 'q' is external (existing=True), so `manage.py rmq_declare` does not create it: ask its owner to."
    )
    assert str(both).endswith(f"No message was taken. Declare them with `manage.py rmq_declare`. {external}")
    assert str(one).endswith(f"No message was taken. {external}")


def test_an_external_queue_that_goes_is_not_said_to_be_declared_by_this_project(
    broker_url: str, amqp: BlockingChannel
) -> None:
    queue(amqp)
    with consuming(broker_url, LINE, needs=(QueueDeclaration(name="q", existing=True),)) as (_, seen):
        fill(amqp, b"1")
        seen.next()
        amqp.queue_delete("q")
        (error,) = wait_until(lambda: seen.failures)

    assert "does not create it: ask its owner to." in str(error)


def test_a_reconnect_does_not_check_waiting_queues_again(broker_url: str, amqp: BlockingChannel) -> None:
    amqp.exchange_declare("back")
    for name in ("q", "wait", "parked"):
        queue(amqp, name)
    fill(amqp, b"1")
    with between(broker_url) as line, consuming(line.url, LINE, needs=NEEDS) as (source, seen):
        seen.next()
        amqp.queue_delete("wait")
        line.cut()
        again = seen.next(10)
        source.settle(again, DONE)

        assert again.body == b"1"
        assert seen.failures == []


def test_one_queue_that_fails_leaves_the_others_alone(broker_url: str, amqp: BlockingChannel) -> None:
    queue(amqp)
    queue(amqp, "other")
    with consuming(broker_url, LINE, Line(queue="other", prefetch=1)) as (source, seen):
        fill(amqp, b"1")
        source.settle(seen.next(), DONE)
        amqp.queue_delete("q")
        fill(amqp, b"2", name="other")

        assert seen.next().queue == "other"


def test_a_missing_read_right_raises_an_error_that_names_it(
    broker_url: str, vhost: Vhost, amqp: BlockingChannel
) -> None:
    queue(amqp)
    vhost.management.call("PUT", "users/" + vhost.name, {"password": "p", "tags": ""})
    rights = {"configure": ".*", "write": ".*", "read": "^$"}
    vhost.management.call("PUT", f"permissions/{vhost.name}/{vhost.name}", rights)
    try:
        with consuming(broker_url.replace("guest:guest", f"{vhost.name}:p"), LINE) as (_, seen):
            (error,) = wait_until(lambda: seen.failures)
    finally:
        vhost.management.call("DELETE", "users/" + vhost.name)

    assert isinstance(error, QueueUnusable)
    assert "Give the user the right to read it." in str(error)


def test_heartbeats_survive_a_handler_that_takes_longer_than_several_of_them(
    broker_url: str, amqp: BlockingChannel
) -> None:
    queue(amqp)
    fill(amqp, b"1")
    with consuming(broker_url, LINE, heartbeat=1) as (source, seen):
        arrival = seen.next()
        deadline = time.monotonic() + 3.5
        wait_until(lambda: time.monotonic() > deadline)
        source.settle(arrival, DONE)
        source.stop()
        assert seen.has_closed.wait(longer(5))

    assert seen.losses == []
    assert depth(amqp) == 0


def test_a_thread_that_goes_on_after_a_freeze_learns_first_that_its_connection_is_gone(
    broker_url: str, amqp: BlockingChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker has given the message to another consumer meanwhile."""
    queue(amqp)
    fill(amqp, b"1")
    monkeypatch.setattr(transport, "ASLEEP_SECONDS", 0.2)
    thaw, said = threading.Event(), list[bool]()

    def freeze() -> None:
        thaw.wait(longer(10))

    with between(broker_url) as line, consuming(line.url, LINE) as (_source, seen):
        arrival = seen.next()
        assert not arrival.is_stale
        seen.io.call(freeze)
        line.cut()
        wait_until(lambda: depth(amqp) and time.monotonic() - seen.io.loop.turned > transport.ASLEEP_SECONDS)
        handler = threading.Thread(target=lambda: said.append(arrival.is_stale))
        handler.start()
        wait_until(lambda: seen.io._calls)
        assert (said, seen.losses) == ([], [])
        thaw.set()
        handler.join(longer(5))

    assert said == [True]


def test_a_thread_that_goes_on_after_a_freeze_learns_of_an_end_behind_many_messages(
    broker_url: str, amqp: BlockingChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue(amqp)
    fill(amqp, b"1")
    monkeypatch.setattr(transport, "ASLEEP_SECONDS", 0.2)
    thaw, said = threading.Event(), list[bool]()

    def freeze() -> None:
        thaw.wait(longer(10))

    with between(broker_url) as line, consuming(line.url, Line(queue="q", prefetch=50)) as (_source, seen):
        arrival = seen.next()
        seen.io.call(freeze)
        fill(amqp, *[b"x" * 40_000] * 20)
        wait_until(lambda: not depth(amqp))
        line.hang_up()
        wait_until(lambda: time.monotonic() - seen.io.loop.turned > transport.ASLEEP_SECONDS)
        handler = threading.Thread(target=lambda: said.append(arrival.is_stale))
        handler.start()
        wait_until(lambda: seen.io._calls)
        thaw.set()
        handler.join(longer(5))

    assert said == [True]


def test_order_is_kept_from_one_consumer_to_the_next(broker_url: str, amqp: BlockingChannel) -> None:
    queue(amqp, ordered=True)
    fill(amqp, *(str(number).encode() for number in range(1, 7)))
    order: list[bytes] = []
    with consuming(broker_url, ORDERED) as (first, one):
        # The one that came first is the active one: the other must not be quicker.
        order.append(_done(first, one))
        with consuming(broker_url, ORDERED) as (second, two):
            one.next()
            first.stop()
            assert one.has_closed.wait(longer(5))
            order += [_done(second, two) for _ in range(2)]
            assert quiet(one, 0.05)
            order += [_done(second, two) for _ in range(3)]

    assert order == [b"1", b"2", b"3", b"4", b"5", b"6"]


def test_a_halted_message_is_the_same_delivery_at_each_attempt(broker_url: str, amqp: BlockingChannel) -> None:
    queue(amqp, ordered=True)
    fill(amqp, b"1", b"2")
    with consuming(broker_url, ORDERED) as (source, seen):
        arrivals = []
        for _ in range(3):
            arrivals.append(seen.next())
            source.settle(arrivals[-1], AGAIN)
        source.settle(seen.next(), DONE)

        assert (arrivals[0].body, len(set(arrivals))) == (b"1", 1)
        assert seen.next().body == b"2"


def test_a_line_halted_too_long_is_renewed_in_order(broker_url: str, amqp: BlockingChannel) -> None:
    queue(amqp, ordered=True)
    fill(amqp, b"1", b"2")
    line = Line(queue="q", prefetch=1, ordered=True, longest_hold=0.05)
    with consuming(broker_url, line) as (source, seen):
        attempts = []
        for _ in range(4):
            arrival = seen.next()
            attempts.append((arrival.body, arrival.redelivered))
            source.settle(arrival, AGAIN)
        source.settle(seen.next(), DONE)
        following = seen.next()

    assert attempts == [(b"1", False), (b"1", True), (b"1", True), (b"1", True)]
    assert following.body == b"2"


def test_a_source_is_empty_only_when_nothing_is_ready_and_nothing_unacked(
    broker_url: str, amqp: BlockingChannel
) -> None:
    queue(amqp)
    fill(amqp, b"1")
    with consuming(broker_url, LINE) as (source, seen):
        arrival = seen.next()
        assert _empty(source) is False
        source.settle(arrival, DONE)

        assert wait_until(lambda: _empty(source))


def _empty(source: room.PikaSource) -> bool:
    told: list[bool] = []
    source.report_emptiness(told.append)
    return wait_until(lambda: told)[0]


def _done(source: room.PikaSource, seen: Seen) -> bytes:
    arrival: Delivery = seen.next()
    source.settle(arrival, DONE)
    return arrival.body
