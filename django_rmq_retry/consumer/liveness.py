"""Signs of life of a process: its liveness file, and its states for the HTTP server."""

import json
import logging
import math
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from django_rmq_retry import hooks
from django_rmq_retry.consumer.consumer import Consumer
from django_rmq_retry.consumer.events import Events
from django_rmq_retry.health.rules import STUCK_FOR
from django_rmq_retry.recurring import LastingFailures
from django_rmq_retry.telemetry.meter import Meter, Slot

log = logging.getLogger("django_rmq_retry")

WRITE_SECONDS = 1.0
"""Seconds between two writes of the liveness file."""
STALE_SECONDS = 15.0
"""Seconds without a write after which a process counts as not responding."""

Content = dict[str, object]


class States:
    """The states of a process on its board, from which the HTTP server of ``--http`` answers."""

    def __init__(self, meter: Meter, consumer: Consumer, events: Events, *, threads: int) -> None:
        self._meter = meter
        self._consumer = consumer
        self._events = events
        self._counted = {Slot.UNANSWERED: 0, Slot.HOOK_FAILURES: 0}
        meter.add(Slot.STARTS)
        meter.set(Slot.THREADS, threads)
        self.beat()

    def beat(self) -> None:
        self._meter.set(Slot.BEAT, time.monotonic())

    def write(self) -> None:
        meter, consumer = self._meter, self._consumer
        meter.flush()
        meter.set(Slot.BUSY, consumer.running)
        meter.set(Slot.WAITING, consumer.waiting)
        meter.set(Slot.COPIES, consumer.copies)
        meter.set(Slot.CONNECTED, consumer.online)
        stuck = consumer.stuck_since
        stands = stuck is not None and time.monotonic() - stuck > STUCK_FOR.total_seconds()
        meter.set(Slot.READY, consumer.ready and not stands)
        self._count(Slot.UNANSWERED, self._events.unanswered)
        self._count(Slot.HOOK_FAILURES, sum(hooks.project_hooks().failures.values()))

    def end(self) -> None:
        """Write that the process is stopping: it is no longer ready, and counts as alive until it has ended."""
        self._meter.set(Slot.READY, 0.0)
        self._meter.set(Slot.BEAT, math.inf)

    def _count(self, slot: Slot, number: int) -> None:
        self._meter.add(slot, number - self._counted[slot])
        self._counted[slot] = number


class Pulse:
    """The sign of life of a process, at each tick at which its I/O thread has answered since the tick before."""

    def __init__(self, beats: Sequence[Callable[[], None]], *, ask: Callable[[Callable[[], None]], None]) -> None:
        self._beats = beats
        self._ask = ask
        self._answered = False

    def tick(self) -> None:
        """Show that the process works, if the I/O thread has answered, and ask it again. Called by the main thread."""
        if self._answered:
            self._answered = False
            for beat in self._beats:
                beat()
        self._ask(self._answer)

    def _answer(self) -> None:
        self._answered = True


class LivenessFile:
    """A file that is written each second while a process works, for a liveness probe."""

    def __init__(self, path: Path, content: Callable[[], Content]) -> None:
        self._path = path
        self._content = content
        self._due = 0.0
        self._failures = LastingFailures()

    def beat(self) -> None:
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + WRITE_SECONDS
        try:
            write(self._path, self._content())
            self._failures.ends()
        except OSError as error:
            # A full disk must not end the consumer; the file becomes stale, and the liveness probe decides.
            if self._failures.begins():
                log.warning("The liveness file cannot be written: %s", error, extra={"event": "liveness"})

    def end(self) -> None:
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


def write(path: Path, content: Content) -> None:
    """Replace a file atomically, so that its readers never see a part of it."""
    handle, name = tempfile.mkstemp(prefix=path.name, dir=path.parent)
    try:
        with os.fdopen(handle, "w") as file:
            json.dump({**content, "pid": os.getpid(), "beat": round(time.time(), 3)}, file, default=str)
        Path(name).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise


def content_of(consumer: Consumer, events: Events) -> Callable[[], Content]:
    """Return the function that makes the content of a consumer's liveness file."""

    def content() -> Content:
        return {
            "connected": consumer.online,
            "broker": str(consumer.server or ""),
            "queues": consumer.queues,
            "running": consumer.running,
            "waiting": consumer.waiting,
            "counts": {kind.value: count for kind, count in events.counts.items()},
            "duplicates": events.duplicates,
            "unanswered": events.unanswered,
            "halts": [{**asdict(halt), "since": round(halt.since, 3)} for halt in events.halts],
        }

    return content


def content_of_all(paths: Sequence[Path]) -> Callable[[], Content]:
    """Return the function that joins the liveness files of a supervisor's processes."""

    def content() -> Content:
        return {"processes": [json.loads(path.read_text()) for path in paths]}

    return content


def fresh(paths: Sequence[Path]) -> bool:
    """True if each of these files was written in the last STALE_SECONDS seconds."""
    try:
        return all(time.time() - path.stat().st_mtime < STALE_SECONDS for path in paths)
    except OSError:
        return False


def numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")
