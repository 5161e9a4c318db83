"""A file that is fresh as long as the process does its work: for probes of systemd, Docker and Kubernetes."""

import json
import logging
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from django_rmq_retry.runtime.consumer import Consumer
from django_rmq_retry.runtime.events import Events

log = logging.getLogger("django_rmq_retry")

EVERY = 1.0
STALE = 15.0
"""Seconds after which a process that has not written is taken for deaf."""

Call = Callable[[], None]
Content = dict[str, object]


class Liveness:
    """Writes what ``content`` tells, each second, if who was asked has answered since the last time."""

    def __init__(self, path: Path, content: Callable[[], Content], *, ask: Callable[[Call], None]) -> None:
        self._path = path
        self._content = content
        self._ask = ask
        self._answered = False
        self._next = 0.0
        self._failing = False

    def beat(self) -> None:
        """To be called again and again by the main thread."""
        now = time.monotonic()
        if self._answered and now >= self._next:
            self._answered = False
            self._next = now + EVERY
            self._write()
        self._ask(self._answer)

    def end(self) -> None:
        """Remove the file: nobody is alive here any more."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    def _answer(self) -> None:
        self._answered = True

    def _write(self) -> None:
        try:
            write(self._path, self._content())
            self._failing = False
        except OSError as error:
            # A full disk must not end the work; the file goes stale, and the probe decides.
            if not self._failing:
                log.warning("The liveness file cannot be written: %s", error, extra={"event": "liveness"})
            self._failing = True


def write(path: Path, content: Content) -> None:
    """Replace a file as a whole: who reads it never sees half of it."""
    handle, name = tempfile.mkstemp(prefix=path.name, dir=path.parent)
    try:
        with os.fdopen(handle, "w") as file:
            json.dump({**content, "pid": os.getpid(), "beat": round(time.time(), 3)}, file, default=str)
        Path(name).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise


def told_by(consumer: Consumer, events: Events) -> Callable[[], Content]:
    """What a consumer tells of itself."""

    def content() -> Content:
        return {
            "connected": consumer.online,
            "broker": str(consumer.server or ""),
            "queues": consumer.queues,
            "running": consumer.running,
            "waiting": consumer.waiting,
            "counts": {kind.value: count for kind, count in events.counts.items()},
            "duplicates": events.duplicates,
            "halts": [
                {
                    "queue": halt.queue,
                    "since": round(halt.since, 3),
                    "attempt": halt.attempt,
                    "error": halt.error,
                    "message_id": halt.message_id,
                }
                for halt in events.halts
            ],
        }

    return content


def told_by_all(paths: Sequence[Path]) -> Callable[[], Content]:
    """What the processes of a supervisor tell together."""

    def content() -> Content:
        return {"processes": [json.loads(path.read_text()) for path in paths]}

    return content


def fresh(paths: Sequence[Path]) -> bool:
    """Whether each of these was written lately."""
    try:
        return all(time.time() - path.stat().st_mtime < STALE for path in paths)
    except OSError:
        return False
