"""The publishing connection of a process, shared by its threads: pipelined confirms, a deadline for each publish."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pika.exceptions import ChannelClosed, NoFreeChannels

from django_rmq_retry.amqp.address import Access
from django_rmq_retry.amqp.connection import Connection
from django_rmq_retry.amqp.contracts import (
    CONFIRMED,
    Cause,
    Done,
    Outcome,
    PublishResult,
    unanswered,
    unsent,
    unwritable,
)
from django_rmq_retry.amqp.frames import check_address, marshal_publish, text_of
from django_rmq_retry.amqp.io_thread import IoThread
from django_rmq_retry.amqp.link import HEALTHY, Link
from django_rmq_retry.amqp.refusals import above, channel_closed, limit_in
from django_rmq_retry.errors import HeadersTooLarge, PublishError
from django_rmq_retry.messages.message import Message
from django_rmq_retry.messages.properties import DIRECT, decode_properties, encode_properties

if TYPE_CHECKING:
    from django_rmq_retry.amqp.io_thread import Timer
    from django_rmq_retry.amqp.protocol import Channel

log = logging.getLogger("django_rmq_retry")

_NACKED = PublishResult(kind=Outcome.NACKED, cause=Cause.QUEUE_FULL)

UNANSWERED = unanswered(Cause.IO_STOPPED, "the I/O thread does not answer")

NEVER = float("inf")
LOOK = 0.1
"""The shortest time between two checks of the deadlines, in seconds."""
MOST_CLOSED = 64
"""The number of idle channels that are closed together."""
NO_CHANNEL = "no channel of the connection is free: messages to too many exchanges are in flight"
GRACE = 1.0
"""Seconds after a deadline within which the I/O thread reports the result of a publish."""


@dataclass(slots=True, eq=False)
class Pending:
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
        self, connection: "Connection", *, closed: Callable[["ConfirmChannel"], None], answers: bool = False
    ) -> None:
        self._connection = connection
        self._answers = answers
        self._closed = closed
        self._channel: Channel | None = None
        self._waiting: list[Pending] = []
        self._sent: dict[int, Pending] = {}
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

    def send(self, pending: Pending) -> None:
        """Send a publish now, or as soon as the channel is open."""
        if not self._open or self._channel is None:
            self._waiting.append(pending)
            return
        frames = self._written(pending, self._channel.channel_number)
        if frames:
            self._count += 1
            self._sent[self._count] = pending
            self._connection.send_raw(frames)

    def _written(self, pending: Pending, channel_number: int) -> bytes:
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
            if not self._answers:
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

    def _test_size(self, pending: Pending) -> None:
        """Test the body size first: too large a body would close the channel and leave others on it unconfirmed."""
        sizes, size = self._connection.sizes, len(pending.message.body)
        if sizes.limit is not None:
            pending.end(_too_large(size, sizes.limit))
            return
        # Later publishes wait behind this one, to keep their order.
        self._open = False
        self._waiting.append(pending)
        sizes.test(size, self._size_tested)

    def _size_tested(self) -> None:
        if self._channel is not None and self._channel.is_open and self._connection.is_open:
            self._ready(None)

    def take_waiting(self) -> list[Pending]:
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

    def _opened(self, channel: "Channel") -> None:
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
        place = text_of(method.exchange), text_of(method.routing_key)  # type: ignore[attr-defined]  # Basic.Return
        alike = [pending for pending in self._sent.values() if pending.may_be(place, body)]
        same = next((pending for pending in alike if pending.raw == raw), None)
        named = next((pending for pending in alike if pending.message.properties.message_id == name), None)
        found = same or named or next(iter(alike), None)
        if found is not None:
            found.returned = _returned(method.reply_code, method.reply_text)  # type: ignore[attr-defined]  # Basic.Return

    def _was_closed(self, channel: "Channel", reason: BaseException) -> None:
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
            self.lost(_connection_lost(text or str(reason) or type(reason).__name__, code))
        self._closed(self)


def _returned(code: int, text: str) -> PublishResult:
    return PublishResult(kind=Outcome.RETURNED, cause=Cause.NO_ROUTE, code=code, text=f"{code} {text}")


def _too_large(size: int, limit: int) -> PublishResult:
    return PublishResult(kind=Outcome.TOO_LARGE, cause=Cause.BODY_LIMIT, text=above(size, limit))


def _connection_lost(reason: str, code: int = 0) -> PublishResult:
    return unanswered(Cause.CONNECTION_LOST, f"the connection was lost: {reason}", code=code)


class Waiter:
    """A thread's wait for one result. It uses a bare lock: an Event costs twice as much for each publish."""

    __slots__ = ("_lock", "_result")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self._result = UNANSWERED

    def done(self, result: PublishResult) -> None:
        self._result = result
        self._lock.release()

    def wait(self, timeout: float) -> PublishResult:
        # The I/O thread ends every publish at its deadline; this timeout applies if the I/O thread is stuck.
        return self._result if self._lock.acquire(timeout=timeout) else UNANSWERED


