"""The pace of a requeue run: how many messages its driver may send now, when it looks again, and when all are sent."""

from collections.abc import Callable
from datetime import timedelta
from math import ceil
from typing import Any

from django.db.models import F

from django_rmq_retry import database_clock
from django_rmq_retry.models import RequeueRun, RunState, RunWait
from django_rmq_retry.models.runs import HELD
from django_rmq_retry.parked.database import records_alias

SLICE_SECONDS = 0.25
"""Seconds between two slices."""
LONGEST_STEP_SECONDS = 5.0
"""Longest time between two steps, however slow the run is: a step renews the lease, and looks at a held connection."""
SAVED_SECONDS = 1.0
"""Seconds for which unused capacity is kept: enough to catch up after a slow slice, but not after a long pause."""
RECHECK_SECONDS = 1.0
"""Seconds between two checks of an unreachable broker."""
LONGEST_SPAN = timedelta(seconds=20)
"""The longest time over which the real rate is measured, if enough messages are sent in it."""
FEWEST_MEASURED = 10
"""Messages over which the real rate is measured at least."""
MEASURED_AFTER = timedelta(seconds=10)
"""Time of sending after which the measured rate is meaningful."""
CLEARLY_SLOWER = 0.9
ENDLESS_WAITS = (RunWait.BROKER_AWAY, RunWait.DEPTH_UNKNOWN, *HELD)
"""Waits whose end is unknown, so that the time until all is sent is unknown too."""
Clock = Callable[[], float]


def restart_rate() -> dict[str, Any]:
    """Return the columns for computing a run's real rate, to set when it starts, resumes or changes its rate."""
    return {"paced_at": database_clock.now(records_alias()), "paced_sent": F("sent")}


def recent_rate(run: RequeueRun) -> dict[str, Any]:
    """Return the columns that halve the span of the real rate if it is long, so that what was long ago counts less."""
    passed = database_clock.reckoned(records_alias()) - run.paced_at if run.paced_at else timedelta()
    if run.paced_at is None or passed <= LONGEST_SPAN:
        return {}
    recent = (run.sent - run.paced_sent) // 2
    if recent < FEWEST_MEASURED:
        return {}
    return {"paced_at": run.paced_at + passed / 2, "paced_sent": run.sent - recent}


def measured_rate(run: RequeueRun) -> float | None:
    """Return the messages per second since sending last began, if that is clearly below the rate limit."""
    real = _real_rate(run)
    return real if real is not None and real < CLEARLY_SLOWER * run.rate else None


def _real_rate(run: RequeueRun) -> float | None:
    now, since = database_clock.reckoned(records_alias()), run.paced_at or run.started_at
    if since is None or run.state != RunState.RUNNING or run.sent <= run.paced_sent or run.is_silent(now):
        return None
    if run.wait in ENDLESS_WAITS or run.awaits_canary or run.idle_since(now):
        # Neither an outage nor the wait for the test message, the first outcomes or a queue is a time of sending.
        return None
    if now - since < MEASURED_AFTER:
        return None
    return (run.sent - run.paced_sent) / (now - since).total_seconds()


def seconds_left(run: RequeueRun) -> int | None:
    """Return the seconds until all is sent, at the measured rate; None if that cannot be known.

    One that sends nothing now is slower than its own rate.
    """
    least = run.room_before_outcomes
    known = run.state == RunState.RUNNING and run.wait not in ENDLESS_WAITS and (least is None or least >= run.unsent)
    if not known or run.is_silent(database_clock.reckoned(records_alias())):
        return None
    rate = min(_real_rate(run) or (0 if run.wait else run.rate), run.rate)
    return ceil(run.unsent / rate) if rate else None


def saved_room(run: RequeueRun) -> float:
    """Return the messages that the rate allows a driver which takes the run over: what earlier ones sent counts."""
    if run.paced_at is None:
        return 1.0
    passed = database_clock.reckoned(records_alias()) - run.paced_at
    return 1.0 + passed.total_seconds() * run.rate - (run.sent - run.paced_sent)


class RunPace:
    """A token bucket that fills at the rate; it starts with room for one message, or with what is saved."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._at: float | None = None
        self._room = 1.0

    def go_on_with(self, room: float) -> None:
        """Take up the pace of an earlier driver."""
        self._room = room

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
