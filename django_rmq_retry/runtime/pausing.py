"""Shuts and opens the work queues of one consumer, each with the queue in which its suspects are tried."""

from collections.abc import Callable, Sequence

from django_rmq_retry.broker.base import Source
from django_rmq_retry.core.message import Delivery
from django_rmq_retry.core.subscription import Intake
from django_rmq_retry.runtime.sequencing import Sequencer
from django_rmq_retry.runtime.workers import Workers


class Valves:
    """May be used from any thread, also before the consumer starts."""

    def __init__(
        self,
        intakes: Sequence[Intake],
        source: Source,
        workers: Workers[Delivery],
        sequencer: Sequencer,
        *,
        able: Callable[[], bool] = lambda: True,
    ) -> None:
        self._source = source
        self._workers = workers
        self._sequencer = sequencer
        self.able = able
        """Whether messages can come at all: there is a broker, and the consumer does not stop."""
        self._keyed = frozenset(intake.queue.name for intake in intakes if intake.keyed)
        self._asked = asked(intakes)
        self._lanes = {intake.queue.name: lanes_of(intake) for intake in intakes}

    @property
    def queues(self) -> tuple[str, ...]:
        """The work queues that are consumed here."""
        return tuple(self._lanes)

    def shut(self, queue: str) -> None:
        """Take nothing more; what has begun ends, and the rest goes back once."""
        lanes = self._lanes.get(queue, ())
        for name in lanes:
            self._source.pause(name)
        if queue in self._asked:
            return
        # Where keys are kept in order, what waits for a thread only stands for one of those that wait for their turn:
        # it stays, for one of them that has come again goes on, and without a thread its channel would never close.
        plain = self._workers.take_back(lambda one: one.queue in lanes and one.queue not in self._keyed)
        self._source.give_back([*plain, *self._sequencer.give_up(lanes)])

    def open(self, queue: str) -> None:
        for name in self._lanes.get(queue, ()):
            self._source.resume(name)

    def try_one(self, queue: str) -> None:
        """One message at a time; what was suspected of stopping a worker stays where it is."""
        self._source.resume(queue, prefetch=1)


def asked(intakes: Sequence[Intake]) -> frozenset[str]:
    """The queues whose messages all come to a gate, which has them go back without a return that queues count."""
    gated = (intake for intake in intakes if all(one.gated for one in intake.subscriptions) and not intake.in_place)
    return frozenset(intake.queue.name for intake in gated)


def lanes_of(intake: Intake) -> tuple[str, ...]:
    """The queues that are consumed for the handlers of one."""
    return (intake.queue.name,) if intake.suspects is None else (intake.queue.name, intake.suspects)
