"""Exchanges, and the routing of messages through them."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Union

from django_rmq_retry.embedded.engine.envelopes import StoredMessage
from django_rmq_retry.embedded.engine.queue import BrokerQueue
from django_rmq_retry.embedded.engine.refusals import RequestRefused
from django_rmq_retry.embedded.engine.specs import ExchangeSpec, equal_values, identical, shown_value, type_name
from django_rmq_retry.embedded.engine.store import DurableStore, KeptBinding
from django_rmq_retry.errors import UndecodableHeaders
from django_rmq_retry.messages.properties import Headers
from django_rmq_retry.topology.declarations import matches

TYPES = ("direct", "fanout", "topic", "headers")
_MATCHES = ("all", "any", "all-with-x", "any-with-x")
_MOST_KEYS_REMEMBERED = 10_000

Destination = Union[BrokerQueue, "BrokerExchange"]


class BrokerBinding:
    __slots__ = ("arguments", "destination", "key", "source")

    def __init__(
        self, source: "BrokerExchange", destination: Destination, key: str, arguments: Mapping[str, object]
    ) -> None:
        self.source = source
        self.destination = destination
        self.key = key
        self.arguments = arguments

    def like(self, other: "BrokerBinding") -> bool:
        return (
            self.destination is other.destination
            and self.key == other.key
            and identical(dict(self.arguments), dict(other.arguments))
        )

    def kept(self) -> KeptBinding | None:
        """Return the binding as a store keeps it; None if it does not survive a restart."""
        end = self.destination
        if not (self.source.spec.durable and (end.spec.kept if isinstance(end, BrokerQueue) else end.spec.durable)):
            return None
        return KeptBinding(
            source=self.source.name,
            destination=end.name,
            key=self.key,
            to_exchange=isinstance(end, BrokerExchange),
            arguments=self.arguments,
        )


class BrokerExchange:
    __slots__ = ("_found", "alternate", "bindings", "by_key", "name", "plain", "spec")

    def __init__(self, spec: ExchangeSpec) -> None:
        self.spec = spec
        self.name = spec.name
        alternate = spec.arguments.get("alternate-exchange")
        self.alternate = alternate if isinstance(alternate, str) else None
        self.bindings: dict[BrokerBinding, None] = {}
        self.by_key: dict[str, list[BrokerBinding]] = {}
        self.plain = self.alternate is None
        """True if messages go straight to queues: no alternate exchange and no further exchange."""
        self._found: dict[str, tuple[Destination, ...]] = {}

    def add(self, binding: BrokerBinding) -> bool:
        """Add a binding; return False if an equal one exists."""
        if self.find(binding) is not None:
            return False
        self.bindings[binding] = None
        self.by_key.setdefault(binding.key, []).append(binding)
        self._changed()
        return True

    def remove(self, binding: BrokerBinding) -> None:
        del self.bindings[binding]
        bound = self.by_key[binding.key]
        bound.remove(binding)
        if not bound:
            del self.by_key[binding.key]
        self._changed()

    def find(self, binding: BrokerBinding) -> BrokerBinding | None:
        return next((one for one in self.by_key.get(binding.key, ()) if one.like(binding)), None)

    def route(self, message: StoredMessage) -> Sequence[Destination]:
        if self.spec.type == "headers":
            return _once(one for one in self.bindings if headers_match(one.arguments, message))
        if not message.more:
            return self._by_key(message.key)
        return tuple(dict.fromkeys(chain.from_iterable(map(self._by_key, message.keys))))

    def _by_key(self, key: str) -> tuple[Destination, ...]:
        if self.spec.type == "fanout":
            key = ""
        queues = self._found.get(key)
        if queues is None:
            if len(self._found) >= _MOST_KEYS_REMEMBERED:
                self._found.clear()
            queues = self._found[key] = self._match(key)
        return queues

    def _match(self, key: str) -> tuple[Destination, ...]:
        if self.spec.type == "fanout":
            return _once(self.bindings)
        if self.spec.type == "direct":
            return _once(self.by_key.get(key, ()))
        return _once(chain.from_iterable(bound for pattern, bound in self.by_key.items() if matches(pattern, key)))

    def _changed(self) -> None:
        self._found.clear()
        self.plain = self.alternate is None and not any(
            isinstance(one.destination, BrokerExchange) for one in self.bindings
        )


def _once(bindings: Iterable[BrokerBinding]) -> tuple[Destination, ...]:
    return tuple(dict.fromkeys(one.destination for one in bindings))


def check_match(binding: BrokerBinding) -> None:
    """Refuse a binding to a headers exchange with an invalid x-match."""
    if binding.source.spec.type != "headers" or "x-match" not in binding.arguments:
        return
    mode = binding.arguments["x-match"]
    if not isinstance(mode, str):
        what = f"type {type_name(mode)} (value {shown_value(mode)}); expected longstr"
        raise RequestRefused(406, f"Invalid x-match field {what}")
    if mode not in _MATCHES:
        what = f'value <<"{mode}">>; expected all, any, all-with-x, or any-with-x'
        raise RequestRefused(406, f"Invalid x-match field {what}")


def headers_match(asked: Mapping[str, object], message: StoredMessage) -> bool:
    """True if a headers exchange routes the message by a binding's arguments."""
    mode = asked.get("x-match", "all")
    all_keys = mode in ("all-with-x", "any-with-x")
    wanted = {key: value for key, value in asked.items() if key != "x-match" and (all_keys or not key.startswith("x-"))}
    headers = message.headers
    hits = (_hit(headers, key, value) for key, value in wanted.items())
    return any(hits) if mode in ("any", "any-with-x") else all(hits)


