"""The pace of a requeue run: how many messages its driver may send now, and when it looks again."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.db.models import F

from django_rmq_retry import database_clock
from django_rmq_retry.models import RequeueRun
from django_rmq_retry.parked.database import database

SLICE_SECONDS = 0.25
"""Seconds between two slices."""
LONGEST_STEP_SECONDS = 5.0
"""Longest time between two steps, however slow the run is: a step renews the lease, and looks at a held connection."""
SAVED_SECONDS = 1.0
"""Seconds for which unused capacity is kept: enough to catch up after a slow slice, but not after a long pause."""
RECHECK_SECONDS = 1.0
"""Seconds between two checks of an unreachable broker."""
LONGEST_SPAN = timedelta(seconds=20)
"""The longest time over which the real rate is measured."""
Clock = Callable[[], float]


def restart_rate() -> dict[str, Any]:
    """Return the columns for computing a run's real rate, to set when it starts, resumes or changes its rate."""
    return {"paced_at": database_clock.now(database()), "paced_sent": F("sent")}


def recent_rate(run: RequeueRun) -> dict[str, Any]:
    """Return the columns that halve the span of the real rate if it is long, so that what was long ago counts less."""
    passed = database_clock.reckoned(database()) - run.paced_at if run.paced_at else timedelta()
    if run.paced_at is None or passed <= LONGEST_SPAN:
        return {}
    recent = max(run.sent - run.paced_sent, 0) // 2
    return {"paced_at": run.paced_at + passed / 2, "paced_sent": run.sent - recent}


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
