"""Whether anything is left to do in the queues that are consumed."""

from collections.abc import Callable, Sequence

from django_rmq_retry.broker.lines import OpenLine


class Emptiness:
    """Asks every line once and tells the sum."""

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
            # What was ready a moment ago may have come into our hand since we asked.
            self._told(self._found == 0 and not any(line.in_hand for line in self._lines))
