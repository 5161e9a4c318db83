"""The pace of a requeue run: how many messages its driver may send now, and when it looks again."""

from collections.abc import Callable
from typing import Any

from django.db.models import F

from django_rmq_retry import database_clock
from django_rmq_retry.parked.database import database

SLICE_SECONDS = 0.25
"""Seconds between two slices."""
LONGEST_STEP_SECONDS = 5.0
"""Longest time between two steps, however slow the run is: a step renews the lease, and looks at a held connection."""
SAVED_SECONDS = 1.0
"""Seconds for which unused capacity is kept: enough to catch up after a slow slice, but not after a long pause."""
RECHECK_SECONDS = 1.0
"""Seconds between two checks of an unreachable broker."""
Clock = Callable[[], float]


def restart_rate() -> dict[str, Any]:
    """Return the columns for computing a run's real rate, to set when it starts, resumes or changes its rate."""
    return {"paced_at": database_clock.now(database()), "paced_sent": F("sent")}


class RunPace:
    """A token bucket that fills at the rate; it starts with room for one message."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._at: float | None = None
        self._room = 1.0

    def room(self, rate: float) -> int:
        now = self._clock()
        passed = 0.0 if self._at is None else now - self._at
        self._room = min(self._room + passed * rate, max(1.0, rate * SAVED_SECONDS))
        self._at = now
        # Sums of floats may be slightly below a whole number.
        return int(self._room + 1e-6)

    def spend(self, count: int) -> None:
        self._room -= count

    def wait(self, rate: float) -> float:
        """Return the seconds until the next slice, which can send a message if the rate allows one by then."""
        if rate <= 0:
            return SLICE_SECONDS
        return min(max(SLICE_SECONDS, (1.0 - self._room) / rate), LONGEST_STEP_SECONDS)
