"""The status line at the bottom of a terminal."""

import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from django_rmq_retry.consumer.consumer import Consumer
from django_rmq_retry.consumer.events import Events
from django_rmq_retry.policies.verdict import Kind

REDRAW_SECONDS = 0.25
BUSY_REDRAW_SECONDS = 0.05
"""Shortest time in seconds between two redraws of the row after lines printed above it."""
PACE_SECONDS = 5.0
"""Seconds over which the pace is measured."""
FLUSH_SECONDS = 0.2
USUAL_WIDTH = 80


class LastRow:
    """The last row of a terminal. All output goes through ``write``; the row does not overwrite a partial line."""

    def __init__(self, stream: TextIO, *, escapes: bool = True, without_signs: bool = False) -> None:
        self._stream = stream
        self.without_signs = without_signs
        """True if the stream can encode only ASCII."""
        self.text: Callable[[], str] = str
        self._escapes = escapes
        # Reentrant, because a signal handler may log while the thread that it interrupted writes.
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._shown = ""
        self._drawn_at = 0.0
        self._begun = False
        """True if the output above ends in a line without a newline."""

    def write(self, text: str, write: Callable[[str], Any]) -> Any:
        """Write a text above the row with the given function, and return that function's result."""
        with self._lock:
            self._erase()
            done = write(text)
            self._begun = bool(text) and not text.endswith("\n")
            if time.monotonic() - self._drawn_at >= BUSY_REDRAW_SECONDS:
                self._draw()
            return done

    def keep(self) -> None:
        """Redraw the row when its text changes, until end() is called."""
        while not self._over.wait(REDRAW_SECONDS):
            with self._lock:
                if self._row() != self._shown:
                    self._erase()
                    self._draw()

    def end(self) -> None:
        """Erase the row; wait only briefly for the lock, which a thread blocked in a write may hold."""
        self._over.set()
        if self._lock.acquire(timeout=FLUSH_SECONDS):
            try:
                self._erase()
                self._stream.flush()
            finally:
                self._lock.release()

    def forget(self) -> None:
        """Stop drawing in a forked child: the row belongs to the parent, and so does the thread that held the lock."""
        self._lock = threading.RLock()
        self._over.set()
        self._shown = ""

    def _row(self) -> str:
        return self.text()[: max(self._width() - 1, 0)]

    def _width(self) -> int:
        try:
            return os.get_terminal_size(self._stream.fileno()).columns or USUAL_WIDTH
        except (OSError, ValueError):
            return USUAL_WIDTH

    def _draw(self) -> None:
        if self._over.is_set() or self._begun:
            return
        self._shown, self._drawn_at = self._row(), time.monotonic()
        self._stream.write(self._shown)
        self._stream.flush()

    def _erase(self) -> None:
        if self._shown:
            self._stream.write("\r\x1b[J" if self._escapes else f"\r{' ' * len(self._shown)}\r")
            self._shown = ""


class Above:
    """A stream that writes its text above the row."""

    def __init__(self, stream: Any, row: LastRow) -> None:
        self._stream = stream
        self._last_row = row

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        return int(self._last_row.write(text, self._stream.write))


@contextmanager
def last_row(row: LastRow, text: Callable[[], str]) -> Iterator[None]:
    """Draw the row and print all other output of this process above it."""
    row.text = text
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (Above(stream, row) for stream in before)
    # With DEBUG on, Django logs to the stream that it found at the start.
    theirs = [one for one in logging.getLogger("django").handlers if getattr(one, "stream", None) is before[1]]
    for one in theirs:
        one.setStream(sys.stderr)  # type: ignore[attr-defined]  # it has a stream
    keeper = threading.Thread(target=row.keep, name="rmq-row", daemon=True)
    keeper.start()
    _drawn.append(row)
    try:
        yield
    finally:
        _drawn.remove(row)
        sys.stdout, sys.stderr = before
        for one in theirs:
            one.setStream(before[1])  # type: ignore[attr-defined]  # as above
        row.end()
        keeper.join(FLUSH_SECONDS)


_drawn: list[LastRow] = []


def _forked() -> None:
    for row in _drawn:
        row.forget()


os.register_at_fork(after_in_child=_forked)


class Throughput:
    """The number of messages per second over the last few seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: deque[tuple[float, int]] = deque()

    def at(self, count: int) -> float:
        """Return the pace, given the total number of messages done until now."""
        now = self._clock()
        self._seen.append((now, count))
        while len(self._seen) > 2 and self._seen[1][0] <= now - PACE_SECONDS:  # noqa: PLR2004 - the span's two ends
            self._seen.popleft()
        began, before = self._seen[0]
        return (count - before) / (now - began) if now > began else 0.0


def status_text(consumer: Consumer, events: Events, *, without_signs: bool) -> Callable[[], str]:
    """Return the function that makes the text of the status line: pace, counts, halts and the effect of Ctrl-C."""
    pace = Throughput()

    def text() -> str:
        counts = events.counts
        words = [
            f"{_short(pace.at(sum(counts.values())))}/s",
            f"in flight {consumer.running + consumer.waiting}",
            f"ok {counts[Kind.ACK]:,}",
            f"retry {counts[Kind.RETRY]:,}",
            f"parked {counts[Kind.PARK]:,}",
        ]
        if counts[Kind.DISCARD]:
            words.append(f"discarded {counts[Kind.DISCARD]:,}")
        if events.halts:
            words.append(f"halted: {', '.join(halt.queue for halt in events.halts)}")
        if not consumer.online:
            words.append("no broker")
        if consumer.unread():
            words.append("waiting for the database")
        words.append("stopping, Ctrl-C: stop at once" if consumer.why else "Ctrl-C: finish and stop")
        return (", " if without_signs else " · ").join(words)

    return text


def _short(pace: float) -> str:
    return f"{pace:,.0f}" if pace >= 10 or not pace else f"{pace:.1f}"  # noqa: PLR2004 - two digits are enough
