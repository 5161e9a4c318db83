"""The thread of a relay, and its wake-up calls."""

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
    """Used by one thread; ``wake`` by all."""

    def __init__(self) -> None:
        self._near, self._far = socket.socketpair()
        self._near.setblocking(False)  # noqa: FBT003 - as Python has it
        self._far.setblocking(False)  # noqa: FBT003 - as Python has it
        self._listening: dict[str, BaseDatabaseWrapper] = {}

    def wake(self) -> None:
        with suppress(OSError):
            self._far.send(b"!")

    def listens(self, using: str) -> bool:
        """Whether calls about this database are heard; a connection of its own is opened for it, if need be."""
        if connections[using].vendor != "postgresql":
            return False
        if using not in self._listening:
            try:
                self._listening[using] = _listening(using)
            except Exception as error:  # noqa: BLE001 - whatever its driver says: then it looks more often
                log.debug("The database %r cannot be listened to: %s", using, error)
        return using in self._listening

    def wait(self, seconds: float) -> None:
        """Until something is heard, or the time is over."""
        ears: dict[Any, str] = {one.connection: using for using, one in self._listening.items()}
        try:
            heard, _, _ = select.select([self._near, *ears], [], [], max(0.0, seconds))
        except (OSError, ValueError):
            # A connection that was closed beneath us.
            self.deafen()
            return
        for one in heard:
            if one is self._near:
                _drain(self._near)
            else:
                self._hear(ears[one])

    def deafen(self) -> None:
        """Close what listens; it is opened anew when it is asked for."""
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
        except Exception:  # noqa: BLE001 - it was lost
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
"""Seconds between two looks where nobody calls."""
LISTENING_POLL = 3.0
SOONEST = 0.05
AGAIN = 1.0
"""Seconds after which a broker or database that is away is tried again."""
PATIENCE = 30.0
"""Seconds without an answer and without a message sent after which nothing more is expected of a round."""

Around = Callable[[], AbstractContextManager[object]]
Told = Callable[[bool], None]


class Relaying:
    """Relays for all databases that have an outbox; one that is away stops its own and no other."""

    def __init__(self, *, around: Around = nullcontext, burst: bool = False) -> None:
        self._around = around
        self._burst = burst
        self._ended = threading.Event()
        self.over = threading.Event()
        """Set when it has ended, by itself too."""
        self.away = ""
        """After a burst: why the broker did not take all."""
        self._ears = Ears()
        self._thread = threading.Thread(target=self._run, name="rmq-relay", daemon=True)
        self._relays: dict[str, Relay] = {}
        self._failing: set[str] = set()
        self.sent = 0
        self._asking: queue.SimpleQueue[Told] = queue.SimpleQueue()
        self._told = self._seen = 0
        """How many were sent when it was last told, and last asked, whether there is more."""
        self._since = 0.0
        """Since when somebody who asks so has had no answer, and nothing was sent."""

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        self._ears.wake()

    def empty(self, told: Told) -> None:
        """Tell, after its next round, whether nothing was sent since this was last told, and nothing more can be now.

        A database that does not even refuse is not waited for without end.
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
        """End after the batch under way; whether it has ended by then."""
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
        """Serve every database; seconds until something is due again."""
        waits = [LISTENING_POLL]
        for using in outbox_rows.served():
            if self._ended.is_set():
                return 0.0
            try:
                with self._around():
                    waits.append(self._serve(using))
                self._failing.discard(using)
            except Exception as error:  # noqa: BLE001 - the thread lives as long as its process
                self.away = self.away or str(error)
                self._complain(using, error)
                waits.append(AGAIN)
        return min(waits)

    def _serve(self, using: str) -> float:
        if not outbox_rows.made(using):
            return LISTENING_POLL
        # Before it looks: what is called in between must be heard.
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
        """Once: a database that is away for hours says the same each time."""
        connection = connections[using]
        if not connection.in_atomic_block:
            connection.close()
        if using not in self._failing:
            said = "The outbox of %r cannot be served; tried again every %g s: %s"
            log.warning(said, using, AGAIN, " ".join(str(error).split()), extra={"event": "relay"})
        self._failing.add(using)
