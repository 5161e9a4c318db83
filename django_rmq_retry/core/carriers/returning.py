"""Carriers without waiting queues: a message waits in the consumer's hand, then goes back to its queue."""

from dataclasses import dataclass

from django_rmq_retry.core.carriers.base import Carrier, Hop, Route
from django_rmq_retry.core.message import Delivery
from django_rmq_retry.core.settlement import Settlement, Tell, copy_of


@dataclass(frozen=True, slots=True)
class Requeue(Carrier):
    """Give the message back to its queue. It knows only whether a message came before: attempts may be 1, 2 or None."""

    stamps = False

    def attempt(self, route: Route, delivery: Delivery) -> int:
        return 2 if delivery.redelivered else 1

    def refusal(self, route: Route) -> str | None:
        if route.attempts in (1, 2, None):
            return None
        return (
            f"Requeue knows only 'redelivered', so it cannot count to attempts={route.attempts}. "
            "Use attempts=1, 2 or None (endless), or another carrier, as via=Ladder()."
        )

    def carry(self, route: Route, delivery: Delivery, hop: Hop) -> Settlement:
        return Settlement(tell=Tell.REQUEUE, hold=hop.delay)


@dataclass(frozen=True, slots=True)
class Republish(Carrier):
    """A copy with a counter to the end of the same queue, confirmed, then the ack: may double, never loses."""

    def carry(self, route: Route, delivery: Delivery, hop: Hop) -> Settlement:
        copy = copy_of(delivery, hop.stamp, exchange="", routing_key=route.work.name)
        return Settlement(tell=Tell.ACK, copy=copy, hold=hop.delay)


@dataclass(frozen=True, slots=True)
class AckFirst(Carrier):
    """The ack, then a copy with a counter to the end of the same queue: may lose, never doubles."""

    def carry(self, route: Route, delivery: Delivery, hop: Hop) -> Settlement:
        copy = copy_of(delivery, hop.stamp, exchange="", routing_key=route.work.name)
        return Settlement(tell=Tell.ACK, copy=copy, hold=hop.delay, ack_first=True)
