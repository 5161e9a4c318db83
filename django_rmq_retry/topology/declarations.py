"""Queues, exchanges and bindings: as a project defines them, and as they are declared on a broker."""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import ClassVar, Literal, TypeVar, cast, get_args

from django_rmq_retry.arguments import (
    FLAG,
    NUMBER,
    TABLE,
    TEXT,
    WHOLE,
    Argument,
    check,
    check_value,
    many,
    one_of,
    whole,
)
from django_rmq_retry.errors import ConfigurationError, TopologyConflict
from django_rmq_retry.messages.properties import milliseconds

MOST_NAME_BYTES = 255
"""The most bytes of a name in AMQP: of a queue, an exchange, a routing key."""
QUARANTINE = ".quarantine"
"""The ending of the name of a quarantine queue, after the name of its work queue: see ``work_queue``."""
NO_LIMIT = 1_000_000
"""A delivery limit that is never reached: the default of 4.x, 20, drops untouched messages, and -1 is 0 on 3.x."""

Arguments = Mapping[str, object]
QueueType = Literal["quorum", "classic"]
Overflow = Literal["reject-publish", "drop-head"]
Expired = Literal["park", "drop"]
EXCHANGE_TYPES = ("direct", "fanout", "topic", "headers")
EXCHANGE_TYPE = Argument(
    "'direct', 'fanout', 'topic', 'headers' or a plugin's 'x-…'",
    lambda value: isinstance(value, str) and (value in EXCHANGE_TYPES or value.startswith("x-")),
)
QUEUE_TYPE = Argument("'quorum', 'classic' or None", lambda value: value is None or value in get_args(QueueType))

UNFIT = {
    "\0": "'\\x00', which PostgreSQL cannot store",
    "\n": "the line end '\\n', which RabbitMQ drops",
    "\r": "the line end '\\r', which RabbitMQ drops",
}


class DefaultType(str):
    """The type of a queue that names none."""

    __slots__ = ()


