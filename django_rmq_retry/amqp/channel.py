"""A queue consumed on its own channel: the subscription, its unacked deliveries and its collected acks."""

import logging
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from pika import frame, spec
from pika.amqp_object import Method
from pika.exceptions import ChannelClosedByBroker

from django_rmq_retry.amqp.connection import Connection
from django_rmq_retry.amqp.contracts import Line
from django_rmq_retry.amqp.frames import DeliverTo, Received
from django_rmq_retry.amqp.session import binding, declaring, wanted
from django_rmq_retry.messages.message import Delivery, Tell
from django_rmq_retry.topology.declarations import Topology

if TYPE_CHECKING:
    from pika.channel import Channel


# Type, channel, payload size, class and method, delivery tag, bits (multiple; of a nack also requeue), end of frame.
_FRAME = struct.Struct(">BHIIQBB").pack
_METHOD, _SIZE, _END = 1, 13, 0xCE
_ACK, _NACK, _REJECT = (60 << 16) | 80, (60 << 16) | 120, (60 << 16) | 90
_REQUEUE_NACK, _REQUEUE_REJECT = 2, 1


class Acks:
    """The delivery tags of one channel that are settled, so that a slow message does not delay the acks of others."""

    def __init__(self, channel_number: int) -> None:
        self._number = channel_number
        self._low = 0
        # Settled tags above an unsettled one.
        self._ahead: set[int] = set()

    def acks(self, tags: Iterable[int]) -> Iterator[bytes]:
        """Return the frames that acknowledge these tags, none of which was settled before."""
        new = list(tags)
        self._done(new)
        under = [tag for tag in new if tag <= self._low]
        if under:
            # Every tag up to the highest is settled here, and the broker has not received its ack yet.
            yield self._frame(_ACK, max(under), int(len(under) > 1))
        for tag in new:
            if tag > self._low:
                yield self._frame(_ACK, tag)

    def nack(self, tag: int, *, requeue: bool) -> bytes:
        self._done((tag,))
        return self._frame(_NACK, tag, _REQUEUE_NACK if requeue else 0)

    def counted_requeue(self, tag: int) -> bytes:
        self._done((tag,))
        return self._frame(_REJECT, tag, _REQUEUE_REJECT)

    def _done(self, tags: Iterable[int]) -> None:
        ahead, low = self._ahead, self._low
        ahead.update(tags)
        while low + 1 in ahead:
            low += 1
            ahead.discard(low)
        self._low = low

    def _frame(self, method: int, tag: int, bits: int = 0) -> bytes:
        return _FRAME(_METHOD, self._number, _SIZE, method, tag, bits, _END)


log = logging.getLogger("django_rmq_retry")

MOST_WAITING, MOST_BYTES = 1000, 16 << 20
"""The numbers of unhandled deliveries and of their bytes at which an auto-ack subscription is cancelled."""
Heard = Callable[[bool], None]


class Owner(Protocol):
    """The object that opened a line (a subscription) and receives its events."""

    def arrived(self, delivery: Delivery) -> None: ...

    def subscribed(self, line: "OpenLine") -> None: ...

    def forgot(self, queue: str) -> None: ...

    def interrupted(self, line: "OpenLine", reason: BaseException | str) -> None: ...


