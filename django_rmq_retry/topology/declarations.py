"""Declarations: queues, exchanges and bindings with every argument that the broker gets."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeVar

from django_rmq_retry.errors import TopologyConflict
from django_rmq_retry.topology.queues import Arguments, Binding, Exchange, Queue, name_of


class Role(StrEnum):
    """The purpose of a queue."""

    WORK = "work"
    WAITING = "waiting"
    QUARANTINE = "quarantine"
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
            arguments["alternate-exchange"] = name_of(exchange.alternate)
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
    vital: frozenset[str] = frozenset()
    """The compared arguments of an external queue: those written in the project, or needed by retries."""
    durable: bool = True
    exclusive: bool = False
    auto_delete: bool = False
    named_by_broker: bool = False

    @property
    def lasting(self) -> bool:
        """True if the queue exists without a consumer; otherwise its consumer declares it."""
        return self.durable and not self.exclusive and not self.auto_delete


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
    """Exchanges, queues and bindings, each once, in the order of their declaration."""

    exchanges: Mapping[str, ExchangeDeclaration] = field(default_factory=dict)
    queues: Mapping[str, QueueDeclaration] = field(default_factory=dict)
    bindings: tuple[BindingDeclaration, ...] = ()

    def __add__(self, other: "Topology") -> "Topology":
        return Topology(
            exchanges=_joined("exchange", self.exchanges, other.exchanges),
            queues=_joined("queue", self.queues, other.queues),
            bindings=(*self.bindings, *(b for b in other.bindings if b not in self.bindings)),
        )

    @property
    def lasting(self) -> "Topology":
        """The topology without the queues that consumers declare, and without their bindings."""
        queues = {name: queue for name, queue in self.queues.items() if queue.lasting}
        gone = self.queues.keys() - queues.keys()
        bindings = tuple(one for one in self.bindings if one.to_exchange or one.destination not in gone)
        return Topology(exchanges=self.exchanges, queues=queues, bindings=bindings)

    def role(self, queue: str) -> Role:
        return self.queues[queue].role

    def foreign(self, binding: BindingDeclaration) -> bool:
        """True if both ends of a binding, and so the binding, belong to other programs."""
        ends = self.exchanges if binding.to_exchange else self.queues
        source, destination = self.exchanges.get(binding.source), ends.get(binding.destination)
        return bool(source and source.existing and destination and destination.existing)

    def left_to_others(self, queue: str) -> "Topology":
        """Return the topology with one queue marked as external."""
        known = self.queues[queue]
        return replace(self, queues={**self.queues, queue: replace(known, existing=True)})

    def __iter__(self) -> Iterator[ExchangeDeclaration | QueueDeclaration | BindingDeclaration]:
        yield from self.exchanges.values()
        yield from self.queues.values()
        yield from self.bindings


@dataclass(frozen=True, slots=True, kw_only=True)
class Former:
    """A queue that the project declared earlier and that no handler uses any more."""

    queue: QueueDeclaration
    home: str = ""
    """The work queue to which it belonged, if there was only one."""
    bindings: tuple[BindingDeclaration, ...] = ()


def exchanges_of(exchange: Exchange) -> Topology:
    """Return an exchange, the exchanges it is bound to, and those bindings. The default exchange is never declared."""
    if not exchange.name:
        return Topology()
    found = Topology(exchanges={exchange.name: ExchangeDeclaration.of(exchange)})
    if isinstance(exchange.alternate, Exchange):
        found = exchanges_of(exchange.alternate) + found
    for binding in exchange.bindings:
        found = exchanges_of(binding.source) + found
        found += Topology(bindings=(BindingDeclaration.of(binding, exchange.name, to_exchange=True),))
    return found


def queue_of(
    queue: Queue, role: Role, additions: Mapping[str, object], *, vital: Iterable[str] = ()
) -> QueueDeclaration:
    """Return the declaration of a queue with added arguments; the project's own win, and None removes an argument."""
    arguments = {**queue.plain_arguments(), **additions, **queue.arguments}
    kept = {name: value for name, value in arguments.items() if value is not None}
    fixed = (queue.written | frozenset(vital)) & kept.keys() if queue.existing else frozenset()
    return QueueDeclaration(
        name=queue.name,
        role=role,
        arguments=kept,
        existing=queue.existing,
        vital=fixed,
        durable=queue.durable,
        exclusive=queue.exclusive,
        auto_delete=queue.auto_delete,
        named_by_broker=queue.named_by_broker,
    )


def bound(queue: Queue) -> Topology:
    """Return the bindings of a queue, with their exchanges."""
    found = Topology()
    for binding in queue.bindings:
        found += exchanges_of(binding.source)
    named = tuple(BindingDeclaration.of(binding, queue.name) for binding in queue.bindings if binding.source.name)
    return found + Topology(bindings=named)


def _joined(kind: str, left: Mapping[str, D], right: Mapping[str, D]) -> dict[str, D]:
    joined = dict(left)
    for name, declaration in right.items():
        known = joined.setdefault(name, declaration)
        if known != declaration:
            raise TopologyConflict(kind, name, differences(known, declaration))
    return joined


def differences(left: object, right: object) -> dict[str, tuple[object, object]]:
    """Return the differences of two declarations of one name: argument -> (left, right)."""
    found: dict[str, tuple[object, object]] = {}
    for part in left.__dataclass_fields__:  # type: ignore[attr-defined]  # both are declarations
        one, two = getattr(left, part), getattr(right, part)
        if part == "arguments":
            names = [*one, *(name for name in two if name not in one)]
            found |= {name: (one.get(name), two.get(name)) for name in names if one.get(name) != two.get(name)}
        elif one != two:
            found[part] = (one, two)
    return found
