"""Settlements on a real broker, with confirms of copies that the test controls."""

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, cast

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry import Delivery
from django_rmq_retry.amqp import CONFIRMED, Line, Outcome
from django_rmq_retry.amqp import settler as room
from django_rmq_retry.amqp.source import PikaSource
from django_rmq_retry.messages import DONE, Headers, Instruction, Settlement
from tests.amqp.line_between import between
from tests.amqp.live import Held, Seen, consuming, publishing, to
from tests.amqp.test_consumers import LINE, depth, fill, queue, quiet
from tests.tooling.results import OF_KIND
from tests.tooling.vhosts import Vhost
from tests.tooling.waiting import wait_until

pytestmark = pytest.mark.contract

COPY = Settlement(instruction=Instruction.ACK, copy=to("waiting", b"copy"))
QUARANTINE = Line(queue="quarantine", prefetch=1, quarantine=True)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "FIRST_PAUSE", 0.02)


def tell(source: PikaSource, held: Held, outcome: Outcome) -> None:
    """Let the next copy end like this."""
    _, done = held.sent.get(timeout=5)
    source._io.call(lambda: done(OF_KIND[outcome]))


def in_flight(source: PikaSource) -> int:
    return sum(line.in_flight for line in source._lines.values())


def settled(source: PikaSource) -> None:
    """Until the I/O thread has done what was handed to it."""
    over = threading.Event()
    source._io.call(over.set)
    assert over.wait(5)


def stop(source: PikaSource, seen: Seen) -> None:
    source.stop()
    assert seen.has_drained.wait(5)


def test_a_message_is_acknowledged_only_when_its_copy_is_confirmed(broker_url: str, amqp: BlockingChannel) -> None:
    queue(amqp)
    fill(amqp, b"1")
    held = Held()
    with consuming(broker_url, LINE, publisher=held) as (source, seen):
        source.settle(seen.next(), COPY)
        message, done = held.sent.get(timeout=5)
        settled(source)
        assert in_flight(source) == 1
        source._io.call(lambda: done(CONFIRMED))
        wait_until(lambda: in_flight(source) == 0)
        stop(source, seen)

    assert message.body == b"copy"
    assert depth(amqp) == 0


@pytest.mark.parametrize("outcome", [Outcome.CONFIRMED, Outcome.UNSENT])
def test_a_quarantined_message_is_delivered_when_no_copy_is_in_flight(
    broker_url: str, amqp: BlockingChannel, outcome: Outcome
) -> None:
    queue(amqp)
    queue(amqp, "quarantine")
    fill(amqp, b"1")
    held = Held()
    with consuming(broker_url, LINE, QUARANTINE, publisher=held) as (
        source,
        seen,
    ):
        source.settle(seen.next(), COPY)
        settled(source)
        amqp.basic_publish("", "quarantine", b"alone")
        wait_until(lambda: source._lines["quarantine"].in_flight == 1)
        fill(amqp, b"2")
        assert seen.next().body == b"2"
        assert seen.arrivals.empty()
        tell(source, held, outcome)

        assert seen.next().body == b"alone"
        assert source._lines[LINE.queue].in_flight == (1 if outcome is Outcome.CONFIRMED else 2)
        if outcome is not Outcome.CONFIRMED:
            tell(source, held, Outcome.CONFIRMED)


def test_a_copy_after_a_quarantined_delivery_is_sent_at_once(broker_url: str, amqp: BlockingChannel) -> None:
    queue(amqp)
    queue(amqp, "quarantine")
    fill(amqp, b"1", b"2")
    held = Held()
    with consuming(broker_url, LINE, QUARANTINE, publisher=held) as (
        source,
        seen,
    ):
        first, second = seen.next(), seen.next()
        source.settle(first, COPY)
        settled(source)
        amqp.basic_publish("", "quarantine", b"alone")
        wait_until(lambda: source._lines["quarantine"].in_flight == 1)
        settled(source)
        source.settle(second, COPY)
        tell(source, held, Outcome.CONFIRMED)

        assert seen.next().body == b"alone"
        tell(source, held, Outcome.CONFIRMED)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("outcome", [Outcome.RETURNED, Outcome.NACKED, Outcome.UNKNOWN, Outcome.UNSENT])
