"""Chooses the implementations and joins them: one publishing connection per process, opened when first needed."""

import atexit
import os
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from django.db import connections

from django_rmq_retry.broker.base import Publisher
from django_rmq_retry.broker.calling import PikaCaller
from django_rmq_retry.broker.consuming import PikaSource
from django_rmq_retry.broker.looping import IoThread
from django_rmq_retry.broker.publishing import PikaPublisher
from django_rmq_retry.conf import settings
from django_rmq_retry.core.subscription import Intake
from django_rmq_retry.runtime.attempt import Attempts, Surroundings
from django_rmq_retry.runtime.consumer import Consumer, Limits
from django_rmq_retry.runtime.events import Events


@dataclass(slots=True)
class _Process:
    """What this process has open. A child that was forked has nothing open, whatever its parent has."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    io: IoThread | None = None
    publisher: Publisher | None = None
    callers: dict[bool, PikaCaller] = field(default_factory=dict)


_process = _Process()
_parents: list[_Process] = []
"""What belongs to the process we were forked from: never used, and kept so that nothing of it is closed here."""


def publisher() -> Publisher:
    """The publishing connection of this process, for all its threads."""
    with _process.lock:
        if _process.publisher is None:
            _process.publisher = PikaPublisher(_io("rmq-publish"), settings().access())
        return _process.publisher


def caller(*, exclusive: bool = False) -> PikaCaller:
    """The calling connection of this process, with a direct or an exclusive answer queue."""
    with _process.lock:
        found = _process.callers.get(exclusive)
        if found is None:
            found = PikaCaller(_io("rmq-publish"), settings().access(), exclusive=exclusive)
            _process.callers[exclusive] = found
        return found


def consumer(intakes: Sequence[Intake], events: Events, *, threads: int, prefetch: int, limits: Limits) -> Consumer:
    """A consumer with its connections; its handlers publish over the same I/O thread."""
    now = settings()
    surroundings = Surroundings(
        around=_Around,
        journal=events,
        clock=time.monotonic,
        today=today,
        chance=random.random,
        crash_limit=now.crash_limit,
        reply_to=now.reply_to,
    )
    source = PikaSource(_io("rmq-io"), now.access(), publisher())
    return Consumer(intakes, source, Attempts(intakes, surroundings), threads=threads, prefetch=prefetch, limits=limits)


def today() -> int:
    """Milliseconds of the epoch."""
    return time.time_ns() // 1_000_000


def close() -> None:
    """Close what this process has open; the next use opens it anew."""
    global _process
    process, _process = _process, _Process()
    if process.publisher is not None:
        process.publisher.close()
    for one in process.callers.values():
        one.close()
    if process.io is not None:
        process.io.stop(timeout=2)


def _io(name: str) -> IoThread:
    with _process.lock:
        if _process.io is None:
            _process.io = IoThread(name)
            _process.io.start()
        return _process.io


class _Around:
    """Cares for Django's connections around one attempt, as a request does: old ones are closed before and after."""

    __slots__ = ()

    def __enter__(self) -> None:
        for connection in connections.all(initialized_only=True):
            connection.queries_log.clear()
            connection.close_if_unusable_or_obsolete()

    def __exit__(self, *_error: object) -> None:
        for connection in connections.all(initialized_only=True):
            connection.close_if_unusable_or_obsolete()


def _forked() -> None:
    """In the child: the parent's connections are the parent's."""
    global _process  # noqa: PLW0603 - there is one process
    _parents.append(_process)
    _process = _Process()


os.register_at_fork(after_in_child=_forked)
atexit.register(close)
