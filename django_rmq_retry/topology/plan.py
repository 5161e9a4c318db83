"""The difference between declared and existing topology, item by item."""

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

from django_rmq_retry.topology.declarations import BindingDeclaration, ExchangeDeclaration, QueueDeclaration
from django_rmq_retry.topology.versions import Server

Declaration = ExchangeDeclaration | QueueDeclaration | BindingDeclaration


class State(StrEnum):
    """How a declaration and the broker stand to each other."""

    CREATE = "create"
    SAME = "same"
    DIFFERS = "differs"
    MISSING = "missing"
    """Somebody else's, and not there."""
    REFUSED = "refused"
    UNSEEN = "unseen"
    """Only the management API could tell."""
    LEFT = "left"
    """What an interrupted move left behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One argument: None where a side does not have it."""

    argument: str
    here: object
    broker: object
    told: bool = True
    """Whether the broker said its value."""

    def __str__(self) -> str:
        broker = shown(self.broker) if self.told else "another value"
        return f"{self.argument}: here {shown(self.here)}, broker {broker}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One declaration and how it stands."""

    declaration: Declaration
    state: State
    differences: tuple[Difference, ...] = ()
    problem: str = ""
    type: str = ""
    """Of a queue that belongs to others: its type on the broker, as far as it can be told."""
    foreign: bool = False
    """Of a binding: whether both its ends belong to others."""

    @property
    def kind(self) -> str:
        return kind_of(self.declaration)

    @property
    def name(self) -> str:
        return name_of(self.declaration)

    @property
    def said(self) -> str:
        return "; ".join([*map(str, self.differences), *([self.problem] if self.problem else [])])


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All of a topology, looked at on one broker."""

    server: Server
    items: tuple[Item, ...]

    def of(self, *states: State) -> tuple[Item, ...]:
        return tuple(item for item in self.items if item.state in states)

    @property
    def possible(self) -> bool:
        """Nothing stands in the way of it."""
        return not self.of(State.DIFFERS, State.MISSING, State.REFUSED, State.LEFT)

    @property
    def fulfilled(self) -> bool:
        """The broker has all that can be seen, as it is written here."""
        return self.possible and not self.of(State.CREATE)

    @property
    def counts(self) -> Counter[State]:
        return Counter(item.state for item in self.items)


def kind_of(declaration: Declaration) -> str:
    return {ExchangeDeclaration: "exchange", QueueDeclaration: "queue", BindingDeclaration: "binding"}[
        type(declaration)
    ]


def name_of(declaration: Declaration) -> str:
    if not isinstance(declaration, BindingDeclaration):
        return declaration.name
    key = f" by {declaration.key!r}" if declaration.key else ""
    return f"{declaration.source} → {declaration.destination}{key}"


def shown(value: object) -> str:
    """A value of an argument as one word."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) and value else repr(value)
