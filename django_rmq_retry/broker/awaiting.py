"""How a caller waits for what it has published: for one message, or for many with a window of them under way."""

import threading

from django_rmq_retry.broker.base import ERRORS, Outcome
from django_rmq_retry.broker.confirming import Done
from django_rmq_retry.core.errors import PublishError
from django_rmq_retry.core.message import Message

STILL = "the I/O thread does not answer"


class Waiter:
    """A thread that waits for one outcome. A bare lock: an Event costs twice as much, and publishes are many."""

    __slots__ = ("_gate", "outcome", "said")

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._gate.acquire()
        self.outcome = Outcome.UNKNOWN
        self.said = ""

    def done(self, outcome: Outcome, said: str) -> None:
        self.outcome, self.said = outcome, said
        self._gate.release()

    def wait(self, timeout: float) -> tuple[Outcome, str]:
        # The I/O thread ends every publish at its deadline; the time-out is for one that stands still.
        if not self._gate.acquire(timeout=timeout):
            return Outcome.UNKNOWN, STILL
        return self.outcome, self.said


class Batch:
    """Many publishes under way at once, at most a window of them."""

    def __init__(self, window: int, timeout: float) -> None:
        self.confirmed = 0
        self.failure: PublishError | None = None
        self._window = threading.BoundedSemaphore(window)
        self._size = window
        self._timeout = timeout
        self._place = "", ""

    def begin(self, message: Message) -> None:
        self._place = message.exchange, message.routing_key
        self._acquire()

    def leave_out(self) -> None:
        """What was begun last is not on its way."""
        self._window.release()

    def ender(self, message: Message) -> Done:
        def done(outcome: Outcome, said: str) -> None:
            if outcome is Outcome.CONFIRMED:
                self.confirmed += 1
            elif self.failure is None:
                self.failure = ERRORS[outcome](message.exchange, message.routing_key, said=said)
            self._window.release()

        return done

    def wait(self) -> None:
        for _ in range(self._size):
            self._acquire()

    def _acquire(self) -> None:
        if not self._window.acquire(timeout=self._timeout):
            raise ERRORS[Outcome.UNKNOWN](*self._place, said=STILL)
