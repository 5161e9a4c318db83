"""So many runs of handlers and no more. What becomes of a message without one counts for nothing."""

import threading
from collections.abc import Callable

from django_rmq_retry.core.message import Delivery


class Quota:
    """Shared by all worker threads. ``last`` is called as the last run begins, on its thread."""

    def __init__(self, most: int, *, last: Callable[[], None]) -> None:
        self.most = most
        self._last = last
        self._lock = threading.Lock()
        self._looked_at: set[Delivery] = set()
        self._begun = 0
        self._ended = 0
        self._spare: list[Delivery] = []

    @property
    def begun(self) -> bool:
        """Whether nothing more may be run."""
        return self._begun >= self.most

    @property
    def used(self) -> bool:
        """Whether every run that was asked for has come to its end."""
        return self._ended >= self.most

    def admits(self, delivery: Delivery) -> bool:
        """Whether it may be attempted; if not it is kept, for one of those under way may turn out to be no run."""
        with self._lock:
            admitted = self._begun + len(self._looked_at) < self.most
            if admitted:
                self._looked_at.add(delivery)
            else:
                self._spare.append(delivery)
            return admitted

    def begin(self, delivery: Delivery) -> None:
        """Its handler is about to run."""
        with self._lock:
            self._looked_at.discard(delivery)
            self._begun += 1
            last = self._begun == self.most
        if last:
            self._last()

    def end(self, delivery: Delivery) -> list[Delivery]:
        """Its attempt is over; what may be attempted in its place if it was no run."""
        with self._lock:
            if delivery not in self._looked_at:
                self._ended += 1
                return []
            self._looked_at.discard(delivery)
        return self.take_spare()

    def take_spare(self) -> list[Delivery]:
        """What was kept; it is no longer."""
        with self._lock:
            spare, self._spare = self._spare, []
            return spare
