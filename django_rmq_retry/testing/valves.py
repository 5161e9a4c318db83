"""Shuts and opens the queues of a test, and those of whoever comes after a crash."""

from collections import deque
from collections.abc import Sequence

from django_rmq_retry.core.message import Delivery
from django_rmq_retry.core.subscription import Intake
from django_rmq_retry.runtime.pausing import asked, lanes_of
from django_rmq_retry.runtime.sequencing import Sequencer
from django_rmq_retry.testing.places import Hands


class Valves:
    """What is switched outlives a crash, as the project's database does."""

    def __init__(self, intakes: Sequence[Intake]) -> None:
        self._lanes = {intake.queue.name: lanes_of(intake) for intake in intakes}
        self._asked = asked(intakes)
        self._prefetch: dict[str, int | None] = {}
        self._source: Hands | None = None
        self._ready: deque[Delivery] = deque()
        self._sequencer = Sequencer(lambda _delivery: None)

    def tell(self, source: Hands, ready: deque[Delivery], sequencer: Sequencer) -> None:
        """From now on this one consumes; ``ready`` and ``sequencer`` have what has arrived and was not begun."""
        self._source, self._ready, self._sequencer = source, ready, sequencer
        for lane, prefetch in self._prefetch.items():
            _pass_on(source, lane, prefetch)

    def shut(self, queue: str) -> None:
        lanes = self._lanes.get(queue, ())
        self._turn(lanes, 0)
        if queue in self._asked:
            return
        back = [one for one in self._ready if one.queue in lanes]
        for one in back:
            self._ready.remove(one)
        self._sequencer.give_up(lanes)
        if self._source is not None:
            self._source.give_back(back)

    def open(self, queue: str) -> None:
        self._turn(self._lanes.get(queue, ()), None)

    def try_one(self, queue: str) -> None:
        self._turn((queue,), 1)

    def able(self) -> bool:
        return True

    def _turn(self, lanes: Sequence[str], prefetch: int | None) -> None:
        for lane in lanes:
            self._prefetch[lane] = prefetch
            if self._source is not None:
                _pass_on(self._source, lane, prefetch)


def _pass_on(source: Hands, lane: str, prefetch: int | None) -> None:
    if prefetch == 0:
        source.pause(lane)
    else:
        source.resume(lane, prefetch=prefetch)
