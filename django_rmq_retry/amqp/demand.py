"""Reasons not to consume a queue now: paused, missing, forbidden or empty."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pika.exceptions import ChannelClosedByBroker

from django_rmq_retry.amqp.channel import OpenLine
from django_rmq_retry.amqp.connection import Connection, IoThread
from django_rmq_retry.amqp.contracts import Line
from django_rmq_retry.amqp.refusals import Refusal
from django_rmq_retry.amqp.session import Named, passively
from django_rmq_retry.topology.declarations import QueueDeclaration

if TYPE_CHECKING:
    from pika.channel import Channel


LOOK = 0.05


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
            if line.in_hand <= 0 and line.quiet:
                line.close()
        self._retired = [line for line in self._retired if line.open]
        if self._retired:
            self._io.later(LOOK, self._close_settled)


class Emptiness:
    """Reads each line's queue depth once and calls back with True if all are empty and nothing is unacked."""

    def __init__(self, lines: Sequence[OpenLine], told: Callable[[bool], None]) -> None:
        self._left = len(lines)
        self._lines = lines
        self._found = sum(line.in_hand for line in lines)
        self._told = told
        for line in lines:
            line.depth(self._one)

    def _one(self, ready: int) -> None:
        self._left -= 1
        self._found += ready
        if not self._left:
            # A message that was ready before the query may have been delivered since.
            self._told(self._found == 0 and not any(line.in_hand for line in self._lines))


class Look:
    """Checks which of the named queues and exchanges are missing, and calls back with them once.

    If the connection is lost meanwhile, there is no call. What the broker refuses to show, or cannot show because a
    node is down, counts as existing.
    """

    def __init__(self, connection: Connection, named: Iterable[Named], told: Callable[[list[str]], None]) -> None:
        self._connection = connection
        self._left = deque(named)
        self._missing: list[str] = []
        self._told = told
        self._go_on()

    def _go_on(self) -> None:
        """Open another channel for the next check, because a refusal closes the channel."""
        if self._left:
            self._connection.channel(on_open_callback=self._opened)
        else:
            self._told(self._missing)

    def _opened(self, channel: "Channel") -> None:
        channel.add_on_close_callback(self._refused)
        self._ask(channel)

    def _ask(self, channel: "Channel") -> None:
        if self._left:
            passively(self._left[0])(channel, lambda _frame: self._found(channel))
        else:
            channel.close()
            self._go_on()

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
        self._go_on()
