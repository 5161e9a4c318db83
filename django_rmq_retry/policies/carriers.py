"""Carriers: the ways a retry waits between two attempts.

``Ladder`` is the default, with one waiting queue for each back-off step: all messages in a waiting queue have the same
delay, except for the jitter, so none waits behind one with a longer delay. The others need no waiting queue: they use
the broker's own delayed retry, or a wait in the consumer. ``policies.dead_letter`` has those that use an exchange.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from django_rmq_retry.arguments import LONGEST_WAIT_SECONDS, NUMBER, NUMBERS, check, check_seconds, one_of
from django_rmq_retry.errors import ConfigurationError
from django_rmq_retry.messages.message import Delivery, Instruction, Settlement
from django_rmq_retry.messages.properties import milliseconds
from django_rmq_retry.messages.stamp import Stamp, copy_of, stamp_of
from django_rmq_retry.policies.backoff import Backoff
from django_rmq_retry.topology.declarations import Queue, QueueDeclaration, Role, Server, Topology, check_name

MOST_STEPS = 16
_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1))

LONGEST_HOLD_SECONDS = 900.0
"""Seconds of wait that a message may stay unacked: after 30 minutes RabbitMQ closes the channel (docs/consumers)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The queues that the messages of one handler pass through, and the waits between its attempts."""

    work: Queue
    park: str
    attempts: int | None = None
    waits: tuple[tuple[Backoff, int | None], ...] = ()
    """Each back-off with the number of attempts to which it applies."""
    known: dict[object, tuple[tuple[int, int], ...]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """The carriers' cache of values computed from the other fields, because every failure needs them."""

    @property
    def backoffs(self) -> tuple[Backoff, ...]:
        return tuple(backoff for backoff, _ in self.waits)

    @property
    def longest(self) -> float:
        """The longest wait of any back-off in seconds, including the largest jitter."""
        return max((backoff.longest(attempts) for backoff, attempts in self.waits), default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """One retry: the delay in seconds, and the stamp to carry."""

    delay: float
    stamp: Stamp


@dataclass(frozen=True, slots=True, kw_only=True)
class Additions:
    """A carrier's additions to the topology and to the arguments of the work queue."""

    topology: Topology = Topology()
    arguments: Mapping[str, object] = field(default_factory=dict)


class Carrier(ABC):
    """The way a retry waits. A carrier is a value of numbers and names; it never connects to a broker."""

    __slots__ = ()

    needs: tuple[int, int] | None = None
    """The oldest RabbitMQ version that supports the carrier; None for every supported version."""
    stamps = True
    """True if a retry carries a stamp with the retry history of the message."""
    quarantines = True
    """True if it can retry messages from the quarantine queue as well as from the work queue."""
    parks = True
    """True if messages that the broker dead-letters from the work queue, such as expired ones, are parked."""
    by_name = True
    """True if a retry returns to its queue by the queue's name."""
    waits = False
    """True if the broker can delay a message for any length of time."""
    notes_rest = True
    """True if a copy carries the remaining wait when one waiting queue cannot cover the whole delay."""
    keeps_unacked = False
    """True if a message stays unacked at the consumer while it waits."""
    redelivers = False
    """True if its retries are marked as redelivered, like a message whose consumer was killed."""

    @property
    def pace(self) -> float | None:
        """The wait between attempts in seconds, if the carrier sets it instead of a back-off; else None."""
        return None

    def version_refusal(self, server: Server) -> str | None:
        """Return the reason why this broker version does not support the carrier, with an alternative; else None."""
        if self.needs is None or server.at_least(self.needs):
            return None
        needed = ".".join(map(str, self.needs))
        return (
            f"via={type(self).__name__} needs RabbitMQ {needed} or newer; this is {server}. "
            "Use via=Ladder(), which every version supports."
        )

    def attempt(self, route: Route, delivery: Delivery) -> int:
        """Return the number of this attempt, by default from the stamp."""
        return stamp_of(delivery).attempts + 1

    def returns(self, route: Route, delivery: Delivery) -> int | None:
        """Return the number of returns to the queue that were retries, not crashes; None if retries are unlimited."""
        return 0

    def longest(self, route: Route) -> float:
        """Return the longest wait in seconds that the back-offs can request from this carrier."""
        return route.longest

    def additions(self, route: Route) -> Additions:
        """Return the additions; by default only the arguments that park messages which the broker dead-letters."""
        return Additions(arguments=parked_by_broker(route))

    def refusal(self, route: Route) -> str | None:
        """Return the reason why this carrier cannot serve the route, as a sentence; None if it can."""
        return None

    @abstractmethod
    def carry(self, route: Route, delivery: Delivery, hop: Hop) -> Settlement: ...

    def delayed(self, route: Route, seconds: float) -> tuple[str, str, int | None, Stamp] | None:
        """Return exchange, key, expiration in ms and stamp of a message that arrives later; None if it cannot."""
        return None


CARRIER = one_of(Carrier, "a carrier, such as Ladder() or DeadLetter(exchange='retry', queue='wait', after=10)")


def dead_letter(exchange: str, key: str | None = None, *, safe: bool = False) -> dict[str, object]:
    """Return the queue arguments that dead-letter to an exchange; ``safe``: at least once, for quorum queues only."""
    arguments: dict[str, object] = {"x-dead-letter-exchange": exchange}
    if key is not None:
        arguments["x-dead-letter-routing-key"] = key
    if safe:
        # Without reject-publish the broker silently falls back to at-most-once (rabbitmq.com/docs/quorum-queues).
        arguments |= {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
    return arguments


def parked_by_broker(route: Route) -> dict[str, object]:
    """Return the work queue's arguments that dead-letter to the parked queue; none if expired messages are dropped."""
    if route.work.expired == "drop":
        return {}
    return dead_letter("", route.park, safe=at_least_once(route.work))


def at_least_once(queue: Queue) -> bool:
    return queue.type == "quorum" and queue.overflow == "reject-publish"


@dataclass(frozen=True, slots=True)
class Ladder(Carrier):
    """One waiting queue per step. ``Ladder()`` uses the steps of the back-off; ``Ladder([10, 60, 600])`` sets them."""

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
        """Return the TTL of each waiting queue, in milliseconds."""
        return tuple(rung for _, rung in self._spans(route))

    def refusal(self, route: Route) -> str | None:
        rungs = self.rungs(route)
        if not rungs:
            return "The policy has no back-off to take waits from; name them with via=Ladder([…])."
        if len(rungs) > MOST_STEPS:
            return (
                f"The back-off has {len(rungs)} different waits, which would need as many waiting queues. "
                f"Name at most {MOST_STEPS} with via=Ladder([…]); for other waits, a message waits several times."
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
            hop.stamp if hop.stamp.wait == rest else hop.stamp._replace(wait=rest),
            exchange="",
            routing_key=waiting_name(route.work.name, rung),
            expiration=expiration,
        )
        return Settlement(instruction=Instruction.ACK, copy=copy)

    def delayed(self, route: Route, seconds: float) -> tuple[str, str, int | None, Stamp]:
        rung, expiration, rest = self._first_wait(route, milliseconds(seconds))
        return "", waiting_name(route.work.name, rung), expiration, Stamp(wait=rest)

    def _first_wait(self, route: Route, delay: int) -> tuple[int, int | None, int]:
        """Return the TTL of the queue to wait in, the message's own expiration there, and the remaining wait after it.

        All are in milliseconds; the expiration is None if the queue's TTL applies. A delay between a step and that
        step with its largest jitter waits once, in the smallest such queue, at most the jitter too long. Any other
        delay is composed of whole TTLs, so that only its last part, in the smallest queue, can wait behind a message
        with a longer wait.
        """
        spans = self._spans(route)
        for step, rung in spans:
            if delay <= rung and (rung == spans[0][1] or delay >= step):
                return rung, delay if delay < rung else None, 0
        whole = max(rung for _, rung in spans if rung <= delay)
        return whole, None, delay - whole

    def _spans(self, route: Route) -> tuple[tuple[int, int], ...]:
        """Return for each waiting queue its step, and its TTL: the step with the largest jitter. In milliseconds."""
        known = route.known.get(self)
        if known is None:
            known = route.known[self] = self._spanned(route)
        return known

    def _spanned(self, route: Route) -> tuple[tuple[int, int], ...]:
        if self.steps is not None:
            return tuple((milliseconds(step), milliseconds(step)) for step in self.steps)
        counts: dict[int, int] = {}
        for backoff in route.backoffs:
            for step in backoff.steps(route.attempts) or (backoff.nominal(1),):
                rung = milliseconds(min(step * (1 + backoff.spread), LONGEST_WAIT_SECONDS))
                counts[rung] = min(counts.get(rung, rung), milliseconds(step))
        return tuple((counts[rung], rung) for rung in sorted(counts))

    @staticmethod
    def _waiting(route: Route, rung: int) -> QueueDeclaration:
        # The retry returns through the default exchange: a shared exchange would route it to other queues as well.
        back = dead_letter("", route.work.name, safe=route.work.type == "quorum")
        return QueueDeclaration(
            name=waiting_name(route.work.name, rung),
            role=Role.WAITING,
            arguments={**route.work.companion_arguments(), "x-message-ttl": rung, **back},
        )


def waiting_name(work: str, rung: int) -> str:
    """Return the name of a waiting queue, which contains its TTL, such as ``payments.retry.30s``."""
    for unit, size in _UNITS:
        if rung % size == 0:
            return f"{work}.retry.{rung // size}{unit}"
    raise AssertionError("1 ms divides every whole number")


@dataclass(frozen=True, slots=True)
class InPlace(Carrier):
    """Keep the message unacked and attempt it again in the same consumer. Ordered queues need this."""

    stamps = False
    by_name = False
    keeps_unacked = True

    def attempt(self, route: Route, delivery: Delivery) -> int:
        # The consumer itself counts the attempts of a message that stays unacked.
        return 1

    def carry(self, route: Route, delivery: Delivery, hop: Hop) -> Settlement:
        return Settlement(instruction=Instruction.KEEP, hold=hop.delay)


@dataclass(frozen=True, slots=True)
class Native(Carrier):
    """RabbitMQ's own delayed retry: ``first`` seconds times the number of returns, at most ``cap``, without jitter."""

    first: float
    cap: float | None = None

    needs = (4, 3)
    quarantines = False
    stamps = False
    redelivers = True

    def __post_init__(self) -> None:
        check_seconds("Native", self.first)
        check(self, cap=NUMBER.optional)
        if self.cap is not None and not self.first <= self.cap <= LONGEST_WAIT_SECONDS:
            raise ConfigurationError(f"Native's cap is a wait from {self.first!r} s to ten years, not {self.cap!r}.")

    @property
    def pace(self) -> float:
        return self.first

    def attempt(self, route: Route, delivery: Delivery) -> int:
        count = delivery.headers.get("x-delivery-count", 0) if delivery.redelivered else 0
        return count + 1 if type(count) is int and count > 0 else 1

    def returns(self, route: Route, delivery: Delivery) -> int | None:
        return None if route.attempts is None else route.attempts - 1

    def refusal(self, route: Route) -> str | None:
        if route.work.type == "quorum":
            return None
        return f"Native delayed retry is a feature of quorum queues; queue {route.work.name!r} has another type."

    def additions(self, route: Route) -> Additions:
        delays = {
            "x-delayed-retry-type": "failed",
            "x-delayed-retry-min": milliseconds(self.first),
            "x-delayed-retry-max": milliseconds(self.first if self.cap is None else self.cap),
        }
        return Additions(arguments={**delays, **parked_by_broker(route)})

    def carry(self, route: Route, delivery: Delivery, hop: Hop) -> Settlement:
        # Not a nack: RabbitMQ 4.3 neither counts it nor increases the wait (rabbitmq.com/docs/quorum-queues).
        return Settlement(instruction=Instruction.COUNTED_REQUEUE)


@dataclass(frozen=True, slots=True)
class NackRequeue(Carrier):
    """Nack with requeue after the wait. It can only read the redelivered flag, so attempts is 1, 2 or None."""

    quarantines = False
    stamps = False
    by_name = False
    keeps_unacked = True
    redelivers = True

    def attempt(self, route: Route, delivery: Delivery) -> int:
        return 2 if delivery.redelivered else 1

    def returns(self, route: Route, delivery: Delivery) -> int | None:
        return None if route.attempts is None else route.attempts - 1

    def refusal(self, route: Route) -> str | None:
        if route.attempts not in (1, 2, None):
            return (
                f"NackRequeue reads only the flag 'redelivered', so it cannot count to attempts={route.attempts}. "
                "Use attempts=1, 2 or None (no limit), or another carrier, such as via=Ladder()."
            )
        return _too_long(self, route)

    def longest(self, route: Route) -> float:
        # The attempt number never exceeds 2, so only the first two waits occur.
        return max((backoff.longest(route.attempts or 3) for backoff in route.backoffs), default=0.0)

    def carry(self, route: Route, delivery: Delivery, hop: Hop) -> Settlement:
        return Settlement(instruction=Instruction.REQUEUE, hold=min(hop.delay, LONGEST_HOLD_SECONDS))


@dataclass(frozen=True, slots=True)
class Republish(Carrier):
    """Publish a copy with a counter to the end of the same queue, then ack: may duplicate, never loses a message."""

    notes_rest = False
    keeps_unacked = True
    ack_first = False

    def refusal(self, route: Route) -> str | None:
        return _too_long(self, route)

    def carry(self, route: Route, delivery: Delivery, hop: Hop) -> Settlement:
        # The copy carries no remaining wait: a forged one would occupy a prefetch slot for that time.
        copy = copy_of(delivery, hop.stamp, exchange="", routing_key=route.work.name)
        hold = min(hop.delay, LONGEST_HOLD_SECONDS)
        return Settlement(instruction=Instruction.ACK, copy=copy, hold=hold, ack_first=self.ack_first)


@dataclass(frozen=True, slots=True)
class AckFirst(Republish):
    """Ack, then publish a copy with a counter to the end of the same queue: may lose a message, rarely duplicates."""

    ack_first = True


def _too_long(carrier: Carrier, route: Route) -> str | None:
    longest = carrier.longest(route)
    if longest <= LONGEST_HOLD_SECONDS:
        return None
    return (
        f"{type(carrier).__name__} keeps a waiting message unacked, for at most {LONGEST_HOLD_SECONDS:g} s, and the "
        f"back-off waits up to {longest:.9g} s. Use shorter waits, or via=Ladder()."
    )
