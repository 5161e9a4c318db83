"""4.3's delayed retry: what came back to a quorum queue and is not given out again yet."""

from collections.abc import Callable, Iterator

from django_rmq_retry.embedded.engine.clock import Clock, Timer
from django_rmq_retry.embedded.engine.entries import Entry


class Delayed:
    """Entries that are kept back, each until its own time; `end` is told when that has come."""

    __slots__ = ("_clock", "_end", "_timers")

    def __init__(self, clock: Clock, end: Callable[[Entry], None]) -> None:
        self._clock = clock
        self._end = end
        self._timers: dict[Entry, Timer] = {}

    def __len__(self) -> int:
        return len(self._timers)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._timers)

    def put(self, entry: Entry, due: float) -> None:
        self._timers[entry] = self._clock.at(due, lambda: self._over(entry))

    def due(self, entry: Entry) -> float:
        return self._timers[entry].due

    def clear(self) -> list[Entry]:
        """Give them all up."""
        entries = list(self._timers)
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        return entries

    def _over(self, entry: Entry) -> None:
        del self._timers[entry]
        self._end(entry)
