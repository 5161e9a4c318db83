"""The order of deliveries within an ordering key, without the database."""

import threading
from collections import deque
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, field

from django_rmq_retry.consumer.deadlines import HandlerAbandoned
from django_rmq_retry.messages.message import Delivery

Key = Hashable
Keyed = Callable[[Delivery], Key | None]
"""Returns the key of a delivery, or None if the delivery does not wait for others."""


@dataclass(slots=True, eq=False)
class _Arrivals:
    """The deliveries of one queue whose key is not known yet, in order of arrival."""

    arrived: deque[Delivery] = field(default_factory=deque)
    due: deque[Delivery] = field(default_factory=deque)
    """The deliveries that were kept and are due for their next attempt; their keys are known."""
    busy: bool = False
    """True while a thread computes a key. Only one does, so one hanging ``order_by`` occupies one thread."""
    tokens: list[Delivery] = field(default_factory=list)
    """The tokens that threads brought meanwhile."""


class Sequencer:
    """Lets the deliveries of one key run one after the other.

    The I/O thread adds deliveries and worker threads take them, each with a token. Keys are computed one at a time for
    each queue, so that deliveries get their turns in order of arrival, and outside the lock, because that is code of
    the project: it may hang, and no other queue and no stop may wait for it.
    """

    def __init__(self, key_of: Keyed, *, again: Callable[[Delivery], None] = lambda _token: None) -> None:
        self._key_of = key_of
        self._again = again
        """Called with each token that was brought too early, once another key may be computed."""
        self._lock = threading.Lock()
        self._arrivals: dict[str, _Arrivals] = {}
        self._clearings = 0
        self._keys: dict[Delivery, Key] = {}
        """The keys of the deliveries whose turn it is; each occupies its key until ``done``."""
        self._behind: dict[Key, deque[Delivery]] = {}
        """The occupied keys, and the deliveries that wait for each."""
        self._kept: set[Delivery] = set()
        """The deliveries that have their turn and wait, unacked, for their next attempt."""
        self._lines: dict[str, object] = {}
        """The newest line of each queue."""

    @property
    def waiting(self) -> int:
        """The number of deliveries that wait for another delivery of their key, or for the key of an earlier one."""
        behind = sum(map(len, list(self._behind.values())))
        return behind + sum(len(line.tokens) for line in list(self._arrivals.values()))

    def add(self, delivery: Delivery) -> None:
        """Add a delivery that has arrived, or one that was kept and is due for its next attempt."""
        # Without the lock, for which the I/O thread never waits.
        line = self._line(delivery.queue)
        (line.due if delivery in self._kept else line.arrived).append(delivery)

    def take(self, token: Delivery) -> Delivery | None:
        """Take the next arrival of the token's queue and return it if it is its turn.

        Return None if it must wait, if its line has closed, or if another thread computes a key of that queue.
        """
        line = self._line(token.queue)
        with self._lock:
            while line.due:
                delivery = line.due.popleft()
                if delivery in self._kept:
                    self._kept.discard(delivery)
                    return delivery
            if line.busy:
                line.tokens.append(token)
                return None
            if not line.arrived:
                return None
            delivery = line.arrived.popleft()
            if not self._lives(delivery):
                return None
            line.busy, clearings = True, self._clearings
        try:
            key = self._key_of(delivery)
        except HandlerAbandoned:
            # The message was settled without its key.
            clearings = -1
        except BaseException:  # noqa: BLE001 - the attempt raises the same error and reports it
            key = None
        with self._lock:
            turn = self._turn(delivery, key) if clearings == self._clearings else None
            line.busy, tokens, line.tokens = False, line.tokens, []
        for one in tokens:
            self._again(one)
        return turn

    def done(self, delivery: Delivery) -> Delivery | None:
        """End the turn of a delivery; return the next one of its key, whose turn it is now, or None."""
        if delivery not in self._keys:
            return None
        with self._lock:
            return self._passed_on(delivery)

    def keep(self, delivery: Delivery) -> Delivery | None:
        """Keep a delivery unacked, with its turn; if its line has closed, end its turn like ``done``."""
        with self._lock:
            if self._lines.get(delivery.queue) is not delivery.line:
                return self._passed_on(delivery)
            if delivery in self._keys:
                self._kept.add(delivery)
            return None

    def give_up(self, queues: Collection[str]) -> list[Delivery]:
        """Remove the deliveries of these queues that have not begun, and return them, except one being looked at."""
        with self._lock:
            given: list[Delivery] = []
            arrived = [line.arrived for line in list(self._arrivals.values())]
            for line in (*arrived, *self._behind.values()):
                # Take them out one by one, because the I/O thread adds to the deque at the same time.
                deliveries = [line.popleft() for _ in range(len(line))]
                given += [one for one in deliveries if one.queue in queues]
                line.extendleft(reversed([one for one in deliveries if one.queue not in queues]))
            return given

    def clear(self) -> None:
        """Forget all deliveries that have not begun."""
        with self._lock:
            self._clearings += 1
            for line in list(self._arrivals.values()):
                line.arrived.clear()
                line.due.clear()
                line.tokens.clear()
            for behind in self._behind.values():
                behind.clear()

    def _line(self, queue: str) -> _Arrivals:
        line = self._arrivals.get(queue)
        return self._arrivals.setdefault(queue, _Arrivals()) if line is None else line

    def _turn(self, delivery: Delivery, key: Key | None) -> Delivery | None:
        """Return the delivery if it is its turn; otherwise let it wait behind the others of its key."""
        if key is None:
            return delivery
        behind = self._behind.get(key)
        if behind is not None:
            behind.append(delivery)
            return None
        self._behind[key] = deque()
        self._keys[delivery] = key
        return delivery

    def _lives(self, delivery: Delivery) -> bool:
        """True if the delivery came over its queue's newest line, which is open; the broker redelivers the others."""
        if delivery.is_stale:
            return False
        if delivery.line is self._lines.get(delivery.queue):
            return True
        self._lines[delivery.queue] = delivery.line
        self._forget(delivery.queue, delivery.line)
        return True

    def _forget(self, queue: str, newest: object) -> None:
        """Forget deliveries of older lines that have not begun. A running one occupies its key until it ends."""
        for behind in self._behind.values():
            left = [one for one in behind if one.queue != queue or one.line is newest]
            behind.clear()
            behind.extend(left)
        for delivery in [one for one in self._kept if one.queue == queue]:
            self._kept.discard(delivery)
            self._passed_on(delivery)

    def _passed_on(self, delivery: Delivery) -> Delivery | None:
        key = self._keys.pop(delivery, None)
        if key is None:
            return None
        behind = self._behind[key]
        if not behind:
            del self._behind[key]
            return None
        following = behind.popleft()
        self._keys[following] = key
        return following
