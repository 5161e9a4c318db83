"""The result of comparing a declared topology with a broker, item by item; amqp.declarer compares."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from django_rmq_retry.topology.declarations import BindingDeclaration, ExchangeDeclaration, QueueDeclaration, Server

MOST_TTL_MS = 315_360_000_000
"""Ten years in milliseconds: the longest duration that a broker accepts."""
_LIMIT_FIXED = (4, 0)
_DELAYED_RETRY = (4, 3)
_QUORUM_ONLY = ("x-delivery-limit", "x-dead-letter-strategy", "x-delayed-retry-type")
_CLASSIC_ONLY = ("x-max-priority", "x-queue-mode", "x-queue-version")

Declaration = ExchangeDeclaration | QueueDeclaration | BindingDeclaration


def queue_refusal(server: Server, queue: QueueDeclaration) -> str | None:
    """Return the reason why this broker refuses or misreads a queue's arguments, or None."""
    reason = next(_refusals(server, queue.arguments), None)
    return None if reason is None else f"{reason} This is {server}."


def _refusals(server: Server, arguments: Mapping[str, object]) -> Iterator[str]:
    # Without a type the broker decides, so no rule for a type applies.
    kind = arguments.get("x-queue-type")
    for wrong, names, other in (("classic", _QUORUM_ONLY, "quorum"), ("quorum", _CLASSIC_ONLY, "classic")):
        if kind == wrong:
            yield from (f"{name} is an argument of {other} queues only." for name in names if name in arguments)
    if "x-delayed-retry-type" in arguments and not server.at_least(_DELAYED_RETRY):
        yield (
            "Native delayed retry (x-delayed-retry-type) needs RabbitMQ 4.3 or newer: older versions accept the "
            "argument silently and never wait. Use via=Ladder()."
        )
    if arguments.get("x-delivery-limit") == -1 and not server.at_least(_LIMIT_FIXED):
        yield (
            "x-delivery-limit=-1 means 0 before RabbitMQ 4: a message is removed at its first return. Write 1000000."
        )
    if "x-consumer-timeout" in arguments and kind == "classic" and server.at_least(_DELAYED_RETRY):
        yield "x-consumer-timeout is refused by classic queues from RabbitMQ 4.3 on. Remove it."
    if arguments.get("x-queue-version") == 1 and server.at_least(_DELAYED_RETRY):
        yield "x-queue-version=1 is refused from RabbitMQ 4.3 on. Remove it."
    ttl = arguments.get("x-message-ttl")
    if isinstance(ttl, int) and ttl > MOST_TTL_MS:
        yield f"x-message-ttl={ttl} is above the {MOST_TTL_MS} ms (ten years) that a broker accepts."


class PlanState(StrEnum):
    CREATE = "create"
    SAME = "same"
    DIFFERS = "differs"
    MISSING = "missing"
    """An external queue or exchange that does not exist."""
    REFUSED = "refused"
    UNSEEN = "unseen"
    """Visible only through the management API."""
    LEFT = "left"
    """Left behind by an interrupted move."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One differing argument; None on the side that lacks it."""

    argument: str
    here: object
    broker: object
    reported: bool = True
    """True if the broker reported its value."""

    def __str__(self) -> str:
        broker = shown(self.broker) if self.reported else "another value"
        return f"{self.argument}: here {shown(self.here)}, broker {broker}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    declaration: Declaration
    state: PlanState
    differences: tuple[Difference, ...] = ()
    problem: str = ""
    type: str = ""
    """The type of an external queue on the broker, if known."""
    foreign: bool = False
    """True for a binding whose ends are both external."""
    forbidden: bool = False
    """True if the user lacks a permission, so that its state is unknown, or only its existence known."""

    @property
    def kind(self) -> str:
        return kind_of(self.declaration)

    @property
    def name(self) -> str:
        return name_of(self.declaration)

    @property
    def text(self) -> str:
        return "; ".join([*map(str, self.differences), *([self.problem] if self.problem else [])])


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    server: Server
    items: tuple[Item, ...]

    def of(self, *states: PlanState) -> tuple[Item, ...]:
        return tuple(item for item in self.items if item.state in states)

    @property
    def possible(self) -> bool:
        return not self.of(PlanState.DIFFERS, PlanState.MISSING, PlanState.REFUSED, PlanState.LEFT)

    @property
    def fulfilled(self) -> bool:
        """True if the broker has everything that is visible, with equal arguments."""
        return self.possible and not self.of(PlanState.CREATE)

    @property
    def counts(self) -> Counter[PlanState]:
        return Counter(item.state for item in self.items)


def kind_of(declaration: Declaration) -> str:
    kinds = {ExchangeDeclaration: "exchange", QueueDeclaration: "queue", BindingDeclaration: "binding"}
    return kinds[type(declaration)]


def name_of(declaration: Declaration) -> str:
    if not isinstance(declaration, BindingDeclaration):
        return declaration.name
    key = f" by {declaration.key!r}" if declaration.key else ""
    return f"{declaration.source} → {declaration.destination}{key}"


def shown(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) and value else repr(value)
