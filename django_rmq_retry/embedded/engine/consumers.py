"""The consumers of a queue: credit, turns and slow clients."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from django_rmq_retry.embedded.engine.behaviour import Behaviour
from django_rmq_retry.embedded.engine.entries import Entry

MOST_UNREAD_BYTES, FEW_UNREAD_BYTES = 8 * 2**20, 2**20
_FRAME_BYTES = 100
"""Approximate bytes of a delivery's frames besides its properties and body."""


@dataclass(slots=True, eq=False)
class Valve:
    """Backpressure of one client: it closes when too much is unread and opens once little is left."""

    most: float = inf
    shut: bool = False
    unread: int = 0

    def pass_on(self, size: int) -> None:
        """Count a delivery on its way; later deliveries may have to wait."""
        self.unread += size + _FRAME_BYTES
        if self.unread > self.most:
            self.shut = True

    def measure(self, unread: int) -> bool:
        """Set the real number of unread bytes; return True if the valve opens."""
        self.unread = unread
        opens = self.shut and unread < FEW_UNREAD_BYTES
        self.shut = unread > self.most or (self.shut and not opens)
        return opens


@dataclass(slots=True, eq=False)
class Credit:
    """The unacked deliveries of a channel and their limit; 0 is unlimited. The whole connection shares the valve."""

    valve: Valve
    limit: int = 0
    unacked: int = 0


@dataclass(slots=True, eq=False)
class BrokerConsumer:
    """One basic.consume; `take` receives a message, `gone` is called when the queue is deleted."""

    tag: str
    credit: Credit
    no_ack: bool
    prefetch: int
    exclusive: bool = False
    priority: int = 0
    take: Callable[[Entry], None] = field(init=False)
    gone: Callable[[], None] = field(init=False)
    unacked: int = 0
    listed: bool = False
    """True from the start of the consumer to its end."""
    waits: bool = False
    """True while the roster lists the consumer as able to take a message."""

    def full(self) -> bool:
        credit = self.credit
        if credit.valve.shut:
            return True
        if self.no_ack:
            return False
        return bool(
            (self.prefetch and self.unacked >= self.prefetch) or (credit.limit and credit.unacked >= credit.limit)
        )


class Roster:
    """The consumers of one queue, in turn; with `single`, one consumer is active until it leaves or yields."""

    __slots__ = (
        "_active", "_line", "_ranked", "_returned_yields", "_yielding", "_yields", "members", "single"
    )  # fmt: skip

    def __init__(self, behaviour: Behaviour, *, single: bool, quorum: bool) -> None:
        self.single = single
        self.members: list[BrokerConsumer] = []
        self._line: deque[BrokerConsumer] = deque()
        self._ranked = False
        self._yields = quorum
        self._returned_yields = behaviour.returned_yields
        self._active: BrokerConsumer | None = None
        self._yielding = False
        """True while the active consumer gets nothing more because it will yield once nothing is unacked."""

    def add(self, consumer: BrokerConsumer) -> None:
        self.members.append(consumer)
        consumer.listed = True
        self._ranked = self._ranked or consumer.priority != 0
        self._appoint()
        self.wake(consumer)

    def remove(self, consumer: BrokerConsumer) -> None:
        self.members.remove(consumer)
        consumer.listed = False
        self._leave_line(consumer)
        if consumer is self._active:
            self._active = None
        self._appoint()

    def settled(self, consumer: BrokerConsumer) -> None:
        self._appoint()
        self.wake(consumer)

    def returned(self) -> None:
        if self._returned_yields:
            self._appoint()

    def wake(self, consumer: BrokerConsumer) -> None:
        """Put a consumer that may have room again in line for the next message."""
        if consumer.waits or (self.single and (consumer is not self._active or self._yielding)):
            return
        if consumer.listed:
            self._line.append(consumer)
            consumer.waits = True

    def next(self) -> BrokerConsumer | None:
        """Return the next consumer with room; full ones leave the list until they are woken."""
        line = self._line
        while line:
            consumer = line[0]
            if self._ranked:
                consumer = max(line, key=_rank)
            if not consumer.full():
                if len(line) > 1:
                    line.remove(consumer)
                    line.append(consumer)
                return consumer
            line.remove(consumer)
            consumer.waits = False
        return None

    @property
    def exclusive(self) -> bool:
        return any(consumer.exclusive for consumer in self.members)

    def _appoint(self) -> None:
        if not self.single:
            return
        active, best = self._active, max(self.members, key=_rank, default=None)
        if active is None or best is None:
            self._activate(best)
        elif self._yields and (self._yielding or best.priority > active.priority):
            if active.unacked:
                self._yielding = True
                self._leave_line(active)
            else:
                self._activate(best)

    def _activate(self, consumer: BrokerConsumer | None) -> None:
        if self._active is not None:
            self._leave_line(self._active)
        self._active, self._yielding = consumer, False
        if consumer is not None:
            self.wake(consumer)

    def _leave_line(self, consumer: BrokerConsumer) -> None:
        if consumer.waits:
            self._line.remove(consumer)
            consumer.waits = False


def _rank(consumer: BrokerConsumer) -> int:
    return consumer.priority
