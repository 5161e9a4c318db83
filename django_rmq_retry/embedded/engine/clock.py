"""A virtual clock and its timers."""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count

_FEW_CANCELLED = 64


class Timer:
    """One call at one time. A cancelled timer stays in the heap until it is due or most of the heap is cancelled."""

    __slots__ = ("_clock", "due", "run")

    def __init__(self, clock: "Clock", due: float, run: Callable[[], object]) -> None:
        self._clock = clock
        self.due = due
        self.run: Callable[[], object] | None = run

    def cancel(self) -> None:
        if self.run is not None:
            self.run = None
            self._clock.forget_one()


class Clock:
    """Seconds on any scale; adding `epoch` gives Unix time. Several virtual hosts may share one clock."""

    __slots__ = ("_cancelled", "_heap", "_numbers", "epoch", "now")

    def __init__(self, now: float = 0.0, *, epoch: float = 0.0) -> None:
        self.now = now
        self.epoch = epoch
        self._heap: list[tuple[float, int, Timer]] = []
        self._numbers = count()
        self._cancelled = 0

    def at(self, due: float, run: Callable[[], object]) -> Timer:
        timer = Timer(self, due, run)
        heappush(self._heap, (due, next(self._numbers), timer))
        return timer

    def next_due(self) -> float | None:
        """The time of the next timer; cancelled timers can make it too early, never too late."""
        heap = self._heap
        while heap and heap[0][2].run is None:
            heappop(heap)
            self._cancelled -= 1
        return heap[0][0] if heap else None

    def advance(self, now: float) -> None:
        """Move time forward; each timer runs in order and sees its own due time as now."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            due, _, timer = heappop(heap)
            run, timer.run = timer.run, None
            if run is None:
                self._cancelled -= 1
                continue
            self.now = max(self.now, due)
            run()
        self.now = max(self.now, now)

    def forget_one(self) -> None:
        """Count a cancelled timer; remove all of them once they fill most of the heap."""
        self._cancelled += 1
        if self._cancelled > _FEW_CANCELLED and self._cancelled * 2 > len(self._heap):
            # In place, because advance() iterates over this list while one of its timers cancels others.
            self._heap[:] = [item for item in self._heap if item[2].run is not None]
            heapify(self._heap)
            self._cancelled = 0
