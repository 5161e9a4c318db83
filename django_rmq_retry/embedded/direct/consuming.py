"""The consuming connection of the direct face. What becomes of a settlement is said by the real one's own Settler."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

from django_rmq_retry.broker.base import Line, Publisher, Receiver
from django_rmq_retry.broker.looping import IoThread
from django_rmq_retry.broker.settling import Settler
from django_rmq_retry.core.message import Delivery
from django_rmq_retry.core.settlement import Settlement, Tell
from django_rmq_retry.embedded.direct.broker import DirectBroker
from django_rmq_retry.embedded.engine.clock import Timer
from django_rmq_retry.embedded.engine.events import Deliver
from django_rmq_retry.embedded.engine.vhost import Session

RECONNECT = 0.25


class DirectSource:
    """A consuming connection without a thread: ``poll`` hands over what has arrived."""

    alive = True

    def __init__(self, broker: DirectBroker, publisher: Publisher) -> None:
        self._broker = broker
        # The Settler asks these two for a few methods only, and they have them.
        io = cast(IoThread, _Loop(broker))
        # A test gets round pauses.
        self._settler = Settler(
            io, publisher, again=self._again, renew=self._renew, remember=self._remember, chance=lambda: 0.5
        )
        self._session: Session | None = None
        self._open: dict[int, _DirectLine] = {}
        self._wanted: tuple[Line, ...] = ()
        self._halted: dict[str, tuple[bytes, str, int]] = {}
        self._receiver: Receiver | None = None

    def start(self, lines: Sequence[Line], receiver: Receiver) -> None:
        self._wanted, self._receiver = tuple(lines), receiver
        self._connect()

    def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        self._settler.settle(delivery, settlement)

    def give_back(self, deliveries: Iterable[Delivery]) -> None:
        for delivery in deliveries:
            line = _line(delivery)
            if not line.line.ordered:
                line.tell(delivery, Tell.REQUEUE)

    def empty(self, told: Callable[[bool], None]) -> None:
        """Whether the queues are empty and nothing is in hand."""
        queues = (self._broker.queue(line.queue) for line in self._wanted)
        told(not any(queue is not None and (queue.ready.count or queue.held) for queue in queues))

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
        """The process is gone: what is in hand goes back, and it will never connect again."""
        self._receiver = None
        self._cut()

    def lose(self, reason: str) -> None:
        """The connection breaks; it is opened anew a moment later."""
        self._cut()
        if self._receiver is not None:
            self._receiver.lost(reason, RECONNECT)
        self._broker.later(RECONNECT, self._connect)

    def lose_ack(self, delivery: Delivery, settlement: Settlement) -> None:
        """Settle, but the connection breaks before the broker hears the last word."""
        _line(delivery).deaf = True
        self.settle(delivery, settlement)
        self.lose("before the acknowledgement arrived")

    def poll(self) -> None:
        """Hand over what has arrived since the last time."""
        session = self._session
        if session is None:
            return
        for event in session.drain():
            if isinstance(event, Deliver):
                self._arrived(self._open[event.channel], event)

    def _connect(self) -> None:
        if self._session is not None or self._receiver is None:
            return
        self._session = self._broker.vhost.connect()
        self._receiver.connected(self._broker.server)
        for number, line in enumerate(self._wanted, start=1):
            self._open[number] = _DirectLine(self._session, number, line)

    def _cut(self) -> None:
        for line in self._open.values():
            line.open = False
        self._open.clear()
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _arrived(self, line: "_DirectLine", event: Deliver) -> None:
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
        body, key, attempts = self._halted.pop(delivery.queue, (b"", "", 0))
        if delivery.redelivered and (body, key) == (delivery.body, delivery.routing_key):
            delivery.attempt = attempts + 1
        self._hand_over(delivery)

    def _hand_over(self, delivery: Delivery) -> None:
        if self._receiver is not None:
            self._receiver.arrived(delivery)

    def _again(self, delivery: Delivery) -> None:
        self._remember(delivery)
        delivery.attempt += 1
        self._hand_over(delivery)

    def _remember(self, delivery: Delivery) -> None:
        self._halted[delivery.queue] = (delivery.body, delivery.routing_key, delivery.attempt)

    def _renew(self, delivery: Delivery, hold: float) -> None:
        """No broker takes a message away here, so a line never has to be opened anew."""
        raise AssertionError(f"{delivery} was held for {hold} s on a line that has no limit")


class _Loop:
    """What a Settler needs of an I/O thread, on the broker's clock."""

    def __init__(self, broker: DirectBroker) -> None:
        self._broker = broker

    def call(self, call: Callable[[], None]) -> None:
        call()

    def later(self, seconds: float, call: Callable[[], None]) -> Timer:
        return self._broker.later(seconds, call)

    def cancel(self, timer: Timer) -> None:
        timer.cancel()


class _DirectLine:
    """What a Settler needs of an open line."""

    since = float("inf")

    def __init__(self, session: Session, number: int, line: Line) -> None:
        self.line = line
        self.open = True
        self.deaf = False
        self._channel = session.channel(number)
        self._channel.qos(line.prefetch)
        self._tag = self._channel.consume(line.queue)

    def ack(self, deliveries: Iterable[Delivery]) -> bytes:
        for delivery in deliveries:
            self.tell(delivery, Tell.ACK)
        return b""

    def send(self, frames: bytes) -> None:
        """Said already."""

    def tell(self, delivery: Delivery, tell: Tell) -> None:
        if not self.open or self.deaf:
            return
        token: Any = delivery.token
        if tell is Tell.ACK:
            self._channel.ack(token[1])
        elif tell is Tell.COUNTED_REQUEUE:
            self._channel.reject(token[1])
        else:
            self._channel.nack(token[1], requeue=tell is Tell.REQUEUE)

    def when_heard(self, heard: Callable[[bool], None]) -> None:
        """At once: whatever was told has been heard, unless the connection is as good as lost."""
        heard(self.open and not self.deaf)

    def quiesce(self) -> None:
        if not self.line.ordered:
            self._channel.cancel(self._tag)


def _line(delivery: Delivery) -> _DirectLine:
    token: Any = delivery.token
    line: _DirectLine = token[0]
    return line
