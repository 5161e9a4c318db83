"""The queues that a connection does not consume for now, or only with a smaller prefetch."""

from dataclasses import replace

from django_rmq_retry.amqp.contracts import Line
from django_rmq_retry.amqp.io_thread import IoThread
from django_rmq_retry.amqp.open_line import OpenLine

SETTLED_LOOK_SECONDS = 0.05


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
            self._io.later(SETTLED_LOOK_SECONDS, self._close_settled)
