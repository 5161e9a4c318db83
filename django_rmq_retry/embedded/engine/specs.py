"""Queues and exchanges as a client declared them, checked and compared as RabbitMQ does."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from django_rmq_retry.embedded.engine.behaviour import Behaviour
from django_rmq_retry.embedded.engine.refusals import RequestRefused, resource_text, unequal
from django_rmq_retry.messages.properties import INT32
from django_rmq_retry.topology.plan import MOST_TTL_MS

_ArgumentCheck = Callable[[object], str | None]
HIGHEST_PRIORITY = 255
_FOREIGN = {
    "classic": frozenset(
        {
            "x-dead-letter-strategy",
            "x-quorum-initial-group-size",
            "x-delivery-limit",
            "x-max-in-memory-length",
            "x-max-in-memory-bytes",
        }
    ),
    "quorum": frozenset({"x-max-priority", "x-queue-mode", "x-queue-version", "x-queue-master-locator"}),
}
_NO_MASTERS = """Feature `queue_master_locator` is deprecated.
By default, this feature is not permitted anymore.
The feature will be removed from a future major RabbitMQ version, regardless of the configuration; \
actual version to be determined.
To continue using this feature when it is not permitted by default, set its parameter in the configuration."""


def type_name(value: object) -> str:
    """Return the name of an AMQP type as RabbitMQ's messages spell it."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "signedint" if int(value) in INT32 else "long"
    names = {str: "longstr", bytes: "binary", float: "double", Decimal: "decimal", list: "array", dict: "table"}
    return names.get(type(value), "void" if value is None else "timestamp")


def shown_value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def equal_values(one: object, other: object) -> bool:
    """Compare table values: text equals bytes, integers of any width are equal, `true` and a decimal never equal 1."""
    if isinstance(one, (bool, Decimal, list, dict)) or isinstance(other, (bool, Decimal, list, dict)):
        return identical(one, other)
    return as_bytes(one) == as_bytes(other)


def identical(one: object, other: object) -> bool:
    """Compare values and their types, as bindings do; in Python 1, True and 1.0 are equal."""
    if type(one) is not type(other):
        return False
    match one, other:
        case dict(), dict():
            return one.keys() == other.keys() and all(identical(one[key], other[key]) for key in one)
        case list(), list():
            return len(one) == len(other) and all(map(identical, one, other))
    return one == other


def as_bytes(value: object) -> object:
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value


def check_equal(argument: str, thing: str, *, current: object, received: object) -> None:
    """Refuse a redeclaration that changes this field."""
    if not equal_values(current, received):
        raise unequal(argument, thing, f"'{shown_value(received)}'", f"'{shown_value(current)}'")


def check_arguments(
    names: tuple[str, ...], thing: str, *, current: Mapping[str, object], received: Mapping[str, object]
) -> None:
    """Refuse a redeclaration that changes one of these arguments; the first difference is reported."""
    for name in names:
        if name in current and name in received:
            check_equal(name, thing, current=current[name], received=received[name])
        elif name in current or name in received:
            raise unequal(name, thing, _argument_shown(received, name), _argument_shown(current, name))


def _argument_shown(arguments: Mapping[str, object], name: str) -> str:
    if name not in arguments:
        return "none"
    value = arguments[name]
    return f"the value '{shown_value(value)}' of type '{type_name(value)}'"


def integer_problem(value: object) -> str | None:
    """Return the reason why RabbitMQ rejects a value as a count, or None."""
    if isinstance(value, bool) or not isinstance(value, int):
        return f'"expected integer, got {type_name(value)}"'
    return f"{{value_negative,{value}}}" if value < 0 else None


def time_problem(value: object) -> str | None:
    problem = integer_problem(value)
    if problem is None and isinstance(value, int) and value > MOST_TTL_MS:
        return f"{{value_too_large,{value}}}"
    return problem


