"""A message's entry in a queue, the order of entries, and delivery counts."""

import struct
from collections import deque
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from operator import itemgetter
from typing import Literal

from django_rmq_retry.embedded.engine.arguments import QueueSpec
from django_rmq_retry.embedded.engine.behaviour import Behaviour, Return
from django_rmq_retry.embedded.engine.clock import Clock, Timer
from django_rmq_retry.embedded.engine.messages import Message

NEVER = float("inf")
_HIGH = 5
_TWO = 2
_HIGH_RUN = 2
_UNSAID = 4
"""The priority, in 4.3's quorum queues, of a message that has none."""


class Entry:
    """A message's place in a queue, and what the queue remembers of it."""

    __slots__ = ("acquired", "count", "expires", "message", "position", "redelivered", "unkept")

    def __init__(self, message: Message, position: int, expires: float) -> None:
        self.message = message
        self.position = position
        self.expires = expires
        self.count = 0
        self.unkept = 0
        """What of the count does not go with it when it is dead-lettered."""
        self.acquired = 0
        self.redelivered = False


class Lane:
    """One line of messages; what came back goes before what was never given out."""

    __slots__ = ("back", "fresh")

    def __init__(self) -> None:
        self.fresh: deque[Entry] = deque()
        self.back: list[tuple[int, Entry]] = []

    def head(self) -> Entry | None:
        if self.back:
            return self.back[0][1]
        return self.fresh[0] if self.fresh else None

    def take(self) -> Entry:
        return heappop(self.back)[1] if self.back else self.fresh.popleft()


class Ready:
    """The messages that wait for a consumer. Of lanes, the first that has something gives."""

    __slots__ = ("_by_position", "_lanes", "_numbers", "_run", "bytes", "count")

    def __init__(self, lanes: int, *, by_position: bool) -> None:
        self._lanes = tuple(Lane() for _ in range(lanes))
        self._by_position = by_position
        self._numbers = 0
        self._run = 0
        self.count = 0
        self.bytes = 0

    def put(self, entry: Entry) -> None:
        """At the back of its lane."""
        lanes = self._lanes
        lane = lanes[0] if len(lanes) == 1 else self._lane_of(entry)
        lane.fresh.append(entry)
        self.count += 1
        self.bytes += self._size(entry)

    def restore(self, entry: Entry) -> None:
        """Where it was (classic queues), or behind what came back before it (quorum queues)."""
        self._numbers += 1
        lane = self._lane_back(entry)
        heappush(lane.back, (entry.position if self._by_position else self._numbers, entry))
        self.count += 1
        self.bytes += self._size(entry)

    def take(self) -> Entry:
        lanes = self._lanes
        entry = (lanes[0] if len(lanes) == 1 else self._next_lane()).take()
        self.count -= 1
        self.bytes -= self._size(entry)
        return entry

    def head(self) -> Entry | None:
        """What `take` would give."""
        return self._lane_ahead().head()

    def take_from(self, lane: Lane) -> Entry:
        entry = lane.take()
        self.count -= 1
        self.bytes -= self._size(entry)
        return entry

    def lines(self) -> tuple[Lane, ...]:
        """The lanes whose heads expire on their own: here only the one that gives next."""
        return (self._lane_ahead(),)

    def __iter__(self) -> Iterator[Entry]:
        """What waits, lane by lane, for somebody who only looks."""
        for lane in self._lanes:
            yield from (entry for _, entry in sorted(lane.back, key=itemgetter(0)))
            yield from lane.fresh

    def clear(self) -> list[Entry]:
        found = []
        while self.count:
            found.append(self.take())
        return found

    def _size(self, entry: Entry) -> int:
        return len(entry.message.body)

    def _lane_of(self, entry: Entry) -> Lane:
        """Lanes stand highest first; a classic queue takes a priority above its highest for its highest."""
        top = len(self._lanes) - 1
        return self._lanes[top - min(entry.message.priority or 0, top)]

    def _lane_back(self, entry: Entry) -> Lane:
        return self._lanes[0] if len(self._lanes) == 1 else self._lane_of(entry)

    def _lane_ahead(self) -> Lane:
        lanes = self._lanes
        return lanes[0] if len(lanes) == 1 else next((lane for lane in lanes if lane.head()), lanes[0])

    def _next_lane(self) -> Lane:
        return self._lane_ahead()