class Batch:
    """The publishes of one ``publish_many``, of which at most ``window`` are in flight at once."""

    def __init__(self, window: int, timeout: float) -> None:
        self.confirmed = 0
        self.failure: PublishError | None = None
        self._window = threading.BoundedSemaphore(window)
        self._size = window
        self._timeout = timeout
        self._last = Message(body=b"")

    def begin(self, message: Message) -> None:
        self._last = message
        self._acquire()

    def leave_out(self) -> None:
        """Free the window slot of the last message, which was not sent."""
        self._window.release()

    def ender(self, message: Message) -> Done:
        def done(result: PublishResult) -> None:
            if result.confirmed:
                self.confirmed += 1
            elif self.failure is None:
                self.failure = result.error(message)
            self._window.release()

        return done

    def wait(self) -> None:
        for _ in range(self._size):
            self._acquire()

    def _acquire(self) -> None:
        if not self._window.acquire(timeout=self._timeout):
            raise UNANSWERED.error(self._last)


class PikaPublisher:
    """A publisher with its own connection, never one that consumes: a blocked publisher must not delay acks."""

    purpose = "publish"
    healthy = HEALTHY
    """Seconds after which a connection counts as healthy; once lost, it is reopened without a long wait."""
    answers = False
    """True if messages may go to direct reply-to addresses."""
    losses = logging.WARNING
    """The level at which a lost connection is logged."""

    def __init__(self, io: IoThread, access: Access) -> None:
        self._io = io
        self._timeout = access.publish_timeout
        self._link = Link(
            io,
            access,
            purpose=self.purpose,
            healthy=self.healthy,
            opened=self._opened,
            lost=self._lost,
            refused=self._refused,
        )
        self._channels: dict[str, ConfirmChannel] = {}
        self._closing: set[ConfirmChannel] = set()
        """The idle channels that are being closed to make room."""
        self._queued: set[str] = set()
        """The exchanges whose publishes wait for that room; later ones wait behind them."""
        self._waiting: deque[Pending] = deque()
        self._handed: deque[Pending] = deque()
        self._blocked = False
        self._dialling = False
        self._look_at = NEVER
        self._alarm: Timer | None = None
        self._trouble = "no connection yet"
        io.at_end(self._no_more)

    def publish(self, message: Message, *, timeout: float | None = None) -> None:
        """Return when the broker has confirmed the message, else raise the PublishError for its end."""
        self._io.check_waiting(message)
        waiter = Waiter()
        self._hand_over(message, waiter.done, timeout)
        result = waiter.wait((self._timeout if timeout is None else timeout) + GRACE)
        if not result.confirmed:
            raise result.error(message)

    def publish_many(self, messages: Iterable[Message], *, window: int = 1000, timeout: float | None = None) -> int:
        """Publish with at most ``window`` confirms outstanding; raise the first failure once all have ended."""
        if window < 1:
            raise ValueError(f"The window of a batch is a whole number from 1, not {window!r}.")
        batch = Batch(window, (self._timeout if timeout is None else timeout) + GRACE)
        try:
            for message in messages:
                self._io.check_waiting(message)
                self._begin(batch, message, timeout)
                if batch.failure is not None:
                    break
        except BaseException as error:
            # The caller's iterable raised, or a message cannot be written; the messages before it were sent.
            with suppress(PublishError):
                batch.wait()
            error.add_note(f"{batch.confirmed} messages of this batch were confirmed.")
            raise
        batch.wait()
        if batch.failure is not None:
            raise batch.failure
        return batch.confirmed

    def _begin(self, batch: Batch, message: Message, timeout: float | None) -> None:
        batch.begin(message)
        try:
            self._hand_over(message, batch.ender(message), timeout)
        except BaseException:
            batch.leave_out()
            raise

    def send(self, message: Message, done: Done, *, timeout: float | None = None) -> None:
        """Queue a message and return. ``done`` is called on the I/O thread, or in this call if encoding fails."""
        try:
            self._hand_over(message, done, timeout)
        except Exception as error:  # noqa: BLE001 - the caller may be the I/O thread, which must not end
            done(unwritable(str(error)))

    def close(self) -> None:
        """Close the connection; publishes that are not confirmed by then end as unknown."""
        if not self._io.alive:
            return
        closed = threading.Event()
        self._io.call(lambda: self._close(closed.set))
        if not self._io.current:
            closed.wait(self._timeout)

    def _close(self, closed: Callable[[], None]) -> None:
        self._dialling = False
        self._link.close(closed)

    def _hand_over(self, message: Message, done: Done, timeout: float | None) -> None:
        deadline = time.monotonic() + (self._timeout if timeout is None else timeout)
        raw = encode_properties(message.properties)
        self._handed.append(Pending(message, raw, deadline=deadline, done=done))
        if self._io.alive:
            self._io.call(self._take)
        else:
            self._no_more()

    def _take(self) -> None:
        while self._handed:
            pending = self._handed.popleft()
            if pending.deadline < self._look_at:
                self._look_later(pending.deadline)
            connection = self._usable
            if connection is None:
                self._waiting.append(pending)
            else:
                self._send(connection, pending)
        if not self._dialling:
            self._dialling = True
            self._link.open()

    @property
    def _usable(self) -> Connection | None:
        """The connection, if it accepts messages. A lost one reports to its channels before it reports to us."""
        connection = self._link.connection
        return None if connection is None or not connection.is_open or self._blocked else connection

    def _send(self, connection: Connection, pending: Pending) -> None:
        exchange = pending.message.exchange
        channel = self._channels.get(exchange) or self._new_channel(connection, exchange)
        if channel is not None:
            channel.send(pending)
        elif self._closing:
            self._queued.add(exchange)
            self._waiting.append(pending)
        else:
            pending.end(unsent(Cause.NO_CHANNEL, NO_CHANNEL))

    def _new_channel(self, connection: Connection, exchange: str) -> ConfirmChannel | None:
        """Return a new channel; None if none is free. Idle ones are then closed, because each exchange has one."""
        if exchange in self._queued:
            return None
        if not (connection.crowded and self._channels):
            forget: Callable[[ConfirmChannel], None] = lambda gone: self._forget(exchange, gone)  # noqa: E731
            with suppress(NoFreeChannels):
                channel = ConfirmChannel(connection, closed=forget, answers=self.answers)
                self._channels[exchange] = channel
                return channel
        if not self._closing:
            self._make_room()
        return None

    def _make_room(self) -> None:
        idle = [exchange for exchange, channel in self._channels.items() if channel.idle]
        for exchange in idle[:MOST_CLOSED]:
            channel = self._channels.pop(exchange)
            self._closing.add(channel)
            channel.close()

    def _forget(self, exchange: str, gone: ConfirmChannel) -> None:
        if self._channels.get(exchange) is gone:
            del self._channels[exchange]
        self._waiting.extend(gone.take_waiting())
        if gone in self._closing:
            # pika frees the number of the channel after this callback only.
            self._io.call(lambda: self._made_room(gone))
        else:
            self._resume()

    def _made_room(self, gone: ConfirmChannel) -> None:
        self._closing.discard(gone)
        self._resume()

    def _opened(self, connection: Connection) -> None:
        connection.add_on_connection_blocked_callback(lambda _c, frame: self._block(frame.method.reason))
        connection.add_on_connection_unblocked_callback(lambda _c, _frame: self._unblock())
        self._blocked = False
        self._resume()

    def _block(self, reason: str) -> None:
        self._blocked = True
        self._trouble = f"the broker takes no messages for now: {reason}"
        log.warning("The broker takes no messages for now: %s", reason)

    def _unblock(self) -> None:
        self._blocked = False
        self._resume()

    def _resume(self) -> None:
        """Send the waiting publishes in their order."""
        connection = self._usable
        if connection is None:
            return
        waiting, self._waiting = self._waiting, deque()
        self._queued.clear()
        for pending in waiting:
            if not pending.ended:
                self._send(connection, pending)

    def _lost(self, reason: str, retry_in: float) -> None:
        self._trouble = reason
        text = "No connection to %s (%s), reconnecting in %.1f s"
        extra = {"event": "no_connection", "purpose": self.purpose}
        log.log(self.losses, text, self.purpose, reason, retry_in, extra=extra)
        channels, self._channels = self._channels, {}
        self._closing.clear()
        self._queued.clear()
        for channel in channels.values():
            self._waiting.extend(channel.take_waiting())
            channel.lost(_connection_lost(reason))

    def _refused(self, error: BaseException) -> None:
        self._trouble = str(error)
        self._dialling = False
        waiting, self._waiting = self._waiting, deque()
        for pending in waiting:
            pending.end(unsent(Cause.OTHER, str(error)))

    def _no_more(self) -> None:
        """End all publishes: the I/O thread has ended, and threads may wait for results."""
        for channel in list(self._channels.values()):
            self._waiting.extend(channel.take_waiting())
            channel.lost(unanswered(Cause.IO_STOPPED, "the I/O thread ended"))
        for pendings in (self._handed, self._waiting):
            while pendings:
                pendings.popleft().end(unsent(Cause.IO_STOPPED, "the I/O thread has ended"))

    def _look_later(self, at: float) -> None:
        """Schedule the check of the deadlines for this time, which is the earliest of them."""
        if self._alarm is not None:
            self._io.cancel(self._alarm)
        self._look_at = at
        self._alarm = self._io.later(max(0.0, at - time.monotonic()), self._look)

    def _look(self) -> None:
        """End the publishes past their deadline."""
        now = time.monotonic()
        self._alarm, self._look_at = None, NEVER
        following = [channel.forget(now) for channel in self._channels.values()]
        for pending in self._waiting:
            if pending.deadline <= now:
                pending.end(unsent(Cause.TIMEOUT, self._trouble))
        self._waiting = deque(pending for pending in self._waiting if not pending.ended)
        following += [pending.deadline for pending in self._waiting]
        if (earliest := min(following, default=NEVER)) < NEVER:
            self._look_later(max(earliest, now + LOOK))
