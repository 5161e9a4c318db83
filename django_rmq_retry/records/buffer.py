"""Between the workers and the database: what is to be remembered waits here, and one thread writes it in batches."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Protocol

from django.db import DataError, IntegrityError, OperationalError, connections

from django_rmq_retry.core.verdict import ErrorNote
from django_rmq_retry.records.rows import Draft

log = logging.getLogger("django_rmq_retry")

AT_ONCE = 400
EVERY = 0.2
"""Seconds within which what comes is written, or sooner if it is much."""
MOST, ROOM = 10_000, 64 * 1024 * 1024
"""What waits at most, in rows and in bytes."""
FIRST_WAIT, LONGEST_WAIT = 1.0, 60.0
BAD_TEXT = 1366
"""MySQL's number for a character that the table's character set has not."""
Outcome = Callable[[], None]


class Write(Protocol):
    """Adds drafts to the table, all or none; plain ones without characters that some database might not have."""

    def __call__(self, drafts: Sequence[Draft], *, plain: bool = False) -> None: ...


class Buffer:
    """Takes what the workers hand over, and never makes them wait. Its thread starts with the first of it."""

    def __init__(self, write: Write, *, most: int = MOST, room: int = ROOM) -> None:
        self._write = write
        self._most, self._room = most, room
        self._drafts: deque[Draft] = deque()
        self._outcomes: deque[Outcome] = deque()
        self._size = 0
        self._dropped = 0
        self._lock = threading.Lock()
        self._some, self._full, self._closing = threading.Event(), threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self.away = False
        """Whether the database could not be written to when it was last tried."""

    def __len__(self) -> int:
        return len(self._drafts) + len(self._outcomes)

    def add(self, draft: Draft) -> None:
        """Take a row; the oldest ones make room for it."""
        with self._lock:
            self._drafts.append(draft)
            self._size += draft.size
            self._make_room()
        self._wake()

    def add_outcome(self, outcome: Outcome) -> None:
        """Take what must not be lost: it is tried until the database has it."""
        with self._lock:
            self._outcomes.append(outcome)
        self._wake()

    def flush(self) -> None:
        """Write what waits by now, in this thread; raises what the database raises.

        What comes meanwhile is for the next turn: under load a few rows would come during each commit, for ever.
        """
        while self._outcomes:
            try:
                self._outcomes[0]()
            except Exception as error:
                if not _refused(error):
                    raise
                log.exception("An outcome cannot be stored: its record stays as it is", extra={"event": "unrecorded"})
            self._outcomes.popleft()
        left = len(self._drafts)
        while left > 0:
            some = self._taken(left)
            if not some:
                return
            left -= len(some)
            try:
                self._write_some(some)
            except BaseException:
                self._put_back(some)
                raise

    def close(self, timeout: float) -> None:
        """Write what waits if that can be done soon, and end the thread."""
        thread = self._thread
        self._closing.set()
        self._some.set()
        self._full.set()
        if thread is not None:
            thread.join(timeout)
        left = len(self)
        if left or self._dropped:
            log.error(
                "%s attempts and outcomes were not recorded: no database", left + self._dropped, extra={"event": "lost"}
            )
        self._dropped = 0

    def _wake(self) -> None:
        if self._thread is None:
            self._begin()
        if not self._some.is_set():
            self._some.set()
        if len(self._drafts) >= AT_ONCE and not self._full.is_set():
            self._full.set()

    def _begin(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="rmq-recorder", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        wait = 0.0
        try:
            while not (self._closing.is_set() and (wait or not len(self))):
                wait = self._step(wait)
        finally:
            connections.close_all()

    def _step(self, wait: float) -> float:
        """One batch; return how long to wait after it failed, 0 after it went well."""
        if wait:
            self._closing.wait(wait)
        else:
            self._some.wait()
            self._full.wait(EVERY)
        self._some.clear()
        if not self._closing.is_set():
            self._full.clear()
        try:
            self.flush()
        except Exception as error:  # noqa: BLE001 - of whatever kind: it is told, and tried again
            return self._failed(error, wait)
        if self.away:
            self.away = False
            log.warning("Attempts are recorded again%s", self._told_dropped(), extra={"event": "recorded"})
        _tidy()
        return 0.0

    def _failed(self, error: Exception, wait: float) -> float:
        self.away = True
        following = min(wait * 2 or FIRST_WAIT, LONGEST_WAIT)
        log.warning(
            "Attempts cannot be recorded (%r); %s wait%s, next try in %.0f s",
            str(ErrorNote.of(error)),
            len(self),
            self._told_dropped(),
            following,
            extra={"event": "unrecorded"},
        )
        connections.close_all()
        return following

    def _told_dropped(self) -> str:
        with self._lock:
            dropped, self._dropped = self._dropped, 0
        return f", {dropped} were given up" if dropped else ""

    def _taken(self, most: int) -> list[Draft]:
        with self._lock:
            some = list(islice(self._drafts, min(most, AT_ONCE)))
            for draft in some:
                self._drafts.popleft()
                self._size -= draft.size
        return some

    def _put_back(self, some: Iterable[Draft]) -> None:
        with self._lock:
            for draft in reversed(list(some)):
                self._drafts.appendleft(draft)
                self._size += draft.size
            self._make_room()

    def _make_room(self) -> None:
        while len(self._drafts) > self._most or (self._size > self._room and len(self._drafts) > 1):
            self._size -= self._drafts.popleft().size
            self._dropped += 1

    def _write_some(self, some: list[Draft]) -> None:
        """All at once; or, if one of them is refused for what it holds, one after the other."""
        try:
            self._write(some)
        except Exception as error:
            if not _refused(error):
                raise
            while some:
                self._write_one(some[0])
                some.pop(0)

    def _write_one(self, draft: Draft) -> None:
        for plain in (False, True):
            try:
                self._write([draft], plain=plain)
            except Exception as error:
                if not _refused(error):
                    raise
                said = str(ErrorNote.of(error))
            else:
                return
        log.error("An attempt of queue %r cannot be stored: %r", draft.queue, said, extra={"event": "unrecorded"})


def _refused(error: Exception) -> bool:
    """Whether a row is at fault, and not the database."""
    if isinstance(error, OperationalError):
        return error.args[:1] == (BAD_TEXT,)
    return isinstance(error, (DataError, IntegrityError, ValueError, TypeError, OverflowError))


def _tidy() -> None:
    """As after a request: no old connection is kept, and no list of queries."""
    for connection in connections.all(initialized_only=True):
        connection.queries_log.clear()
        connection.close_if_unusable_or_obsolete()
