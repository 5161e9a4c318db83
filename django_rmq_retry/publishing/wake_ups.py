"""What wakes the relays of a process: a commit in this process, or a notification of PostgreSQL."""

import logging
import selectors
import socket
import threading
from contextlib import suppress
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_rmq_retry.publishing.outbox_rows import CHANNEL

log = logging.getLogger("django_rmq_retry")

ERROR_SECONDS = 1.0


class WakeUps:
    """Waits for signals of this process and of PostgreSQL, in one thread; any thread may call ``wake``."""

    def __init__(self) -> None:
        self._near, self._far = socket.socketpair()
        self._near.setblocking(False)  # noqa: FBT003 - Python's own signature
        self._far.setblocking(False)  # noqa: FBT003 - Python's own signature
        self._woken = threading.Event()
        """Replaces the sockets after an error."""
        self._listening: dict[str, BaseDatabaseWrapper] = {}

    def wake(self) -> None:
        self._woken.set()
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
                text = "The relay cannot receive notifications of database %r, and polls it: %s"
                log.debug(text, using, error, extra={"event": "relay_polls", "database": using})
        return using in self._listening

    def wait(self, seconds: float) -> None:
        """Wait until a signal arrives or the time is over; after an error at most ERROR_SECONDS."""
        seconds = max(0.0, seconds)
        try:
            signalled = self._wait_for_signals(seconds)
        except Exception as error:  # noqa: BLE001 - a driver's connection that was closed raises errors of its own
            text = "The relay cannot watch its connections, and polls its databases: %s"
            log.debug(text, error, extra={"event": "relay_polls"})
            self.stop_listening()
            # Without this wait an error that remains would make the relay ask its databases without a pause.
            self._woken.wait(min(seconds, ERROR_SECONDS))
            signalled = []
        self._woken.clear()
        for using in signalled:
            self._read_notifications(using)

    def _wait_for_signals(self, seconds: float) -> list[str]:
        # `select` refuses descriptors above 1023.
        with selectors.DefaultSelector() as watched:
            watched.register(self._near, selectors.EVENT_READ)
            for using, one in self._listening.items():
                watched.register(one.connection, selectors.EVENT_READ, using)
            ready = [key.data for key, _events in watched.select(seconds)]
        with suppress(BlockingIOError):
            while self._near.recv(4096):
                pass
        return [using for using in ready if using is not None]

    def stop_listening(self) -> None:
        """Close the listening connections. `listens` opens them again."""
        for using in list(self._listening):
            self._drop(using)

    def close(self) -> None:
        self.stop_listening()
        self._near.close()
        self._far.close()

    def _read_notifications(self, using: str) -> None:
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
