"""Settlements: a message is settled only when its copy is stored. First on a loop and a line of the test's own."""

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from unittest.mock import Mock

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry import Delivery, Message
from django_rmq_retry.amqp import CONFIRMED, Line, PublishEnd
from django_rmq_retry.amqp.settler import (
    FIRST_PAUSE_SECONDS,
    LARGE_COPY_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    Settler,
)
from django_rmq_retry.amqp.source import PikaSource
from django_rmq_retry.messages import DONE, Headers, Instruction, Properties, Settlement, encode_properties
from django_rmq_retry.messages.properties import EMPTY
from tests.amqp.live import Held, Seen, consuming, to
from tests.amqp.offline import ManualLoop
from tests.amqp.one_queue import LINE, depth, fill, queue, quiet
from tests.tooling.results import OF_KIND
from tests.tooling.vhosts import Vhost
from tests.tooling.waiting import longer, wait_until

COPY = Settlement(instruction=Instruction.ACK, copy=to("waiting", b"copy"))
ACK_FIRST = replace(COPY, ack_first=True)
KEPT = Settlement(instruction=Instruction.KEEP, hold=60)
REQUEUED_LATER = Settlement(instruction=Instruction.REQUEUE, hold=60)
QUARANTINE = Line(queue="quarantine", prefetch=1, quarantine=True)


class FakeLine:
    """An open line; it keeps what happens to its deliveries."""

    def __init__(self, line: Line = LINE) -> None:
        self.line, self.open, self.retired, self.since = line, True, False, 0.0
        self.acked: list[bytes] = []
        self.told: list[Instruction | str] = []
        self.asked: list[Callable[[bool], None]] = []

    @property
    def stale(self) -> bool:
        return not self.open and self.line.comes_again

    def ack(self, deliveries: Iterable[Delivery]) -> None:
        self.acked += [one.body for one in deliveries]

    def instruct(self, _delivery: Delivery, instruction: Instruction) -> None:
        self.told.append(instruction)

    def when_processed(self, callback: Callable[[bool], None]) -> None:
        self.asked.append(callback)

    def leave_unsettled(self) -> None:
        self.told.append("left")


class Settling:
    """A settler, and the line of its deliveries."""

    def __init__(self, line: Line = LINE, *, chance: float = 0.5, loop: ManualLoop | None = None) -> None:
        self.loop, self.line, self.copies = loop or ManualLoop(), FakeLine(line), Held()
        self.again: list[bytes] = []
        self.renewed: list[bytes] = []
        self.settler = Settler(
            self.loop,
            self.copies,
            answer=self.copies.send,
            again=lambda delivery: self.again.append(delivery.body),
            renew=lambda delivery: self.renewed.append(delivery.body),
            chance=lambda: chance,
        )

    def settle(self, settlement: Settlement, body: bytes = b"1", *, raw: bytes = b"\0\0") -> None:
        self.settler.settle(Delivery(queue="q", body=body, raw=raw, token=(self.line, 1)), settlement)

    def end(self, outcome: PublishEnd) -> Message:
        """Let the copy that was sent first end like this."""
        message, done = self.copies.sent.get(timeout=1)
        done(OF_KIND[outcome])
        return message

    def pause(self) -> float:
        """The seconds of the only timer, which ends now."""
        [(seconds, _)] = self.loop.timers
        self.loop.tick()
        return float(seconds)


def test_a_message_is_acknowledged_only_when_its_copy_is_confirmed() -> None:
    one = Settling()
    one.settle(COPY)
    assert (one.line.acked, one.settler.copying) == ([], True)
    assert one.end(PublishEnd.CONFIRMED).body == b"copy"

    assert (one.line.acked, one.settler.copying) == ([b"1"], False)


