"""A channel with publisher confirms: each publish on it ends once, with what the broker said of it."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from pika.exceptions import ChannelClosed

from django_rmq_retry.amqp.connection import Connection
from django_rmq_retry.amqp.contracts import (
    CONFIRMED,
    Cause,
    Done,
    PublishEnd,
    PublishResult,
    unanswered,
    unsent,
    unwritable,
)
from django_rmq_retry.amqp.frames import check_address, marshal_publish, name_text
from django_rmq_retry.amqp.protocol import Channel
from django_rmq_retry.amqp.refusals import above, channel_closed, limit_in
from django_rmq_retry.errors import HeadersTooLarge
from django_rmq_retry.messages.message import Message
from django_rmq_retry.messages.properties import DIRECT, decode_properties

log = logging.getLogger("django_rmq_retry")

NEVER = float("inf")
_NACKED = PublishResult(kind=PublishEnd.NACKED, cause=Cause.QUEUE_FULL)


@dataclass(slots=True, eq=False)
class PendingPublish:
    """A publish without a result yet; ``done`` is called once."""

    message: Message
    raw: bytes
    deadline: float
    done: Done | None
    returned: PublishResult | None = None

    @property
    def ended(self) -> bool:
        return self.done is None

    def may_be(self, place: tuple[str, str], body: bytes) -> bool:
        """True if this may be the message that the broker returns."""
        message = self.message
        if self.returned or not message.mandatory:
            return False
        return (message.exchange, message.routing_key) == place and message.body == body

    def end(self, result: PublishResult) -> None:
        done, self.done = self.done, None
        if done is None:
            return
        try:
            done(result)
        except Exception:
            # One confirm or one lost connection ends many publishes; each of them has its own caller.
            log.exception(
                "The function that takes the result of a publish to %r raised an error; other results are reported",
                self.message.routing_key,
                extra={"event": "result"},
            )


class ConfirmChannel:
    """The channel for publishes to one exchange: a missing exchange closes it, and other exchanges must not suffer."""

    def __init__(
        self, connection: Connection, *, closed: Callable[["ConfirmChannel"], None], to_callers: bool = False
    ) -> None:
        self._connection = connection
        self._to_callers = to_callers
        self._closed = closed
        self._channel: Channel | None = None
        self._waiting: list[PendingPublish] = []
        self._sent: dict[int, PendingPublish] = {}
        self._count = 0
        self._lowest = 1
        self._open = False
        connection.channel(on_open_callback=self._opened)

    @property
    def idle(self) -> bool:
        return self._open and not self._sent and not self._waiting

    def close(self) -> None:
        if self._channel is not None:
            self._open = False
            self._channel.close()

    def send(self, pending: PendingPublish) -> None:
        """Send a publish now, or as soon as the channel is open."""
        if not self._open or self._channel is None:
            self._waiting.append(pending)
            return
        frames = self._written(pending, self._channel.channel_number)
        if frames:
            self._count += 1
            self._sent[self._count] = pending
            self._connection.send_raw(frames)

    def _written(self, pending: PendingPublish, channel_number: int) -> bytes:
        """Return the frames; empty if the publish has failed, or waits for the test of its large body."""
        message, own = pending.message, self._connection.user
        if message.properties.user_id not in (None, own):
            # The broker would close the channel, and leave other publishes on it unconfirmed.
            pending.end(unwritable(f"its user_id is not {own!r}, the user of this connection"))
            return b""
        if message.properties.reply_to == DIRECT:
            pending.end(unwritable(f"only a consumer of {DIRECT!r} may send it as reply_to"))
            return b""
        try:
            if not self._to_callers:
                check_address(message)
            if len(message.body) <= self._connection.sizes.accepted:
                return marshal_publish(
                    channel_number,
                    pending.raw,
                    message.body,
                    exchange=message.exchange,
                    routing_key=message.routing_key,
                    mandatory=message.mandatory,
                    frame_max=self._connection.params.frame_max,
                )
        except (HeadersTooLarge, ValueError) as error:
            pending.end(unwritable(str(error)))
        except Exception as error:  # noqa: BLE001 - a body that is no bytes must not end the thread of all others
            pending.end(unwritable(f"{type(error).__name__}: {error}"))
        else:
            self._test_size(pending)
        return b""

    def _test_size(self, pending: PendingPublish) -> None:
        """Test the body size first: too large a body would close the channel and leave others on it unconfirmed."""
        sizes, size = self._connection.sizes, len(pending.message.body)
        if sizes.limit is not None:
            text = above(size, sizes.limit)
            pending.end(PublishResult(kind=PublishEnd.TOO_LARGE, cause=Cause.BODY_LIMIT, text=text))
            return
        # Later publishes wait behind this one, to keep their order.
        self._open = False
        self._waiting.append(pending)
        sizes.test(size, self._size_tested)

    def _size_tested(self) -> None:
        if self._channel is not None and self._channel.is_open and self._connection.is_open:
            self._ready(None)

    def take_waiting(self) -> list[PendingPublish]:
        """Remove and return the publishes that wait for the channel to open."""
        waiting, self._waiting = self._waiting, []
        return waiting

    def lost(self, result: PublishResult) -> None:
        """End the publishes that were sent: the connection is gone, so no confirm will arrive."""
        self._end_sent(lambda _message: result)

    def _end_sent(self, result_of: Callable[[Message], PublishResult]) -> None:
        self._open = False
        sent, self._sent = self._sent, {}
        for pending in sent.values():
            pending.end(result_of(pending.message))

    def forget(self, now: float) -> float:
        """End the publishes past their deadline, and return the next deadline; later confirms of them are ignored."""
        for pending in self._sent.values():
            if pending.deadline <= now and not pending.ended:
                pending.end(unanswered(Cause.TIMEOUT, "no confirm in time"))
        for pending in self._waiting:
            if pending.deadline <= now:
                pending.end(unsent(Cause.TIMEOUT, "the channel did not open in time"))
        self._waiting = [pending for pending in self._waiting if not pending.ended]
        left = (pending.deadline for pending in (*self._sent.values(), *self._waiting) if not pending.ended)
        return min(left, default=NEVER)

    def _opened(self, channel: Channel) -> None:
        self._channel = channel
        channel.add_on_close_callback(self._was_closed)
        channel.add_on_return_callback(self._returned)
        # Acks are read directly from the received bytes; nacks, which are rare, arrive through pika.
        self._connection.confirms[channel.channel_number] = partial(self._settle, CONFIRMED)
        channel.confirm_delivery(self._answered, callback=self._ready)

    def _ready(self, _frame: object) -> None:
        self._open = True
        for pending in self.take_waiting():
            self.send(pending)

    def _answered(self, frame: object) -> None:
        method = frame.method  # type: ignore[attr-defined]  # a pika frame: Basic.Ack or Basic.Nack
        result = CONFIRMED if method.NAME == "Basic.Ack" else _NACKED
        self._settle(result, method.delivery_tag, method.multiple)

    def _settle(self, result: PublishResult, tag: int, multiple: bool) -> None:  # noqa: FBT001 - the frame's bit
        # Numbers rise by one, so the confirmed ones start at the lowest without a search.
        for number in range(self._lowest, tag + 1) if multiple else (tag,):
            pending = self._sent.pop(number, None)
            if pending is not None:
                pending.end(pending.returned or result)
        if multiple:
            self._lowest = tag + 1

    def _returned(self, _channel: object, method: object, properties: object, body: bytes) -> None:
        """Mark the publish that the broker returned: before its confirm, without the header BCC, which it removes."""
        raw: bytes = properties.raw  # type: ignore[attr-defined]  # RawProperties
        name = decode_properties(raw).message_id
        place = name_text(method.exchange), name_text(method.routing_key)  # type: ignore[attr-defined]  # Basic.Return
        alike = [pending for pending in self._sent.values() if pending.may_be(place, body)]
        same = next((pending for pending in alike if pending.raw == raw), None)
        named = next((pending for pending in alike if pending.message.properties.message_id == name), None)
        found = same or named or next(iter(alike), None)
        if found is not None:
            found.returned = _returned(method.reply_code, method.reply_text)  # type: ignore[attr-defined]  # Basic.Return

    def _was_closed(self, channel: Channel, reason: BaseException) -> None:
        # The next channel may get the same number.
        self._connection.confirms.pop(channel.channel_number, None)
        code, text = getattr(reason, "reply_code", 0), getattr(reason, "reply_text", "")
        if isinstance(reason, ChannelClosed):
            limit = limit_in(text)
            if limit is not None:
                self._connection.sizes.learn(limit)
            alone = len(self._sent) == 1
            self._end_sent(lambda message: channel_closed(code, text, message=message, alone=alone))
        else:
            # A lost connection closes its channels first: that says nothing about the messages sent on them.
            self.lost(connection_lost(text or str(reason) or type(reason).__name__, code))
        self._closed(self)


def _returned(code: int, text: str) -> PublishResult:
    return PublishResult(kind=PublishEnd.RETURNED, cause=Cause.NO_ROUTE, code=code, text=f"{code} {text}")


def connection_lost(reason: str, code: int = 0) -> PublishResult:
    return unanswered(Cause.CONNECTION_LOST, f"the connection was lost: {reason}", code=code)
