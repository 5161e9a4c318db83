"""Queues that are not consumed for now: their lines are given up, and closed when nothing of them is in hand."""

from dataclasses import replace

from django_rmq_retry.broker.base import Line
from django_rmq_retry.broker.lines import OpenLine
from django_rmq_retry.broker.looping import IoThread

LOOK = 0.05


class Pauses:
    """Used on the I/O thread only."""

    def __init__(self, io: IoThread) -> None:
        self._io = io
        self._paused: set[str] = set()
        self._narrow: dict[str, int] = {}
        self._retired: list[OpenLine] = []

    def __contains__(self, queue: object) -> bool:
        return queue in self._paused

    @property
    def retired(self) -> tuple[OpenLine, ...]:
        """Lines that are given up, of which something is still in hand."""
        return tuple(self._retired)

    def pause(self, queue: str) -> None:
        self._paused.add(queue)

    def resume(self, queue: str, prefetch: int | None) -> None:
        """From now on with so many in hand; None is as many as its line says."""
        self._paused.discard(queue)
        if prefetch is None:
            self._narrow.pop(queue, None)
        else:
            self._narrow[queue] = prefetch

    def shaped(self, line: Line) -> Line:
        """The line as it is to be opened now."""
        most = self._narrow.get(line.queue)
        return line if most is None or most >= line.prefetch else replace(line, prefetch=most)

    def retire(self, line: OpenLine) -> None:
        """Its consumer ends now, its channel when what is in hand is settled: until then acks must be heard."""
        line.retire()
        self._retired.append(line)
        if len(self._retired) == 1:
            self._close_settled()

    def forget(self) -> None:
        """The connection is gone, and with it every channel."""
        self._retired.clear()

    def close(self) -> None:
        for line in self._retired:
            line.close()
        self._retired.clear()

    def _close_settled(self) -> None:
        for line in self._retired:
            if line.in_hand <= 0:
                line.close()
        self._retired = [line for line in self._retired if line.open]
        if self._retired:
            self._io.later(LOOK, self._close_settled)
