"""The number of messages after which a consumer ends."""

import threading
from collections.abc import Callable

from django_rmq_retry.messages.message import Delivery


class Quota:
    """The limit on runs of handlers in all threads; ``last`` is called on the thread of the last run, as it begins."""

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
        """True once the last allowed run has begun."""
        return self._begun >= self.most

    @property
    def used(self) -> bool:
        """True once all allowed runs have ended."""
        return self._ended >= self.most

    def admits(self, delivery: Delivery) -> bool:
        """Return True if the delivery may be attempted; else keep it, because another attempt may end without a run."""
        with self._lock:
            admitted = self._begun + len(self._looked_at) < self.most
            if admitted:
                self._looked_at.add(delivery)
            else:
                self._spare.append(delivery)
            return admitted

    def begin(self, delivery: Delivery) -> None:
        """Count a run, just before the handler of the delivery is called."""
        with self._lock:
            self._looked_at.discard(delivery)
            self._begun += 1
            last = self._begun == self.most
        if last:
            self._last()

    def end(self, delivery: Delivery) -> list[Delivery]:
        """End an attempt; if its handler did not run, return the kept deliveries that may be attempted instead."""
        with self._lock:
            if delivery not in self._looked_at:
                self._ended += 1
                return []
            self._looked_at.discard(delivery)
        return self.take_spare()

    def take_spare(self) -> list[Delivery]:
        """Remove and return the deliveries that ``admits`` has kept."""
        with self._lock:
            spare, self._spare = self._spare, []
            return spare
