"""How a quorum queue counts what comes back: the delivery limit, 4.3's delayed retry, and the headers that tell."""

import struct
from typing import Literal

from django_rmq_retry.embedded.engine.arguments import QueueSpec
from django_rmq_retry.embedded.engine.behaviour import Behaviour, Return
from django_rmq_retry.embedded.engine.entries import Entry

_LONG = struct.Struct(">q")
Delays = Literal["all", "failed", "returned"]


class Counts:
    """The rules of one quorum queue."""

    __slots__ = ("_behaviour", "_first", "_kind", "_limit", "_most", "to_back")

    def __init__(self, spec: QueueSpec, behaviour: Behaviour) -> None:
        self._behaviour = behaviour
        limit = spec.number("x-delivery-limit")
        self._limit = behaviour.delivery_limit if limit is None else limit
        if self._limit is not None and self._limit < 0:
            self._limit = behaviour.negative_limit
        self.to_back = behaviour.unlimited_to_back and limit is None
        """What is returned goes behind everything else."""
        self._kind = spec.text("x-delayed-retry-type") if behaviour.delayed_retry else None
        self._first = spec.seconds("x-delayed-retry-min") or 0.0
        self._most = spec.seconds("x-delayed-retry-max") or self._first

    def exhausted(self, entry: Entry, how: Return) -> bool:
        """Count a return, and tell whether it was one too many."""
        entry.acquired += 1
        count(entry, how, self._behaviour)
        return self._limit is not None and entry.count > self._limit

    def delay(self, entry: Entry, how: Return) -> float:
        """For how long it is kept back before it is given out again."""
        failed = how in self._behaviour.counted
        if self._kind in ("all", "failed" if failed else "returned"):
            return min(self._first * entry.count, self._most) if failed else self._first
        return 0.0

    def headers(self, entry: Entry) -> bytes:
        """The encoded headers that its next delivery shows."""
        behaviour = self._behaviour
        shown = b""
        if entry.count or behaviour.zero_count:
            shown = b"\x10x-delivery-countl" + _LONG.pack(entry.count)
        # As long as it has not come back here, 4.3 takes the count that came with it for both.
        acquired = entry.acquired or entry.count
        if acquired and behaviour.acquired_count:
            shown += b"\x10x-acquired-countl" + _LONG.pack(acquired)
        return shown


def begin(entry: Entry, behaviour: Behaviour) -> None:
    """Go on from the count that came with a message."""
    if behaviour.carried_count == "counted":
        entry.count = entry.message.count or 0


def count(entry: Entry, how: Return, behaviour: Behaviour) -> None:
    """One more return, if it is of a kind that counts."""
    if how in behaviour.counted:
        entry.count += 1
        entry.unkept += how not in behaviour.kept


def carried(number: int) -> bytes:
    """The header of a count that came with the message from another queue."""
    return b"\x10x-delivery-countl" + _LONG.pack(number)
