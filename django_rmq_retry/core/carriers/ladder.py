"""The default carrier: one waiting queue per back-off step, reached by a confirmed copy.

A message never waits behind one with a longer delay: within a queue all live equally long, give or take the jitter.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from django_rmq_retry.core.backoff import LONGEST, check_seconds
from django_rmq_retry.core.carriers.base import Additions, Carrier, Hop, Route, parked_by_broker
from django_rmq_retry.core.deaths import dead_letter
from django_rmq_retry.core.declarations import QueueDeclaration, Role, Topology
from django_rmq_retry.core.errors import ConfigurationError
from django_rmq_retry.core.message import Delivery
from django_rmq_retry.core.settlement import Settlement, Tell, copy_of
from django_rmq_retry.core.stamps import Stamp
from django_rmq_retry.core.topology import check_name, milliseconds

MOST_STEPS = 16
_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1))


@dataclass(frozen=True, slots=True)
class Ladder(Carrier):
    """``Ladder()`` takes its steps from the back-off; ``Ladder([10, 60, 600])`` has its own."""

    steps: Sequence[float] | None = None

    waits = True

    def __post_init__(self) -> None:
        if self.steps is None:
            return
        steps = tuple(self.steps)
        for step in steps:
            check_seconds("Ladder", step)
        object.__setattr__(self, "steps", tuple(sorted(set(steps))))
        if not 1 <= len(self.steps) <= MOST_STEPS:
            raise ConfigurationError(f"Ladder takes 1 to {MOST_STEPS} different steps, not {len(self.steps)}.")

    def rungs(self, route: Route) -> tuple[int, ...]:
        """How long a message lives in each waiting queue, in milliseconds."""
        return tuple(rung for _, rung in self._spans(route))

    def refusal(self, route: Route) -> str | None:
        rungs = self.rungs(route)
        if not rungs:
            return "The policy has no back-off to take waits from; name them with via=Ladder([…])."
        if len(rungs) > MOST_STEPS:
            return (
                f"The back-off has {len(rungs)} different waits, which would need as many waiting queues. "
                f"Name at most {MOST_STEPS} with via=Ladder([…]); any other wait is reached by waiting again."
            )
        for rung in rungs:
            check_name("queue", waiting_name(route.work.name, rung))
        return None

    def additions(self, route: Route) -> Additions:
        queues = [self._waiting(route, rung) for rung in self.rungs(route)]
        return Additions(
            topology=Topology(queues={queue.name: queue for queue in queues}), arguments=parked_by_broker(route)
        )

    def carry(self, route: Route, delivery: Delivery, hop: Hop) -> Settlement:
        rung, expiration, rest = self._first_wait(route, milliseconds(hop.delay))
        copy = copy_of(
            delivery,
            hop.stamp if hop.stamp.wait == rest else replace(hop.stamp, wait=rest),
            exchange="",
            routing_key=waiting_name(route.work.name, rung),
            expiration=expiration,
        )
        return Settlement(tell=Tell.ACK, copy=copy)

    def delayed(self, route: Route, seconds: float) -> tuple[str, str, int | None, Stamp]:
        rung, expiration, rest = self._first_wait(route, milliseconds(seconds))
        return "", waiting_name(route.work.name, rung), expiration, Stamp(wait=rest)

    def _first_wait(self, route: Route, delay: int) -> tuple[int, int | None, int]:
        """The queue to wait in, the message's own expiration there, and what is left to wait after it.

        A delay that fits between two steps of jitter waits once, in the smallest queue that spans it: at most the
        jitter late. A delay longer than that is made of whole waits, so that only the last one, in the smallest
        queue, can stand behind a longer one.
        """
        spans = self._spans(route)
        for step, rung in spans:
            if delay <= rung and (rung == spans[0][1] or delay >= step):
                return rung, delay if delay < rung else None, 0
        whole = max(rung for _, rung in spans if rung <= delay)
        return whole, None, delay - whole

    def _spans(self, route: Route) -> tuple[tuple[int, int], ...]:
        """Of each waiting queue the step it is for and that step with the most its jitter adds."""
        if self not in route.known:
            route.known[self] = self._spanned(route)
        return route.known[self]

    def _spanned(self, route: Route) -> tuple[tuple[int, int], ...]:
        if self.steps is not None:
            return tuple((milliseconds(step), milliseconds(step)) for step in self.steps)
        found: dict[int, int] = {}
        for backoff in route.backoffs:
            for step in backoff.steps(route.attempts) or (backoff.nominal(1),):
                rung = milliseconds(min(step * (1 + backoff.spread), LONGEST))
                found[rung] = min(found.get(rung, rung), milliseconds(step))
        return tuple((found[rung], rung) for rung in sorted(found))

    @staticmethod
    def _waiting(route: Route, rung: int) -> QueueDeclaration:
        # It returns by the default exchange: through a shared one other queues would get the retry as well.
        back = dead_letter("", route.work.name, safe=route.work.type == "quorum")
        kind = {"x-queue-type": route.work.type} if route.work.type else {}
        return QueueDeclaration(
            name=waiting_name(route.work.name, rung),
            role=Role.WAITING,
            arguments={**kind, "x-message-ttl": rung, **back},
        )


def waiting_name(work: str, rung: int) -> str:
    """``payments.retry.30s``: the name tells how long a message lives there."""
    for unit, size in _UNITS:
        if rung % size == 0:
            return f"{work}.retry.{rung // size}{unit}"
    raise AssertionError("1 ms divides every whole number")
