"""Gathers the messages of handlers with ``batch`` on their way to the workers."""

import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from django_rmq_retry.consumer.workers import Pool
from django_rmq_retry.handlers.batch import Batch
from django_rmq_retry.handlers.subscription import WorkQueue
from django_rmq_retry.messages.message import Delivery

Later = Callable[[float, Callable[[], None]], None]
"""Calls a function after so many seconds."""


class Added(NamedTuple):
    """What follows from a message that was added."""

    full: bool
    """True if a worker can take a batch now."""
    timer: int = 0
    """The number of the timer to start; 0 for none."""


class Gathering:
    """The messages of one queue that wait for their batch. It is itself the job by which a worker takes one.

    A timer runs as long as there are messages for which no job was handed on. There are always less of those than fill
    a batch, so a worker that comes late takes one full batch instead of several small ones.
    """

    def __init__(self, queue: str, batch: Batch) -> None:
        self.queue = queue
        self.size, self.wait = batch.size, batch.wait
        self._together: deque[Delivery] = deque()
        self._alone: deque[Delivery] = deque()
        """The messages that came back: one of them may have killed the worker that had it, and no other may suffer."""
        self._jobs = 0
        """Its jobs that no worker has begun."""
        self._timer = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._together) + len(self._alone)

    def add(self, delivery: Delivery) -> Added:
        with self._lock:
            if delivery.redelivered:
                self._alone.append(delivery)
                self._jobs += 1
                return Added(full=True)
            self._together.append(delivery)
            left = self._left
            if left == self.size:
                self._jobs += 1
                return Added(full=True)
            if left == 1:
                self._timer += 1
                return Added(full=False, timer=self._timer)
            return Added(full=False)

    def due(self, timer: int) -> bool:
        """End the wait for a batch to fill; return True if a worker can take it now."""
        with self._lock:
            is_due = timer == self._timer and self._left > 0
            self._jobs += is_due
            return is_due

    def take(self) -> list[Delivery]:
        """Return the messages of one batch; none if they were taken back."""
        with self._lock:
            self._jobs -= 1
            if self._alone:
                return [self._alone.popleft()]
            return [self._together.popleft() for _ in range(min(self.size, len(self._together)))]

    def take_back(self, wanted: Callable[[Delivery], bool]) -> list[Delivery]:
        """Remove the wanted messages and return them; its jobs stay, for messages that come later."""
        with self._lock:
            waiting = [*self._alone, *self._together]
            self._alone = deque(one for one in self._alone if not wanted(one))
            self._together = deque(one for one in self._together if not wanted(one))
            return [one for one in waiting if wanted(one)]

    @property
    def _left(self) -> int:
        """The number of messages for which no job was handed on."""
        return len(self._together) - self.size * (self._jobs - len(self._alone))


class Gatherer:
    """A pool of workers that take the messages of some queues in batches, and those of all others one by one."""

    def __init__(
        self,
        batches: Mapping[str, Batch],
        pool: Pool[Delivery | Gathering],
        later: Later,
        *,
        in_turn: Collection[str] = (),
    ) -> None:
        self._gatherings = {queue: Gathering(queue, batch) for queue, batch in batches.items()}
        self._pool = pool
        self._later = later
        self._in_turn = in_turn
        """The queues whose messages are gathered when it is their turn; until then each is a job by itself."""
        self.start, self.stop, self.wait_quiet = pool.start, pool.stop, pool.wait_quiet

    @property
    def dead(self) -> list[str]:
        return self._pool.dead

    @property
    def running(self) -> int:
        return self._pool.running

    @property
    def waiting(self) -> int:
        return self._pool.waiting + sum(map(len, self._gatherings.values()))

    def gathers(self, queue: str) -> bool:
        return queue in self._gatherings

    def add(self, delivery: Delivery) -> None:
        if delivery.queue in self._gatherings and delivery.queue not in self._in_turn:
            self.gather(delivery)
        else:
            self._pool.add(delivery)

    def gather(self, delivery: Delivery) -> None:
        """Add a message to the next batch of its queue."""
        gathering = self._gatherings[delivery.queue]
        full, timer = gathering.add(delivery)
        if full:
            self._pool.add(gathering)
        elif timer:
            self._later(gathering.wait, partial(self._due, gathering, timer))

    def take_back(self, wanted: Callable[[Delivery], bool] = lambda _delivery: True) -> list[Delivery]:
        """Remove the wanted messages that no thread has begun and return them."""
        jobs = self._pool.take_back(lambda job: isinstance(job, Delivery) and wanted(job))
        gathered = (gathering.take_back(wanted) for gathering in self._gatherings.values())
        return [*(job for job in jobs if isinstance(job, Delivery)), *(one for taken in gathered for one in taken)]

    def _due(self, gathering: Gathering, timer: int) -> None:
        if gathering.due(timer):
            self._pool.add(gathering)


def batches_of(work_queues: Sequence[WorkQueue]) -> dict[str, Batch]:
    """Return the batches by the names of their queues. Messages in quarantine are handled one by one."""
    return {one.queue.name: one.batch for one in work_queues if one.batch is not None}
