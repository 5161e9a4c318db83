"""A queue consumed on its own channel: the subscription, its unacked deliveries and its collected acks."""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Protocol

from pika import frame
from pika.exceptions import ChannelClosedByBroker, ChannelClosedByClient

from django_rmq_retry.amqp.acks import Acks
from django_rmq_retry.amqp.connection import Connection
from django_rmq_retry.amqp.contracts import Line
from django_rmq_retry.amqp.frames import Received
from django_rmq_retry.amqp.protocol import Channel
from django_rmq_retry.amqp.session import binding, declaring
from django_rmq_retry.messages.message import Delivery, Instruction
from django_rmq_retry.topology.declarations import Topology

log = logging.getLogger("django_rmq_retry")

CONSUMER_TIMEOUT = "x-consumer-timeout"
UNTIMED_CONSUMER: dict[str, object] = {CONSUMER_TIMEOUT: 4_000_000_000}
"""A consumer timeout of 46 days in milliseconds, below Erlang's longest timer; it overrides policies and the broker."""
SILENCE_SECONDS = 10.0
"""Seconds beyond three heartbeats within which an ack arrives, or its connection is closed: pika, which looks once in a
heartbeat and five seconds whether anything came, may look twice, and so may the broker.
"""
OnProcessed = Callable[[bool], None]


class Owner(Protocol):
    """The object that opened a line (a subscription) and receives its events."""

    def arrived(self, delivery: Delivery) -> None: ...

    def catch_up(self) -> None:
        """Let the I/O thread look first, if the process was frozen: the broker may have closed the connection."""

    def opened(self, line: "OpenLine") -> None:
        """Accept a quarantine line that is open; ``subscribe`` lets it consume."""

    def subscribed(self, line: "OpenLine") -> None: ...

    def message_lost(self, queue: str) -> None: ...

    def ended(self, line: "OpenLine", *, in_good_order: bool) -> None:
        """Note that the channel is closed; if not in good order, the broker may not have received the last acks."""

    def interrupted(self, line: "OpenLine", reason: BaseException | str) -> None: ...


