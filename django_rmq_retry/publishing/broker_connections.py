"""The connections of a process: opened on first use, one of each kind, never shared with a fork."""

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property

from django_rmq_retry.amqp.caller import PikaCaller
from django_rmq_retry.amqp.connection import IoThread
from django_rmq_retry.amqp.contracts import Caller, Publisher
from django_rmq_retry.amqp.publisher import PikaPublisher
from django_rmq_retry.conf import settings

log = logging.getLogger("django_rmq_retry")

in_once: ContextVar[bool] = ContextVar("rmq_retry_in_once", default=False)
"""Whether a handler runs here in a transaction of ours: what its async code publishes belongs to that transaction."""


class Connections:
    """What a process has open; each connection is opened on first use, for all threads."""

    replaced = False
    """Whether a test has put something else in the broker's place."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._io: IoThread | None = None
        self._callers: dict[bool, PikaCaller] = {}

    @cached_property
    def publisher(self) -> Publisher:
        """The publishing connection. From the second use on a plain attribute: it is read at every publish."""
        with self._lock:
            # Two threads may be here: cached_property has no lock of its own.
            made = self.__dict__.get("publisher") or PikaPublisher(self.io("rmq-publish"), settings().access())
            self.__dict__["publisher"] = made
            return made

    def caller(self, *, exclusive: bool = False) -> Caller:
        """The calling connection, with a direct or an exclusive answer queue."""
        with self._lock:
            found = self._callers.get(exclusive)
            if found is None:
                found = PikaCaller(self.io("rmq-publish"), settings().access(), exclusive=exclusive)
                self._callers[exclusive] = found
            return found

    def io(self, name: str) -> IoThread:
        """The I/O thread; its first user names it."""
        with self._lock:
            if self._io is None:
                self._io = IoThread(name)
                self._io.at_end(self._io_ended)
                self._io.start()
            return self._io

    @property
    def usable(self) -> bool:
        """False once the I/O thread has died: what was published by it has ended as unknown or unsent."""
        return self._io is None or self._io.alive

    def close(self) -> None:
        """Close what is open."""
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
        if current is self:
            _replace(Connections())


class StandIn(Connections):
    """What a test puts in the broker's place. It is never away, and nothing is opened."""

    replaced = True

    def __init__(self, publisher: Publisher, caller: Callable[[bool], Caller]) -> None:
        super().__init__()
        self.__dict__["publisher"] = publisher
        self._caller = caller

    def caller(self, *, exclusive: bool = False) -> Caller:
        return self._caller(exclusive)


current = Connections()
"""The connections of this process; replaced whole after a fork, a close or the end of the I/O thread, and in tests."""
_parents: list[Connections] = []
"""What belongs to the process we were forked from: never used, and kept so that nothing of it is closed here."""


def _replace(connections: Connections) -> Connections:
    global current
    before, current = current, connections
    return before


@contextmanager
def replaced(publisher: Publisher, caller: Callable[[bool], Caller]) -> Iterator[None]:
    """For tests: publish and call through these meanwhile."""
    before = _replace(StandIn(publisher, caller))
    try:
        yield
    finally:
        _replace(before if before.usable else Connections())


def close() -> None:
    """Close what this process has open; the next use opens it again."""
    if not current.replaced:
        _replace(Connections()).close()


def _forked() -> None:
    """In the child: the parent's connections are the parent's, and so are the holders of its locks."""
    _parents.append(_replace(Connections()))
    reach.forked()


PATIENCE = 1.0
"""Seconds that a commit waits for its confirms, once."""
PROBE = 2.0
"""Seconds between two messages that are sent to a broker that was away, without waiting for it."""


class Reach:
    """Whether the broker answers; shared by all threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._probe_at = 0.0
        self.away = False

    def probe_due(self) -> bool:
        """Tell whether the broker that was away is to be tried again."""
        return self._clock() >= self._probe_at

    def take_probe(self) -> bool:
        """As `probe_due`, for one thread only: the next probe is due later."""
        with self._lock:
            if not self.probe_due():
                return False
            self._probe_at = self._clock() + PROBE
            return True

    def lost(self, why: str) -> None:
        """Note that the broker did not answer; logged once. What a test has put in its place is never away."""
        if current.replaced:
            return
        with self._lock:
            first, self.away = not self.away, True
            self._probe_at = self._clock() + PROBE
        if first:
            said = "The broker does not answer; messages stay in the outbox until a relay sends them: %s"
            log.warning(said, why, extra={"event": "outbox_waiting"})

    def found(self) -> None:
        """Note that the broker answers again."""
        if self.away:
            self.away = False
            log.info("The broker answers again", extra={"event": "outbox_resumed"})

    def forked(self) -> None:
        """In a child: the thread that held the lock does not exist here."""
        self._lock = threading.Lock()


reach = Reach()
os.register_at_fork(after_in_child=_forked)
atexit.register(close)
