"""The publishing connection of a process: shared by all threads, confirms pipelined, each publish with a deadline."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress

from django_rmq_retry.broker.address import Access
from django_rmq_retry.broker.awaiting import Batch, Waiter
from django_rmq_retry.broker.base import ERRORS, UNWRITABLE, Outcome
from django_rmq_retry.broker.confirming import ConfirmChannel, Done, Pending
from django_rmq_retry.broker.connection import Connection
from django_rmq_retry.broker.linking import Link
from django_rmq_retry.broker.looping import IoThread
from django_rmq_retry.core.errors import PublishError
from django_rmq_retry.core.message import Message
from django_rmq_retry.core.properties import encode_properties

log = logging.getLogger("django_rmq_retry")

LOOK = 0.1
"""Seconds between two looks at the deadlines."""
GRACE = 1.0
"""Seconds beyond a deadline within which the I/O thread has said what became of a publish."""


class PikaPublisher:
    """Publishes on its own connection, never on one that consumes: a blocked publisher must not hold acks back."""

    def __init__(self, io: IoThread, access: Access) -> None:
        self._io = io
        self._timeout = access.publish_timeout
        self._link = Link(io, access, purpose="publish", opened=self._opened, lost=self._lost, refused=self._refused)
        self._channels: dict[str, ConfirmChannel] = {}
        self._waiting: deque[Pending] = deque()
        self._handed: deque[Pending] = deque()
        self._blocked = False
        self._dialling = False
        self._looking = False
        self._trouble = "no connection yet"
        io.at_end(self._no_more)

    def publish(self, message: Message, *, timeout: float | None = None) -> None:
        """Return when the broker has confirmed, else raise what became of it."""
        waiter = Waiter()
        self._hand_over(message, waiter.done, timeout)
        outcome, said = waiter.wait((self._timeout if timeout is None else timeout) + GRACE)
        if outcome is not Outcome.CONFIRMED:
            raise ERRORS[outcome](message.exchange, message.routing_key, said=said)

    def publish_many(self, messages: Iterable[Message], *, window: int = 1000, timeout: float | None = None) -> int:
        """Publish with at most ``window`` confirms outstanding; the first failure is raised when all have ended."""
        if window < 1:
            raise ValueError(f"The window of a batch is a whole number from 1, not {window!r}.")
        batch = Batch(window, (self._timeout if timeout is None else timeout) + GRACE)
        try:
            for message in messages:
                self._begin(batch, message, timeout)
                if batch.failure is not None:
                    break
        except BaseException as error:
            # Of the caller's own, between two messages, or one that cannot be written: the others have left.
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
        """Hand over and go on; ``done`` is called on the I/O thread, at once where the message cannot be written."""
        try:
            self._hand_over(message, done, timeout)
        except Exception as error:  # noqa: BLE001 - whoever hands over may be the I/O thread, which must not end of it
            done(Outcome.UNSENT, f"{UNWRITABLE}: {error}")

    def close(self) -> None:
        """Close the connection; what is not confirmed by then ends as unknown."""
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
            connection = self._usable
            if connection is None:
                self._waiting.append(pending)
            else:
                self._channel(connection, pending.message.exchange).send(pending)
        if not self._dialling:
            self._dialling = True
            self._link.open()
        if not self._looking:
            self._looking = True
            self._io.later(LOOK, self._look)

    @property
    def _usable(self) -> Connection | None:
        """The connection, if it takes messages: a lost one tells its channels of it before it tells us."""
        connection = self._link.connection
        return None if connection is None or not connection.is_open or self._blocked else connection

    def _channel(self, connection: Connection, exchange: str) -> ConfirmChannel:
        channel = self._channels.get(exchange)
        if channel is None:
            forget: Callable[[ConfirmChannel], None] = lambda gone: self._forget(exchange, gone)  # noqa: E731
            channel = self._channels[exchange] = ConfirmChannel(connection, closed=forget)
        return channel

    def _forget(self, exchange: str, gone: ConfirmChannel) -> None:
        if self._channels.get(exchange) is gone:
            del self._channels[exchange]
        self._waiting.extend(gone.unsent())
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
        """Send what waited, in its order."""
        connection = self._usable
        if connection is None:
            return
        waiting, self._waiting = self._waiting, deque()
        for pending in waiting:
            if not pending.ended:
                self._channel(connection, pending.message.exchange).send(pending)

    def _lost(self, reason: str, retry_in: float) -> None:
        self._trouble = reason
        log.warning("No publishing connection (%s), next try in %.1f s", reason, retry_in)
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            self._waiting.extend(channel.unsent())
            channel.lost(f"the connection was lost: {reason}")

    def _refused(self, error: BaseException) -> None:
        self._trouble = str(error)
        self._dialling = False
        waiting, self._waiting = self._waiting, deque()
        for pending in waiting:
            pending.end(Outcome.UNSENT, str(error))

    def _no_more(self) -> None:
        """The I/O thread has ended: whoever waits must hear of it."""
        for channel in list(self._channels.values()):
            self._waiting.extend(channel.unsent())
            channel.lost("the I/O thread ended")
        for pendings in (self._handed, self._waiting):
            while pendings:
                pendings.popleft().end(Outcome.UNSENT, "the I/O thread has ended")

    def _look(self) -> None:
        """End whatever is past its deadline; looked at only while something is on its way."""
        now = time.monotonic()
        for channel in self._channels.values():
            channel.forget(now)
        for pending in self._waiting:
            if pending.deadline <= now:
                pending.end(Outcome.UNSENT, self._trouble)
        self._waiting = deque(pending for pending in self._waiting if not pending.ended)
        self._looking = bool(self._waiting) or any(channel.busy for channel in self._channels.values())
        if self._looking:
            self._io.later(LOOK, self._look)
