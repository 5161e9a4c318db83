"""What is declared on a broker, argument by argument: the topology in the broker's own words, without a broker."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from django_rmq_retry.core.errors import TopologyConflict
from django_rmq_retry.core.topology import Arguments, Binding, Exchange


class Role(StrEnum):
    """What a queue is for."""

    WORK = "work"
    WAITING = "waiting"
    SUSPECTS = "suspects"
    PARKED = "parked"
    REPLY = "reply"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeDeclaration:
    name: str
    type: str = "direct"
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    arguments: Arguments = field(default_factory=dict)
    existing: bool = False

    @classmethod
    def of(cls, exchange: Exchange) -> "ExchangeDeclaration":
        arguments = dict(exchange.arguments)
        if exchange.alternate is not None:
            arguments["alternate-exchange"] = exchange.alternate
        return cls(
            name=exchange.name,
            type=exchange.type,
            durable=exchange.durable,
            auto_delete=exchange.auto_delete,
            internal=exchange.internal,
            arguments=arguments,
            existing=exchange.existing,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDeclaration:
    name: str
    role: Role = Role.OTHER
    arguments: Arguments = field(default_factory=dict)
    existing: bool = False


D = TypeVar("D", ExchangeDeclaration, QueueDeclaration)


@dataclass(frozen=True, slots=True, kw_only=True)
class BindingDeclaration:
    source: str
    destination: str
    to_exchange: bool = False
    key: str = ""
    arguments: Arguments = field(default_factory=dict)

    @classmethod
    def of(cls, binding: Binding, destination: str, *, to_exchange: bool = False) -> "BindingDeclaration":
        return cls(
            source=binding.source.name,
            destination=destination,
            to_exchange=to_exchange,
            key=binding.key,
            arguments=dict(binding.arguments),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Exchanges, queues and bindings, each once, in the order in which they can be declared."""

    exchanges: Mapping[str, ExchangeDeclaration] = field(default_factory=dict)
    queues: Mapping[str, QueueDeclaration] = field(default_factory=dict)
    bindings: tuple[BindingDeclaration, ...] = ()

    def __add__(self, other: "Topology") -> "Topology":
        return Topology(
            exchanges=_joined("exchange", self.exchanges, other.exchanges),
            queues=_joined("queue", self.queues, other.queues),
            bindings=(*self.bindings, *(b for b in other.bindings if b not in self.bindings)),
        )

    def role(self, queue: str) -> Role:
        return self.queues[queue].role

    def __iter__(self) -> Iterator[ExchangeDeclaration | QueueDeclaration | BindingDeclaration]:
        yield from self.exchanges.values()
        yield from self.queues.values()
        yield from self.bindings


def exchanges_of(exchange: Exchange) -> Topology:
    """An exchange, the exchanges it is bound to, and those bindings. The default exchange is never declared."""
    if not exchange.name:
        return Topology()
    found = Topology(exchanges={exchange.name: ExchangeDeclaration.of(exchange)})
    for binding in exchange.bindings:
        found = exchanges_of(binding.source) + found
        found += Topology(bindings=(BindingDeclaration.of(binding, exchange.name, to_exchange=True),))
    return found


def _joined(what: str, left: Mapping[str, D], right: Mapping[str, D]) -> dict[str, D]:
    joined = dict(left)
    for name, declaration in right.items():
        known = joined.setdefault(name, declaration)
        if known != declaration:
            raise TopologyConflict(what, name, differences(known, declaration))
    return joined


def differences(left: object, right: object) -> dict[str, tuple[object, object]]:
    """What two declarations of one name say differently: argument -> (left, right)."""
    found: dict[str, tuple[object, object]] = {}
    for part in left.__dataclass_fields__:  # type: ignore[attr-defined]  # both are declarations
        one, two = getattr(left, part), getattr(right, part)
        if part == "arguments":
            names = [*one, *(name for name in two if name not in one)]
            found |= {name: (one.get(name), two.get(name)) for name in names if one.get(name) != two.get(name)}
        elif one != two:
            found[part] = (one, two)
    return found
