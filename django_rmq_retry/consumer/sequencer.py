"""The order of deliveries, and the quota of messages.

It must not know of databases: what holds a key after a failure is another's business.
"""

import threading
from collections import deque
from collections.abc import Callable, Collection, Hashable

from django_rmq_retry.messages.message import Delivery

Key = Hashable
Keyed = Callable[[Delivery], Key | None]
"""The key of a delivery; None for one that waits for nobody."""


class Sequencer:
    """Filled by the I/O thread, emptied by workers. A key is told under the lock, so that keys are known in order."""

    def __init__(self, key_of: Keyed) -> None:
        self._key_of = key_of
        self._lock = threading.Lock()
        self._arrived: deque[Delivery] = deque()
        self._keys: dict[Delivery, Key] = {}
        """Of those whose turn it is; each holds its key until it is done with."""
        self._behind: dict[Key, deque[Delivery]] = {}
        """The keys that are held, and what waits for each."""
        self._kept: set[Delivery] = set()
        """Of those whose turn it is, the ones that wait in hand for their next attempt."""
        self._channels: dict[str, object] = {}

    @property
    def waiting(self) -> int:
        """How many wait for another message of their key."""
        return sum(map(len, list(self._behind.values())))

    def add(self, delivery: Delivery) -> None:
        """An arrival, or one that was kept and is to be attempted again."""
        self._arrived.append(delivery)

    def take(self) -> Delivery | None:
        """The next whose turn it is; None where the next arrival has to wait for another, or is gone."""
        with self._lock:
            if not self._arrived:
                return None
            delivery = self._arrived.popleft()
            if delivery in self._kept:
                self._kept.discard(delivery)
                return delivery
            if not self._lives(delivery):
                return None
            try:
                key = self._key_of(delivery)
            except BaseException:  # noqa: BLE001 - its attempt will meet the same, and say it
                key = None
            if key is None:
                return delivery
            behind = self._behind.get(key)
            if behind is not None:
                behind.append(delivery)
                return None
            self._behind[key] = deque()
            self._keys[delivery] = key
            return delivery

    def done(self, delivery: Delivery) -> Delivery | None:
        """A message is done with; the next one of its key, whose turn it is now."""
        if delivery not in self._keys:
            return None
        with self._lock:
            return self._passed_on(delivery)

    def keep(self, delivery: Delivery) -> Delivery | None:
        """A message stays in hand and keeps its key; one whose channel is gone is given up, as ``done``."""
        with self._lock:
            if self._channels.get(delivery.queue) is not delivery.channel:
                return self._passed_on(delivery)
            if delivery in self._keys:
                self._kept.add(delivery)
            return None

    def give_up(self, queues: Collection[str]) -> list[Delivery]:
        """What has not begun of these queues; it is no longer anybody's here."""
        with self._lock:
            given: list[Delivery] = []
            for line in (self._arrived, *self._behind.values()):
                # Taken out one by one: the I/O thread adds to it meanwhile.
                found = [line.popleft() for _ in range(len(line))]
                given += [one for one in found if one.queue in queues and one not in self._kept]
                line.extendleft(reversed([one for one in found if one.queue not in queues or one in self._kept]))
            return given

    def clear(self) -> None:
        """Forget whatever has not begun."""
        with self._lock:
            self._arrived.clear()
            for behind in self._behind.values():
                behind.clear()

    def _lives(self, delivery: Delivery) -> bool:
        """Whether its channel is the newest of its queue; what came by an older one comes again by this."""
        channel, known = delivery.channel, self._channels.get(delivery.queue)
        if channel is known:
            return True
        if getattr(channel, "open", True) is False:
            return False
        self._channels[delivery.queue] = channel
        self._forget(delivery.queue, channel)
        return True

    def _forget(self, queue: str, channel: object) -> None:
        """What has not begun of older channels would run twice; what runs holds its key until it ends."""
        for behind in self._behind.values():
            left = [one for one in behind if one.queue != queue or one.channel is channel]
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


class Quota:
    """Shared by all worker threads. ``last`` is called as the last run begins, on its thread."""

    def __init__(self, most: int, *, last: Callable[[], None]) -> None:
        self.most = most
        self._last = last
        self._lock = threading.Lock()
        self._looked_at: set[Delivery] = set()
        self._begun = 0
        self._ended = 0
        self._spare: list[Delivery] = []

    @property
    def begun(self) -> bool:
        """Whether nothing more may be run."""
        return self._begun >= self.most

    @property
    def used(self) -> bool:
        """Whether every run that was asked for has come to its end."""
        return self._ended >= self.most

    def admits(self, delivery: Delivery) -> bool:
        """Whether it may be attempted; if not it is kept, for one of those under way may turn out to be no run."""
        with self._lock:
            admitted = self._begun + len(self._looked_at) < self.most
            if admitted:
                self._looked_at.add(delivery)
            else:
                self._spare.append(delivery)
            return admitted

    def begin(self, delivery: Delivery) -> None:
        """Its handler is about to run."""
        with self._lock:
            self._looked_at.discard(delivery)
            self._begun += 1
            last = self._begun == self.most
        if last:
            self._last()

    def end(self, delivery: Delivery) -> list[Delivery]:
        """Its attempt is over; what may be attempted in its place if it was no run."""
        with self._lock:
            if delivery not in self._looked_at:
                self._ended += 1
                return []
            self._looked_at.discard(delivery)
        return self.take_spare()

    def take_spare(self) -> list[Delivery]:
        """What was kept; it is no longer."""
        with self._lock:
            spare, self._spare = self._spare, []
            return spare
