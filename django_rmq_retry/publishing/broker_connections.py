"""The connections of a process: opened on first use, one of each kind, never shared with a fork."""

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol

from django.db import DEFAULT_DB_ALIAS, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_rmq_retry.amqp.caller import PikaCaller
from django_rmq_retry.amqp.connection import IoThread
from django_rmq_retry.amqp.contracts import Caller, Publisher
from django_rmq_retry.amqp.publisher import PikaPublisher
from django_rmq_retry.conf import settings
from django_rmq_retry.messages.message import Message


class Outbox(Protocol):
    """Where messages wait for a commit: in the same database."""

    def takes(self, using: str) -> bool:
        """Whether it takes what is published inside a transaction of this database."""
        ...

    def keep(self, messages: Iterable[Message], *, using: str) -> int:
        """Write them in the open transaction, to be sent when it has committed; return how many."""
        ...


@dataclass(slots=True)
class _Process:
    """What this process has open. A child that was forked has nothing open, whatever its parent has."""

    io: IoThread | None = None
    publisher: Publisher | None = None
    callers: dict[bool, PikaCaller] = field(default_factory=dict)


_process = _Process()
_lock = threading.RLock()
_parents: list[_Process] = []
"""What belongs to the process we were forked from: never used, and kept so that nothing of it is closed here."""
_outbox: Outbox | None = None
in_once: ContextVar[bool] = ContextVar("rmq_retry_in_once", default=False)
"""Whether a handler runs here in a transaction of ours: what is published from its async code belongs to it too."""
_stand_in: tuple[Publisher, Callable[[bool], Caller]] | None = None


def use_outbox(outbox: Outbox) -> None:
    """From now on messages wait there for their commits. It knows models, which nobody who publishes may import."""
    global _outbox  # noqa: PLW0603 - there is one process
    _outbox = outbox


def outbox(using: str) -> Outbox | None:
    """Who keeps what is published inside a transaction of this database, if anybody does."""
    return _outbox if _outbox is not None and _outbox.takes(using) else None


@contextmanager
def replaced(publisher: Publisher, caller: Callable[[bool], Caller]) -> Iterator[None]:
    """For tests: everybody publishes and calls through these meanwhile, and nothing is opened."""
    global _stand_in  # noqa: PLW0603 - there is one process
    before, _stand_in = _stand_in, (publisher, caller)
    try:
        yield
    finally:
        _stand_in = before


def stands_in() -> bool:
    """Whether a test has put something else in the broker's place."""
    return _stand_in is not None


def in_transaction() -> bool:
    """Whether a commit is to come."""
    return open_transaction() is not None


def open_transaction() -> str | None:
    """The database whose commit is to come: the default one before others that are open as well."""
    begun = [connection for connection in connections.all(initialized_only=True) if _commits(connection)]
    names = [connection.alias for connection in begun]
    return DEFAULT_DB_ALIAS if DEFAULT_DB_ALIAS in names else next(iter(names), None)


def _commits(connection: BaseDatabaseWrapper) -> bool:
    """What a TestCase wraps around a test never commits: a stand-in looks through it."""
    if not connection.in_atomic_block or _stand_in is None:
        return bool(connection.in_atomic_block)
    return not all(getattr(block, "_from_testcase", False) for block in connection.atomic_blocks)


def publisher() -> Publisher:
    """The publishing connection of this process, for all its threads."""
    if _stand_in is not None:
        return _stand_in[0]
    with _lock:
        _renew()
        if _process.publisher is None:
            _process.publisher = PikaPublisher(io("rmq-publish"), settings().access())
        return _process.publisher


def caller(*, exclusive: bool = False) -> Caller:
    """The calling connection of this process, with a direct or an exclusive answer queue."""
    if _stand_in is not None:
        return _stand_in[1](exclusive)
    with _lock:
        _renew()
        found = _process.callers.get(exclusive)
        if found is None:
            found = PikaCaller(io("rmq-publish"), settings().access(), exclusive=exclusive)
            _process.callers[exclusive] = found
        return found


def close() -> None:
    """Close what this process has open; the next use opens it anew."""
    global _process
    with _lock:
        process, _process = _process, _Process()
    if process.publisher is not None:
        process.publisher.close()
    for one in process.callers.values():
        one.close()
    if process.io is not None:
        process.io.stop(timeout=2)


def io(name: str) -> IoThread:
    """The I/O thread of this process; whoever comes first names it."""
    with _lock:
        _renew()
        if _process.io is None:
            _process.io = IoThread(name)
            _process.io.start()
        return _process.io


def _renew() -> None:
    """Begin afresh where the I/O thread has died: what stood on it has ended as unknown or unsent."""
    global _process  # noqa: PLW0603 - there is one process
    if _process.io is not None and not _process.io.alive:
        _process = _Process()


def _forked() -> None:
    """In the child: the parent's connections are the parent's, and so is whoever held its lock."""
    global _lock, _process  # noqa: PLW0603 - there is one process
    _lock = threading.RLock()
    _parents.append(_process)
    _process = _Process()


os.register_at_fork(after_in_child=_forked)
atexit.register(close)


log = logging.getLogger("django_rmq_retry")

PATIENCE = 1.0
"""Seconds that a commit waits for its confirms, once."""
PROBE = 2.0
"""Seconds between two messages that are sent to a broker that was away, without waiting for it."""


class Reach:
    """Whether the broker answers; shared by all threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._away = False
        self._probe_at = 0.0

    @property
    def away(self) -> bool:
        return self._away

    @property
    def patience(self) -> float:
        """How long to wait for an answer."""
        return 0.0 if self._away else PATIENCE

    def worth_keeping(self) -> bool:
        """Whether a row that is written now is likely to be sent by its own commit."""
        return not self._away or self._clock() >= self._probe_at

    def worth_trying(self) -> bool:
        """Whether to send at all: always while it is there, and now and then while it is away."""
        if not self._away:
            return True
        with self._lock:
            if self._clock() < self._probe_at:
                return False
            self._probe_at = self._clock() + PROBE
            return True

    def lost(self, why: str) -> None:
        """The broker did not answer: say so once. What a test has put in its place is never away."""
        if stands_in():
            return
        with self._lock:
            first, self._away = not self._away, True
            self._probe_at = self._clock() + PROBE
        if first:
            said = "Messages stay in the outbox and are sent by a relay, for the broker does not answer: %s"
            log.warning(said, why, extra={"event": "outbox waits"})

    def found(self) -> None:
        """It did answer."""
        if self._away:
            self._away = False
            log.info("The broker answers again", extra={"event": "outbox goes on"})


reach = Reach()


def _reach_forked() -> None:
    """In the child: whoever held the lock is not there, and would be waited for at every commit."""
    reach._lock = threading.Lock()  # noqa: SLF001 - of this very module


os.register_at_fork(after_in_child=_reach_forked)
