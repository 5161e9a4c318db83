"""What this process knows of the broker: while it is away nobody who has committed waits for it."""

import logging
import os
import threading
import time
from collections.abc import Callable

from django_rmq_retry import wiring

log = logging.getLogger("django_rmq_retry")

PATIENCE = 1.0
"""Seconds that a commit waits for its confirms, once."""
PROBE = 2.0
"""Seconds between two messages that are sent to a broker that was away, without waiting for it."""


class Reach:
    """Whether the broker answers; shared by all threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._away = False
        self._probe_at = 0.0

    @property
    def away(self) -> bool:
        return self._away

    @property
    def patience(self) -> float:
        """How long to wait for an answer."""
        return 0.0 if self._away else PATIENCE

    def worth_keeping(self) -> bool:
        """Whether a row that is written now is likely to be sent by its own commit."""
        return not self._away or self._clock() >= self._probe_at

    def worth_trying(self) -> bool:
        """Whether to send at all: always while it is there, and now and then while it is away."""
        if not self._away:
            return True
        with self._lock:
            if self._clock() < self._probe_at:
                return False
            self._probe_at = self._clock() + PROBE
            return True

    def lost(self, why: str) -> None:
        """The broker did not answer: say so once. What a test has put in its place is never away."""
        if wiring.stands_in():
            return
        with self._lock:
            first, self._away = not self._away, True
            self._probe_at = self._clock() + PROBE
        if first:
            said = "Messages stay in the outbox and are sent by a relay, for the broker does not answer: %s"
            log.warning(said, why, extra={"event": "outbox waits"})

    def found(self) -> None:
        """It did answer."""
        if self._away:
            self._away = False
            log.info("The broker answers again", extra={"event": "outbox goes on"})


reach = Reach()


def _forked() -> None:
    """In the child: whoever held the lock is not there, and would be waited for at every commit."""
    reach._lock = threading.Lock()  # noqa: SLF001 - of this very module


os.register_at_fork(after_in_child=_forked)