def _hit(headers: Headers, key: str, value: object) -> bool:
    """Compare one header; a binding without a value requires only that the header exists."""
    if key not in headers:
        return False
    try:
        return value is None or equal_values(value, headers[key])
    except UndecodableHeaders:
        return False


class Router:
    """The exchanges and queues of a virtual host. The default exchange "" routes to each queue by its name."""

    def __init__(self, store: DurableStore) -> None:
        self.queues: dict[str, BrokerQueue] = {}
        self.default = BrokerExchange(ExchangeSpec(name=""))
        self.exchanges: dict[str, BrokerExchange] = {"": self.default}
        self._store = store
        self._into: dict[Destination, dict[BrokerBinding, None]] = {}
        for spec in (
            *(ExchangeSpec(name=f"amq.{kind}", type=kind) for kind in TYPES),
            ExchangeSpec(name="amq.match", type="headers"),
            ExchangeSpec(name="amq.rabbitmq.trace", type="topic", internal=True),
        ):
            self.exchanges[spec.name] = BrokerExchange(spec)

    def route(self, exchange: BrokerExchange, message: StoredMessage) -> Sequence[BrokerQueue]:
        """Return every queue that gets the message, once."""
        if exchange is self.default and not message.more:
            queue = self.queues.get(message.key)
            return () if queue is None else (queue,)
        if exchange.plain and exchange is not self.default:
            return [one for one in exchange.route(message) if isinstance(one, BrokerQueue)]
        return self._walk(exchange, message)

    def bind(self, binding: BrokerBinding) -> None:
        if binding.source.add(binding):
            self._into.setdefault(binding.destination, {})[binding] = None
            if (kept := binding.kept()) is not None:
                self._store.bound(kept)

    def unbind(self, binding: BrokerBinding) -> None:
        equal = binding.source.find(binding)
        if equal is None:
            return
        equal.source.remove(equal)
        self._into[equal.destination].pop(equal, None)
        if (kept := equal.kept()) is not None:
            self._store.unbound(kept)
        self._source_left(equal.source)

    def remove_queue(self, queue: BrokerQueue) -> None:
        del self.queues[queue.name]
        if queue.spec.kept:
            self._store.queue_deleted(queue.name)
        self._cut_off(queue)

    def remove_exchange(self, exchange: BrokerExchange) -> None:
        if self.exchanges.pop(exchange.name, None) is None:
            return
        if exchange.spec.durable:
            self._store.exchange_deleted(exchange.name)
        for binding in list(exchange.bindings):
            exchange.remove(binding)
            self._into[binding.destination].pop(binding, None)
        self._cut_off(exchange)

    def _cut_off(self, destination: Destination) -> None:
        for binding in list(self._into.pop(destination, ())):
            binding.source.remove(binding)
            self._source_left(binding.source)

    def _source_left(self, exchange: BrokerExchange) -> None:
        if exchange.spec.auto_delete and not exchange.bindings:
            self.remove_exchange(exchange)

    def _walk(self, start: BrokerExchange, message: StoredMessage) -> list[BrokerQueue]:
        seen = {start}
        ahead: list[BrokerExchange] = [start]
        queues: dict[BrokerQueue, None] = {}
        while ahead:
            exchange = ahead.pop()
            for destination in self._out_of(exchange, message):
                if isinstance(destination, BrokerQueue):
                    queues[destination] = None
                elif destination not in seen:
                    seen.add(destination)
                    ahead.append(destination)
        return list(queues)

    def _out_of(self, exchange: BrokerExchange, message: StoredMessage) -> Sequence[Destination]:
        if exchange is self.default:
            return [self.queues[key] for key in message.keys if key in self.queues]
        queues = exchange.route(message)
        if not queues and exchange.alternate is not None:
            alternate = self.exchanges.get(exchange.alternate)
            return () if alternate is None else (alternate,)
        return queues
