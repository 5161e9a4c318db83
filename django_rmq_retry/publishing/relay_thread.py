"""The thread that runs the relays, and its wake-up signals."""

import logging
import queue
import select
import socket
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_rmq_retry.publishing import outbox_rows
from django_rmq_retry.publishing import relay as claiming
from django_rmq_retry.publishing.outbox_rows import CHANNEL
from django_rmq_retry.publishing.relay import Relay, Turn

log = logging.getLogger("django_rmq_retry")


class Ears:
    """Waits for wake-up signals from this process and from PostgreSQL.

    One thread uses it; any thread may call ``wake``.
    """

    def __init__(self) -> None:
        self._near, self._far = socket.socketpair()
        self._near.setblocking(False)  # noqa: FBT003 - Python's own signature
        self._far.setblocking(False)  # noqa: FBT003 - Python's own signature
        self._listening: dict[str, BaseDatabaseWrapper] = {}

    def wake(self) -> None:
        with suppress(OSError):
            self._far.send(b"!")

    def listens(self, using: str) -> bool:
        """True if notifications of this database are received; opens a separate connection for them if needed."""
        if connections[using].vendor != "postgresql":
            return False
        if using not in self._listening:
            try:
                self._listening[using] = _listening(using)
            except Exception as error:  # noqa: BLE001 - on any driver error the relay polls more often instead
                log.debug("The database %r cannot be listened to: %s", using, error)
        return using in self._listening

    def wait(self, seconds: float) -> None:
        """Wait until a signal arrives or the time is over."""
        ears: dict[Any, str] = {one.connection: using for using, one in self._listening.items()}
        try:
            heard, _, _ = select.select([self._near, *ears], [], [], max(0.0, seconds))
        except (OSError, ValueError):
            # One of the connections was closed.
            self.deafen()
            return
        for one in heard:
            if one is self._near:
                _drain(self._near)
            else:
                self._hear(ears[one])

    def deafen(self) -> None:
        """Close the listening connections. `listens` opens them again."""
        for using in list(self._listening):
            self._drop(using)

    def close(self) -> None:
        self.deafen()
        self._near.close()
        self._far.close()

    def _hear(self, using: str) -> None:
        raw: Any = self._listening[using].connection
        try:
            if hasattr(raw, "pgconn"):
                raw.pgconn.consume_input()
                while raw.pgconn.notifies():
                    pass
            else:
                raw.poll()
                raw.notifies.clear()
        except Exception:  # noqa: BLE001 - the connection was lost
            self._drop(using)

    def _drop(self, using: str) -> None:
        with suppress(Exception):
            self._listening.pop(using).close()


def _listening(using: str) -> BaseDatabaseWrapper:
    connection = connections[using].copy()
    with connection.cursor() as cursor:
        cursor.execute(f"LISTEN {CHANNEL}")
    return connection


def _drain(near: socket.socket) -> None:
    with suppress(BlockingIOError):
        while near.recv(4096):
            pass


POLL = 1.0
"""Seconds between polls of a database without notifications."""
LISTENING_POLL = 3.0
SOONEST = 0.05
AGAIN = 1.0
"""Seconds after which an unreachable broker or database is tried again."""
PATIENCE = 30.0
"""Seconds without a finished round and without a sent message after which `empty` stops waiting for a round."""

Around = Callable[[], AbstractContextManager[object]]
Told = Callable[[bool], None]


class Relaying:
    """The thread with the relays of all databases that have an outbox.

    An unreachable database stops its own relay only.
    """

    def __init__(self, *, around: Around = nullcontext, burst: bool = False) -> None:
        self._around = around
        self._burst = burst
        self._ended = threading.Event()
        self.over = threading.Event()
        """Set when the thread has ended, after `stop` or by itself."""
        self.away = ""
        """The reason why not all rows were sent; read after a burst."""
        self._ears = Ears()
        self._thread = threading.Thread(target=self._run, name="rmq-relay", daemon=True)
        self._relays: dict[str, Relay] = {}
        self._failing: set[str] = set()
        self.sent = 0
        self._asking: queue.SimpleQueue[Told] = queue.SimpleQueue()
        self._told = self._seen = 0
        """The values of `sent` when `empty` last reported a result, and when it was last called."""
        self._since = 0.0
        """The time since which a caller of `empty` has had no result, and no message was sent."""

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        self._ears.wake()

    def empty(self, told: Told) -> None:
        """Call the given function after the next round, with True if no message was sent since the last report.

        It is called with True at once if the thread has ended, or after PATIENCE seconds without progress, because a
        database that does not respond would block the round.
        """
        now = time.monotonic()
        if not self._since or self._seen != self.sent:
            self._since, self._seen = now, self.sent
        if self.over.is_set() or now - self._since > PATIENCE:
            told(True)  # noqa: FBT003 - the answer
            return
        self._asking.put(told)
        self.wake()

    def stop(self, timeout: float | None = None) -> bool:
        """End after the current batch. True if the thread has ended within `timeout` seconds."""
        self._ended.set()
        self.wake()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        outbox_rows.wakers.add(self.wake)
        try:
            while not self._ended.is_set():
                asking = [self._asking.get() for _ in range(self._asking.qsize())]
                wait = self._round()
                self._tell(asking)
                if self._burst:
                    break
                self._ears.wait(wait)
        finally:
            outbox_rows.wakers.discard(self.wake)
            self._ears.close()
            connections.close_all()
            self.over.set()

    def _tell(self, asking: list[Told]) -> None:
        if not asking:
            return
        quiet, self._told, self._since = self.sent == self._told, self.sent, 0.0
        for told in asking:
            told(quiet)

    def _round(self) -> float:
        """Serve each database, and return the seconds until the next round."""
        waits = [LISTENING_POLL]
        for using in outbox_rows.served():
            if self._ended.is_set():
                return 0.0
            try:
                with self._around():
                    waits.append(self._serve(using))
                self._failing.discard(using)
            except Exception as error:  # noqa: BLE001 - the thread must survive any error
                self.away = self.away or str(error)
                self._complain(using, error)
                waits.append(AGAIN)
        return min(waits)

    def _serve(self, using: str) -> float:
        if not outbox_rows.made(using):
            return LISTENING_POLL
        # Start listening before reading the table, so that no notification in between is lost.
        poll = LISTENING_POLL if self._ears.listens(using) else POLL
        away = self._emptied(using).away
        if away:
            self.away = self.away or away
            return AGAIN
        due = claiming.next_due(using)
        return poll if due is None else max(SOONEST, min(poll, due))

    def _emptied(self, using: str) -> Turn:
        relay = self._relays.setdefault(using, Relay(using, ended=self._ended))
        while True:
            turn = relay.turn()
            self.sent += turn.sent
            if turn.sent:
                log.info("%s messages left the outbox of %r", turn.sent, using, extra={"event": "relayed"})
            if turn.nothing or turn.away or self._ended.is_set():
                relay.forget()
                return turn

    def _complain(self, using: str, error: Exception) -> None:
        """Log an error of a database once, until it is served again: an outage repeats the same error."""
        connection = connections[using]
        if not connection.in_atomic_block:
            connection.close()
        if using not in self._failing:
            said = "The outbox of %r cannot be served; tried again every %g s: %s"
            log.warning(said, using, AGAIN, " ".join(str(error).split()), extra={"event": "relay"})
        self._failing.add(using)
