"""The carrier's interface, and ``Ladder``, the default: one waiting queue for each back-off step.

A message never waits behind one with a longer delay: within a queue all live equally long, give or take the jitter.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from django_rmq_retry.arguments import NUMBERS, check, one_of
from django_rmq_retry.errors import ConfigurationError
from django_rmq_retry.messages.deaths import dead_letter
from django_rmq_retry.messages.message import Delivery, Settlement, Tell
from django_rmq_retry.messages.seconds import LONGEST, check_seconds, milliseconds
from django_rmq_retry.messages.stamp import Stamp, copy_of, story
from django_rmq_retry.policies.backoff import Backoff
from django_rmq_retry.topology.declarations import QueueDeclaration, Role, Topology
from django_rmq_retry.topology.queues import Queue, check_name
from django_rmq_retry.topology.versions import Server


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Where one subscription's messages travel."""

    work: Queue
    park: str
    attempts: int | None = None
    waits: tuple[tuple[Backoff, int | None], ...] = ()
    """Each back-off with the number of attempts that it is for."""
    known: dict[object, tuple[tuple[int, int], ...]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """What a carrier has worked out of the rest: it is asked for at every failure."""

    @property
    def backoffs(self) -> tuple[Backoff, ...]:
        return tuple(backoff for backoff, _ in self.waits)

    @property
    def longest(self) -> float:
        """The longest wait that a back-off asks for, in seconds, with all its jitter."""
        return max((backoff.longest(attempts) for backoff, attempts in self.waits), default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """One retry on its way: how long it waits, and what it says of itself."""

    delay: float
    stamp: Stamp


@dataclass(frozen=True, slots=True, kw_only=True)
class Additions:
    """What a carrier adds to the topology, and to the arguments of the work queue."""

    topology: Topology = Topology()
    arguments: Mapping[str, object] = field(default_factory=dict)


class Carrier(ABC):
    """A carrier is a value of numbers and names; it never meets a broker."""

    __slots__ = ()

    needs: tuple[int, int] | None = None
    """The oldest RabbitMQ that can do it, where not every one can."""
    stamps = True
    """Whether a retry carries with it what the message tells of itself."""
    laned = True
    """Whether a retry can be carried from the quarantine queue as well as from the work queue."""
    parks = True
    """Whether what the broker itself gives up of the work queue is parked."""
    by_name = True
    """Whether a retry comes back to its queue by the queue's name."""
    waits = False
    """Whether the broker can hold a message back for a delay of any length."""
    notes_rest = True
    """Whether a copy carries the rest of a wait that one hop could not hold."""
    in_hand = False
    """Whether a message waits in the consumer's hand."""

    @property
    def pace(self) -> float | None:
        """The wait between attempts where the carrier knows only one; the back-off has no say then."""
        return None

    def version_refusal(self, server: Server) -> str | None:
        """The reason why this broker cannot carry retries that way, with the way that every version can."""
        if self.needs is None or server.at_least(self.needs):
            return None
        needed = ".".join(map(str, self.needs))
        return (
            f"via={type(self).__name__} needs RabbitMQ {needed} or newer; this is {server}. "
            "Use via=Ladder(), which every version supports."
        )

    def attempt(self, route: Route, delivery: Delivery) -> int:
        """The number of this attempt, counted in a header of our own."""
        return story(delivery).attempts + 1

    def returns(self, route: Route, delivery: Delivery) -> int | None:
        """How many of the times that the queue took it back were retries, not crashes; None if any number may be."""
        return 0

    def longest(self, route: Route) -> float:
        """The longest wait in seconds that the back-offs can ask this carrier for."""
        return route.longest

    def additions(self, route: Route) -> Additions:
        """By default only the way to the parked queue for what the broker itself gives up."""
        return Additions(arguments=parked_by_broker(route))

    def refusal(self, route: Route) -> str | None:
        """Why this carrier cannot serve that route, as a sentence; None when it can."""
        return None

    @abstractmethod
    def carry(self, route: Route, delivery: Delivery, hop: Hop) -> Settlement: ...

    def delayed(self, route: Route, seconds: float) -> tuple[str, str, int | None, Stamp] | None:
        """Where a message goes that shall arrive later: exchange, key, expiration, stamp; None if nowhere."""
        return None


CARRIER = one_of(Carrier, "a carrier, such as Ladder() or DeadLetter(exchange='retry', queue='wait', after=10)")


def parked_by_broker(route: Route) -> dict[str, object]:
    """What the broker gives up goes to the parked queue, safely where it can, unless it is dropped on purpose."""
    if route.work.expired == "drop":
        return {}
    safe = route.work.type == "quorum" and route.work.overflow == "reject-publish"
    return dead_letter("", route.park, safe=safe)


MOST_STEPS = 16
_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1))


@dataclass(frozen=True, slots=True)
class Ladder(Carrier):
    """``Ladder()`` takes its steps from the back-off; ``Ladder([10, 60, 600])`` has its own."""

    steps: Sequence[float] | None = None

    waits = True

    def __post_init__(self) -> None:
        check(self, steps=NUMBERS.optional)
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
