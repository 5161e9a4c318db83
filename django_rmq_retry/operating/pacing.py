"""How many messages may leave now, at so many per second; the clock is handed in."""

from collections.abc import Callable

SLICE = 0.25
"""Seconds between two slices."""
SAVED = 1.0
"""Seconds for which unused room is kept: a slow slice is made up for, a long pause is not."""


class Pace:
    """A bucket that fills by the rate; a driver that begins finds room for one message in it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._at: float | None = None
        self._room = 1.0

    def room(self, rate: float) -> int:
        """Whole messages that may leave now."""
        now = self._clock()
        passed = 0.0 if self._at is None else now - self._at
        self._room = min(self._room + passed * rate, max(1.0, rate * SAVED))
        self._at = now
        # Sums of fractions fall short of a whole number by a hair.
        return int(self._room + 1e-6)

    def spend(self, count: int) -> None:
        self._room -= count

    def wait(self, rate: float) -> float:
        """Seconds until the next slice is worth while."""
        return max(SLICE, (1.0 - self._room) / rate) if rate > 0 else SLICE
