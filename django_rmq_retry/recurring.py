"""A thread that does the same again and again, and the failures of which only the first is logged."""

import os
import secrets
import socket
import threading
from contextlib import suppress

from django.db import connections

_STARTED = secrets.token_hex(3)
"""Tells containers apart that share a host name: the main thread of each may be thread 1 of process 1."""


def thread_name(prefix: str) -> str:
    """Return a name for this thread, such as the holder of a lease; no two threads on any hosts have the same one."""
    return f"{prefix} {socket.gethostname()}:{os.getpid()}.{threading.get_native_id()}.{_STARTED}"


class Recurring:
    """A daemon thread that takes turns until it is stopped. A subclass overrides ``turn``, and ``at_end`` if needed."""

    def __init__(self, name: str) -> None:
        self.stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float | None = None) -> bool:
        """End after the current turn. Return True if the thread has ended within ``timeout`` seconds."""
        self.stopping.set()
        self.wake()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def turn(self) -> float:
        """Do what is due, and return the seconds until the next turn."""
        raise NotImplementedError

    def at_end(self) -> None:
        """Do what remains after the last turn."""

    def wait(self, seconds: float) -> None:
        self.stopping.wait(seconds)

    def wake(self) -> None:
        """End ``wait`` early, if a subclass waits for more than the end."""

    def _run(self) -> None:
        try:
            while not self.stopping.is_set():
                seconds = self.turn()
                if not self.stopping.is_set():
                    self.wait(seconds)
        finally:
            try:
                self.at_end()
            finally:
                with suppress(Exception):
                    connections.close_all()


class LastingFailures:
    """The failures that last: an outage raises the same error at each try, of which only the first is logged."""

    def __init__(self) -> None:
        self._lasting: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._lasting)

    def begins(self, what: str = "") -> bool:
        """Note a failure; return True if the try before it had succeeded."""
        new = what not in self._lasting
        self._lasting.add(what)
        return new

    def ends(self, what: str = "") -> None:
        self._lasting.discard(what)