@pytest.mark.parametrize("outcome", [PublishEnd.RETURNED, PublishEnd.NACKED, PublishEnd.UNKNOWN, PublishEnd.UNSENT])
def test_a_copy_that_is_not_stored_is_sent_again_and_its_message_stays(
    outcome: PublishEnd, caplog: pytest.LogCaptureFixture
) -> None:
    one, pauses = Settling(), []
    one.settle(COPY)
    for _ in range(7):
        one.end(outcome)
        pauses.append(one.pause())
    assert one.line.acked == []
    one.end(PublishEnd.CONFIRMED)

    assert one.line.acked == [b"1"]
    assert pauses == [0.5, 1, 2, 4, 8, LONGEST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS]
    assert caplog.text.count("the message stays unacked") == 7


class TestACopyThatAnOutageInterrupts:
    """Who wrote that the message was parked has to learn that it was not."""

    @pytest.mark.parametrize("outcome", [PublishEnd.NACKED, PublishEnd.UNKNOWN, PublishEnd.UNSENT])
    def test_is_told_if_its_line_closed_before_the_copy_was_confirmed(self, outcome: PublishEnd) -> None:
        one, told = Settling(), Mock()
        one.settle(replace(COPY, lost=told))
        one.line.open = False
        told.assert_not_called()
        one.end(outcome)

        told.assert_called_once_with()

    def test_is_told_if_its_line_closed_before_the_copy_was_sent(self) -> None:
        one, told = Settling(), Mock()
        one.line.open = False
        one.settle(replace(COPY, lost=told))

        told.assert_called_once_with()
        assert one.copies.sent.empty()

    @pytest.mark.parametrize("outcome", [PublishEnd.RETURNED, PublishEnd.TOO_LARGE])
    def test_is_told_if_its_line_closes_while_a_refused_copy_waits(self, outcome: PublishEnd) -> None:
        one, told = Settling(), Mock()
        one.settle(replace(COPY, lost=told))
        one.end(outcome)
        one.line.open = False
        one.pause()

        told.assert_called_once_with()
        assert one.copies.sent.empty()

    def test_is_told_if_the_consumer_ends_while_a_refused_copy_waits(self) -> None:
        one, told = Settling(), Mock()
        one.settle(replace(COPY, lost=told))
        one.end(PublishEnd.RETURNED)
        one.settler.close()
        one.pause()

        told.assert_called_once_with()
        assert one.copies.sent.empty()

    @pytest.mark.parametrize("still_open", [True, False])
    def test_is_not_told_of_a_copy_that_is_stored(self, still_open: bool) -> None:
        one, told = Settling(), Mock()
        one.settle(replace(COPY, lost=told))
        one.end(PublishEnd.RETURNED)
        one.pause()
        one.line.open = still_open
        one.end(PublishEnd.CONFIRMED)
        one.settler.close()

        told.assert_not_called()


@pytest.mark.parametrize(("chance", "share"), [(0.0, 0.75), (1.0, 1.25)])
def test_copies_that_failed_together_are_sent_again_with_jitter(chance: float, share: float) -> None:
    one = Settling(chance=chance)
    one.settle(COPY)
    one.end(PublishEnd.NACKED)

    assert one.pause() == FIRST_PAUSE_SECONDS * share


@pytest.mark.parametrize(
    ("parks", "headers", "rejected"),
    [
        (True, EMPTY, True),
        (False, EMPTY, False),
        (True, Headers.of({"CC": ["other"]}), False),
        (True, Headers.of({"x-death": [1, 2]}), False),
    ],
)
def test_a_copy_too_large_stays_unacked_where_a_rejection_would_harm_it(
    caplog: pytest.LogCaptureFixture, parks: bool, headers: Headers, rejected: bool
) -> None:
    one = Settling(replace(LINE, parks=parks))
    one.settle(COPY, raw=encode_properties(Properties(headers=headers)))
    one.end(PublishEnd.TOO_LARGE)

    assert one.line.told == ([Instruction.REJECT] if rejected else [])
    assert ("it stays unacked" in caplog.text) is not rejected
    if not rejected:
        assert one.pause() == LARGE_COPY_PAUSE_SECONDS
        one.end(PublishEnd.CONFIRMED)
        assert one.line.acked == [b"1"]