class TwoLanes(Ready):
    """RabbitMQ 4.0's quorum queue: what came back, then two high ones to each low one that is older."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(3, by_position=False)

    def _lane_of(self, entry: Entry) -> Lane:
        return self._lanes[1 if (entry.message.priority or 0) >= _HIGH else 2]

    def _lane_back(self, entry: Entry) -> Lane:
        return self._lanes[0]

    def _lane_ahead(self) -> Lane:
        returned, high, low = self._lanes
        if returned.back:
            return returned
        first, second = high.head(), low.head()
        if first and second and self._run == _HIGH_RUN:
            return high if first.position < second.position else low
        return high if first else low

    def _next_lane(self) -> Lane:
        lane = self._lane_ahead()
        if lane is not self._lanes[0]:
            self._run = 0 if self._run == _HIGH_RUN else self._run + 1
        return lane


class ManyLanes(Ready):
    """RabbitMQ 4.3's quorum queue: what came back, then a line for each priority; properties have a size.

    Each line expires on its own.
    """

    __slots__ = ()

    def __init__(self, lanes: int) -> None:
        super().__init__(lanes + 1, by_position=False)

    def lines(self) -> tuple[Lane, ...]:
        return self._lanes

    def _lane_of(self, entry: Entry) -> Lane:
        lowest = len(self._lanes) - 1
        priority = entry.message.priority
        return self._lanes[max(lowest - (_UNSAID if priority is None else priority), 1)]

    def _lane_back(self, entry: Entry) -> Lane:
        return self._lanes[0]

    def _size(self, entry: Entry) -> int:
        return len(entry.message.raw) + len(entry.message.body)


def ready_for(highest_priority: int | None, quorum_lanes: int) -> Ready:
    """What fits a queue: a classic one (no quorum lanes) with its highest priority, or a quorum one."""
    if not quorum_lanes:
        return Ready((highest_priority or 0) + 1, by_position=True)
    return TwoLanes() if quorum_lanes == _TWO else ManyLanes(quorum_lanes)


class Delayed:
    """Entries that are kept back, each until its own time; `end` is told when that has come."""

    __slots__ = ("_clock", "_end", "_timers")

    def __init__(self, clock: Clock, end: Callable[[Entry], None]) -> None:
        self._clock = clock
        self._end = end
        self._timers: dict[Entry, Timer] = {}

    def __len__(self) -> int:
        return len(self._timers)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._timers)

    def put(self, entry: Entry, due: float) -> None:
        self._timers[entry] = self._clock.at(due, lambda: self._over(entry))

    def due(self, entry: Entry) -> float:
        return self._timers[entry].due

    def clear(self) -> list[Entry]:
        """Give them all up."""
        entries = list(self._timers)
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        return entries

    def _over(self, entry: Entry) -> None:
        del self._timers[entry]
        self._end(entry)


_LONG = struct.Struct(">q")
_DELIVERY_LIMIT = 20
"""That of a queue whose declaration names none; a negative one is none."""
Delays = Literal["all", "failed", "returned"]


class Counts:
    """The rules of one quorum queue."""

    __slots__ = ("_behaviour", "_first", "_kind", "_limit", "_most")

    def __init__(self, spec: QueueSpec, behaviour: Behaviour) -> None:
        self._behaviour = behaviour
        limit = spec.number("x-delivery-limit")
        self._limit = _DELIVERY_LIMIT if limit is None else limit
        self._kind = spec.text("x-delayed-retry-type") if behaviour.delayed_retry else None
        self._first = spec.seconds("x-delayed-retry-min") or 0.0
        self._most = spec.seconds("x-delayed-retry-max") or self._first

    def exhausted(self, entry: Entry, how: Return) -> bool:
        """Count a return, and tell whether it was one too many."""
        entry.acquired += 1
        count(entry, how, self._behaviour)
        return 0 <= self._limit < entry.count

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
        if entry.count:
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