def lease_problem(value: object) -> str | None:
    return "{value_zero,0}" if value == 0 and not isinstance(value, bool) else time_problem(value)


def expiration_milliseconds(expiration: str) -> int:
    """Parse the property `expiration`, or refuse the message."""
    digits = expiration[1:] if expiration[:1] in "+-" else expiration
    length = len(digits) - len(digits.lstrip("0123456789"))
    rest = digits[length:]
    if not length:
        raise _invalid(expiration, "no_integer")
    if rest:
        raise _invalid(expiration, f'{{leftover_string,"{rest}"}}')
    value = int(expiration[:20])
    problem = time_problem(value)
    if problem:
        raise _invalid(expiration, problem)
    return value


def _invalid(expiration: str, why: str) -> RequestRefused:
    return RequestRefused(406, f"invalid expiration '{expiration}': {why}")


def _one_of(*values: str, otherwise: str) -> _ArgumentCheck:
    def check(value: object) -> str | None:
        if not isinstance(value, str):
            return f"{{unacceptable_type,{type_name(value)}}}"
        return None if value in values else otherwise.format(value)

    return check


def _of(kind: type) -> _ArgumentCheck:
    return lambda value: None if isinstance(value, kind) else f"{{unacceptable_type,{type_name(value)}}}"


def _priority(value: object) -> str | None:
    problem = integer_problem(value)
    return problem or (
        f"{{max_value_exceeded,{value}}}" if isinstance(value, int) and value > HIGHEST_PRIORITY else None
    )


def _anything(_: object) -> None: ...