class ScarceLoop(ManualLoop):
    """A loop whose next call fails for lack of memory."""

    scarce = True

    def call(self, call: Callable[[], None]) -> None:
        if self.scarce:
            self.scarce = False
            raise MemoryError
        call()


def test_a_flush_that_cannot_be_requested_is_requested_by_the_next_message() -> None:
    one = Settling(loop=ScarceLoop())
    with pytest.raises(MemoryError):
        one.settle(DONE, b"1")
    one.settle(DONE, b"2")

    assert one.line.acked == [b"1", b"2"]


def test_an_ack_first_message_is_never_copied_twice(caplog: pytest.LogCaptureFixture) -> None:
    one = Settling()
    one.settle(ACK_FIRST)
    assert (one.line.told, one.copies.sent.empty()) == ([Instruction.ACK], True)
    one.line.asked.pop()(True)
    assert one.settler.copying
    one.end(PublishEnd.UNKNOWN)

    assert (one.copies.sent.empty(), one.loop.timers, one.settler.copying) == (True, [], False)
    assert "is lost: AckFirst" in caplog.text


def test_ack_first_sends_no_copy_when_the_ack_never_arrived(caplog: pytest.LogCaptureFixture) -> None:
    one = Settling()
    one.settle(ACK_FIRST)
    one.line.asked.pop()(False)

    assert (one.copies.sent.empty(), one.settler.copying) == (True, False)
    assert "is redelivered or lost: AckFirst" in caplog.text


@pytest.mark.parametrize("settlement", [DONE, COPY, KEPT, REQUEUED_LATER, Settlement(instruction=Instruction.KEEP)])
def test_nothing_is_settled_on_a_closed_line(settlement: Settlement) -> None:
    one = Settling()
    one.line.open = False
    one.settle(settlement)

    assert (one.line.acked, one.line.told, one.again, one.copies.sent.empty()) == ([], [], [], True)


def test_a_wait_for_copies_in_flight_does_not_count_later_ones() -> None:
    one, over = Settling(), list[str]()
    one.settle(COPY, b"1")
    one.settler.when_copied(lambda: over.append("over"))
    one.settle(COPY, b"2")
    assert over == []
    one.end(PublishEnd.UNSENT)

    assert (over, one.settler.copies) == (["over"], 1)


def test_an_answer_that_no_queue_takes_does_not_delay_the_ack(caplog: pytest.LogCaptureFixture) -> None:
    one = Settling()
    one.settle(Settlement(instruction=Instruction.ACK, answer=to("absent")))
    assert one.line.told == [Instruction.ACK]
    with caplog.at_level(logging.WARNING):
        one.end(PublishEnd.RETURNED)

    assert "An answer did not reach its caller" in caplog.text


@pytest.mark.parametrize(
    ("settlement", "again", "told"), [(KEPT, [b"1"], []), (REQUEUED_LATER, [], [Instruction.REQUEUE])]
)
def test_a_message_waits_unacked_before_its_settlement(
    settlement: Settlement, again: list[bytes], told: list[Instruction]
) -> None:
    one = Settling()
    one.settle(settlement)
    assert (one.again, one.line.told) == ([], [])
    assert one.pause() == 60

    assert (one.again, one.line.told) == (again, told)


@pytest.mark.parametrize(("line", "told"), [(LINE, Instruction.REQUEUE), (replace(LINE, keyed=True), "left")])
@pytest.mark.parametrize("before", [True, False])
def test_a_stop_gives_waiting_messages_back(line: Line, told: Instruction | str, before: bool) -> None:
    one = Settling(line)
    if before:
        one.settler.stop()
    one.settle(KEPT)
    one.settler.stop()

    assert (one.line.told, one.loop.timers) == ([told], [])


def test_a_message_that_would_wait_too_long_on_an_ordered_line_is_renewed() -> None:
    one = Settling(replace(LINE, ordered=True, longest_hold=30))
    one.line.since = time.monotonic()
    one.settle(KEPT)
    assert one.renewed == []
    assert one.pause() <= 30

    assert (one.renewed, one.again, one.loop.timers) == ([b"1"], [], [])


