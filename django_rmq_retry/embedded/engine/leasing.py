"""x-expires: a queue that nobody uses goes, with all that is in it."""

from collections.abc import Callable

from django_rmq_retry.embedded.engine.clock import Clock, Timer

# Quorum queues look every five seconds (rabbit_quorum_queue's tick).
_TICK = 5.0


class Lease:
    """How long a queue may be unused; a consumer suspends it."""

    __slots__ = ("_born", "_clock", "_end", "_quorum", "_seconds", "_timer")

    def __init__(self, clock: Clock, seconds: float, *, quorum: bool, end: Callable[[], None]) -> None:
        self._clock = clock
        self._seconds = seconds
        self._quorum = quorum
        self._end = end
        self._born = clock.now
        self._timer: Timer | None = None
        self.renew()

    def renew(self) -> None:
        """It is used now."""
        self.stop()
        due = self._clock.now + self._seconds
        if self._quorum:
            due = self._born - (self._born - due) // _TICK * _TICK
        self._timer = self._clock.at(due, self._end)

    def declared(self) -> None:
        """It is declared again: that is use to a classic queue only."""
        if not self._quorum and self._timer is not None:
            self.renew()

    def fetched(self) -> None:
        """It was asked for a message by basic.get."""
        if self._timer is not None:
            self.renew()

    def stop(self) -> None:
        """A consumer uses it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
