"""Carriers that send a retry through an exchange and one waiting queue.

The retry returns through the exchange of the work queue's first binding, so any other queue bound there with the same
key receives it too. ``back=""`` returns it through the default exchange to the work queue alone.
"""

from dataclasses import dataclass, field, replace

from django_rmq_retry.arguments import TEXT, check, check_seconds, one_of
from django_rmq_retry.errors import ConfigurationError
from django_rmq_retry.messages.deaths import comes_back, rejections
from django_rmq_retry.messages.header_names import PREFIX_BYTES
from django_rmq_retry.messages.message import Delivery, Instruction, Settlement
from django_rmq_retry.messages.properties import milliseconds
from django_rmq_retry.messages.stamp import Stamp, copy_of, stamp_of
from django_rmq_retry.policies.carriers import (
    Additions,
    Carrier,
    Hop,
    Route,
    at_least_once,
    dead_letter,
    parked_by_broker,
)
from django_rmq_retry.topology.declarations import (
    NO_LIMIT,
    Binding,
    BindingDeclaration,
    Exchange,
    Queue,
    QueueDeclaration,
    Role,
    Topology,
    bound,
    check_name,
    check_queue,
    check_text,
    exchanges_of,
    name_of,
    queue_of,
)

EXCHANGE = one_of((Exchange, str), "an exchange's name, or an Exchange")
QUEUE = one_of((Queue, str), "a queue's name, or a Queue")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter(Carrier):
    """The broker's loop: reject → exchange → queue with a TTL → work queue; a copy if that would lose the message."""

    exchange: Exchange | str
    queue: Queue | str
    after: float
    key: str | None = None
    """The routing key that rejected messages get; by default they keep their own."""
    back: Exchange | str | None = None
    back_key: str | None = None

    quarantines = False
    parks = False
    stamps = False

    def __post_init__(self) -> None:
        texts = {"key": TEXT.optional, "back_key": TEXT.optional}
        check(self, exchange=EXCHANGE, queue=QUEUE, back=EXCHANGE.optional, **texts)
        check_seconds("DeadLetter(after=…)", self.after)
        check_queue(self.queue)
        _check_back(self.back)
        for name, key in (("key", self.key), ("back_key", self.back_key)):
            check_text(f"routing key of DeadLetter({name}=…)", key or "")
        if isinstance(self.queue, Queue) and self.queue.message_ttl is not None:
            raise ConfigurationError(
                f"Queue {self.queue.name!r} has a message_ttl, but DeadLetter(after=…) sets that wait. "
                "Omit message_ttl."
            )
        self._exchange()

    @property
    def pace(self) -> float:
        return self.after

    def attempt(self, route: Route, delivery: Delivery) -> int:
        return stamp_of(delivery).attempts + rejections(delivery.headers, route.work.name) + 1

    def returns(self, route: Route, delivery: Delivery) -> int | None:
        return self.attempt(route, delivery) - 1

    def refusal(self, route: Route) -> str | None:
        leaving = _leaves_by_itself(route.work)
        if leaving:
            return (
                f"Queue {route.work.name!r} has {leaving} and a dead-letter loop: messages that RabbitMQ removes "
                "for that would circulate without an attempt and be dropped. Omit it, or use via=Ladder()."
            )
        key = self._key()
        if key is not None and self.back_key is None and not _finds_back(route, self.back, key):
            return (
                f"DeadLetter(key={key!r}) changes the routing key of rejected messages, and no binding of "
                f"queue {route.work.name!r} has that key: RabbitMQ would drop them on their return. Set back_key=…."
            )
        return _too_narrow(self._exchange(), self._keys(route))

    def additions(self, route: Route) -> Additions:
        exchange, ttl = self._exchange(), milliseconds(self.after)
        way_back = self.back, self.back_key
        return Additions(
            topology=_loop(route, exchange, self.queue, self._keys(route), way_back=way_back, ttl=ttl),
            arguments=dead_letter(exchange.name, self._key(), safe=at_least_once(route.work)),
        )

    def carry(self, route: Route, delivery: Delivery, hop: Hop) -> Settlement:
        exchange, key = self._exchange(), self._key()
        if key is None:
            key = delivery.routing_key
        goes_in = any(Binding(source=exchange, key=bound).takes(key) for bound in self._keys(route))
        bound_back = goes_in and (self.back_key is not None or _finds_back(route, self.back, key))
        # Reject only if the broker will return the message. A message that was copied before may have another key at
        # the broker than its delivery shows. CC would send copies on each round of the loop. And on RabbitMQ 3 a
        # malformed x-death crashes the queue or loses the message. Only a copy tells that a consumer had the message
        # before and did not acknowledge it.
        unmarked = PREFIX_BYTES not in delivery.raw and "CC" not in delivery.headers and not hop.stamp.unacked
        if unmarked and bound_back and comes_back(delivery.headers, route.work.name):
            return Settlement(instruction=Instruction.REJECT)
        # If a key is not bound in the loop, the broker silently drops the rejected message, so publish a copy, which
        # is confirmed.
        into = key if bound_back else _key_back(route)
        return Settlement(
            instruction=Instruction.ACK, copy=copy_of(delivery, hop.stamp, exchange=exchange.name, routing_key=into)
        )

    def _exchange(self) -> Exchange:
        if isinstance(self.exchange, Exchange):
            return self.exchange
        return Exchange(self.exchange, "fanout" if self.exchange else "direct")

    def _key(self) -> str | None:
        """Return the key of rejected messages, None to keep theirs; the default exchange takes the queue's name."""
        return self.key if self._exchange().name else name_of(self.queue)

    def _keys(self, route: Route) -> list[str]:
        """Return the binding keys through which the retry queue receives rejected messages."""
        if self._exchange().type == "fanout":
            return [""]
        key = self._key()
        return _keys(route) if key is None else [key]