class OpenLine:
    """A subscription on its open channel. Each delivery keeps its line, because its tag is valid only there."""

    def __init__(self, connection: Connection, line: Line, owner: Owner, *, name: str = "") -> None:
        self.line = line
        self.name = name or ("" if line.temporary else line.queue)
        """The queue's name on the broker."""
        self.in_hand = 0
        self.since = 0.0
        """The time of the last delivery, recorded on ordered lines only; there it is the unacked one."""
        self._connection = connection
        self._owner = owner
        self._acks = Acks(0)
        self._channel: Channel | None = None
        self._tag = ""
        self._open = True
        self._quiet = False
        self.retired = False
        """True once the line is given up: deliveries in flight are settled here, and none gets another attempt."""
        self._bytes = 0
        self._sending = self._cancelling = False
        """The first is true while the broker sends deliveries, the second from the request to stop until its answer."""
        self._asked: list[Heard] = []
        """The callbacks for the answer that is pending; later callbacks, in ``_asking``, wait for the next answer."""
        self._asking: list[Heard] = []
        connection.channel(on_open_callback=self._opened)

    @property
    def open(self) -> bool:
        return self._open and self._channel is not None and self._channel.is_open and self._connection.is_open

    def ack(self, deliveries: Iterable[Delivery]) -> bytes:
        """Return the frames that acknowledge these deliveries."""
        if self.line.acked:
            self._handled(deliveries)
            return b""
        tags = [delivery.token[1] for delivery in deliveries]  # type: ignore[index]  # made in _receive
        self.in_hand -= len(tags)
        return b"".join(self._acks.acks(tags))

    def send(self, frames: bytes) -> None:
        if frames:
            self._connection.send_raw(frames)

    def tell(self, delivery: Delivery, tell: Tell) -> None:
        """Settle one delivery on the broker. Does nothing on a closed channel: the broker has requeued it already."""
        if self.line.acked:
            if tell is not Tell.ACK:
                self._owner.forgot(self.line.queue)
            self._handled([delivery])
            return
        if not self.open:
            return
        tag: int = delivery.token[1]  # type: ignore[index]  # made in _receive
        if tell is Tell.ACK:
            self._connection.send_raw(self.ack([delivery]))
            return
        self.in_hand -= 1
        if tell is Tell.COUNTED_REQUEUE:
            self._connection.send_raw(self._acks.counted_requeue(tag))
        else:
            self._connection.send_raw(self._acks.nack(tag, requeue=tell is Tell.REQUEUE))

    def when_heard(self, heard: Heard) -> None:
        """Call back with True once the broker has processed all settlements sent so far, with False if unknown."""
        self._asking.append(heard)
        if not self._asked:
            self._ask()

    def _ask(self) -> None:
        """Request an answer by setting the same prefetch again: a channel answers only after everything sent before."""
        self._asked, self._asking = self._asking, []
        if self._asked and self.open and self._channel is not None:
            self._channel.basic_qos(prefetch_count=self.line.prefetch, callback=lambda _frame: self._answered())
        elif self._asked:
            self._tell_asked(heard=False)

    def _answered(self) -> None:
        self._tell_asked(heard=True)
        self._ask()

    def _tell_asked(self, *, heard: bool) -> None:
        asked, self._asked = self._asked, []
        for each in asked:
            each(heard)

    def quiesce(self) -> None:
        """Accept no more deliveries. No ordered line is cancelled: the next consumer could overtake unacked ones."""
        self._quiet = True
        if self.line.acked:
            self._cancel()
        elif self.open and not self.line.in_order and self._tag and self._channel is not None:
            self._channel.basic_cancel(self._tag, callback=lambda _frame: None)

    def retire(self) -> None:
        """Accept no more deliveries, because this line is given up; a new one may replace it."""
        self.retired = True
        self.quiesce()

    @property
    def quiet(self) -> bool:
        """True if nothing more can arrive that would be lost with the channel."""
        return not self.line.acked or not self._sending

    def _cancel(self) -> None:
        """Cancel an auto-ack subscription; deliveries already sent still arrive.

        The frame bypasses pika's own basic_cancel, after which pika drops arriving deliveries. They would be lost,
        because the broker does not send them again.
        """
        if self.open and self._tag and not self._cancelling and self._sending and self._channel is not None:
            self._cancelling = True
            self._channel.add_callback(lambda _frame: self._cancelled(), [spec.Basic.CancelOk])
            self._send(spec.Basic.Cancel(consumer_tag=self._tag))

    def _cancelled(self) -> None:
        self._sending = self._cancelling = False
        self._take_more()

    def _take_more(self) -> None:
        full = self.in_hand > MOST_WAITING // 2 or self._bytes > MOST_BYTES // 2
        if not full and not self._quiet and not self._sending and self.open and self._tag:
            self._sending = True
            self._send(spec.Basic.Consume(queue=self.name, consumer_tag=self._tag, no_ack=True, nowait=True))

    def _send(self, method: Method) -> None:
        if self._channel is not None:
            self._connection.send_raw(frame.Method(self._channel.channel_number, method).marshal())

    def _handled(self, deliveries: Iterable[Delivery]) -> None:
        for delivery in deliveries:
            self.in_hand -= 1
            self._bytes -= len(delivery.body)
        self._take_more()

    def drop(self) -> None:
        """Leave a delivery unsettled: the broker returns it to its place in the queue when the channel closes."""
        self.in_hand -= 1

    def close(self) -> None:
        """Close the channel; the broker requeues the unacked deliveries in their order."""
        if self.open and self._channel is not None and self._channel.is_open:
            self._connection.close_channel_bare(self._channel)
        self._open = False

    def depth(self, told: Callable[[int], None]) -> None:
        """Call back with the number of messages that are ready in the queue."""
        if self.open and self._channel is not None:
            answered: Callable[[frame.Method[Any]], None] = lambda frame: told(frame.method.message_count)  # noqa: E731
            self._channel.queue_declare(self.name, passive=True, callback=answered)

    def _opened(self, channel: "Channel") -> None:
        self._channel = channel
        self._acks = Acks(channel.channel_number)
        channel.add_on_close_callback(self._was_closed)
        channel.add_on_cancel_callback(lambda _frame: self._interrupt("the broker cancelled the subscription"))
        if self.line.temporary is not None and not self.name:
            self._make(channel, self.line.temporary)
        else:
            self._limit(channel)

    def _make(self, channel: "Channel", temporary: Topology) -> None:
        """Declare and bind this connection's own queue."""
        [queue] = temporary.queues.values()
        left = deque(temporary.bindings)

        def bind(_frame: object = None) -> None:
            if left:
                binding(replace(left.popleft(), destination=self.name))(channel, bind)
            else:
                self._limit(channel)

        def declared(frame: "frame.Method[Any]") -> None:
            self.name = frame.method.queue
            log.info("Queue %r is %r on this connection", self.line.queue, self.name)
            bind()

        declaring(queue, wanted(queue))(channel, declared)

    def _limit(self, channel: "Channel") -> None:
        channel.basic_qos(prefetch_count=self.line.prefetch, callback=lambda _frame: self._subscribe(channel))

    def _subscribe(self, channel: "Channel") -> None:
        if not self._open:
            # The line was closed while the channel was opening.
            self._connection.close_channel_bare(channel)
        if not self._open or self._quiet:
            return
        self._sending = True
        self._tag = channel.basic_consume(
            self.name,
            DeliverTo(self._receive),
            auto_ack=self.line.acked,
            callback=lambda _frame: self._owner.subscribed(self),
        )

    def _receive(self, *received: *Received) -> None:
        _, number, redelivered, exchange, routing_key, raw, body = received
        if self.line.acked:
            self._bytes += len(body)
            if self.in_hand + 1 >= MOST_WAITING or self._bytes >= MOST_BYTES:
                # RabbitMQ applies no prefetch without acknowledgements and does not support channel.flow.
                self._cancel()
        elif self._quiet:
            # It was in flight when the line stopped, so requeue it; an ordered line requeues by closing its channel.
            if not self.line.in_order:
                self._connection.send_raw(self._acks.nack(number, requeue=True))
            return
        self.in_hand += 1
        if self.line.ordered:
            self.since = time.monotonic()
        self._owner.arrived(
            Delivery(
                queue=self.line.queue,
                body=body,
                raw=raw,
                exchange=exchange,
                routing_key=routing_key,
                redelivered=redelivered,
                token=(self, number),
            )
        )

    def _interrupt(self, reason: BaseException | str) -> None:
        if not self._open:
            return
        self.close()
        self._owner.interrupted(self, reason)

    def _was_closed(self, _channel: object, reason: BaseException) -> None:
        self._asked += self._asking
        self._asking = []
        self._tell_asked(heard=False)
        if not self._open:
            return
        self._open = False
        if isinstance(reason, ChannelClosedByBroker):
            self._owner.interrupted(self, reason)
