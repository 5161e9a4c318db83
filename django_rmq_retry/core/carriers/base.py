"""What every carrier is: queues to declare, a way to count attempts, and the settlement that carries one retry."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

from django_rmq_retry.core.backoff import Backoff
from django_rmq_retry.core.deaths import dead_letter
from django_rmq_retry.core.declarations import Topology
from django_rmq_retry.core.message import Delivery
from django_rmq_retry.core.settlement import Settlement, Tell
from django_rmq_retry.core.stamps import Stamp, story
from django_rmq_retry.core.topology import Queue


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Where one subscription's messages travel."""

    work: Queue
    park: str
    attempts: int | None = None
    backoffs: tuple[Backoff, ...] = ()
    known: dict[object, tuple[tuple[int, int], ...]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """What a carrier has worked out of the rest: it is asked for at every failure."""


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
    """Whether a retry can be carried from the suspects' queue as well as from the work queue."""
    parks = True
    """Whether what the broker itself gives up of the work queue is parked."""
    waits = False
    """Whether the broker can hold a message back for a delay of any length."""

    @property
    def pace(self) -> float | None:
        """The wait between attempts where the carrier knows only one; the back-off has no say then."""
        return None

    def attempt(self, route: Route, delivery: Delivery) -> int:
        """The number of this attempt, counted in a header of our own."""
        return story(delivery).attempts + 1

    def returns(self, route: Route, delivery: Delivery) -> int | None:
        """How many of the times that the queue took it back were retries, not crashes; None if any number may be."""
        return 0

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


@dataclass(frozen=True, slots=True)
class InPlace(Carrier):
    """The message stays in the consumer's hand and is attempted again there; what an ordered line needs."""

    stamps = False

    def attempt(self, route: Route, delivery: Delivery) -> int:
        return delivery.attempt

    def carry(self, route: Route, delivery: Delivery, hop: Hop) -> Settlement:
        return Settlement(tell=Tell.AGAIN, hold=hop.delay)


def parked_by_broker(route: Route) -> dict[str, object]:
    """Whatever the broker gives up goes to the parked queue, safely where it can: never nowhere."""
    safe = route.work.type == "quorum" and route.work.overflow == "reject-publish"
    return dead_letter("", route.park, safe=safe)
