"""One queue on one channel: its subscription, the deliveries in hand, and what becomes of the channel."""

import logging
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from pika.exceptions import ChannelClosedByBroker

from django_rmq_retry.broker.acking import Acks
from django_rmq_retry.broker.base import Line
from django_rmq_retry.broker.connection import Connection
from django_rmq_retry.broker.delivering import DeliverTo, Received
from django_rmq_retry.core.message import Delivery
from django_rmq_retry.core.settlement import Tell

if TYPE_CHECKING:
    from pika.channel import Channel
    from pika.frame import Method

log = logging.getLogger("django_rmq_retry")

Heard = Callable[[bool], None]


class Owner(Protocol):
    """Who opened the line."""

    def arrived(self, delivery: Delivery) -> None: ...

    def subscribed(self, line: "OpenLine") -> None: ...

    def interrupted(self, line: "OpenLine", reason: BaseException | str) -> None: ...


class OpenLine:
    """A line as long as its channel lives. A delivery keeps the line it came by: elsewhere its tag means nothing."""

    def __init__(self, connection: Connection, line: Line, owner: Owner) -> None:
        self.line = line
        self.in_hand = 0
        self.since = 0.0
        """When the last delivery came; of an ordered line, the one in hand."""
        self._connection = connection
        self._owner = owner
        self._acks = Acks(0)
        self._channel: Channel | None = None
        self._tag = ""
        self._open = True
        self._quiet = False
        self.retired = False
        """Paused: what is in hand ends here, and nothing is attempted again."""
        self._asked: list[Heard] = []
        """Who waits for the answer that is on its way; whoever came later waits for the next."""
        self._asking: list[Heard] = []
        connection.channel(on_open_callback=self._opened)

    @property
    def open(self) -> bool:
        return self._open and self._channel is not None and self._channel.is_open and self._connection.is_open

    def ack(self, deliveries: Iterable[Delivery]) -> bytes:
        """The frames that acknowledge them."""
        tags = [delivery.token[1] for delivery in deliveries]  # type: ignore[index]  # made in _receive
        self.in_hand -= len(tags)
        return b"".join(self._acks.acks(tags))

    def send(self, frames: bytes) -> None:
        self._connection.send_raw(frames)

    def tell(self, delivery: Delivery, tell: Tell) -> None:
        """Tell the broker of one delivery; nothing if its channel is gone, for the broker then has it back already."""
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
        """Call back with True once the broker has taken what was told so far, with False if nobody will know."""
        self._asking.append(heard)
        if not self._asked:
            self._ask()

    def _ask(self) -> None:
        """A channel takes one thing after the other, so any answer will do: it is given the prefetch it has."""
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
        """Take nothing more. One in order is not cancelled: the next consumer could pass what is in hand."""
        self._quiet = True
        if self.open and not self.line.in_order and self._tag and self._channel is not None:
            self._channel.basic_cancel(self._tag, callback=lambda _frame: None)

    def retire(self) -> None:
        """Take nothing more, for this line will not go on: another is opened in its place."""
        self.retired = True
        self.quiesce()

    def drop(self) -> None:
        """One that nobody works on stays unsettled: it goes back, in its place, when the channel closes."""
        self.in_hand -= 1

    def close(self) -> None:
        """Close the channel; the broker takes back what is in hand, in its order."""
        if self.open and self._channel is not None and self._channel.is_open:
            self._connection.close_channel_bare(self._channel)
        self._open = False

    def depth(self, told: Callable[[int], None]) -> None:
        """Ask how many messages are ready in the queue."""
        if self.open and self._channel is not None:
            answered: Callable[[Method[Any]], None] = lambda frame: told(frame.method.message_count)  # noqa: E731
            self._channel.queue_declare(self.line.queue, passive=True, callback=answered)

    def _opened(self, channel: "Channel") -> None:
        self._channel = channel
        self._acks = Acks(channel.channel_number)
        channel.add_on_close_callback(self._was_closed)
        channel.add_on_cancel_callback(lambda _frame: self._interrupt("the broker cancelled the subscription"))
        channel.basic_qos(prefetch_count=self.line.prefetch, callback=lambda _frame: self._subscribe(channel))

    def _subscribe(self, channel: "Channel") -> None:
        if not self._open:
            # Given up while it was opened.
            self._connection.close_channel_bare(channel)
        if not self._open or self._quiet:
            return
        self._tag = channel.basic_consume(
            self.line.queue, DeliverTo(self._receive), callback=lambda _frame: self._owner.subscribed(self)
        )

    def _receive(self, *received: *Received) -> None:
        _, number, redelivered, exchange, routing_key, raw, body = received
        if self._quiet:
            # Still on its way when we asked to stop: it goes back; a line in order does so by closing its channel.
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
