"""The queues that a connection does not consume for now, or only with a smaller prefetch."""

from collections.abc import Callable
from dataclasses import replace
from typing import Generic, Protocol, TypeVar

from django_rmq_retry.amqp.contracts import Line
from django_rmq_retry.amqp.settler import SettledLine

SETTLED_LOOK_SECONDS = 0.05


class PausedLine(SettledLine, Protocol):
    """The part of an open line that a pause uses."""

    in_flight: int

    @property
    def quiet(self) -> bool: ...

    def retire(self) -> None: ...

    def count_unsettled(self) -> None: ...

    def close(self) -> None: ...


AnyLine = TypeVar("AnyLine", bound=PausedLine)


class Pauses(Generic[AnyLine]):
    """The paused queues, their reduced prefetches and the lines given up. Used on the I/O thread only."""

    def __init__(
        self,
        lines: dict[str, AnyLine],
        *,
        return_waiting: Callable[[AnyLine], None],
        later: Callable[[float, Callable[[], None]], object] | None = None,
    ) -> None:
        self._lines = lines
        """The consumed lines of the connection by queue; a pause takes them out."""
        self._return_waiting = return_waiting
        self._later = later
        """Runs the looks at the lines that are given up; without it, their owner calls ``close_settled``."""
        self._paused: set[str] = set()
        self._narrow: dict[str, int] = {}
        self._retired: list[AnyLine] = []

    def __contains__(self, queue: object) -> bool:
        return queue in self._paused

    @property
    def retired(self) -> tuple[AnyLine, ...]:
        """The lines that are given up and still have unacked deliveries."""
        return tuple(self._retired)

    def pause(self, queue: str) -> None:
        self._paused.add(queue)
        line = self._lines.pop(queue, None)
        if line is not None:
            self.retire(line)
            self._return_waiting(line)
            if self._later is None:
                self.close_settled()

    def resume(self, queue: str, prefetch: int | None, wanted: Line | None) -> None:
        """Consume the queue again with this prefetch; None means the prefetch of its line."""
        self._paused.discard(queue)
        if prefetch is None:
            self._narrow.pop(queue, None)
        else:
            self._narrow[queue] = prefetch
        line = self._lines.get(queue)
        if line is not None and wanted is not None and line.line.prefetch != self.shaped(wanted).prefetch:
            # A prefetch applies to new subscriptions only and cannot be changed later (docs/consumer-prefetch).
            self.retire(self._lines.pop(queue))

    def shaped(self, line: Line) -> Line:
        """Return the line with the prefetch to open it with now."""
        most = self._narrow.get(line.queue)
        return line if most is None or most >= line.prefetch else replace(line, prefetch=most)

    def retire(self, line: AnyLine) -> None:
        """End the consumer now, and close the channel once all deliveries are settled: acks need the channel."""
        line.retire()
        self._retired.append(line)
        if len(self._retired) == 1:
            self.close_settled()

    def forget(self) -> None:
        """Drop all given-up lines: the connection is lost, and every channel with it."""
        self._retired.clear()

    def close(self) -> None:
        for line in self._retired:
            line.close()
        self._retired.clear()

    def close_settled(self) -> None:
        for line in self._retired:
            if line.in_flight <= 0 and line.quiet:
                line.close()
            else:
                line.count_unsettled()
        self._retired = [line for line in self._retired if line.open]
        if self._retired and self._later is not None:
            self._later(SETTLED_LOOK_SECONDS, self.close_settled)