@dataclass(frozen=True, slots=True)
class WaitQueue(Carrier):
    """One waiting exchange and queue. Each copy keeps its key and properties, with an expiration of its own.

    The broker expires messages only at the head of the queue, so a long wait delays shorter ones behind it.
    """

    exchange: Exchange | str
    queue: Queue | str
    back: Exchange | str | None = field(default=None, kw_only=True)

    waits = True

    def __post_init__(self) -> None:
        check(self, exchange=EXCHANGE, queue=QUEUE, back=EXCHANGE.optional)
        check_name("exchange", self._exchange().name)
        check_queue(self.queue)
        _check_back(self.back)

    def refusal(self, route: Route) -> str | None:
        return _too_narrow(self._exchange(), _keys(route))

    def additions(self, route: Route) -> Additions:
        return Additions(
            topology=_loop(route, self._exchange(), self.queue, _keys(route), way_back=(self.back, None)),
            arguments=parked_by_broker(route),
        )

    def carry(self, route: Route, delivery: Delivery, hop: Hop) -> Settlement:
        exchange, key = self._exchange(), delivery.routing_key
        goes_in = any(Binding(source=exchange, key=bound).takes(key) for bound in _keys(route))
        bound_back = goes_in and _finds_back(route, self.back, key)
        copy = copy_of(
            delivery,
            hop.stamp,
            exchange=exchange.name,
            routing_key=key if bound_back else _key_back(route),
            expiration=milliseconds(hop.delay),
        )
        return Settlement(instruction=Instruction.ACK, copy=copy)

    def delayed(self, route: Route, seconds: float) -> tuple[str, str, int | None, Stamp]:
        return self._exchange().name, _key_back(route), milliseconds(seconds), Stamp()

    def _exchange(self) -> Exchange:
        return self.exchange if isinstance(self.exchange, Exchange) else Exchange(self.exchange, "direct")


def _check_back(back: Exchange | str | None) -> None:
    if isinstance(back, str):
        check_text("exchange name", back)


