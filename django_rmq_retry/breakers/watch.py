"""The thread that exchanges breakers, pauses and halted queues with the database."""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager

from django_rmq_retry.breakers.gate import READ_SECONDS, BreakerGate
from django_rmq_retry.breakers.halts import Halts
from django_rmq_retry.recurring import Recurring

log = logging.getLogger("django_rmq_retry")

FIRST_READ_SECONDS = 2.0
"""Seconds that a consumer waits for the first read before it starts; until it is done, no queue is consumed."""


class Watch(Recurring):
    """The thread; it starts before the consumer. A database that is away or hangs delays nothing else."""

    def __init__(
        self, gate: BreakerGate, halts: Halts, *, with_connections: Callable[[], AbstractContextManager[object]]
    ) -> None:
        super().__init__("rmq-controls")
        self._gate = gate
        self._halts = halts
        self._with_connections = with_connections

    def start(self) -> None:
        """Start the thread and return after its first read of the database, or after ``FIRST_READ_SECONDS``."""
        self._gate.hold_back()
        super().start()
        if not self._gate.first_read.wait(FIRST_READ_SECONDS):
            self._gate.tell_unread("it does not answer")

    def wait(self, seconds: float) -> None:
        self._gate.changed.wait(seconds)
        self._gate.changed.clear()

    def wake(self) -> None:
        self._gate.changed.set()

    def turn(self) -> float:
        return self._exchange(last=False)

    def at_end(self) -> None:
        self._exchange(last=True)

    def _exchange(self, *, last: bool) -> float:
        try:
            with self._with_connections():
                wait = self._gate.turn()
                self._halts.report()
                if last:
                    self._gate.end()
        except Exception:
            log.exception(
                "Breakers and pauses could not be exchanged with the database. The next exchange is in %g s",
                READ_SECONDS,
            )
            return READ_SECONDS
        return max(wait, 0.02)
