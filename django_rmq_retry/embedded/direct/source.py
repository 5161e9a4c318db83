"""The consuming connection of the in-process broker."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, cast

from django_rmq_retry.amqp.channel import OpenLine
from django_rmq_retry.amqp.connection import IoThread
from django_rmq_retry.amqp.contracts import Line, Publisher, Receiver
from django_rmq_retry.amqp.settler import Settler
from django_rmq_retry.embedded.direct.broker import DirectBroker
from django_rmq_retry.embedded.engine.clock import Timer
from django_rmq_retry.embedded.engine.envelopes import Deliver
from django_rmq_retry.embedded.engine.vhost import Session
from django_rmq_retry.messages.message import Delivery, Settlement, Tell


class DirectLine:
    """A queue consumed on its own channel."""

    since = float("inf")

    def __init__(self, session: Session, number: int, line: Line) -> None:
        self.line = line
        self._session, self._number = session, number
        self.open = True
        self.deaf = False
        self.retired = False
        self.in_hand = 0
        self._channel = session.channel(number)
        self._channel.qos(line.prefetch)
        self._tag = self._channel.consume(line.queue)

    def ack(self, deliveries: Iterable[Delivery]) -> bytes:
        for delivery in deliveries:
            self.tell(delivery, Tell.ACK)
        return b""

    def send(self, frames: bytes) -> None:
        """Do nothing: ``ack`` has already settled the deliveries."""

    def tell(self, delivery: Delivery, tell: Tell) -> None:
        if not self.open or self.deaf:
            return
        self.in_hand -= 1
        token: Any = delivery.token
        if tell is Tell.ACK:
            self._channel.ack(token[1])
        elif tell is Tell.COUNTED_REQUEUE:
            self._channel.reject(token[1])
        else:
            self._channel.nack(token[1], requeue=tell is Tell.REQUEUE)

    def when_heard(self, heard: Callable[[bool], None]) -> None:
        """Call back immediately: settlements take effect during the call, unless a test drops them."""
        heard(self.open and not self.deaf)

    def quiesce(self) -> None:
        if not self.line.in_order:
            self._channel.cancel(self._tag)

    def retire(self) -> None:
        self.retired = True
        self.quiesce()

    def drop(self) -> None:
        """Leave a delivery unsettled: the broker returns it to its place in the queue when the channel ends."""
        self.in_hand -= 1

    def close(self) -> None:
        self.open = False
        self._session.close_channel(self._number)


RECONNECT = 0.25


class DirectSource:
    """A consuming connection without a thread: ``poll`` passes on the deliveries that have arrived."""

    alive = True

    def __init__(self, broker: DirectBroker, publisher: Publisher) -> None:
        self._broker = broker
        # _Loop and DirectLine have the few methods of IoThread and OpenLine that the Settler uses.
        io = cast(IoThread, _Loop(broker))
        # Without jitter, so that a test gets pauses of round numbers.
        self._settler = Settler(io, publisher, again=self._hand_over, renew=self._renew, chance=lambda: 0.5)
        self._session: Session | None = None
        self._open: dict[int, DirectLine] = {}
        self._wanted: tuple[Line, ...] = ()
        self._paused: set[str] = set()
        self._narrow: dict[str, int] = {}
        self._last = 0
        self._receiver: Receiver | None = None

    def start(self, lines: Sequence[Line], receiver: Receiver) -> None:
        self._wanted, self._receiver = tuple(lines), receiver
        self._connect()

    def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        self._settler.settle(delivery, settlement)

    def give_back(self, deliveries: Iterable[Delivery]) -> None:
        for delivery in deliveries:
            line = _line(delivery)
            if line.line.in_order:
                line.drop()
            else:
                line.tell(delivery, Tell.REQUEUE)

    def empty(self, told: Callable[[bool], None]) -> None:
        """Call back with True if the queues are empty and no message is unacked."""
        queues = (self._broker.queue(line.queue) for line in self._wanted if line.queue not in self._paused)
        told(not any(queue is not None and (queue.ready.count or queue.held) for queue in queues))

    def pause(self, queue: str) -> None:
        """Stop consuming this queue; its channel ends once all unacked deliveries are settled."""
        self._paused.add(queue)
        for line in list(self._open.values()):
            if line.line.queue == queue and not line.retired:
                line.retire()
                self._settler.let_go(cast(OpenLine, line))
        self._close_settled()

    def resume(self, queue: str, *, prefetch: int | None = None) -> None:
        self._paused.discard(queue)
        self._narrow.pop(queue, None)
        if prefetch is not None:
            self._narrow[queue] = prefetch
        for line in self._open.values():
            if line.line.queue == queue and line.line.prefetch != self._shaped(line.line).prefetch:
                line.retire()
        self._close_settled()
        self._open_lines()

    def quiesce(self) -> None:
        self._settler.stop()
        for line in self._open.values():
            line.quiesce()

    def stop(self) -> None:
        self.quiesce()
        self._cut()
        if self._receiver is not None:
            self._receiver.drained()

    def die(self) -> None:
        """Act as if the process was killed: requeue the unacked messages, and never connect again."""
        self._receiver = None
        self._cut()

    def lose(self, reason: str) -> None:
        """Lose the connection, and open it again a moment later."""
        self._cut()
        if self._receiver is not None:
            self._receiver.lost(reason, RECONNECT)
        self._broker.later(RECONNECT, self._connect)

    def lose_ack(self, delivery: Delivery, settlement: Settlement) -> None:
        """Settle, but lose the connection before the broker receives the settlement."""
        _line(delivery).deaf = True
        self.settle(delivery, settlement)
        self.lose("before the acknowledgement arrived")

    def poll(self) -> None:
        """Pass on the deliveries that have arrived since the last call."""
        session = self._session
        if session is None:
            return
        for event in session.drain():
            if isinstance(event, Deliver) and event.channel in self._open:
                self._arrived(self._open[event.channel], event)
        self._close_settled()

    def _connect(self) -> None:
        if self._session is not None or self._receiver is None:
            return
        self._session = self._broker.vhost.connect()
        self._receiver.connected(self._broker.server)
        self._open_lines()

    def _open_lines(self) -> None:
        session = self._session
        consumed = {line.line.queue for line in self._open.values() if not line.retired}
        for line in self._wanted:
            if session is not None and line.queue not in consumed and line.queue not in self._paused:
                self._last += 1
                self._open[self._last] = DirectLine(session, self._last, self._shaped(line))

    def _shaped(self, line: Line) -> Line:
        most = next((one.prefetch for one in self._wanted if one.queue == line.queue), line.prefetch)
        return replace(line, prefetch=min(most, self._narrow.get(line.queue, most)))

    def _close_settled(self) -> None:
        for number, line in list(self._open.items()):
            if line.retired and line.in_hand <= 0:
                line.close()
                del self._open[number]

    def _cut(self) -> None:
        for line in self._open.values():
            line.open = False
        self._open.clear()
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _arrived(self, line: "DirectLine", event: Deliver) -> None:
        if line.retired:
            # It was sent before the line was given up, and is requeued when the channel closes.
            return
        line.in_hand += 1
        message = event.message
        delivery = Delivery(
            queue=line.line.queue,
            body=message.body,
            raw=event.raw,
            exchange=message.exchange,
            routing_key=message.key,
            redelivered=event.redelivered,
            token=(line, event.tag),
        )
        self._hand_over(delivery)

    def _hand_over(self, delivery: Delivery) -> None:
        if self._receiver is not None:
            self._receiver.arrived(delivery)

    def _renew(self, delivery: Delivery, hold: float) -> None:
        """Fail: this broker has no consumer timeout, so a line never has to be opened again."""
        raise AssertionError(f"{delivery} was held for {hold} s on a line that has no limit")


class _Loop:
    """The methods of an I/O thread that a Settler uses, on the broker's clock."""

    def __init__(self, broker: DirectBroker) -> None:
        self._broker = broker

    def call(self, call: Callable[[], None]) -> None:
        call()

    def later(self, seconds: float, call: Callable[[], None]) -> Timer:
        return self._broker.later(seconds, call)

    def cancel(self, timer: Timer) -> None:
        timer.cancel()


def _line(delivery: Delivery) -> DirectLine:
    token: Any = delivery.token
    line: DirectLine = token[0]
    return line