def test_a_copy_that_is_not_stored_is_sent_again_and_its_message_stays(
    broker_url: str, amqp: BlockingChannel, outcome: Outcome, caplog: pytest.LogCaptureFixture
) -> None:
    queue(amqp)
    fill(amqp, b"1")
    held = Held()
    with consuming(broker_url, LINE, publisher=held) as (source, seen):
        source.settle(seen.next(), COPY)
        for _ in range(3):
            tell(source, held, outcome)
        assert in_flight(source) == 1
        tell(source, held, Outcome.CONFIRMED)
        wait_until(lambda: in_flight(source) == 0)
        stop(source, seen)

    assert depth(amqp) == 0
    assert caplog.text.count("the message stays unacked") == 3


@pytest.mark.usefixtures("quick")
def test_a_message_stays_unacked_until_its_waiting_queue_is_declared(
    broker_url: str, amqp: BlockingChannel, caplog: pytest.LogCaptureFixture
) -> None:
    queue(amqp)
    fill(amqp, b"1")
    with consuming(broker_url, LINE) as (source, seen):
        source.settle(seen.next(), COPY)
        wait_until(lambda: "is not stored (returned" in caplog.text)
        queue(amqp, "waiting")
        wait_until(lambda: depth(amqp, "waiting") == 1)
        stop(source, seen)

    assert depth(amqp) == 0
    assert depth(amqp, "waiting") == 1


