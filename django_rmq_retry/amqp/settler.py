"""Settlements, sent on the I/O thread: a copy is confirmed before its original is acked."""

import logging
import random
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from django_rmq_retry.amqp.contracts import Cause, Done, Line, PublishEnd, Publisher, PublishResult
from django_rmq_retry.amqp.io_thread import Loop, Timer
from django_rmq_retry.messages.deaths import rejectable
from django_rmq_retry.messages.message import DONE, Delivery, Instruction, Message, Settlement

log = logging.getLogger("django_rmq_retry")

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 15.0
_UNDECLARED = (Cause.NO_EXCHANGE, Cause.NO_ROUTE)
LARGE_COPY_PAUSE_SECONDS = 300.0
"""Seconds until a copy above the broker's size limit is tried again: it fails until that limit is raised."""
PAUSE_JITTER = 0.25
"""Jitter, as a fraction of the pause: copies that failed together are retried at different times."""


class CopiesInFlight:
    """The copies of one connection that are in flight. Used on its I/O thread only."""

    def __init__(self, ended: Callable[[], None]) -> None:
        self._ended = ended
        """Called when a copy has ended for which a callback may wait."""
        self._sent = 0
        self._under_way: set[int] = set()
        self.awaiting: list[tuple[set[int], Callable[[], None]]] = []
        """The callbacks, each with the copies that it waits for."""

    def __len__(self) -> int:
        return len(self._under_way)

    def begin(self) -> int:
        """Count one more copy as in flight; return its number."""
        self._sent += 1
        self._under_way.add(self._sent)
        return self._sent

    def end(self, number: int) -> None:
        """Count a copy as ended: stored, refused, or with an unknown result."""
        self._under_way.discard(number)
        if self.awaiting:
            self._ended()

    def wait(self, then: Callable[[], None]) -> None:
        """Register ``then``, to call once all copies now in flight have ended; later copies do not delay it."""
        self.awaiting.append((set(self._under_way), then))

    def run_callbacks(self) -> None:
        """Run the callbacks whose copies have all ended."""
        awaiting, self.awaiting = self.awaiting, []
        for copies, then in awaiting:
            if copies & self._under_way:
                self.awaiting.append((copies, then))
            else:
                then()


class SettledLine(Protocol):
    """The part of an open line that the settler uses; the token of each delivery names its line and its tag."""

    line: Line
    since: float
    retired: bool

    @property
    def open(self) -> bool: ...

    @property
    def stale(self) -> bool: ...

    def ack(self, deliveries: Iterable[Delivery], /) -> None: ...

    def instruct(self, delivery: Delivery, instruction: Instruction, /) -> None: ...

    def when_processed(self, callback: Callable[[bool], None], /) -> None: ...

    def leave_unsettled(self) -> None: ...


def line_of(delivery: Delivery) -> SettledLine:
    """Return the line that made the delivery's token, and that settles it."""
    line: SettledLine = delivery.token[0]
    return line