def _keys(route: Route) -> list[str]:
    """Return the keys of the work queue's bindings; for a queue without bindings its name."""
    return [binding.key for binding in route.work.bindings] or [route.work.name]


def _leaves_by_itself(work: Queue) -> str | None:
    """Return the setting by which the broker may send a message round the loop that no handler rejected, or None."""
    if work.message_ttl is not None:
        return "a message_ttl"
    if work.bounded and work.overflow == "drop-head":
        return "overflow='drop-head'"
    # Without a delivery_limit, RabbitMQ 4 dead-letters a message after 20 returns.
    if work.type == "quorum" and (work.delivery_limit is None or work.delivery_limit < NO_LIMIT):
        return f"delivery_limit={work.delivery_limit}"
    return None


def _too_narrow(exchange: Exchange, keys: list[str]) -> str | None:
    """Return an error if a binding key is a pattern but the exchange is direct, which matches keys literally."""
    pattern = next((key for key in keys if {"*", "#"} & set(key.split("."))), None)
    if exchange.type != "direct" or pattern is None:
        return None
    return (
        f"Exchange {exchange.name!r} has the type 'direct', so the pattern {pattern!r} would match no "
        "retry. Use Exchange(…, 'topic') or 'fanout'."
    )


def _finds_back(route: Route, back: Exchange | str | None, key: str) -> bool:
    """True if a message with this key is routed back to the work queue."""
    if (back is not None and not name_of(back)) or not route.work.bindings:
        return True
    name = name_of(back or route.work.bindings[0].source)
    return any(binding.source.name == name and binding.takes(key) for binding in route.work.bindings)


def _key_back(route: Route) -> str:
    """Return a key that is bound on the way back, with "retry" in place of the wildcards of the binding."""
    return ".".join("retry" if word in {"*", "#"} else word for word in _keys(route)[0].split("."))


def _loop(
    route: Route,
    exchange: Exchange,
    queue: Queue | str,
    keys: list[str],
    *,
    way_back: tuple[Exchange | str | None, str | None],
    ttl: int | None = None,
) -> Topology:
    """Return the exchange and the waiting queue, and the exchange of the way back if it is no name."""
    given, back_key = way_back
    back = name_of(given or (route.work.bindings[0].source if given is None and route.work.bindings else ""))
    arguments = dead_letter(back, back_key if back else route.work.name, safe=at_least_once(route.work))
    # A direct exchange lets only this key in, and messages leave with their own key if the queue names none.
    kept = bool(exchange.name) and exchange.type == "direct" and keys == [route.work.name] and not back
    waiting = _round_queue(route, queue, ttl, arguments)
    if kept:
        implied = frozenset({"x-dead-letter-routing-key"})
        waiting = replace(waiting, queues={name: replace(one, implied=implied) for name, one in waiting.queues.items()})
    bindings = tuple(
        BindingDeclaration(source=exchange.name, destination=name_of(queue), key=key)
        for key in dict.fromkeys(keys if exchange.name else ())
    )
    return (
        (exchanges_of(given) if isinstance(given, Exchange) else Topology())
        + exchanges_of(exchange)
        + waiting
        + Topology(bindings=bindings)
    )


def _round_queue(route: Route, written: Queue | str, ttl: int | None, back: dict[str, object]) -> Topology:
    """Return the waiting queue. If it was given by name, it gets the type of the work queue."""
    added = {**({"x-message-ttl": ttl} if ttl is not None else {}), **back}
    if isinstance(written, str):
        arguments = {**route.work.companion_arguments(), **added}
        queue = QueueDeclaration(name=written, role=Role.WAITING, arguments=arguments)
        return Topology(queues={written: queue})
    vital = added.keys() - {"x-dead-letter-strategy", "x-overflow"}
    return Topology(queues={written.name: queue_of(written, Role.WAITING, added, vital=vital)}) + bound(written)
