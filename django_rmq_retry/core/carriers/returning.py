"""Carriers without waiting queues: a message waits in the consumer's hand, then goes back to its queue."""

from dataclasses import dataclass, replace

from django_rmq_retry.core.carriers.base import Carrier, Hop, Route
from django_rmq_retry.core.message import Delivery
from django_rmq_retry.core.settlement import Settlement, Tell, copy_of
from django_rmq_retry.core.topology import milliseconds

LONGEST_HOLD = 900.0
"""Seconds; the broker takes a message away from whoever holds it for 30 minutes (docs/consumers)."""


@dataclass(frozen=True, slots=True)
class Requeue(Carrier):
    """Give the message back to its queue. It knows only whether a message came before: attempts may be 1, 2 or None."""

    laned = False
    stamps = False

    def attempt(self, route: Route, delivery: Delivery) -> int:
        return 2 if delivery.redelivered else 1

    def returns(self, route: Route, delivery: Delivery) -> int | None:
        return None if route.attempts is None else route.attempts - 1

    def refusal(self, route: Route) -> str | None:
        if route.attempts not in (1, 2, None):
            return (
                f"Requeue knows only 'redelivered', so it cannot count to attempts={route.attempts}. "
                "Use attempts=1, 2 or None (endless), or another carrier, as via=Ladder()."
            )
        # It never gets to a third attempt's number, so the first two waits are all there are.
        longest = max((backoff.delay(attempt, 1.0) for backoff in route.backoffs for attempt in (1, 2)), default=0.0)
        if longest > LONGEST_HOLD:
            return (
                f"Requeue waits with the message in hand, for at most {LONGEST_HOLD:g} s, and the back-off asks for "
                f"{longest:g} s. Use shorter waits, or via=Ladder()."
            )
        return None

    def carry(self, route: Route, delivery: Delivery, hop: Hop) -> Settlement:
        return Settlement(tell=Tell.REQUEUE, hold=min(hop.delay, LONGEST_HOLD))


@dataclass(frozen=True, slots=True)
class Republish(Carrier):
    """A copy with a counter to the end of the same queue, confirmed, then the ack: may double, never loses."""

    def carry(self, route: Route, delivery: Delivery, hop: Hop) -> Settlement:
        return _copied(route, delivery, hop, ack_first=False)


@dataclass(frozen=True, slots=True)
class AckFirst(Carrier):
    """The ack, then a copy with a counter to the end of the same queue: may lose, almost never doubles."""

    def carry(self, route: Route, delivery: Delivery, hop: Hop) -> Settlement:
        return _copied(route, delivery, hop, ack_first=True)


def _copied(route: Route, delivery: Delivery, hop: Hop, *, ack_first: bool) -> Settlement:
    """A longer wait is made of several, each in the hand of whoever has the copy then."""
    rest = max(hop.delay - LONGEST_HOLD, 0.0)
    stamp = replace(hop.stamp, wait=milliseconds(rest))
    copy = copy_of(delivery, stamp, exchange="", routing_key=route.work.name)
    return Settlement(tell=Tell.ACK, copy=copy, hold=hop.delay - rest, ack_first=ack_first)
