"""Rows on their way to the broker: those of one key one after the other, all others with many confirms outstanding."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from django_rmq_retry import wiring
from django_rmq_retry.broker.base import UNWRITABLE, Outcome
from django_rmq_retry.outbox.rows import Row

LOOK = 0.2
"""Seconds between two looks at whether waiting makes sense."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the broker said of a row."""

    row: Row
    outcome: Outcome
    said: str = ""


Late = Callable[[Answer], None]


@dataclass(slots=True)
class _Line:
    """What is sent one after the other: all rows of a key, or one row without."""

    rows: deque[Row] = field(default_factory=deque)
    busy: bool = False
    again: bool = False


class Posting:
    """One batch. ``late`` is told, on the I/O thread, of what is answered when nobody waits any longer."""

    def __init__(self, rows: Sequence[Row], *, timeout: float, until: float = float("inf"), late: Late) -> None:
        self._timeout = timeout
        self._until = until
        """Monotonic: nothing is begun after it."""
        self._late = late
        self._lock = threading.Lock()
        self._under_way: set[int] = set()
        self._answers: list[Answer] = []
        self._waited_for = True
        self._left = len(rows)
        self._over = threading.Event()
        self._lines = _lines(rows)

    def begin(self) -> None:
        """Hand them over; what cannot be written is answered at once."""
        for line in self._lines:
            self._go(line)

    def wait(self, seconds: float, enough: Callable[[], bool] = lambda: False) -> list[Answer]:
        """The answers within so many seconds; what comes after that is late, and nothing more is begun."""
        deadline = time.monotonic() + seconds
        while not self._over.wait(min(LOOK, max(0.0, deadline - time.monotonic()))):
            if time.monotonic() >= deadline or enough():
                break
        with self._lock:
            self._waited_for = False
            return list(self._answers)

    def under_way(self) -> set[int]:
        """The rows that were begun and are not answered."""
        with self._lock:
            return set(self._under_way)

    def _go(self, line: _Line) -> None:
        """Send the next one of a line. A publisher may answer within the call: no call goes deeper for it."""
        with self._lock:
            if line.busy:
                line.again = True
                return
            line.busy = True
        while True:
            row = self._next(line)
            if row is not None:
                self._send(row, line)
            with self._lock:
                if row is None or not line.again:
                    line.busy = False
                    return
                line.again = False

    def _next(self, line: _Line) -> Row | None:
        with self._lock:
            if not self._waited_for or time.monotonic() > self._until:
                self._drop(line)
            if not line.rows:
                return None
            row = line.rows.popleft()
            self._under_way.add(row.id)
            return row

    def _send(self, row: Row, line: _Line) -> None:
        try:
            publisher = wiring.publisher()
        except Exception as error:  # noqa: BLE001 - whatever is wrong with the settings: the row stays
            self._answered(Answer(row=row, outcome=Outcome.UNSENT, said=str(error)), line)
            return

        def told(outcome: Outcome, said: str) -> None:
            self._answered(Answer(row=row, outcome=outcome, said=said), line)

        try:
            publisher.send(row.message, told, timeout=self._timeout)
        except Exception as error:  # noqa: BLE001 - as above
            told(Outcome.UNSENT, f"{UNWRITABLE}: {error}")

    def _answered(self, answer: Answer, line: _Line) -> None:
        with self._lock:
            self._under_way.discard(answer.row.id)
            in_time = self._waited_for
            if in_time:
                self._answers.append(answer)
            if answer.outcome is not Outcome.CONFIRMED:
                # Whatever comes after it in its line must not pass it.
                self._drop(line)
            self._count(1)
            more = bool(line.rows)
        if not in_time:
            self._late(answer)
        if more:
            self._go(line)

    def _drop(self, line: _Line) -> None:
        self._count(len(line.rows))
        line.rows.clear()

    def _count(self, ended: int) -> None:
        self._left -= ended
        if not self._left:
            self._over.set()


def _lines(rows: Sequence[Row]) -> list[_Line]:
    lines: list[_Line] = []
    keyed: dict[str, _Line] = {}
    for row in rows:
        line = keyed.get(row.order_key) if row.order_key else None
        if line is None:
            line = _Line()
            lines.append(line)
            if row.order_key:
                keyed[row.order_key] = line
        line.rows.append(row)
    return lines
