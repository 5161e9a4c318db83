"""Carriers without a waiting queue of ours: the broker's own delayed retry, or a wait in the consumer."""

from dataclasses import dataclass

from django_rmq_retry.arguments import NUMBER, check
from django_rmq_retry.errors import ConfigurationError
from django_rmq_retry.messages.message import Delivery, Settlement, Tell
from django_rmq_retry.messages.seconds import LONGEST, check_seconds, milliseconds
from django_rmq_retry.messages.stamp import copy_of
from django_rmq_retry.policies.carriers.carrier import Additions, Carrier, Hop, Route, parked_by_broker


@dataclass(frozen=True, slots=True)
class InPlace(Carrier):
    """The message stays in the consumer's hand and is attempted again there; what an ordered line needs."""

    stamps = False
    by_name = False
    in_hand = True

    def attempt(self, route: Route, delivery: Delivery) -> int:
        # The consumer counts those before it.
        return 1

    def carry(self, route: Route, delivery: Delivery, hop: Hop) -> Settlement:
        return Settlement(tell=Tell.AGAIN, hold=hop.delay)


@dataclass(frozen=True, slots=True)
class Native(Carrier):
    """The broker waits ``first`` seconds times the number of returns, at most ``cap``: linear, without jitter."""

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
        # A nack would neither be counted nor wait longer each time (RabbitMQ 4.3, docs/quorum-queues).
        return Settlement(tell=Tell.COUNTED_REQUEUE)


LONGEST_HOLD = 900.0
"""Seconds; the broker takes a message away from whoever holds it for 30 minutes (docs/consumers)."""


@dataclass(frozen=True, slots=True)
class NackRequeue(Carrier):
    """Give the message back to its queue. It knows only whether a message came before: attempts may be 1, 2 or None."""

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
        # It never reaches a third attempt's number, so the first two waits are all that occur.
        return max((backoff.longest(route.attempts or 3) for backoff in route.backoffs), default=0.0)

    def carry(self, route: Route, delivery: Delivery, hop: Hop) -> Settlement:
        return Settlement(tell=Tell.REQUEUE, hold=min(hop.delay, LONGEST_HOLD))


@dataclass(frozen=True, slots=True)
class Republish(Carrier):
    """A copy with a counter to the end of the same queue, confirmed, then the ack: may double, never loses."""

    notes_rest = False
    in_hand = True

    def refusal(self, route: Route) -> str | None:
        return _too_long(self, route)

    def carry(self, route: Route, delivery: Delivery, hop: Hop) -> Settlement:
        return _copied(route, delivery, hop, ack_first=False)


@dataclass(frozen=True, slots=True)
class AckFirst(Carrier):
    """The ack, then a copy with a counter to the end of the same queue: may lose, almost never doubles."""

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
    """No rest of a wait goes with the copy: a forged one would keep a place of the prefetch for as long as it says."""
    copy = copy_of(delivery, hop.stamp, exchange="", routing_key=route.work.name)
    return Settlement(tell=Tell.ACK, copy=copy, hold=min(hop.delay, LONGEST_HOLD), ack_first=ack_first)
