"""The lines through which a work queue is consumed, and their pauses."""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Protocol

from django_rmq_retry.amqp.contracts import Line, Source
from django_rmq_retry.consumer.attempt_state import AttemptState
from django_rmq_retry.consumer.sequencer import Sequencer
from django_rmq_retry.handlers.layout import dead_letters_to_parked, temporary
from django_rmq_retry.handlers.subscription import WorkQueue
from django_rmq_retry.messages.message import Delivery, message_id
from django_rmq_retry.messages.texts import COLUMN_BYTES, short

LOOKS_APART, ASKED_APART = 0.5, 4.0
"""The least seconds between two looks, as what the broker has arrives long before, and between two questions to it."""


class TakesBack(Protocol):
    """The messages that wait for a worker."""

    def take_back(self, wanted: Callable[[Delivery], bool], /) -> list[Delivery]:
        """Remove the wanted messages that no thread has begun and return them."""
        ...


class QueuePauses:
    """Pause and resume work queues. Usable from any thread, also before the consumer starts."""

    def __init__(
        self,
        work_queues: Sequence[WorkQueue],
        source: Source,
        workers: TakesBack,
        sequencer: Sequencer,
        *,
        able: Callable[[], bool] = lambda: True,
        in_flight: Callable[[], Sequence[AttemptState]] = tuple,
    ) -> None:
        self._source = source
        self._workers = workers
        self._sequencer = sequencer
        self.able = able
        """True if messages can arrive: the broker is connected and the consumer is not stopping."""
        self._in_flight = in_flight
        in_order = {work_queue.queue.name for work_queue in work_queues if work_queue.keyed or work_queue.ordered}
        self._returned_as_copies = returned_as_copies(work_queues)
        # Messages with ack="auto" cannot return to the broker, which has dropped them already: they are handled here.
        self._own = in_order | {work_queue.queue.name for work_queue in work_queues if work_queue.auto_ack}
        self._consumed = {work_queue.queue.name: consumed_queues(work_queue) for work_queue in work_queues}

    @property
    def queues(self) -> tuple[str, ...]:
        return tuple(self._consumed)

    def pause(self, queue: str) -> None:
        """Pause a queue: running attempts finish; unacked messages that have not begun return to the broker once."""
        names = self._consumed.get(queue, ())
        for name in names:
            self._source.pause(name)
        if queue in self._returned_as_copies:
            return
        # In order, a job of the workers is only a token for some message of the sequencer. Tokens stay, because
        # a message kept for its next attempt still needs a thread, and without one its channel would never close.
        unordered = self._workers.take_back(lambda one: one.queue in names and one.queue not in self._own)
        self._source.give_back([*unordered, *self._sequencer.give_up(names)])

    def resume(self, queue: str) -> None:
        for name in self._consumed.get(queue, ()):
            self._source.resume(name)

    def probe(self, queue: str) -> None:
        """Resume a queue with one message at a time, as a probe; messages in quarantine stay in their queue."""
        self._source.resume(queue, prefetch=1)

    def left_of(self, queue: str) -> Collection[str] | None:
        """Return the ids of all messages that this process has left of a paused queue, if each is in its handler.

        None if it may have others, or one without an id.
        """
        names = self._consumed.get(queue, ())
        unsettled = [self._source.unsettled(name) for name in names]
        # Read after them: of what ends meanwhile they count more.
        begun = [state.arrival for state in self._in_flight() if state.arrival.queue in names]
        known = [number for number in unsettled if number is not None]
        ids = {short(message_id(arrival) or "", COLUMN_BYTES) for arrival in begun}
        if "" in ids or len(known) < len(names) or not all(map(self._source.knows, begun)):
            return None
        return ids if sum(known) == len(begun) else None


class IdleQueues:
    """When this process last had nothing of a queue, while it was consumed: nothing waited at the broker either."""

    def __init__(self, work_queues: Sequence[WorkQueue], source: Source) -> None:
        self._source = source
        self._consumed = {work_queue.queue.name: consumed_queues(work_queue) for work_queue in work_queues}
        self._marks: dict[str, list[object]] = {}
        self._looked = 0.0
        self._asked: dict[str, float] = {}
        self.at: dict[str, float] = {}
        """The monotonic time by queue."""

    def look(self, now: float) -> None:
        """Look at all queues; between two messages of a busy queue one look would show nothing.

        The broker has to answer as well: of one that is away, or was not listened to, nothing is known.
        """
        if now - self._looked < LOOKS_APART:
            return
        marks = {queue: list(map(self._source.untouched, names)) for queue, names in self._consumed.items()}
        for queue, mark in marks.items():
            idle = None not in mark and mark == self._marks.get(queue)
            if idle and now - self._asked.get(queue, 0.0) >= ASKED_APART:
                self._asked[queue] = now
                self._source.when_answered(queue, partial(self._answered, queue, mark, now))
        self._marks, self._looked = marks, now

    def _answered(self, queue: str, mark: list[object], asked: float, known: bool) -> None:  # noqa: FBT001 - the answer
        if known and mark == list(map(self._source.untouched, self._consumed[queue])):
            self.at[queue] = asked


def returned_as_copies(work_queues: Sequence[WorkQueue]) -> frozenset[str]:
    """Return the queues whose messages all pass a gate, which returns them as copies: queues do not count those."""
    gated = (
        work_queue
        for work_queue in work_queues
        if all(one.gated for one in work_queue.subscriptions) and not work_queue.in_place
    )
    return frozenset(work_queue.queue.name for work_queue in gated)


def consumed_queues(work_queue: WorkQueue) -> tuple[str, ...]:
    """Return the queues that are consumed for the handlers of one work queue: itself and its quarantine."""
    return (work_queue.queue.name,) if work_queue.quarantine is None else (work_queue.queue.name, work_queue.quarantine)


def consumed_lines(work_queue: WorkQueue, prefetch: int) -> list[Line]:
    """Return the lines to consume: the work queue and, if it has one, its quarantine queue."""
    work = Line(
        queue=work_queue.queue.name,
        prefetch=1 if work_queue.ordered else prefetch,
        ordered=work_queue.ordered,
        keyed=work_queue.keyed,
        untimed=work_queue.queue.type == "quorum" and (work_queue.ordered or work_queue.keyed),
        parks=dead_letters_to_parked(work_queue),
        temporary=temporary(work_queue),
        auto_ack=work_queue.auto_ack,
    )
    if work_queue.quarantine is None:
        return [work]
    # One message in quarantine at a time: if it kills its worker, no other message is counted.
    return [work, Line(queue=work_queue.quarantine, prefetch=1, parks=True, quarantine=True)]
