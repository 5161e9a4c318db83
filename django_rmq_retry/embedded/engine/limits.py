"""A queue's greatest length, and what becomes of what does not fit."""

from typing import Literal

from django_rmq_retry.embedded.engine.arguments import QueueSpec

# A full quorum queue takes messages again at 80 % of its limit (rabbit_fifo's LOW_LIMIT).
_REOPENS_AT = 0.8
Verdict = Literal["take", "refuse", "bury"]


class Limits:
    """x-max-length, x-max-length-bytes and x-overflow. What a client holds does not count."""

    __slots__ = ("_bytes", "_length", "_quorum", "_shut", "drops", "overflow")

    def __init__(self, spec: QueueSpec) -> None:
        self._length = spec.number("x-max-length")
        self._bytes = spec.number("x-max-length-bytes")
        self._quorum = spec.quorum
        self._shut = False
        self.overflow = spec.text("x-overflow") or "drop-head"
        # Quorum queues take reject-publish-dlx without a word and drop their head instead (docs/quorum-queues).
        self.drops = self.overflow == "drop-head" or (spec.quorum and self.overflow == "reject-publish-dlx")

    def judge(self, count: int, size: int, *, more: int) -> Verdict:
        """What becomes of a message of `more` bytes at a queue with this many messages and bytes."""
        if self.drops:
            return "take"
        if self._quorum:
            return "refuse" if self._still_shut(count, size) else "take"
        if not self.over(count + 1, size + more):
            return "take"
        return "bury" if self.overflow == "reject-publish-dlx" else "refuse"

    def over(self, count: int, size: int) -> bool:
        return (self._length is not None and count > self._length) or (self._bytes is not None and size > self._bytes)

    def note(self, count: int, size: int) -> None:
        """A quorum queue refuses only after it has grown beyond its limit: it holds one message too many."""
        if not self.drops and self.over(count, size):
            self._shut = True

    def _still_shut(self, count: int, size: int) -> bool:
        if self._shut and _below(count, self._length) and _below(size, self._bytes):
            self._shut = False
        return self._shut


def _below(value: int, limit: int | None) -> bool:
    return limit is None or value <= int(limit * _REOPENS_AT)
