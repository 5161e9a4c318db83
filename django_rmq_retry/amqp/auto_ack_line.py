"""A subscription whose messages the broker forgets as it sends them: ``ack='auto'``."""

from collections.abc import Iterable
from typing import Any

from pika import frame, spec
from pika.amqp_object import Method

from django_rmq_retry.amqp.frames import Received
from django_rmq_retry.amqp.open_line import OpenLine
from django_rmq_retry.amqp.protocol import Channel
from django_rmq_retry.messages.message import Delivery, Instruction

MOST_WAITING_DELIVERIES, MOST_WAITING_BYTES = 1000, 16 << 20
"""The numbers of unhandled deliveries and of their bytes at which the subscription is cancelled until half are handled.

RabbitMQ applies no prefetch without acknowledgements and does not support channel.flow.
"""


class AutoAckLine(OpenLine):
    """An open line without acks: a delivery that is not handled is lost."""

    def __init__(self, *opened: Any, **options: Any) -> None:
        self._bytes = 0
        """The bytes of the deliveries in flight."""
        self._sending = False
        """True while the broker may send deliveries: from the subscription until a cancel is confirmed."""
        self._cancelling = False
        """True from a cancel until it is confirmed."""
        super().__init__(*opened, **options)

    @property
    def quiet(self) -> bool:
        return not self._sending

    def ack(self, deliveries: Iterable[Delivery]) -> None:
        for delivery in deliveries:
            self.in_flight -= 1
            self._bytes -= len(delivery.body)
        self._take_more()

    def instruct(self, delivery: Delivery, instruction: Instruction) -> None:
        if instruction is not Instruction.ACK:
            self._owner.message_lost(self.line.queue)
        self.ack([delivery])

    def _consume(self, channel: Channel) -> None:
        self._sending = True
        super()._consume(channel)

    def _receive(self, *received: *Received) -> None:
        self._bytes += len(received[-1])
        super()._receive(*received)
        if self.in_flight >= MOST_WAITING_DELIVERIES or self._bytes >= MOST_WAITING_BYTES:
            self._stop_deliveries()

    def _take_late(self, number: int) -> bool:
        return True

    def _stop_deliveries(self) -> None:
        """Cancel by a frame of our own: after pika's basic_cancel, pika would drop deliveries already sent."""
        if self.open and self._tag and not self._cancelling and self._sending and self._channel is not None:
            self._cancelling = True
            self._channel.add_callback(lambda _frame: self._cancelled(), [spec.Basic.CancelOk])
            self._send(spec.Basic.Cancel(consumer_tag=self._tag))

    def _cancelled(self) -> None:
        self._sending = self._cancelling = False
        self._take_more()

    def _take_more(self) -> None:
        full = self.in_flight > MOST_WAITING_DELIVERIES // 2 or self._bytes > MOST_WAITING_BYTES // 2
        if not full and not self._quiet and not self._sending and self.open and self._tag:
            self._sending = True
            self._send(spec.Basic.Consume(queue=self.name, consumer_tag=self._tag, no_ack=True, nowait=True))

    def _send(self, method: Method) -> None:
        if self._channel is not None:
            self._connection.send_raw(frame.Method(self._channel.channel_number, method).marshal())
