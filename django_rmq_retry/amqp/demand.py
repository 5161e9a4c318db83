"""Reasons not to consume a queue now: paused, missing, forbidden or empty."""

import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from pika.exceptions import ChannelClosedByBroker

from django_rmq_retry.amqp.channel import OpenLine
from django_rmq_retry.amqp.connection import Connection, IoThread
from django_rmq_retry.amqp.contracts import Line
from django_rmq_retry.amqp.refusals import Refusal
from django_rmq_retry.amqp.session import Named, passively
from django_rmq_retry.topology.declarations import QueueDeclaration

if TYPE_CHECKING:
    from django_rmq_retry.amqp.connection import Timer
    from django_rmq_retry.amqp.protocol import Channel


LOOK = 0.05
TURN = 1.0
"""Seconds between two looks at the quarantine queues."""
LONGEST_TURN = 30.0
"""Seconds after which a quarantine queue that still has messages gives way to the others."""


class Pauses:
    """The paused queues, their reduced prefetches and the lines given up. Used on the I/O thread only."""

    def __init__(self, io: IoThread) -> None:
        self._io = io
        self._paused: set[str] = set()
        self._narrow: dict[str, int] = {}
        self._retired: list[OpenLine] = []

    def __contains__(self, queue: object) -> bool:
        return queue in self._paused

    @property
    def retired(self) -> tuple[OpenLine, ...]:
        """The lines that are given up and still have unacked deliveries."""
        return tuple(self._retired)

    def pause(self, queue: str) -> None:
        self._paused.add(queue)

    def resume(self, queue: str, prefetch: int | None) -> None:
        """Consume the queue again with this prefetch; None means the prefetch of its line."""
        self._paused.discard(queue)
        if prefetch is None:
            self._narrow.pop(queue, None)
        else:
            self._narrow[queue] = prefetch

    def shaped(self, line: Line) -> Line:
        """Return the line with the prefetch to open it with now."""
        most = self._narrow.get(line.queue)
        return line if most is None or most >= line.prefetch else replace(line, prefetch=most)

    def retire(self, line: OpenLine) -> None:
        """End the consumer now, and close the channel once all deliveries are settled: acks need the channel."""
        line.retire()
        self._retired.append(line)
        if len(self._retired) == 1:
            self._close_settled()

    def forget(self) -> None:
        """Drop all given-up lines: the connection is lost, and every channel with it."""
        self._retired.clear()

    def close(self) -> None:
        for line in self._retired:
            line.close()
        self._retired.clear()

    def _close_settled(self) -> None:
        for line in self._retired:
            if line.in_flight <= 0 and line.quiet:
                line.close()
        self._retired = [line for line in self._retired if line.open]
        if self._retired:
            self._io.later(LOOK, self._close_settled)


class Turns:
    """Lets a connection consume one quarantine queue at a time.

    A message that kills the process also counts as a return for every other unacked message. With two quarantine
    queues consumed at once, a harmless message in one would be parked because of a message in the other.
    """

    def __init__(self, io: IoThread, *, exists: Callable[[OpenLine], None], ended: Callable[[OpenLine], None]) -> None:
        self._io = io
        self._exists = exists
        """Called each time the broker has reported the number of messages in a queue."""
        self._ended = ended
        """Called with a line whose turn is over; it gives the line up, and may open the queue again for a later turn.
        """
        self._lines: list[OpenLine] = []
        self._asked: set[OpenLine] = set()
        """The lines whose number of messages the broker has not reported yet."""
        self._turn: OpenLine | None = None
        self._since = 0.0
        """The time at which the turn began."""
        self._timer: Timer | None = None

    def join(self, line: OpenLine) -> None:
        """Add a line that is open and not subscribed."""
        self._lines.append(line)
        line.depth(lambda _ready: self._exists(line))
        # Soon, but not at once: the other lines of a new connection join meanwhile, and one is chosen at random.
        self._tick_in(LOOK)

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
        elif not turn.retired and len(self._lines) > 1 and time.monotonic() - self._since > LONGEST_TURN:
            # Its turn lasts until the message in flight is settled, and no further one is delivered.
            self._ended(turn)
        if self._lines or self._turn is not None:
            self._tick_in(TURN)

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
            self._turn, self._since = line, time.monotonic()
            line.subscribe()
        elif not ready and self._turn is line and line.in_flight <= 0:
            self._turn = None
            self._ended(line)


class EmptinessCheck:
    """Reads each line's queue depth once and calls back with True if all are empty and nothing is unacked."""

    def __init__(self, lines: Sequence[OpenLine], callback: Callable[[bool], None]) -> None:
        self._left = len(lines)
        self._lines = lines
        self._found = sum(line.in_flight for line in lines)
        self._callback = callback
        for line in lines:
            line.depth(self._one)

    def _one(self, ready: int) -> None:
        self._left -= 1
        self._found += ready
        if not self._left:
            # A message that was ready before the query may have been delivered since.
            self._callback(self._found == 0 and not any(line.in_flight for line in self._lines))


class ExistenceCheck:
    """Checks which of the named queues and exchanges are missing, and calls back with them once.

    If the connection is lost meanwhile, there is no call. What the broker refuses to show, or cannot show because a
    node is down, counts as existing.
    """

    def __init__(self, connection: Connection, named: Iterable[Named], callback: Callable[[list[str]], None]) -> None:
        self._connection = connection
        self._left = deque(named)
        self._missing: list[str] = []
        self._callback = callback
        self._next()

    def _next(self) -> None:
        """Open another channel for the next check, because a refusal closes the channel."""
        if self._left:
            self._connection.channel(on_open_callback=self._opened)
        else:
            self._callback(self._missing)

    def _opened(self, channel: "Channel") -> None:
        channel.add_on_close_callback(self._refused)
        self._ask(channel)

    def _ask(self, channel: "Channel") -> None:
        if self._left:
            passively(self._left[0])(channel, lambda _frame: self._found(channel))
        else:
            channel.close()
            self._next()

    def _found(self, channel: "Channel") -> None:
        self._left.popleft()
        self._ask(channel)

    def _refused(self, _channel: object, reason: BaseException) -> None:
        if not isinstance(reason, ChannelClosedByBroker):
            return
        asked = self._left.popleft()
        if Refusal(reason.reply_code, reason.reply_text).missing:
            kind = "queue" if isinstance(asked, QueueDeclaration) else "exchange"
            self._missing.append(f"{kind} {asked.name!r}")
        self._next()
