"""Carriers that need no waiting queue: the broker's own delayed retry, or a wait in the consumer."""

from dataclasses import dataclass

from django_rmq_retry.arguments import NUMBER, check
from django_rmq_retry.errors import ConfigurationError
from django_rmq_retry.messages.message import Delivery, Settlement, Tell
from django_rmq_retry.messages.seconds import LONGEST, check_seconds, milliseconds
from django_rmq_retry.messages.stamp import copy_of
from django_rmq_retry.policies.carriers.carrier import Additions, Carrier, Hop, Route, parked_by_broker


@dataclass(frozen=True, slots=True)
class InPlace(Carrier):
    """Keep the message unacked and attempt it again in the same consumer. Ordered queues need this."""

    stamps = False
    by_name = False
    in_hand = True

    def attempt(self, route: Route, delivery: Delivery) -> int:
        # The consumer itself counts the attempts of a message that stays unacked.
        return 1

    def carry(self, route: Route, delivery: Delivery, hop: Hop) -> Settlement:
        return Settlement(tell=Tell.AGAIN, hold=hop.delay)


@dataclass(frozen=True, slots=True)
class Native(Carrier):
    """RabbitMQ's own delayed retry: ``first`` seconds times the number of returns, at most ``cap``, without jitter."""

    first: float
    cap: float | None = None

    needs = (4, 3)
    laned = False
    stamps = False

    def __post_init__(self) -> None:
        check_seconds("Native", self.first)
        check(self, cap=NUMBER.optional)
        if self.cap is not None and not self.first <= self.cap <= LONGEST:
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
        return Settlement(tell=Tell.COUNTED_REQUEUE)


LONGEST_HOLD = 900.0
"""Seconds that a message may stay unacked for a wait.

After 30 minutes RabbitMQ closes the channel of the consumer and requeues the message (rabbitmq.com/docs/consumers).
"""


@dataclass(frozen=True, slots=True)
class NackRequeue(Carrier):
    """Nack with requeue after the wait. It can only read the redelivered flag, so attempts is 1, 2 or None."""

    laned = False
    stamps = False
    by_name = False
    in_hand = True

    def attempt(self, route: Route, delivery: Delivery) -> int:
        return 2 if delivery.redelivered else 1

    def returns(self, route: Route, delivery: Delivery) -> int | None:
        return None if route.attempts is None else route.attempts - 1

    def refusal(self, route: Route) -> str | None:
        if route.attempts not in (1, 2, None):
            return (
                f"NackRequeue knows only 'redelivered', so it cannot count to attempts={route.attempts}. "
                "Use attempts=1, 2 or None (endless), or another carrier, as via=Ladder()."
            )
        return _too_long(self, route)

    def longest(self, route: Route) -> float:
        # The attempt number never exceeds 2, so only the first two waits occur.
        return max((backoff.longest(route.attempts or 3) for backoff in route.backoffs), default=0.0)

    def carry(self, route: Route, delivery: Delivery, hop: Hop) -> Settlement:
        return Settlement(tell=Tell.REQUEUE, hold=min(hop.delay, LONGEST_HOLD))


@dataclass(frozen=True, slots=True)
class Republish(Carrier):
    """Publish a copy with a counter to the end of the same queue, then ack: may duplicate, never loses a message."""

    notes_rest = False
    in_hand = True

    def refusal(self, route: Route) -> str | None:
        return _too_long(self, route)

    def carry(self, route: Route, delivery: Delivery, hop: Hop) -> Settlement:
        return _copied(route, delivery, hop, ack_first=False)


@dataclass(frozen=True, slots=True)
class AckFirst(Carrier):
    """Ack, then publish a copy with a counter to the end of the same queue: may lose a message, rarely duplicates."""

    notes_rest = False
    in_hand = True

    def refusal(self, route: Route) -> str | None:
        return _too_long(self, route)

    def carry(self, route: Route, delivery: Delivery, hop: Hop) -> Settlement:
        return _copied(route, delivery, hop, ack_first=True)


def _too_long(carrier: Carrier, route: Route) -> str | None:
    longest = carrier.longest(route)
    if longest <= LONGEST_HOLD:
        return None
    return (
        f"{type(carrier).__name__} waits with the message in hand, for at most {LONGEST_HOLD:g} s, and the back-off "
        f"asks for {longest:.9g} s. Use shorter waits, or via=Ladder()."
    )


def _copied(route: Route, delivery: Delivery, hop: Hop, *, ack_first: bool) -> Settlement:
    """Return the settlement with a copy for the end of the work queue.

    The copy carries no remaining wait: a forged one would occupy a prefetch slot for that time.
    """
    copy = copy_of(delivery, hop.stamp, exchange="", routing_key=route.work.name)
    return Settlement(tell=Tell.ACK, copy=copy, hold=min(hop.delay, LONGEST_HOLD), ack_first=ack_first)