class Settler:
    """Accepts settlements from any thread; channels are used on the I/O thread only."""

    def __init__(
        self,
        io: Loop,
        publisher: Publisher,
        *,
        answer: Callable[[Message, Done], None],
        again: Callable[[Delivery], None],
        renew: Callable[[Delivery], None],
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._io = io
        self._publisher = publisher
        self._answer = answer
        self._again = again
        self._renew = renew
        self._chance = chance
        self._handed: deque[tuple[Delivery, Settlement]] = deque()
        self._awaited = False
        """True while a flush is requested that has not begun: it will send all that is passed in until then."""
        self._waiting: dict[Delivery, tuple[Timer, Settlement]] = {}
        self._refused: dict[Delivery, Settlement] = {}
        """The messages whose copy the broker has not taken; it is sent again after a pause."""
        self._stopping = False
        self._copies = CopiesInFlight(lambda: io.call(self.flush))

    @property
    def copying(self) -> bool:
        """True while copies are in flight: no channel or connection may be closed before the last one ends."""
        return bool(self._copies)

    @property
    def copies(self) -> int:
        return len(self._copies)

    def when_copied(self, then: Callable[[], None]) -> None:
        """Call `then` once all copies now in flight have ended and the originals of confirmed ones are acked."""
        self._copies.wait(then)
        self.flush()

    def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        self._handed.append((delivery, settlement))
        if not self._awaited:
            self._awaited = True
            try:
                self._io.call(self.flush)
            except BaseException:
                # Such as a lack of memory: without this, no later settlement would request a flush.
                self._awaited = False
                raise

    def stop(self) -> None:
        """End all waits: messages that wait unacked are requeued, so another process makes the next attempt."""
        self._stopping = True
        waiting, self._waiting = self._waiting, {}
        for delivery, (timer, _settlement) in waiting.items():
            self._io.cancel(timer)
            self.give_back(delivery)

    def close(self) -> None:
        """Give up the copies that the broker has not taken: it delivers their messages again."""
        refused, self._refused = self._refused, {}
        for settlement in refused.values():
            _lose(settlement)

    def return_waiting(self, line: SettledLine) -> None:
        """Return unacked messages that wait for another attempt, because their line is paused; pending copies stay."""
        for delivery, (timer, settlement) in list(self._waiting.items()):
            if line_of(delivery) is line and settlement.instruction is Instruction.KEEP:
                del self._waiting[delivery]
                self._io.cancel(timer)
                self.give_back(delivery)

    def flush(self) -> None:
        """Send all settlements passed in since the last flush; plain acks of one channel are sent in one write."""
        # Before the deque is read: a settlement passed in after its last look requests the next flush.
        self._awaited = False
        acks: dict[SettledLine, list[Delivery]] = {}
        handed = self._handed
        while handed:
            delivery, settlement = handed.popleft()
            line: SettledLine = delivery.token[0]  # a call of line_of would cost more
            if settlement is DONE:
                acks.setdefault(line, []).append(delivery)
            elif line.stale:
                _lose(settlement)
            elif settlement.hold:
                self._hold(delivery, settlement)
            else:
                self._apply(delivery, settlement)
        for line, deliveries in acks.items():
            if line.open:
                line.ack(deliveries)
        if self._copies.awaiting:
            self._copies.run_callbacks()

    def _hold(self, delivery: Delivery, settlement: Settlement) -> None:
        line = line_of(delivery)
        if self._stopping or (line.retired and settlement.instruction is Instruction.KEEP):
            self.give_back(delivery)
            return
        left = line.since + line.line.longest_hold - time.monotonic()
        if line.line.ordered and settlement.hold > left:
            # Its consumer may have to wait on: it knows for how long when the message arrives again.
            timer = self._io.later(max(left, 0.0), lambda: self._wait_interrupted(delivery))
        else:
            timer = self._io.later(settlement.hold, lambda: self._wait_ended(delivery, settlement))
        self._waiting[delivery] = timer, settlement

    def _wait_interrupted(self, delivery: Delivery) -> None:
        self._waiting.pop(delivery, None)
        if not delivery.is_stale:
            self._renew(delivery)

    def _wait_ended(self, delivery: Delivery, settlement: Settlement) -> None:
        self._waiting.pop(delivery, None)
        if not delivery.is_stale:
            self._apply(delivery, settlement)

    def _apply(self, delivery: Delivery, settlement: Settlement) -> None:
        if settlement.instruction is Instruction.KEEP:
            self._again(delivery)
            return
        if settlement.answer is not None:
            self._answer(settlement.answer, _answered)
        if settlement.copy is None:
            line_of(delivery).instruct(delivery, settlement.instruction)
        elif settlement.ack_first:
            self._ack_first(delivery, settlement.instruction, settlement.copy)
        else:
            self._copy(delivery, settlement, settlement.copy, FIRST_PAUSE_SECONDS)

    def _copy(self, delivery: Delivery, settlement: Settlement, copy: Message, pause: float) -> None:
        """Publish the copy until the broker confirms it; only then settle the delivery."""

        number = self._copies.begin()

        def done(result: PublishResult) -> None:
            self._copies.end(number)
            line = line_of(delivery)
            if line.stale:
                if not result.confirmed:
                    _lose(settlement)
                return
            if result.confirmed and settlement.instruction is Instruction.ACK:
                # Confirms arrive many at a time: queue their acks, to send them together.
                self.settle(delivery, DONE)
                return
            if result.confirmed:
                line.instruct(delivery, settlement.instruction)
                return
            if result.kind is PublishEnd.TOO_LARGE:
                self._too_large(delivery, settlement, copy, result.text)
                return
            wait = self._about(pause)
            log.error(
                "A copy of message %r to %r is not stored (%s%s); the message stays unacked, and is copied again "
                "in %.1f s.%s",
                copy.properties.message_id,
                copy.routing_key,
                result.kind.value,
                f": {result.text}" if result.text else "",
                wait,
                " Declare what is missing with `manage.py rmq_declare`." if result.cause in _UNDECLARED else "",
            )
            longer = min(pause * 2, LONGEST_PAUSE_SECONDS)
            self._refused[delivery] = settlement
            self._io.later(wait, lambda: self._copy_again(delivery, settlement, copy, longer))

        self._publisher.send(copy, done)

    def _about(self, pause: float) -> float:
        return pause * (1 + PAUSE_JITTER * (2 * self._chance() - 1))

    def _copy_again(self, delivery: Delivery, settlement: Settlement, copy: Message, pause: float) -> None:
        if self._refused.pop(delivery, None) is None:
            return
        if delivery.is_stale:
            _lose(settlement)
        else:
            self._copy(delivery, settlement, copy, pause)

    def _too_large(self, delivery: Delivery, settlement: Settlement, copy: Message, reason: str) -> None:
        """Handle a message stored under a higher limit: the broker can park it if its queue dead-letters rejects."""
        line = line_of(delivery)
        if line.line.parks and rejectable(delivery):
            log.error(
                "Message %r of queue %r is too large to be copied (%s); it is rejected, and parked by the broker. "
                "Raise max_message_size on the broker before it is requeued.",
                *(copy.properties.message_id, delivery.queue, reason),
            )
            line.instruct(delivery, Instruction.REJECT)
            return
        wait = self._about(LARGE_COPY_PAUSE_SECONDS)
        self._refused[delivery] = settlement
        log.error(
            "Message %r of queue %r is too large to be copied (%s); it stays unacked, and its place is taken until the "
            "broker takes it: copied again in %.0f s. Raise max_message_size on the broker, and restart this consumer.",
            *(copy.properties.message_id, delivery.queue, reason, wait),
        )
        self._io.later(wait, lambda: self._copy_again(delivery, settlement, copy, FIRST_PAUSE_SECONDS))

    def _ack_first(self, delivery: Delivery, instruction: Instruction, copy: Message) -> None:
        """Ack the delivery, then publish the copy, but only if the broker has the ack: otherwise it is a duplicate."""
        number = self._copies.begin()

        def done(result: PublishResult) -> None:
            self._copies.end(number)
            if not result.confirmed:
                ended = result.kind.value, result.text
                log.critical("A message acknowledged before its copy is lost: AckFirst (%s %s)", *ended)

        def processed(known: bool) -> None:  # noqa: FBT001 - the answer
            if known:
                self._publisher.send(copy, done)
                return
            self._copies.end(number)
            log.critical(
                "Message %r of queue %r is redelivered or lost: AckFirst (the channel closed before the ack arrived)",
                *(copy.properties.message_id, delivery.queue),
            )

        line = line_of(delivery)
        line.instruct(delivery, instruction)
        line.when_processed(processed)

    def give_back(self, delivery: Delivery) -> None:
        """Return a delivery; an ordered line keeps it until its channel closes, because a nack may lose its place."""
        line = line_of(delivery)
        if line.line.in_order:
            line.leave_unsettled()
        else:
            line.instruct(delivery, Instruction.REQUEUE)


def _lose(settlement: Settlement) -> None:
    if settlement.lost is not None:
        settlement.lost()


def _answered(result: PublishResult) -> None:
    if not result.confirmed:
        log.warning("An answer did not reach its caller (%s %s)", result.kind.value, result.text)