QUORUM_BY_DEFAULT = cast("QueueType", DefaultType("quorum"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """A source of messages for a queue or exchange; made by ``Exchange.bind``."""

    source: "Exchange"
    key: str = ""
    arguments: Arguments = field(default_factory=dict)

    def takes(self, key: str) -> bool:
        """True if messages with this routing key pass, or may pass because something else than the key decides."""
        if self.source.type == "topic":
            return matches(self.key, key)
        return self.source.type != "direct" or self.key == key


BINDINGS = many(Binding, "a list of bindings, such as [Exchange('events', 'topic').bind('order.#')]")


@dataclass(frozen=True, slots=True)
class Exchange:
    """An exchange by its name: ``main = Exchange("main-exchange", "direct")``; ``main.bind("srvc.transact.cash")``.

    ``Exchange("")`` is the default exchange, which routes to every queue by its name.
    """

    name: str
    type: str = "direct"
    durable: bool = field(default=True, kw_only=True)
    auto_delete: bool = field(default=False, kw_only=True)
    internal: bool = field(default=False, kw_only=True)
    alternate: "Exchange | str | None" = field(default=None, kw_only=True)
    """The exchange for messages that no binding accepts; an ``Exchange`` is declared too."""
    bindings: Sequence[Binding] = field(default=(), kw_only=True)
    arguments: Arguments = field(default_factory=dict, kw_only=True)
    existing: bool = field(default=False, kw_only=True)
    """True for an external exchange: it is compared, and never created, changed or deleted."""

    def __post_init__(self) -> None:
        flags = dict.fromkeys(("durable", "auto_delete", "internal", "existing"), FLAG)
        others = one_of((Exchange, str), "an exchange's name, or an Exchange").optional
        check(self, name=TEXT, type=EXCHANGE_TYPE, alternate=others, bindings=BINDINGS, arguments=TABLE, **flags)
        if isinstance(self.alternate, str):
            check_text("exchange name", self.alternate)
        if self.name:
            check_name("exchange", self.name)
        elif self.type != "direct":
            raise ConfigurationError(f"The default exchange has the type 'direct', not {self.type!r}.")
        object.__setattr__(self, "bindings", tuple(self.bindings))

    def bind(
        self, key: str = "", *, headers: Mapping[str, object] | None = None, match: Literal["all", "any"] = "all"
    ) -> Binding:
        """Return a binding by routing key, or to a headers exchange by headers."""
        check_value("bind", "key", key, TEXT)
        check_text("routing key of bind(key=…)", key)
        check_value("bind", "headers", headers, TABLE.optional)
        check_value("bind", "match", match, Argument("'all' or 'any'", lambda value: value in ("all", "any")))
        if headers is None and key and self.type == "headers":
            raise ConfigurationError(
                f"Exchange {self.name!r} has the type 'headers', which ignores the key {key!r:.80}: the binding would "
                "match every message. Use bind(headers={…}), or bind() for all of them."
            )
        if headers is None:
            return Binding(source=self, key=key)
        if self.type != "headers":
            raise ConfigurationError(
                f"Exchange {self.name!r} has the type {self.type!r}; bind(headers=…) needs the type 'headers'."
            )
        return Binding(source=self, key=key, arguments={"x-match": match, **headers})


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue by its name, durable and of quorum type by default: ``Queue("payments.charge")``."""

    name: str
    type: QueueType | None = field(default=QUORUM_BY_DEFAULT, kw_only=True)
    """None sends no type: the broker's default, for queues declared elsewhere."""
    bindings: Sequence[Binding] = field(default=(), kw_only=True)
    max_priority: int | None = field(default=None, kw_only=True)
    max_length: int | None = field(default=None, kw_only=True)
    max_bytes: int | None = field(default=None, kw_only=True)
    overflow: Overflow = field(default="reject-publish", kw_only=True)
    """A full queue refuses the publisher or, with drop-head, removes its oldest message like an expired one."""
    message_ttl: float | None = field(default=None, kw_only=True)
    """Seconds after which a message expires that no handler has taken."""
    expired: Expired = field(default="park", kw_only=True)
    """Park or drop the messages that the broker removes because they expired or exceed a limit."""
    single_active_consumer: bool = field(default=False, kw_only=True)
    delivery_limit: int | None = field(default=NO_LIMIT, kw_only=True)
    durable: bool = field(default=True, kw_only=True)
    """False deletes the queue when the broker restarts."""
    exclusive: bool = field(default=False, kw_only=True)
    """True ties the queue to one connection, and deletes it with the connection."""
    auto_delete: bool = field(default=False, kw_only=True)
    """True deletes the queue with its last consumer."""
    arguments: Arguments = field(default_factory=dict, kw_only=True)
    existing: bool = field(default=False, kw_only=True)
    """True for an external queue: it is compared, and never created, changed or deleted."""
    named_by_broker: ClassVar[bool] = False
    """True if each process has its own queue, and ``name`` stands for all of them."""

    def __post_init__(self) -> None:
        check_name("queue", self.name)
        flags = ("single_active_consumer", "durable", "exclusive", "auto_delete", "existing")
        most = ("max_priority", "max_length", "max_bytes")
        check(self, type=QUEUE_TYPE, bindings=BINDINGS, arguments=TABLE, message_ttl=NUMBER.optional)
        check(self, delivery_limit=WHOLE.optional)
        check(self, **dict.fromkeys(flags, FLAG), **dict.fromkeys(most, whole(0).optional))
        if not self.lasting and self.type == "quorum":
            raise ConfigurationError(
                f"Queue {self.name!r} is transient (durable=False, exclusive or auto_delete), and quorum queues are "
                "not. Use type='classic'."
            )
        if not self.lasting and self.existing:
            raise ConfigurationError(
                f"Queue {self.name!r} is transient, so its consumer declares it. Remove existing=True."
            )
        object.__setattr__(self, "bindings", tuple(self.bindings))
        if self.max_priority is not None and self.type == "quorum":
            raise ConfigurationError(
                f"Queue {self.name!r} has max_priority={self.max_priority}, which quorum queues refuse. "
                "Use type='classic', or remove max_priority."
            )
        check_choice(self.name, "expired", self.expired, Expired)
        check_choice(self.name, "overflow", self.overflow, Overflow)
        if self.message_ttl is not None and not self.message_ttl > 0:
            raise ConfigurationError(f"Queue {self.name!r}: message_ttl must be above 0 s, not {self.message_ttl!r}.")
        if self.delivery_limit is not None and self.delivery_limit < 0:
            raise ConfigurationError(
                f"Queue {self.name!r}: delivery_limit={self.delivery_limit} means 0 on RabbitMQ 3 (removed at the "
                f"first requeue) and 'none' on 4. Use the default ({NO_LIMIT}), which is never reached on any version."
            )

    @property
    def lasting(self) -> bool:
        """True if the queue exists without a consumer: it is declared once, not by each consumer."""
        return self.durable and not self.exclusive and not self.auto_delete

    @property
    def drops(self) -> tuple[str, ...]:
        """Return descriptions of the messages that the broker drops on purpose."""
        if self.expired == "park" or self.existing:
            return ()
        ttl = f" within {self.message_ttl:g} s" if self.message_ttl is not None else " before its own expiration"
        lengths = ((self.max_length, "messages"), (self.max_bytes, "bytes"))
        most = " or ".join(f"{limit} {unit}" for limit, unit in lengths if limit is not None)
        full = (f"the oldest messages beyond {most}",) if most and self.overflow == "drop-head" else ()
        return (f"messages that no handler takes{ttl}", *full)

    @property
    def bounded(self) -> bool:
        return self.max_length is not None or self.max_bytes is not None

    def varied(self, **changes: object) -> "Queue":
        return replace(self, **changes)  # type: ignore[arg-type]  # field names of the dataclass

    @property
    def written(self) -> frozenset[str]:
        """The names of the arguments that the project set, without defaults."""
        names = {name for name, value in {**self.plain_arguments(), **self.arguments}.items() if value is not None}
        defaults = {
            "x-queue-type": isinstance(self.type, DefaultType),
            "x-delivery-limit": self.delivery_limit == NO_LIMIT,
            "x-overflow": self.overflow == "reject-publish",
        }
        return frozenset(name for name in names if name in self.arguments or not defaults.get(name))

    def plain_arguments(self) -> dict[str, object]:
        """Return the broker's arguments without dead-lettering, which the layout adds."""
        arguments: dict[str, object] = {
            "x-queue-type": None if self.type is None else str(self.type),
            "x-delivery-limit": self.delivery_limit if self.type == "quorum" else None,
            "x-max-priority": self.max_priority,
            "x-max-length": self.max_length,
            "x-max-length-bytes": self.max_bytes,
            "x-overflow": self.overflow if self.bounded else None,
            "x-message-ttl": None if self.message_ttl is None else milliseconds(self.message_ttl),
            "x-single-active-consumer": self.single_active_consumer or None,
        }
        return {name: value for name, value in arguments.items() if value is not None}

    def companion_arguments(self) -> dict[str, object]:
        """Return the arguments of a queue that the layout adds for this one: of its type, and giving up no message.

        Without ``delivery_limit`` the broker decides there, too.
        """
        kind: dict[str, object] = {} if self.type is None else {"x-queue-type": str(self.type)}
        limited = self.type == "quorum" and self.delivery_limit is not None
        return {**kind, "x-delivery-limit": NO_LIMIT} if limited else kind


@dataclass(frozen=True, slots=True)
class Broadcast(Queue):
    """A queue for each running consumer: every process gets every message while it runs.

    ``@handler(Broadcast("prices.cache", bindings=[prices.bind("eur.#")]))``. The broker names the queues; the name here
    stands for all of them in logs, commands and the admin.
    """

    type: QueueType | None = field(default="classic", init=False)
    overflow: Overflow = field(default="drop-head", kw_only=True)
    """A slow process loses its oldest message; refusing the publisher would stop all other processes."""
    durable: bool = field(default=False, init=False)
    exclusive: bool = field(default=True, init=False)
    auto_delete: bool = field(default=False, init=False)
    existing: bool = field(default=False, init=False)
    named_by_broker: ClassVar[bool] = True

    def __post_init__(self) -> None:
        Queue.__post_init__(self)
        if not self.bindings:
            raise ConfigurationError(
                f"Broadcast({self.name!r}) has no binding, and the broker chooses the names of its queues, so no "
                "publisher can reach them. Bind it to an exchange: bindings=[Exchange('prices', 'fanout').bind()]."
            )


def met_limit(arguments: Arguments) -> str | None:
    """Return the delivery limit at which the broker removes a message of this queue, or None if there is none."""
    kind, limit = arguments.get("x-queue-type"), arguments.get("x-delivery-limit")
    if limit is None:
        return "no x-delivery-limit, which is 20 from RabbitMQ 4 on" if kind == "quorum" else None
    # -1 is unlimited where it can be declared: RabbitMQ 3 refuses it.
    never = kind == "classic" or (isinstance(limit, int) and (limit == -1 or limit >= NO_LIMIT))
    return None if never else f"x-delivery-limit={limit!r}"


def matches(pattern: str, key: str) -> bool:
    """True if a topic exchange routes the key by this pattern: ``*`` is one word, ``#`` any number of words."""
    words = key.split(".") if key else []
    # The numbers of words that the pattern can have matched so far.
    taken = {0}
    for part in pattern.split(".") if pattern else []:
        if part == "#":
            taken = set(range(min(taken), len(words) + 1)) if taken else taken
        else:
            taken = {at + 1 for at in taken if at < len(words) and part in {"*", words[at]}}
    return len(words) in taken


def check_choice(queue: str, option: str, value: object, choices: object) -> None:
    known = get_args(choices)
    if value not in known:
        choice = " or ".join(map(repr, known))
        raise ConfigurationError(f"Queue {queue!r}: {option} is {choice}, not {value!r}.")


def name_of(named: Exchange | Queue | str) -> str:
    """Return the name of a queue or exchange given as object or by name."""
    return named if isinstance(named, str) else named.name


def work_queue(queue: str) -> str:
    """Return the name that attempts and records have: what is in quarantine is still a message of its work queue."""
    return queue.removesuffix(QUARANTINE)


def check_queue(named: object) -> None:
    check_name("queue", named.name if isinstance(named, Queue) else named)


def check_name(kind: str, name: object) -> None:
    if not isinstance(name, str) or not name:
        raise ConfigurationError(f"The {kind}'s name must be a string that is not empty, not {name!r}.")
    check_text(f"{kind} name", name)
    if name.startswith("amq.") and kind == "queue":
        raise ConfigurationError(f"The queue name {name!r} starts with 'amq.', which is reserved for the broker.")


def check_text(kind: str, text: str) -> None:
    """Refuse text that AMQP or a database cannot store, and line ends, which RabbitMQ removes from names."""
    for char in text:
        if why := UNFIT.get(char):
            raise ConfigurationError(f"The {kind} {text!r:.80} contains {why}. Remove it.")
        if unicodedata.category(char) == "Cs":
            raise ConfigurationError(f"The {kind} {text!r:.80} contains {char!r}, which UTF-8 cannot encode.")
    if len(text.encode()) > MOST_NAME_BYTES:
        raise ConfigurationError(f"The {kind} {text[:40]!r}… is longer than {MOST_NAME_BYTES} bytes.")


class Role(StrEnum):
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
    implied: frozenset[str] = frozenset()
    """Arguments without which the queue does the same."""
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
class AbandonedQueue:
    """A queue that the project declared earlier and that no handler uses any more."""

    queue: QueueDeclaration
    home: str = ""
    """The work queue to which it belonged, if there was only one."""
    bindings: tuple[BindingDeclaration, ...] = ()


def exchanges_of(exchange: Exchange) -> Topology:
    """Return an exchange, the exchanges it is bound to, and those bindings. The default exchange is never declared."""
    if not exchange.name:
        return Topology()
    topology = Topology(exchanges={exchange.name: ExchangeDeclaration.of(exchange)})
    if isinstance(exchange.alternate, Exchange):
        topology = exchanges_of(exchange.alternate) + topology
    for binding in exchange.bindings:
        topology = exchanges_of(binding.source) + topology
        topology += Topology(bindings=(BindingDeclaration.of(binding, exchange.name, to_exchange=True),))
    return topology


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
    topology = Topology()
    for binding in queue.bindings:
        topology += exchanges_of(binding.source)
    named = tuple(BindingDeclaration.of(binding, queue.name) for binding in queue.bindings if binding.source.name)
    return topology + Topology(bindings=named)


def _joined(kind: str, left: Mapping[str, D], right: Mapping[str, D]) -> dict[str, D]:
    joined = dict(left)
    for name, declaration in right.items():
        known = joined.setdefault(name, declaration)
        if known != declaration:
            raise TopologyConflict(kind, name, differences(known, declaration))
    return joined


def differences(left: object, right: object) -> dict[str, tuple[object, object]]:
    """Return the differences of two declarations of one name: argument -> (left, right)."""
    differences: dict[str, tuple[object, object]] = {}
    for part in left.__dataclass_fields__:  # type: ignore[attr-defined]  # both are declarations
        one, two = getattr(left, part), getattr(right, part)
        if part == "arguments":
            names = [*one, *(name for name in two if name not in one)]
            differences |= {name: (one.get(name), two.get(name)) for name in names if one.get(name) != two.get(name)}
        elif one != two:
            differences[part] = (one, two)
    return differences


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The broker at the other end, as it reports itself."""

    product: str = ""
    version: tuple[int, ...] = ()
    cluster: str = field(default="", compare=False)

    @classmethod
    def of(cls, properties: Mapping[str, object] | None) -> "Server":
        """Read the server properties of connection.start; the version is its leading numbers."""
        fields = properties or {}
        numbers = re.match(r"\d{1,9}(?:\.\d{1,9})*", _text(fields.get("version")))
        version = tuple(map(int, numbers[0].split("."))) if numbers else ()
        return cls(product=_text(fields.get("product")), version=version, cluster=_text(fields.get("cluster_name")))

    def __str__(self) -> str:
        return f"{self.product} {'.'.join(map(str, self.version))}"

    @property
    def embedded(self) -> bool:
        """True for the embedded broker, which has no users, policies or management API."""
        return self.cluster.startswith("embedded@")

    @property
    def title(self) -> str:
        """The broker in a sentence; the embedded one reports the version that it behaves as."""
        return f"the embedded broker, which behaves as {self}" if self.embedded else str(self)

    def at_least(self, version: tuple[int, int]) -> bool:
        """True if the version is at least this one. An unknown product counts as older than every version."""
        return self.product == "RabbitMQ" and self.version >= version


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value if isinstance(value, str) else ""
