"""One channel in confirm mode: what was sent on it, and how each of them ended. Used on the I/O thread only."""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from pika.exceptions import ChannelClosed

from django_rmq_retry.broker.base import UNWRITABLE, Outcome
from django_rmq_retry.broker.delivering import text_of
from django_rmq_retry.broker.envelope import marshal_publish
from django_rmq_retry.broker.sizing import above, limit_in
from django_rmq_retry.core.errors import HeadersTooLarge
from django_rmq_retry.core.message import Message
from django_rmq_retry.core.properties import decode_properties

if TYPE_CHECKING:
    from pika.channel import Channel

    from django_rmq_retry.broker.connection import Connection

Done = Callable[[Outcome, str], None]

_MISSING = re.compile(r"no exchange '(?P<exchange>.*)' in vhost")


class Pending:
    """A publish that has not ended yet; it ends once."""

    __slots__ = ("_done", "deadline", "message", "raw", "returned")

    def __init__(self, message: Message, raw: bytes, *, deadline: float, done: Done) -> None:
        self.message = message
        self.raw = raw
        self.deadline = deadline
        self.returned = ""
        self._done: Done | None = done

    @property
    def ended(self) -> bool:
        return self._done is None

    def may_be(self, place: tuple[str, str], body: bytes) -> bool:
        """Whether the broker may mean this one when it returns a message."""
        message = self.message
        if self.returned or not message.mandatory:
            return False
        return (message.exchange, message.routing_key) == place and message.body == body

    def end(self, outcome: Outcome, said: str = "") -> None:
        done, self._done = self._done, None
        if done is not None:
            done(outcome, said)


