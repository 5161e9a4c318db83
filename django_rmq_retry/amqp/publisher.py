"""The publishing connection of a process, shared by its threads: pipelined confirms, a deadline for each publish."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial

from pika.exceptions import NoFreeChannels

from django_rmq_retry.amqp.address import Access
from django_rmq_retry.amqp.confirm_channel import NEVER, ConfirmChannel, PendingPublish, connection_lost
from django_rmq_retry.amqp.connection import PUBLISHING, Connection
from django_rmq_retry.amqp.contracts import Cause, Done, PublishResult, unanswered, unsent, unwritable
from django_rmq_retry.amqp.io_thread import IoThread, Timer
from django_rmq_retry.amqp.link import HEALTHY_SECONDS, Link
from django_rmq_retry.errors import PublishError
from django_rmq_retry.messages.message import Message
from django_rmq_retry.messages.properties import encode_properties

log = logging.getLogger("django_rmq_retry")

UNANSWERED = unanswered(Cause.IO_STOPPED, "the I/O thread does not answer")
NO_CHANNEL = "no channel of the connection is free: messages to too many exchanges are in flight"

SHORTEST_LOOK_SECONDS = 0.1
"""The shortest time between two checks of the deadlines."""
MOST_CLOSED_CHANNELS = 64
REPORT_GRACE_SECONDS = 1.0
"""Time after a deadline within which the I/O thread reports the result of a publish."""

First = Callable[[Connection, Callable[[], None]], None]


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


class BatchOfPublishes:
    """The publishes of one ``publish_many``, of which at most ``window`` are in flight at once."""

    def __init__(self, window: int, timeout: float) -> None:
        self.confirmed = 0
        self.failure: PublishError | None = None
        self._window = threading.BoundedSemaphore(window)
        self._size = window
        self._timeout = timeout
        self._last = Message(body=b"")

    def begin(self, message: Message) -> Done:
        """Wait for room in the window; return the function that takes the result of the message."""
        self._last = message
        self._acquire()

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

    def __init__(
        self,
        io: IoThread,
        access: Access,
        *,
        purpose: str = PUBLISHING,
        to_callers: bool = False,
        healthy: float = HEALTHY_SECONDS,
        losses: int = logging.WARNING,
        first: First | None = None,
    ) -> None:
        self._io = io
        self._timeout = access.publish_timeout
        self._purpose = purpose
        self._to_callers = to_callers
        """True if messages may go to direct reply-to addresses."""
        self._losses = losses
        """The level at which a lost connection is logged."""
        self._first = first or (lambda _connection, begin: begin())
        """Called with each new connection before anything is published on it, and with what shall follow."""
        self._link = Link(
            io, access, purpose=purpose, healthy=healthy, opened=self._opened, lost=self._lost, refused=self._refused
        )
        self._channels: dict[str, ConfirmChannel] = {}
        self._closing: set[ConfirmChannel] = set()
        """The idle channels that are being closed to make room."""
        self._queued: set[str] = set()
        """The exchanges whose publishes wait for that room; later ones wait behind them."""
        self._waiting: deque[PendingPublish] = deque()
        self._handed: deque[PendingPublish] = deque()
        self._blocked = False
        self._dialling = False
        self._look_at = NEVER
        self._alarm: Timer | None = None
        self._trouble = "no connection yet"
        io.at_end(self._no_more)

    def publish(self, message: Message, *, timeout: float | None = None) -> None:
        self._io.check_waiting(message)
        waiter = Waiter()
        self._hand_over(message, encode_properties(message.properties), waiter.done, timeout)
        result = waiter.wait((self._timeout if timeout is None else timeout) + REPORT_GRACE_SECONDS)
        if not result.confirmed:
            raise result.error(message)

    def publish_many(self, messages: Iterable[Message], *, window: int = 1000, timeout: float | None = None) -> int:
        """Publish with at most ``window`` confirms outstanding; raise the first failure once all have ended."""
        if window < 1:
            raise ValueError(f"The window of a batch is a whole number from 1, not {window!r}.")
        batch = BatchOfPublishes(window, (self._timeout if timeout is None else timeout) + REPORT_GRACE_SECONDS)
        try:
            for message in messages:
                self._io.check_waiting(message)
                raw = encode_properties(message.properties)
                self._hand_over(message, raw, batch.begin(message), timeout)
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

    def send(self, message: Message, done: Done, *, timeout: float | None = None) -> None:
        """Queue a message and return. ``done`` is called on the I/O thread, or in this call if encoding fails."""
        try:
            self._hand_over(message, encode_properties(message.properties), done, timeout)
        except Exception as error:  # noqa: BLE001 - the caller may be the I/O thread, which must not end
            done(unwritable(str(error)))

    def close(self) -> None:
        """Close the connection; publishes that are not confirmed by then end as unknown."""
        self._link.close_and_wait(self._closing_down, seconds=self._timeout)

    def _closing_down(self) -> None:
        self._dialling = False

    def _hand_over(self, message: Message, raw: bytes, done: Done, timeout: float | None) -> None:
        deadline = time.monotonic() + (self._timeout if timeout is None else timeout)
        self._handed.append(PendingPublish(message, raw, deadline=deadline, done=done))
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

    def _send(self, connection: Connection, pending: PendingPublish) -> None:
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
                channel = ConfirmChannel(connection, closed=forget, to_callers=self._to_callers)
                self._channels[exchange] = channel
                return channel
        if not self._closing:
            self._make_room()
        return None

    def _make_room(self) -> None:
        idle = [exchange for exchange, channel in self._channels.items() if channel.idle]
        for exchange in idle[:MOST_CLOSED_CHANNELS]:
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
        self._first(connection, partial(self._begin, connection))

    def _begin(self, connection: Connection) -> None:
        if not connection.is_open:
            return
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
        extra = {"event": "no_connection", "purpose": self._purpose}
        log.log(self._losses, text, self._purpose, reason, retry_in, extra=extra)
        channels, self._channels = self._channels, {}
        self._closing.clear()
        self._queued.clear()
        for channel in channels.values():
            self._waiting.extend(channel.take_waiting())
            channel.lost(connection_lost(reason))

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
        now = time.monotonic()
        self._alarm, self._look_at = None, NEVER
        following = [channel.forget(now) for channel in self._channels.values()]
        for pending in self._waiting:
            if pending.deadline <= now:
                pending.end(unsent(Cause.TIMEOUT, self._trouble))
        self._waiting = deque(pending for pending in self._waiting if not pending.ended)
        following += [pending.deadline for pending in self._waiting]
        if (earliest := min(following, default=NEVER)) < NEVER:
            self._look_later(max(earliest, now + SHORTEST_LOOK_SECONDS))