def test_a_message_whose_attempt_outlived_the_longest_wait_is_renewed_at_once() -> None:
    one = Settling(replace(LINE, ordered=True, longest_hold=30))
    one.line.since = time.monotonic() - 31
    one.settle(KEPT)
    assert one.pause() == 0

    assert (one.renewed, one.again) == ([b"1"], [])


def tell(seen: Seen, held: Held, outcome: PublishEnd) -> None:
    """Let the next copy end like this."""
    _, done = held.sent.get(timeout=5)
    seen.io.call(lambda: done(OF_KIND[outcome]))


def stop(source: PikaSource, seen: Seen) -> None:
    source.stop()
    assert seen.has_closed.wait(longer(5))


@pytest.mark.contract
@pytest.mark.parametrize("outcome", [PublishEnd.CONFIRMED, PublishEnd.UNSENT])
def test_a_quarantined_message_is_delivered_when_no_copy_is_in_flight(
    broker_url: str, amqp: BlockingChannel, outcome: PublishEnd
) -> None:
    queue(amqp)
    queue(amqp, "quarantine")
    fill(amqp, b"1")
    held = Held()
    with consuming(broker_url, LINE, QUARANTINE, publisher=held) as (source, seen):
        source.settle(seen.next(), COPY)
        fill(amqp, b"alone", name="quarantine")
        wait_until(lambda: depth(amqp, "quarantine") == 0, what="it has been sent")
        fill(amqp, b"2")
        assert seen.next().body == b"2"
        assert quiet(seen)
        tell(seen, held, outcome)

        assert seen.next().body == b"alone"
        if outcome is not PublishEnd.CONFIRMED:
            tell(seen, held, PublishEnd.CONFIRMED)


@pytest.mark.contract
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

    assert (depth(amqp), depth(amqp, "waiting")) == (0, 1)


@pytest.mark.contract
@pytest.mark.parametrize("settlement", [COPY, ACK_FIRST])
def test_a_stop_waits_for_the_confirm_of_a_copy_in_flight(
    broker_url: str, amqp: BlockingChannel, settlement: Settlement
) -> None:
    queue(amqp)
    fill(amqp, b"1")
    held = Held()
    with consuming(broker_url, LINE, publisher=held) as (source, seen):
        source.settle(seen.next(), settlement)
        _, done = held.sent.get(timeout=5)
        source.stop()
        assert not seen.has_closed.wait(0.2)
        seen.io.call(lambda: done(CONFIRMED))
        assert seen.has_closed.wait(longer(5))

    assert depth(amqp) == 0


@pytest.mark.contract
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


@pytest.mark.contract
def test_a_rejected_message_goes_to_the_dead_letter_queue(broker_url: str, amqp: BlockingChannel) -> None:
    queue(amqp, "dead")
    arguments = {"x-queue-type": "quorum", "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    amqp.queue_declare("q", durable=True, arguments=arguments)
    fill(amqp, b"1")
    with consuming(broker_url, LINE) as (source, seen):
        source.settle(seen.next(), Settlement(instruction=Instruction.REJECT))
        wait_until(lambda: depth(amqp, "dead") == 1)

        assert quiet(seen, 0.1)


@pytest.mark.contract
def test_a_message_waiting_unacked_blocks_no_other_and_a_stop_keeps_the_order(
    broker_url: str, amqp: BlockingChannel
) -> None:
    queue(amqp, ordered=True)
    fill(amqp, b"1", b"2")
    line = Line(queue="q", prefetch=2, keyed=True)
    with consuming(broker_url, line) as (source, seen):
        source.settle(seen.next(), KEPT)
        assert seen.next().body == b"2"
        stop(source, seen)
    with consuming(broker_url, line) as (_, seen):
        assert seen.bodies(2) == [b"1", b"2"]
