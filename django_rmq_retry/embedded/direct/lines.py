"""What a Settler needs of an open line, over a channel of the engine."""

from collections.abc import Callable, Iterable
from typing import Any

from django_rmq_retry.broker.base import Line
from django_rmq_retry.core.message import Delivery
from django_rmq_retry.core.settlement import Tell
from django_rmq_retry.embedded.engine.vhost import Session


class DirectLine:
    """One queue on one channel."""

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
        """Said already."""

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
        """At once: whatever was told has been heard, unless the connection is as good as lost."""
        heard(self.open and not self.deaf)

    def quiesce(self) -> None:
        if not self.line.in_order:
            self._channel.cancel(self._tag)

    def retire(self) -> None:
        self.retired = True
        self.quiesce()

    def drop(self) -> None:
        """It goes back, in its place, when the channel ends."""
        self.in_hand -= 1

    def close(self) -> None:
        self.open = False
        self._session.close_channel(self._number)
