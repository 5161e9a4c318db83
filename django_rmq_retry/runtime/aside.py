"""Parked messages that no database takes: put where they bother nobody, or kept in hand while that fails."""

import logging
import time
from collections.abc import Callable

from django_rmq_retry.core.message import Delivery

log = logging.getLogger("django_rmq_retry")

STUCK = 30.0
"""Seconds between two attempts while it fails: nobody waits for each message."""


class Aside:
    """Used by the drainer's thread."""

    def __init__(self, put: Callable[[Delivery, str], None]) -> None:
        self._put = put
        self._until = 0.0
        self._stuck: list[tuple[int, Delivery]] = []

    @property
    def stuck(self) -> bool:
        """Whether something is in hand that can be neither stored nor put aside."""
        return bool(self._stuck)

    def put(self, delivery: Delivery, why: str, session: int) -> bool:
        """Put it aside; tell whether the broker has it there."""
        said: object = "others could not be put aside a moment ago"
        if time.monotonic() >= self._until:
            try:
                self._put(delivery, why)
            except Exception as error:  # noqa: BLE001 - whatever keeps the broker from it
                said = error
                self._until = time.monotonic() + STUCK
            else:
                log.error("A message of %r is put aside: %s", delivery.queue, why, extra={"event": "aside"})
                return True
        self._stuck.append((session, delivery))
        log.error(
            "A message of %r stays in hand, for it can be neither stored (%s) nor put aside (%s)",
            *(delivery.queue, why, said),
            extra={"event": "stuck"},
        )
        return False

    def due(self) -> list[tuple[int, Delivery]]:
        """What is to be tried again now."""
        if not self._stuck or time.monotonic() < self._until:
            return []
        stuck, self._stuck = self._stuck, []
        return stuck

    def forget(self) -> None:
        """All of it returns to its queue."""
        self._stuck.clear()