def test_copies_that_failed_together_are_sent_again_with_jitter(
    broker_url: str, amqp: BlockingChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []

    def about(_settler: room.Settler, pause: float) -> float:
        asked.append(pause)
        return 0.02

    monkeypatch.setattr(room.Settler, "_about", about)
    queue(amqp)
    fill(amqp, b"1")
    held = Held()
    with consuming(broker_url, LINE, publisher=held) as (source, seen):
        source.settle(seen.next(), COPY)
        tell(source, held, Outcome.NACKED)
        tell(source, held, Outcome.CONFIRMED)
        wait_until(lambda: in_flight(source) == 0)

    assert asked == [room.FIRST_PAUSE]


class ScarceLoop:
    """An event loop whose next calls fail for lack of memory."""

    def __init__(self, failures: int) -> None:
        self.failures = failures

    def call(self, call: Callable[[], None]) -> None:
        if self.failures:
            self.failures -= 1
            raise MemoryError
        call()


class AckedLine:
    """An open line that keeps the bodies of acknowledged messages."""

    open = True

    def __init__(self) -> None:
        self.acked: list[bytes] = []

    def ack(self, deliveries: Iterable[Delivery]) -> None:
        self.acked += [one.body for one in deliveries]


def test_a_flush_that_cannot_be_requested_is_requested_by_the_next_message() -> None:
    unused: Any = None
    loop, line = cast(Any, ScarceLoop(failures=1)), AckedLine()
    settler = room.Settler(loop, unused, again=unused, renew=unused)

    with pytest.raises(MemoryError):
        settler.settle(Delivery(queue="q", body=b"1", token=(line, 1)), DONE)
    settler.settle(Delivery(queue="q", body=b"2", token=(line, 2)), DONE)

    assert line.acked == [b"1", b"2"]


@pytest.mark.parametrize(("chance", "pause"), [(0.0, 6.0), (0.5, 8.0), (1.0, 10.0)])
def test_the_pause_before_a_new_send_has_jitter(chance: float, pause: float) -> None:
    unused: Any = None
    settler = room.Settler(unused, unused, again=unused, renew=unused, chance=lambda: chance)

    assert settler._about(8.0) == pause


@pytest.mark.parametrize("headers", [Headers.of({"CC": ["other"]}), Headers.of({"x-death": [1, 2]})])
def test_a_copy_too_large_stays_unacked_where_a_rejection_would_harm_it(
    broker_url: str, amqp: BlockingChannel, caplog: pytest.LogCaptureFixture, headers: Headers
) -> None:
    queue(amqp)
    with publishing(broker_url) as publisher:
        publisher.publish(to("q", headers=headers))
    held = Held()
    with consuming(broker_url, replace(LINE, parks=True), publisher=held) as (source, seen):
        source.settle(seen.next(), COPY)
        tell(source, held, Outcome.TOO_LARGE)
        wait_until(lambda: "it stays unacked" in caplog.text)

        assert in_flight(source) == 1


def test_a_stop_waits_for_the_confirm_of_a_copy_in_flight(broker_url: str, amqp: BlockingChannel) -> None:
    queue(amqp)
    fill(amqp, b"1")
    held = Held()
    with consuming(broker_url, LINE, publisher=held) as (source, seen):
        source.settle(seen.next(), COPY)
        _, done = held.sent.get(timeout=5)
        source.stop()
        settled(source)
        assert not seen.has_drained.wait(0.2)
        source._io.call(lambda: done(CONFIRMED))
        assert seen.has_drained.wait(5)

    assert depth(amqp) == 0


def test_a_stop_acknowledges_messages_whose_copies_are_confirmed(broker_url: str, amqp: BlockingChannel) -> None:
    queue(amqp)
    fill(amqp, b"1", b"2")
    held = Held()
    with consuming(broker_url, LINE, publisher=held) as (source, seen):
        for _ in range(2):
            source.settle(seen.next(), COPY)
        confirms = [held.sent.get(timeout=5)[1] for _ in range(2)]

        def confirm_too_late() -> None:
            source.stop()
            for done in confirms:
                done(CONFIRMED)

        source._io.call(confirm_too_late)
        assert seen.has_drained.wait(5)

    assert depth(amqp) == 0


def test_a_stop_waits_for_the_copy_of_an_ack_first_message(broker_url: str, amqp: BlockingChannel) -> None:
    queue(amqp)
    fill(amqp, b"1")
    held = Held()
    with consuming(broker_url, LINE, publisher=held) as (source, seen):
        source.settle(seen.next(), Settlement(instruction=Instruction.ACK, copy=to("waiting"), ack_first=True))
        _, done = held.sent.get(timeout=5)
        assert in_flight(source) == 0
        source.stop()
        assert not seen.has_drained.wait(0.2)
        source._io.call(lambda: done(CONFIRMED))
        assert seen.has_drained.wait(5)


def test_an_ack_first_message_is_never_copied_twice(
    broker_url: str, amqp: BlockingChannel, caplog: pytest.LogCaptureFixture
) -> None:
    queue(amqp)
    fill(amqp, b"1")
    held = Held()
    with consuming(broker_url, LINE, publisher=held) as (source, seen):
        source.settle(seen.next(), Settlement(instruction=Instruction.ACK, copy=to("waiting"), ack_first=True))
        tell(source, held, Outcome.UNKNOWN)
        wait_until(lambda: "is lost: AckFirst" in caplog.text)

        assert held.sent.empty()


def test_ack_first_sends_no_copy_when_the_ack_never_arrived(
    broker_url: str, amqp: BlockingChannel, caplog: pytest.LogCaptureFixture
) -> None:
    queue(amqp)
    fill(amqp, b"1")
    held = Held()
    with between(broker_url) as way, consuming(way.url, LINE, publisher=held) as (source, seen):
        first = seen.next()
        way.swallow()
        source.settle(first, Settlement(instruction=Instruction.ACK, copy=to("waiting"), ack_first=True))
        settled(source)
        assert held.sent.empty()
        way.cut()
        wait_until(lambda: seen.losses)
        way.speak()
        again = seen.next()

        assert (again.body, again.redelivered) == (b"1", True)
        assert held.sent.empty()
        assert not source._settler.copying
        assert "is redelivered or lost: AckFirst" in caplog.text


@pytest.mark.parametrize("word", [Instruction.REQUEUE, Instruction.COUNTED_REQUEUE])
def test_a_requeued_message_is_redelivered_and_counted_by_its_queue(
    vhost: Vhost, amqp: BlockingChannel, word: Instruction
) -> None:
    queue(amqp)
    fill(amqp, b"1")
    with consuming(vhost.url, LINE) as (source, seen):
        source.settle(seen.next(), Settlement(instruction=word))
        again = seen.next()

        # From 4.3 on a nack is no longer counted as a failed delivery.
        old = tuple(map(int, vhost.version.split(".")[:2])) < (4, 3)
        assert again.redelivered
        assert again.headers.get("x-delivery-count") == (1 if old or word is Instruction.COUNTED_REQUEUE else None)


def test_a_rejected_message_goes_to_the_dead_letter_queue(broker_url: str, amqp: BlockingChannel) -> None:
    queue(amqp, "dead")
    arguments = {"x-queue-type": "quorum", "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    amqp.queue_declare("q", durable=True, arguments=arguments)
    fill(amqp, b"1")
    with consuming(broker_url, LINE) as (source, seen):
        source.settle(seen.next(), Settlement(instruction=Instruction.REJECT))
        wait_until(lambda: depth(amqp, "dead") == 1)

        assert quiet(seen, 0.1)


def test_a_message_waiting_unacked_blocks_no_other(broker_url: str, amqp: BlockingChannel) -> None:
    queue(amqp)
    fill(amqp, b"1", b"2")
    with consuming(broker_url, LINE) as (source, seen):
        held = seen.next()
        source.settle(held, Settlement(instruction=Instruction.REQUEUE, hold=0.3))
        source.settle(seen.next(), DONE)
        assert quiet(seen, 0.15)

        assert seen.next().body == b"1"


def test_settling_after_the_stop_has_no_effect(broker_url: str, amqp: BlockingChannel) -> None:
    queue(amqp)
    fill(amqp, b"1")
    with consuming(broker_url, LINE) as (source, seen):
        arrival = seen.next()
        stop(source, seen)
        for settlement in (
            DONE,
            COPY,
            Settlement(instruction=Instruction.REQUEUE, hold=1),
            Settlement(instruction=Instruction.KEEP),
        ):
            source.settle(arrival, settlement)
        settled(source)

    assert wait_until(lambda: depth(amqp) == 1)


def test_an_answer_that_no_queue_takes_does_not_delay_the_ack(
    broker_url: str, amqp: BlockingChannel, caplog: pytest.LogCaptureFixture
) -> None:
    queue(amqp)
    fill(amqp, b"1")
    with caplog.at_level(logging.WARNING), consuming(broker_url, LINE) as (source, seen):
        source.settle(seen.next(), Settlement(instruction=Instruction.ACK, answer=to("absent")))
        wait_until(lambda: "An answer did not reach its caller" in caplog.text)
        stop(source, seen)

    assert depth(amqp) == 0


def test_a_stopped_halted_line_keeps_its_order(broker_url: str, amqp: BlockingChannel) -> None:
    queue(amqp, ordered=True)
    fill(amqp, b"1", b"2")
    line = Line(queue="q", prefetch=1, ordered=True)
    with consuming(broker_url, line) as (source, seen):
        source.settle(seen.next(), Settlement(instruction=Instruction.KEEP, hold=60))
        settled(source)
        stop(source, seen)
    with consuming(broker_url, line) as (source, seen):
        order = []
        for _ in range(2):
            arrival = seen.next()
            order.append(arrival.body)
            source.settle(arrival, DONE)

    assert order == [b"1", b"2"]
