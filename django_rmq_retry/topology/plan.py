"""The difference between declared and existing topology, item by item."""

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

from django_rmq_retry.topology.declarations import BindingDeclaration, ExchangeDeclaration, QueueDeclaration
from django_rmq_retry.topology.versions import Server

Declaration = ExchangeDeclaration | QueueDeclaration | BindingDeclaration


class State(StrEnum):
    """The result of comparing a declaration with the broker."""

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
    told: bool = True
    """True if the broker reported its value."""

    def __str__(self) -> str:
        broker = shown(self.broker) if self.told else "another value"
        return f"{self.argument}: here {shown(self.here)}, broker {broker}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One declaration and its state."""

    declaration: Declaration
    state: State
    differences: tuple[Difference, ...] = ()
    problem: str = ""
    type: str = ""
    """The type of an external queue on the broker, if known."""
    foreign: bool = False
    """True for a binding whose ends are both external."""

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
    """A whole topology compared with one broker."""

    server: Server
    items: tuple[Item, ...]

    def of(self, *states: State) -> tuple[Item, ...]:
        return tuple(item for item in self.items if item.state in states)

    @property
    def possible(self) -> bool:
        """True if nothing prevents the declaration."""
        return not self.of(State.DIFFERS, State.MISSING, State.REFUSED, State.LEFT)

    @property
    def fulfilled(self) -> bool:
        """True if the broker has everything that is visible, with equal arguments."""
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
    """Format the value of an argument."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) and value else repr(value)
