"""The delayed retry that quorum queues have of their own from RabbitMQ 4.3 on."""

from dataclasses import dataclass

from django_rmq_retry.core.backoff import LONGEST, check_seconds
from django_rmq_retry.core.carriers.base import Additions, Carrier, Hop, Route, parked_by_broker
from django_rmq_retry.core.errors import ConfigurationError
from django_rmq_retry.core.message import Delivery
from django_rmq_retry.core.settlement import Settlement, Tell
from django_rmq_retry.core.topology import milliseconds


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
