"""A message's entry in a queue, the order of entries, and delivery counts."""

import struct
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from operator import itemgetter

from django_rmq_retry.embedded.engine.behaviour import Behaviour, Return
from django_rmq_retry.embedded.engine.clock import Clock, Timer
from django_rmq_retry.embedded.engine.envelopes import StoredMessage
from django_rmq_retry.embedded.engine.specs import QueueSpec

NEVER = float("inf")
_HIGH_PRIORITY = 5
_TWO_LANES = 2
_HIGH_IN_A_ROW = 2
_DEFAULT_PRIORITY = 4
"""The priority of a message without one, in the quorum queues of 4.3."""

_LONG = struct.Struct(">q")
_DELIVERY_LIMIT = 20
"""The delivery limit of a quorum queue that declares none; a negative one means unlimited."""


@dataclass(slots=True, eq=False)
class Entry:
    """A message's entry in a queue, with the queue's own counts."""

    message: StoredMessage
    position: int
    expires: float
    count: int = 0
    unkept: int = 0
    """The part of the count that does not travel with the dead letter."""
    acquired: int = 0
    redelivered: bool = False


class Lane:
    """The messages of one priority; returned messages precede those never delivered."""

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
    """The messages ready for a consumer. The first lane with a message supplies the next one."""

    __slots__ = ("_by_position", "_lanes", "_numbers", "_run", "bytes", "count")

    def __init__(self, lanes: int, *, by_position: bool) -> None:
        self._lanes = tuple(Lane() for _ in range(lanes))
        self._by_position = by_position
        self._numbers = 0
        self._run = 0
        self.count = 0
        self.bytes = 0

    def put(self, entry: Entry) -> None:
        lanes = self._lanes
        lane = lanes[0] if len(lanes) == 1 else self._lane_of(entry)
        lane.fresh.append(entry)
        self.count += 1
        self.bytes += self._size(entry)

    def restore(self, entry: Entry) -> None:
        """Put a returned entry back at its place (classic queues) or behind earlier returns (quorum queues)."""
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
        """The entry that `take` would return."""
        return self._lane_ahead().head()

    def take_from(self, lane: Lane) -> Entry:
        entry = lane.take()
        self.count -= 1
        self.bytes -= self._size(entry)
        return entry

    def lines(self) -> tuple[Lane, ...]:
        """The lanes whose heads expire on their own: by default only the lane of the next entry."""
        return (self._lane_ahead(),)

    def __iter__(self) -> Iterator[Entry]:
        """Iterate over the ready entries, lane by lane, without taking them."""
        for lane in self._lanes:
            yield from (entry for _, entry in sorted(lane.back, key=itemgetter(0)))
            yield from lane.fresh

    def clear(self) -> list[Entry]:
        return [self.take() for _ in range(self.count)]

    def _size(self, entry: Entry) -> int:
        return len(entry.message.body)

    def _lane_of(self, entry: Entry) -> Lane:
        """Return the entry's lane: highest first, and a priority above the highest uses the highest."""
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
    """RabbitMQ 4.0's quorum queue: returned messages first, then two of high priority for each older low one."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(3, by_position=False)

    def _lane_of(self, entry: Entry) -> Lane:
        return self._lanes[1 if (entry.message.priority or 0) >= _HIGH_PRIORITY else 2]

    def _lane_back(self, entry: Entry) -> Lane:
        return self._lanes[0]

    def _lane_ahead(self) -> Lane:
        returned, high, low = self._lanes
        if returned.back:
            return returned
        first, second = high.head(), low.head()
        if first and second and self._run == _HIGH_IN_A_ROW:
            return high if first.position < second.position else low
        return high if first else low

    def _next_lane(self) -> Lane:
        lane = self._lane_ahead()
        if lane is not self._lanes[0]:
            self._run = 0 if self._run == _HIGH_IN_A_ROW else self._run + 1
        return lane


class ManyLanes(Ready):
    """RabbitMQ 4.3's quorum queue: returned messages first, then one lane per priority; properties have a size.

    Each lane expires separately.
    """

    __slots__ = ()

    def __init__(self, lanes: int) -> None:
        super().__init__(lanes + 1, by_position=False)

    def lines(self) -> tuple[Lane, ...]:
        return self._lanes

    def _lane_of(self, entry: Entry) -> Lane:
        lowest = len(self._lanes) - 1
        priority = entry.message.priority
        return self._lanes[max(lowest - (_DEFAULT_PRIORITY if priority is None else priority), 1)]

    def _lane_back(self, entry: Entry) -> Lane:
        return self._lanes[0]

    def _size(self, entry: Entry) -> int:
        return len(entry.message.raw) + len(entry.message.body)


def ready_for(highest_priority: int | None, quorum_lanes: int) -> Ready:
    """Return the lanes of a queue: a classic one (no quorum lanes) with its highest priority, or a quorum one."""
    if not quorum_lanes:
        return Ready((highest_priority or 0) + 1, by_position=True)
    return TwoLanes() if quorum_lanes == _TWO_LANES else ManyLanes(quorum_lanes)


class Delayed:
    """Entries that are delayed, each until its own time; `end` is called for each when it is due."""

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
        entries = list(self._timers)
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        return entries

    def _over(self, entry: Entry) -> None:
        del self._timers[entry]
        self._end(entry)


class Counts:
    __slots__ = ("_behaviour", "_first", "_kind", "_limit", "_most")

    def __init__(self, spec: QueueSpec, behaviour: Behaviour) -> None:
        self._behaviour = behaviour
        limit = spec.number("x-delivery-limit")
        self._limit = _DELIVERY_LIMIT if limit is None else limit
        self._kind = spec.text("x-delayed-retry-type") if behaviour.delayed_retry else None
        self._first = spec.seconds("x-delayed-retry-min") or 0.0
        self._most = spec.seconds("x-delayed-retry-max") or self._first

    def exhausted(self, entry: Entry, how: Return) -> bool:
        """Count a return; return True if the delivery limit is exceeded."""
        entry.acquired += 1
        count(entry, how, self._behaviour)
        return 0 <= self._limit < entry.count

    def delay(self, entry: Entry, how: Return) -> float:
        """Return the seconds for which a returned entry is delayed."""
        failed = how in self._behaviour.counted
        if self._kind in ("all", "failed" if failed else "returned"):
            return min(self._first * entry.count, self._most) if failed else self._first
        return 0.0

    def headers(self, entry: Entry) -> bytes:
        shown = delivery_count(entry.count) if entry.count else b""
        # Until the first return to this queue, 4.3 shows the count of the dead letter in both headers.
        acquired = entry.acquired or entry.count
        if acquired and self._behaviour.acquired_count:
            shown += b"\x10x-acquired-countl" + _LONG.pack(acquired)
        return shown


def begin_count(entry: Entry, behaviour: Behaviour) -> None:
    """Start with the count that the message brought."""
    if behaviour.carried_count == "counted":
        entry.count = entry.message.count or 0


def count(entry: Entry, how: Return, behaviour: Behaviour) -> None:
    """Count one more return, if its kind counts."""
    if how in behaviour.counted:
        entry.count += 1
        entry.unkept += how not in behaviour.kept


def delivery_count(number: int) -> bytes:
    return b"\x10x-delivery-countl" + _LONG.pack(number)