_CHECKS: Mapping[str, _ArgumentCheck] = {
    "x-expires": lease_problem,
    "x-message-ttl": time_problem,
    "x-dead-letter-exchange": _anything,
    "x-dead-letter-routing-key": _of(str),
    "x-dead-letter-strategy": _one_of("at-most-once", "at-least-once", otherwise="invalid_dlx_strategy"),
    "x-max-length": integer_problem,
    "x-max-length-bytes": integer_problem,
    "x-max-priority": _priority,
    "x-overflow": _one_of("drop-head", "reject-publish", "reject-publish-dlx", otherwise="invalid_overflow"),
    "x-queue-mode": _one_of("default", "lazy", otherwise="\"unsupported queue mode '{}'\""),
    "x-queue-version": integer_problem,
    "x-single-active-consumer": _of(bool),
    "x-queue-type": _one_of("classic", "quorum", otherwise="\"unsupported queue type '{}'\""),
    "x-quorum-initial-group-size": integer_problem,
    "x-queue-leader-locator": _one_of(
        "client-local", "balanced", "random", "least-leaders", otherwise="invalid_queue_locator_arg"
    ),
    "x-queue-master-locator": _anything,
    "x-max-in-memory-length": integer_problem,
    "x-max-in-memory-bytes": integer_problem,
    "x-delivery-limit": _anything,
    "x-delayed-retry-type": _anything,
    "x-delayed-retry-min": _anything,
    "x-delayed-retry-max": _anything,
    "x-consumer-timeout": integer_problem,
    "x-consumer-disconnected-timeout": integer_problem,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeSpec:
    name: str
    type: str = "direct"
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    arguments: Mapping[str, object] = field(default_factory=dict)

    def check_same(self, other: "ExchangeSpec", thing: str) -> None:
        """Refuse a second declaration that differs from this one."""
        for name in ("type", "durable", "auto_delete", "internal"):
            check_equal(name, thing, current=getattr(self, name), received=getattr(other, name))
        check_arguments(("alternate-exchange",), thing, current=self.arguments, received=other.arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSpec:
    name: str
    vhost: str = "/"
    durable: bool = False
    exclusive: bool = False
    auto_delete: bool = False
    arguments: Mapping[str, object] = field(default_factory=dict)

    @property
    def quorum(self) -> bool:
        return self.arguments.get("x-queue-type") == "quorum"

    @property
    def kept(self) -> bool:
        """True if the queue survives a restart of a broker with a file."""
        return self.durable and not self.exclusive and not self.auto_delete

    @property
    def thing(self) -> str:
        return resource_text("queue", self.name, self.vhost)

    def seconds(self, name: str) -> float | None:
        value = self.arguments.get(name)
        return value / 1000 if isinstance(value, int) else None

    def number(self, name: str) -> int | None:
        value = self.arguments.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def text(self, name: str) -> str | None:
        value = self.arguments.get(name)
        return value if isinstance(value, str) else None

    def check(self, behaviour: Behaviour, *, server_named: bool = False) -> None:
        """Refuse the first declaration of a queue where RabbitMQ does."""
        self._check_value("x-queue-type", behaviour)
        foreign = self._foreign(behaviour)
        for name in self.arguments:
            if name in foreign:
                raise RequestRefused(
                    406, f"invalid arg '{name}' for {self.thing} of queue type rabbit_{self._kind}_queue"
                )
        for name in _CHECKS:
            self._check_value(name, behaviour)
        if "x-queue-master-locator" in self.arguments and not behaviour.master_locator:
            raise RequestRefused(541, _NO_MASTERS)
        self._check_dead_letter()
        if self.quorum:
            self._check_quorum(server_named=server_named)

    @property
    def _kind(self) -> str:
        return "quorum" if self.quorum else "classic"

    def _foreign(self, behaviour: Behaviour) -> frozenset[str]:
        """The arguments that a queue of this type must not have."""
        return _FOREIGN[self._kind] | behaviour.refuses | (frozenset() if self.quorum else behaviour.classic_refuses)

    def _check_value(self, name: str, behaviour: Behaviour) -> None:
        if name not in self.arguments or name in behaviour.unchecked:
            return
        value = self.arguments[name]
        if value == "" and name in behaviour.may_be_empty:
            return
        problem = _CHECKS[name](value)
        if name == "x-queue-version" and not problem and value not in behaviour.queue_versions:
            problem = f"\"unsupported queue version '{value}'\""
        if problem:
            raise RequestRefused(406, f"invalid arg '{name}' for {self.thing}: {problem}")

    def _check_dead_letter(self) -> None:
        exchange = self.arguments.get("x-dead-letter-exchange")
        if exchange is not None and not isinstance(exchange, str):
            thing = f"queue '{self.name}' in vhost '{self.vhost}'"
            raise RequestRefused(
                406, f"invalid type '{type_name(exchange)}' for arg 'x-dead-letter-exchange' in {thing}"
            )
        if exchange is None and "x-dead-letter-routing-key" in self.arguments:
            why = "routing_key_but_no_dlx_defined"
            raise RequestRefused(406, f"invalid arg 'x-dead-letter-routing-key' for {self.thing}: {why}")

    def _check_quorum(self, *, server_named: bool) -> None:
        if server_named:
            raise RequestRefused(406, "Cannot declare a server-named queue for type rabbit_quorum_queue")
        wrong = {"auto-delete": self.auto_delete, "exclusive-owner": self.exclusive, "non-durable": not self.durable}
        for name, value in wrong.items():
            if value:
                raise RequestRefused(406, f"invalid property '{name}' for {self.thing}")

    def check_same(self, other: "QueueSpec", behaviour: Behaviour) -> None:
        """Refuse a second declaration that differs from this one."""
        check_equal("durable", self.thing, current=self.durable, received=other.durable)
        check_equal("auto_delete", self.thing, current=self.auto_delete, received=other.auto_delete)
        ignored = self._foreign(behaviour) | behaviour.unknown
        names = tuple(name for name in _CHECKS if name not in ignored)
        check_arguments(names, self.thing, current=_typed(self), received=_typed(other))


def _typed(spec: QueueSpec) -> Mapping[str, object]:
    """Return the arguments; a declaration without a type is compared as a classic queue."""
    return {"x-queue-type": "classic", **spec.arguments}