class ConfirmChannel:
    """The publishes of one exchange: a missing exchange closes its channel, and must not take others along."""

    def __init__(self, connection: "Connection", *, closed: Callable[["ConfirmChannel"], None]) -> None:
        self._connection = connection
        self._closed = closed
        self._channel: Channel | None = None
        self._waiting: list[Pending] = []
        self._sent: dict[int, Pending] = {}
        self._count = 0
        self._lowest = 1
        self._open = False
        connection.channel(on_open_callback=self._opened)

    @property
    def busy(self) -> bool:
        return bool(self._sent or self._waiting)

    def send(self, pending: Pending) -> None:
        """Send it now, or as soon as the channel is open."""
        if not self._open or self._channel is None:
            self._waiting.append(pending)
            return
        frames = self._written(pending, self._channel.channel_number)
        if frames:
            self._count += 1
            self._sent[self._count] = pending
            self._connection.send_raw(frames)

    def _written(self, pending: Pending, channel_number: int) -> bytes:
        """As frames; nothing, if it has ended or waits until the broker has said whether it takes so large a body."""
        message = pending.message
        try:
            if len(message.body) <= self._connection.sizes.taken:
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
            pending.end(Outcome.UNSENT, str(error))
        except Exception as error:  # noqa: BLE001 - a body that is no bytes must not end the thread of all others
            pending.end(Outcome.UNSENT, f"{UNWRITABLE}: {type(error).__name__}: {error}")
        else:
            self._doubt(pending)
        return b""

    def _doubt(self, pending: Pending) -> None:
        """A body too large would close the channel, and leave what others have sent on it without an answer."""
        sizes, size = self._connection.sizes, len(pending.message.body)
        if sizes.limit is not None:
            pending.end(Outcome.TOO_LARGE, above(size, sizes.limit))
            return
        # What comes after it stays behind it.
        self._open = False
        self._waiting.append(pending)
        sizes.ask(size, self._go_on)

    def _go_on(self) -> None:
        if self._channel is not None and self._channel.is_open:
            self._ready(None)

    def unsent(self) -> list[Pending]:
        """What waits for the channel to open; it is no longer waited for."""
        waiting, self._waiting = self._waiting, []
        return waiting

    def lost(self, said: str) -> None:
        """The connection or channel is gone: nobody will say how these ended."""
        self._open = False
        sent, self._sent = self._sent, {}
        missing, limit = _MISSING.search(said), limit_in(said)
        if limit is not None:
            self._connection.sizes.learn(limit)
        for pending in sent.values():
            message = pending.message
            if missing and missing["exchange"] == message.exchange:
                pending.end(Outcome.RETURNED, f"exchange {message.exchange!r} does not exist")
            elif limit is not None and len(message.body) > limit:
                pending.end(Outcome.TOO_LARGE, above(len(message.body), limit))
            else:
                pending.end(Outcome.UNKNOWN, said)

    def forget(self, now: float) -> None:
        """End what waited past its deadline; a late answer then finds nobody."""
        for pending in self._sent.values():
            if pending.deadline <= now and not pending.ended:
                pending.end(Outcome.UNKNOWN, "no confirm in time")
        for pending in self._waiting:
            if pending.deadline <= now:
                pending.end(Outcome.UNSENT, "the channel did not open in time")
        self._waiting = [pending for pending in self._waiting if not pending.ended]

    def _opened(self, channel: "Channel") -> None:
        self._channel = channel
        channel.add_on_close_callback(self._was_closed)
        channel.add_on_return_callback(self._returned)
        # Acks come by the short way; a nack, which is rare, by pika's.
        self._connection.confirms[channel.channel_number] = self._acked
        channel.confirm_delivery(self._answered, callback=self._ready)

    def _ready(self, _frame: object) -> None:
        self._open = True
        for pending in self.unsent():
            self.send(pending)

    def _acked(self, tag: int, multiple: bool) -> None:  # noqa: FBT001 - as it stands in the frame
        self._settle(tag, Outcome.CONFIRMED, multiple=multiple)

    def _answered(self, frame: object) -> None:
        method = frame.method  # type: ignore[attr-defined]  # a pika frame: Basic.Ack or Basic.Nack
        outcome = Outcome.CONFIRMED if method.NAME == "Basic.Ack" else Outcome.NACKED
        self._settle(method.delivery_tag, outcome, multiple=method.multiple)

    def _settle(self, tag: int, outcome: Outcome, *, multiple: bool) -> None:
        if not multiple:
            self._end(self._sent.pop(tag, None), outcome)
            return
        # Numbers rise by one, so a run is walked without looking for its first member.
        for number in range(self._lowest, tag + 1):
            self._end(self._sent.pop(number, None), outcome)
        self._lowest = tag + 1

    @staticmethod
    def _end(pending: Pending | None, outcome: Outcome) -> None:
        if pending is None:
            return
        if pending.returned:
            pending.end(Outcome.RETURNED, pending.returned)
        else:
            pending.end(outcome)

    def _returned(self, _channel: object, method: object, properties: object, body: bytes) -> None:
        """A message comes back before its confirm, as it was sent but for the header BCC, which the broker takes."""
        raw: bytes = properties.raw  # type: ignore[attr-defined]  # RawProperties
        name = decode_properties(raw).message_id
        place = text_of(method.exchange), text_of(method.routing_key)  # type: ignore[attr-defined]  # Basic.Return
        alike = [pending for pending in self._sent.values() if pending.may_be(place, body)]
        same = next((pending for pending in alike if pending.raw == raw), None)
        named = next((pending for pending in alike if pending.message.properties.message_id == name), None)
        found = same or named or next(iter(alike), None)
        if found is not None:
            found.returned = f"{method.reply_code} {method.reply_text}"  # type: ignore[attr-defined]  # Basic.Return

    def _was_closed(self, channel: "Channel", reason: BaseException) -> None:
        # The next channel may get the same number.
        self._connection.confirms.pop(channel.channel_number, None)
        said = getattr(reason, "reply_text", "") or str(reason) or type(reason).__name__
        # A connection that is lost closes its channels first: that is no answer to what was sent on them.
        self.lost(said if isinstance(reason, ChannelClosed) else f"the connection was lost: {said}")
        self._closed(self)
