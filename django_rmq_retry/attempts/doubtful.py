"""Entries that failed for an unknown reason: they let the others pass, and are given up if only they keep failing."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from django.db import DataError, IntegrityError, OperationalError

from django_rmq_retry.database_errors import away, clashed

BAD_TEXT = 1366
"""MySQL's error number for a character that the table's character set does not have."""
MOST_DOUBTFUL = 100
TRIES = 8
"""Failures, in turns in which others of its kind were written, after which an entry is given up: some minutes."""


def refused(error: Exception) -> bool:
    """True if a row caused the error, and not an outage of the database."""
    if isinstance(error, OperationalError):
        return error.args[:1] == (BAD_TEXT,)
    return isinstance(error, (DataError, IntegrityError, ValueError, TypeError, OverflowError))


@dataclass(slots=True)
class _Entry:
    write: Callable[[], None]
    give_up: Callable[[Exception], None]
    failures: int = 0


class Doubtful:
    """The entries of one kind that are in doubt.

    Only other entries of the same kind show that the cause is not the database: of its tables one may be missing.
    """

    def __init__(self) -> None:
        self._entries: deque[_Entry] = deque()
        self._written = self._failed = False
        """What this turn has shown: an entry was written; the last one failed."""

    def __len__(self) -> int:
        return len(self._entries)

    def begin(self) -> None:
        """Begin a turn."""
        self._written = self._failed = False

    def note_written(self) -> None:
        self._written, self._failed = True, False

    def write(self, write: Callable[[], None], give_up: Callable[[Exception], None]) -> None:
        """Write an entry, give it up if it was refused, or set it aside; raise if the database may be the cause."""
        try:
            write()
        except Exception as error:
            if refused(error):
                give_up(error)
                return
            if self._failed or away(error) or len(self) >= MOST_DOUBTFUL:
                raise
            self._failed = True
            self._entries.append(_Entry(write, give_up))
        else:
            self.note_written()

    def write_again(self) -> None:
        """Write the entries that were set aside, until one fails again, which is raised."""
        for _ in range(len(self)):
            entry = self._entries[0]
            try:
                entry.write()
            except Exception as error:
                if self._written and not (away(error) or clashed(error)):
                    entry.failures += 1
                if not refused(error) and entry.failures < TRIES:
                    self._entries.rotate(-1)
                    raise
                entry.give_up(error)
            else:
                self.note_written()
            self._entries.popleft()
