"""Carriers that send a retry round through an exchange and one retry queue: the topologies of the literature.

The retry returns through the exchange of the work queue's first binding, so whatever else is bound there by the
same key gets it too. ``back=""`` returns it by the default exchange to the work queue alone.
"""

from dataclasses import dataclass, field

from django_rmq_retry.core.carriers.base import Additions, Carrier, Hop, Route, parked_by_broker
from django_rmq_retry.core.deaths import dead_letter, rejections, well_formed
from django_rmq_retry.core.declarations import (
    BindingDeclaration,
    QueueDeclaration,
    Role,
    Topology,
    exchanges_of,
)
from django_rmq_retry.core.message import Delivery
from django_rmq_retry.core.settlement import Settlement, Tell, copy_of
from django_rmq_retry.core.stamps import MARK, Stamp
from django_rmq_retry.core.topology import Exchange, matches, milliseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter(Carrier):
    """The broker's own loop: reject → exchange → queue with a TTL → work queue. Nothing is republished."""

    exchange: Exchange | str
    queue: str
    after: float
    key: str | None = None
    """The key that rejected messages get; by default they keep their own."""
    back: str | None = None
    back_key: str | None = None

    @property
    def pace(self) -> float:
        return self.after

    def attempt(self, route: Route, delivery: Delivery) -> int:
        ours = Stamp.read(delivery.headers).attempts if MARK in delivery.raw else 0
        return ours + rejections(delivery.headers, route.work.name) + 1

    def refusal(self, route: Route) -> str | None:
        if route.work.message_ttl is not None:
            return (
                f"Queue {route.work.name!r} has a message_ttl and a dead-letter loop: what expires there would go "
                "round without an attempt, and RabbitMQ 4 drops it. Leave message_ttl out, or use via=Ladder()."
            )
        if self.key is not None and self.back_key is None and not _finds_back(route, self.back, self.key):
            return (
                f"DeadLetter(key={self.key!r}) changes the key of what is rejected, and no binding of queue "
                f"{route.work.name!r} takes that key: its messages would be dropped on the way back. Set back_key=…."
            )
        return None

    def additions(self, route: Route) -> Additions:
        exchange = self.exchange if isinstance(self.exchange, Exchange) else Exchange(self.exchange, "fanout")
        back, back_key = _way_back(route, self.back, self.back_key)
        queue = _round_queue(
            route, self.queue, milliseconds(self.after), dead_letter(back, back_key, safe=_safe(route))
        )
        keys = [self.key] if self.key is not None else _keys(route)
        bindings = _bindings(exchange, self.queue, [""] if exchange.type == "fanout" else keys)
        return Additions(
            topology=exchanges_of(exchange) + Topology(queues={queue.name: queue}, bindings=bindings),
            arguments=dead_letter(exchange.name, self.key, safe=_safe(route)),
        )

    def carry(self, route: Route, delivery: Delivery, hop: Hop) -> Settlement:
        key = self.key or delivery.routing_key
        finds_back = self.back_key is not None or _finds_back(route, self.back, key)
        if well_formed(delivery.headers) and finds_back:
            return Settlement(tell=Tell.REJECT)
        # RabbitMQ 3 crashes the queue or loses the message when it must add to an x-death that it did not write; and
        # a key that is not bound on the way back is dropped there by every version. A copy is confirmed instead.
        exchange = self.exchange.name if isinstance(self.exchange, Exchange) else self.exchange
        copy = copy_of(delivery, hop.stamp, exchange=exchange, routing_key=key if finds_back else _key_back(route))
        return Settlement(tell=Tell.ACK, copy=copy)


@dataclass(frozen=True, slots=True)
class WaitQueue(Carrier):
    """One wait exchange and queue; each copy keeps its key and properties and brings its own expiration.

    The queue gives messages up from its head only: one with a long wait holds shorter ones behind it up.
    """

    exchange: Exchange | str
    queue: str
    back: str | None = field(default=None, kw_only=True)

    waits = True

    def additions(self, route: Route) -> Additions:
        exchange = self._exchange()
        back, back_key = _way_back(route, self.back, None)
        queue = _round_queue(route, self.queue, None, dead_letter(back, back_key, safe=_safe(route)))
        bindings = _bindings(exchange, self.queue, _keys(route))
        return Additions(
            topology=exchanges_of(exchange) + Topology(queues={queue.name: queue}, bindings=bindings),
            arguments=parked_by_broker(route),
        )

    def carry(self, route: Route, delivery: Delivery, hop: Hop) -> Settlement:
        key = delivery.routing_key
        copy = copy_of(
            delivery,
            hop.stamp,
            exchange=self._exchange().name,
            routing_key=key if _finds_back(route, self.back, key) else _key_back(route),
            expiration=milliseconds(hop.delay),
        )
        return Settlement(tell=Tell.ACK, copy=copy)

    def delayed(self, route: Route, seconds: float) -> tuple[str, str, int | None, Stamp]:
        return self._exchange().name, _key_back(route), milliseconds(seconds), Stamp()

    def _exchange(self) -> Exchange:
        return self.exchange if isinstance(self.exchange, Exchange) else Exchange(self.exchange, "direct")


def _safe(route: Route) -> bool:
    return route.work.type == "quorum" and route.work.overflow == "reject-publish"


def _keys(route: Route) -> list[str]:
    """The keys of the work queue's bindings; a queue without any is reached by its name."""
    return [binding.key for binding in route.work.bindings] or [route.work.name]


def _finds_back(route: Route, back: str | None, key: str) -> bool:
    """Whether a message with this key comes back to the work queue."""
    if back == "" or not route.work.bindings:
        return True
    source = route.work.bindings[0].source
    bound = [binding.key for binding in route.work.bindings if binding.source.name == (back or source.name)]
    if source.type == "topic":
        return any(matches(pattern, key) for pattern in bound)
    return source.type != "direct" or key in bound


def _key_back(route: Route) -> str:
    """A key that is bound on the way back, with a word of ours where the binding leaves one open."""
    return ".".join("retry" if word in {"*", "#"} else word for word in _keys(route)[0].split("."))


def _way_back(route: Route, back: str | None, key: str | None) -> tuple[str, str | None]:
    if back is None and route.work.bindings:
        back = route.work.bindings[0].source.name
    return (back, key) if back else ("", key or route.work.name)


def _round_queue(route: Route, name: str, ttl: int | None, back: dict[str, object]) -> QueueDeclaration:
    kind: dict[str, object] = {"x-queue-type": route.work.type} if route.work.type else {}
    live = {"x-message-ttl": ttl} if ttl is not None else {}
    return QueueDeclaration(name=name, role=Role.WAITING, arguments={**kind, **live, **back})


def _bindings(exchange: Exchange, queue: str, keys: list[str]) -> tuple[BindingDeclaration, ...]:
    distinct = dict.fromkeys(keys)
    return tuple(BindingDeclaration(source=exchange.name, destination=queue, key=key) for key in distinct)