class OpenLine:
    """A subscription on its open channel. Each delivery keeps its line, because its tag is valid only there."""

    def __init__(
        self,
        connection: Connection,
        line: Line,
        owner: Owner,
        *,
        name: str = "",
        arrived: Callable[[Delivery], None] | None = None,
    ) -> None:
        self.line = line
        self.name = name or ("" if line.temporary else line.queue)
        """The queue's name on the broker."""
        self.in_flight = 0
        self.arrivals = 0
        """The deliveries so far."""
        # The broker has no more than these unsettled.
        self.last_acks: deque[tuple[Any, ...]] = deque(maxlen=0 if line.auto_ack else line.prefetch)
        self.since = 0.0
        """The time of the last delivery, recorded on ordered lines only; there it is the unacked one."""
        self._connection = connection
        self._owner = owner
        self._arrived = arrived or owner.arrived
        self._acks = Acks(0)
        self._channel: Channel | None = None
        self._tag = ""
        """The consumer tag once the broker has confirmed it: RabbitMQ 3 crashes a channel that cancels earlier."""
        self._open = True
        self._untimed = line.untimed
        self._quiet = False
        self.retired = False
        """True once the line is given up: deliveries in flight are settled here, and none gets another attempt."""
        self.unsettled: int | None = None
        """The deliveries in flight of a line given up when the broker last had all settlements sent before."""
        self._counted = -1
        """Those in flight when that was asked for the last time."""
        self._pending: list[OnProcessed] = []
        """The callbacks that the next answer of the broker ends."""
        self._next: list[OnProcessed] = []
        """Later callbacks: their answer is requested once the pending one has arrived."""
        connection.channel(on_open_callback=self._opened)

    @property
    def open(self) -> bool:
        return self._open and self._channel is not None and self._channel.is_open and self._connection.is_open

    @property
    def stale(self) -> bool:
        self._owner.catch_up()
        return not self.open and self.line.comes_again

    @property
    def ready(self) -> bool:
        """True if the queue is consumed, or waits for its turn in quarantine."""
        return self.open and bool(self._tag or self.line.quarantine)

    @property
    def queue(self) -> str:
        return self.line.queue

    def unsure(self) -> list[tuple[Any, ...]]:
        """Return those of the last acks that the broker may not have received; the line was lost just now."""
        since = time.monotonic() - 3 * self._connection.heartbeat - SILENCE_SECONDS
        # Each begins with its time and its delivery. What was never sent may be older, of a process that was frozen.
        return [one for one in list(self.last_acks) if one[0] >= since or not self._acks.has(one[1].token[1])]

    def ack(self, deliveries: Iterable[Delivery]) -> None:
        """Acknowledge these deliveries in one write."""
        tags = [delivery.token[1] for delivery in deliveries]
        self.in_flight -= len(tags)
        self._connection.send_raw(b"".join(self._acks.acks(tags)))

    def instruct(self, delivery: Delivery, instruction: Instruction) -> None:
        """Settle one delivery on the broker. Does nothing on a closed channel: the broker has requeued it already."""
        if not self.open:
            return
        tag: int = delivery.token[1]
        if instruction is Instruction.ACK:
            self.ack([delivery])
            return
        self.in_flight -= 1
        if instruction is Instruction.COUNTED_REQUEUE:
            self._connection.send_raw(self._acks.counted_requeue(tag))
        else:
            self._connection.send_raw(self._acks.nack(tag, requeue=instruction is Instruction.REQUEUE))

    def when_processed(self, callback: OnProcessed) -> None:
        """Call back with True once the broker has processed all settlements sent so far, with False if unknown."""
        self._next.append(callback)
        if not self._pending:
            self._request_answer()

    def _request_answer(self) -> None:
        """Request an answer by setting the same prefetch again: a channel answers only after everything sent before."""
        self._pending, self._next = self._next, []
        if self._pending and self.open and self._channel is not None:
            self._channel.basic_qos(prefetch_count=self.line.prefetch, callback=lambda _frame: self._answered())
        elif self._pending:
            self._end_pending(processed=False)

    def _answered(self) -> None:
        self._end_pending(processed=True)
        self._request_answer()

    def _end_pending(self, *, processed: bool) -> None:
        pending, self._pending = self._pending, []
        for callback in pending:
            callback(processed)

    def quiesce(self) -> None:
        """Accept no more deliveries. No ordered line is cancelled: the next consumer could overtake unacked ones."""
        self._quiet = True
        self._stop_deliveries()

    def _stop_deliveries(self) -> None:
        if self.open and not self.line.in_order and self._tag and self._channel is not None:
            self._channel.basic_cancel(self._tag, callback=lambda _frame: None)

    def retire(self) -> None:
        """Accept no more deliveries, because this line is given up; a new one may replace it."""
        self.retired = True
        self.quiesce()

    def count_unsettled(self) -> None:
        """Count what is in flight of a line given up, once the broker has all settlements sent until now."""
        if not self.quiet or self._counted == self.in_flight:
            return
        self._counted = count = self.in_flight

        def processed(known: bool) -> None:  # noqa: FBT001 - the answer
            self.unsettled = count if known else self.unsettled

        self.when_processed(processed)

    @property
    def quiet(self) -> bool:
        """True if nothing more can arrive that would be lost with the channel."""
        return True

    def leave_unsettled(self) -> None:
        """Leave a delivery unsettled: the broker returns it to its place in the queue when the channel closes."""
        self.in_flight -= 1

    def close(self) -> None:
        """Close the channel; the broker requeues the unacked deliveries in their order."""
        if self.open and self._channel is not None:
            self._channel.close()
        self._open = False

    def depth(self, callback: Callable[[int], None]) -> None:
        """Call back with the number of messages that are ready in the queue."""
        if self.open and self._channel is not None:
            answered: Callable[[frame.Method[Any]], None] = lambda frame: callback(frame.method.message_count)  # noqa: E731
            self._channel.queue_declare(self.name, passive=True, callback=answered)

    def _opened(self, channel: Channel) -> None:
        self._channel = channel
        self._acks = Acks(channel.channel_number)
        channel.add_on_close_callback(self._was_closed)
        channel.add_on_cancel_callback(lambda _frame: self._interrupt("the broker cancelled the subscription"))
        if self.line.temporary is not None and not self.name:
            self._declare_own_queue(channel, self.line.temporary)
        else:
            self._set_prefetch(channel)

    def _declare_own_queue(self, channel: Channel, temporary: Topology) -> None:
        """Declare and bind this connection's own queue."""
        [queue] = temporary.queues.values()
        left = deque(temporary.bindings)

        def bind(_frame: object = None) -> None:
            if left:
                binding(replace(left.popleft(), destination=self.name))(channel, bind)
            else:
                self._set_prefetch(channel)

        def declared(frame: "frame.Method[Any]") -> None:
            self.name = frame.method.queue
            log.info(
                "Queue %r of this connection is named %r by the broker",
                *(self.line.queue, self.name),
                extra={"event": "queue_named", "queue": self.line.queue, "own_name": self.name},
            )
            bind()

        declaring(queue)(channel, declared)

    def _set_prefetch(self, channel: Channel) -> None:
        channel.basic_qos(prefetch_count=self.line.prefetch, callback=lambda _frame: self._prefetch_set(channel))

    def _prefetch_set(self, channel: Channel) -> None:
        if not self._open:
            # The line was closed while the channel was opening.
            if channel.is_open:
                channel.close()
        elif self.line.quarantine:
            self._owner.opened(self)
        else:
            self.subscribe()

    def subscribe(self) -> None:
        channel = self._channel
        if not self.open or self._quiet or channel is None:
            return
        self._consume(channel)

    def _consume(self, channel: Channel) -> None:
        channel.basic_consume(
            self.name,
            self._receive,
            auto_ack=self.line.auto_ack,
            arguments=UNTIMED_CONSUMER if self._untimed else None,
            callback=lambda frame: self._subscribed(frame.method.consumer_tag),
        )

    def _subscribed(self, tag: str) -> None:
        self._tag = tag
        if self._quiet:
            self._stop_deliveries()
        self._owner.subscribed(self)

    def _receive(self, *received: *Received) -> None:
        _, number, redelivered, exchange, routing_key, raw, body = received
        if self._quiet and not self._take_late(number):
            return
        self.in_flight += 1
        self.arrivals += 1
        if self.line.ordered:
            self.since = time.monotonic()
        self._arrived(
            Delivery.arrived(
                queue=self.line.queue,
                body=body,
                raw=raw,
                exchange=exchange,
                routing_key=routing_key,
                redelivered=redelivered,
                token=(self, number),
            )
        )

    def _take_late(self, number: int) -> bool:
        """True if a delivery in flight as the line stopped is accepted. Here it is requeued, in order by closing."""
        if not self.line.in_order:
            self._connection.send_raw(self._acks.nack(number, requeue=True))
        return False

    def _interrupt(self, reason: BaseException | str) -> None:
        if not self._open:
            return
        self.close()
        self._owner.interrupted(self, reason)

    def _was_closed(self, _channel: object, reason: BaseException) -> None:
        self._pending += self._next
        self._next = []
        self._end_pending(processed=False)
        self._owner.ended(self, in_good_order=isinstance(reason, ChannelClosedByClient))
        if not self._open:
            return
        if self._untimed and isinstance(reason, ChannelClosedByBroker) and CONSUMER_TIMEOUT in reason.reply_text:
            # RabbitMQ 4.3 takes no timeout for a classic queue, where it has none; a queue of others may be one.
            self._untimed = False
            self._connection.channel(on_open_callback=self._opened)
            return
        self._open = False
        if isinstance(reason, ChannelClosedByBroker):
            self._owner.interrupted(self, reason)
