"""What wakes a relay: a call on PostgreSQL's channel, somebody in its own process, or time."""

import logging
import select
import socket
from contextlib import suppress
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_rmq_retry.outbox.settling import CHANNEL

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
