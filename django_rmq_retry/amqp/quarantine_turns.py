"""Quarantine queues: a connection consumes one at a time, so that messages of the others are not suspected."""

import random
import time
from collections.abc import Callable
from functools import partial

from django_rmq_retry.amqp.io_thread import IoThread, Timer
from django_rmq_retry.amqp.open_line import OpenLine

FIRST_LOOK_SECONDS = 0.05
TURN_LOOK_SECONDS = 1.0
"""Seconds between two looks at the quarantine queues."""
LONGEST_TURN_SECONDS = 30.0
"""Seconds after which a quarantine queue that still has messages gives way to the others."""


class QuarantineTurns:
    """Lets a connection consume one quarantine queue at a time.

    A message that kills the process also counts as a return for every other unacked message. With two quarantine
    queues consumed at once, a harmless message in one would be parked because of a message in the other.
    """

    def __init__(self, io: IoThread, *, exists: Callable[[OpenLine], None], ended: Callable[[OpenLine], None]) -> None:
        self._io = io
        self._exists = exists
        """Called each time the broker has reported the number of messages in a queue."""
        self._ended = ended
        """Called with a line whose turn is over: it gives the line up, and may open the queue again for a later one."""
        self._lines: list[OpenLine] = []
        self._asked: set[OpenLine] = set()
        """The lines whose number of messages the broker has not reported yet."""
        self._turn: OpenLine | None = None
        self._since = 0.0
        self._found_empty = False
        """True if the last look found the queue of this turn empty."""
        self._timer: Timer | None = None

    def join(self, line: OpenLine) -> None:
        """Add a line that is open and not subscribed."""
        self._lines.append(line)
        line.depth(lambda _ready: self._exists(line))
        # Soon, but not at once: the other lines of a new connection join meanwhile, and one is chosen at random.
        self._tick_in(FIRST_LOOK_SECONDS)

    def _tick_in(self, seconds: float) -> None:
        if self._timer is not None:
            self._io.cancel(self._timer)
        self._timer = self._io.later(seconds, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._lines = [line for line in self._lines if line.open and not line.retired]
        self._asked.intersection_update(self._lines)
        turn = self._turn
        if turn is None or not turn.open or (turn.retired and turn.in_flight <= 0):
            self._turn = None
            for line in random.sample(self._lines, len(self._lines)):
                self._ask(line)
        elif turn.in_flight <= 0:
            self._ask(turn)
        else:
            self._found_empty = False
            if not turn.retired and len(self._lines) > 1 and time.monotonic() - self._since > LONGEST_TURN_SECONDS:
                # Its turn lasts until the message in flight is settled, and no further one is delivered.
                self._ended(turn)
        if self._lines or self._turn is not None:
            self._tick_in(TURN_LOOK_SECONDS)

    def _ask(self, line: OpenLine) -> None:
        if line not in self._asked:
            self._asked.add(line)
            line.depth(partial(self._answered, line))

    def _answered(self, line: OpenLine, ready: int) -> None:
        self._asked.discard(line)
        if not line.open or line.retired:
            return
        self._exists(line)
        if ready and self._turn is None:
            self._turn, self._since, self._found_empty = line, time.monotonic(), False
            line.subscribe()
        elif self._turn is line and line.in_flight <= 0:
            # A message that is on its way is not ready either: it would return, and count as one that was tried.
            if not ready and self._found_empty:
                self._turn = None
                self._ended(line)
            self._found_empty = not ready
