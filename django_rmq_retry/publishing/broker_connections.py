"""The broker connections of a process: one of each kind, opened on first use, never shared with a forked child."""

import atexit
import logging
import os
import threading
import time
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import replace
from functools import cached_property

from django_rmq_retry.amqp.caller import PikaCaller
from django_rmq_retry.amqp.contracts import Caller, Publisher
from django_rmq_retry.amqp.io_thread import IoThread
from django_rmq_retry.amqp.publisher import PikaPublisher
from django_rmq_retry.amqp.session import Session
from django_rmq_retry.conf import settings
from django_rmq_retry.publishing.target_queues import BrokersQueues, TargetQueues

log = logging.getLogger("django_rmq_retry")

in_once: ContextVar[bool] = ContextVar("rmq_retry_in_once", default=False)
"""True while a handler with ``once`` runs in its transaction: what its async code publishes joins that transaction."""

PROBE_SECONDS = 2.0
"""Seconds between probes while the broker is unreachable. A probe is sent without waiting for its confirm."""


class Reach:
    """The reachability of the broker, shared by all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._probe_at = 0.0
        self.away = False

    def probe_due(self) -> bool:
        return time.monotonic() >= self._probe_at

    def take_probe(self) -> bool:
        """Like `probe_due`, but True for one thread only: the next probe is due PROBE_SECONDS later."""
        with self._lock:
            if not self.probe_due():
                return False
            self._probe_at = time.monotonic() + PROBE_SECONDS
            return True

    def lost(self, why: str) -> None:
        """Record that the broker did not answer, and log it once."""
        with self._lock:
            first, self.away = not self.away, True
            self._probe_at = time.monotonic() + PROBE_SECONDS
        if first:
            text = "The broker does not answer; messages stay in the outbox until a relay sends them: %s"
            log.warning(text, why, extra={"event": "outbox_waiting"})

    def found(self) -> None:
        if self.away:
            self.away = False
            log.info("The broker answers again", extra={"event": "outbox_resumed"})


class Connections:
    """The broker of a process: connections of all threads, each opened on first use, and whether it answers."""

    def __init__(self, reach: Reach | None = None) -> None:
        self.reach = Reach() if reach is None else reach
        self._lock = threading.RLock()
        self._io: IoThread | None = None
        self._callers: dict[bool, PikaCaller] = {}

    @cached_property
    def publisher(self) -> Publisher:
        """The publishing connection, a plain attribute after the first access, because every publish reads it."""
        with self._lock:
            # Two threads may run this at once, because cached_property has no lock.
            if "publisher" not in self.__dict__:
                self.publisher = PikaPublisher(self.io("rmq-publish"), settings().access())
            return self.publisher

    def caller(self, *, exclusive: bool = False) -> Caller:
        """Return the connection for calls, with a direct reply-to or an exclusive answer queue."""
        with self._lock:
            caller = self._callers.get(exclusive)
            if caller is None:
                caller = PikaCaller(self.io("rmq-publish"), settings().access(), exclusive=exclusive)
                self._callers[exclusive] = caller
            return caller

    def io(self, name: str) -> IoThread:
        """Return the I/O thread, started on first use with the name given then."""
        with self._lock:
            if self._io is None:
                self._io = IoThread(name)
                self._io.at_end(self._io_ended)
                self._io.start()
            return self._io

    def session(self, *, purpose: str, patience: float) -> AbstractContextManager[Session | None]:
        """Return a short connection for questions; each waits ``patience`` seconds. None if there is no server."""
        return _session(purpose, patience)

    def target_queues(self, patience: float) -> TargetQueues:
        """Return what is asked about queues; each question waits ``patience`` seconds for the broker."""
        return BrokersQueues(lambda: _session("run", patience))

    @property
    def usable(self) -> bool:
        """False after the I/O thread has died. Its unfinished publishes have ended as unknown or unsent."""
        return self._io is None or self._io.alive

    def close(self) -> None:
        with self._lock:
            publisher = self.__dict__.pop("publisher", None)
            callers, self._callers = self._callers, {}
            io, self._io = self._io, None
        if publisher is not None:
            publisher.close()
        for one in callers.values():
            one.close()
        if io is not None:
            io.stop(timeout=2)

    def _io_ended(self) -> None:
        if connections is self:
            replace_connections(Connections(self.reach))


def _session(purpose: str, patience: float) -> Session:
    access = settings().access()
    timeout = min(access.connect_timeout, patience)
    return Session(replace(access, connect_timeout=timeout), purpose=purpose, patience=patience)


connections = Connections()
"""The broker of this process; replaced after a fork, a close or the end of the I/O thread."""

_parents: list[Connections] = []
"""The connections of the parent process, in a forked child. Never used; kept so that garbage collection closes none."""


def replace_connections(others: Connections) -> Connections:
    """Let this process use other connections; return the ones that it used."""
    global connections
    before, connections = connections, others
    return before


def close() -> None:
    """Close all connections of this process; the next use opens new ones."""
    connections.close()


def _forked() -> None:
    """Replace connections and locks in a forked child: they belong to the parent and to threads that are not here."""
    _parents.append(replace_connections(Connections()))


os.register_at_fork(after_in_child=_forked)

atexit.register(close)
