"""The protocol of a file store: what durable queues need to survive a restart."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from django_rmq_retry.embedded.engine.arguments import QueueSpec
from django_rmq_retry.embedded.engine.entries import Entry
from django_rmq_retry.embedded.engine.messages import Message

Place = Literal["fresh", "held", "back", "delayed", "dying"]
"""Where in its queue a message is: never given out or behind all others, in a client's hands, come back, kept back for
a while, or dead while no queue has taken its dead letter."""
Detail = float | str | None
"""Until when it is kept back, on the clock's scale; or why it died."""


class Store(Protocol):
    """Told of everything durable, at once and in order; a message is told apart by its queue and position."""

    def queue_declared(self, spec: QueueSpec) -> None: ...

    def queue_deleted(self, name: str) -> None:
        """With its messages and its bindings."""

    def exchange_declared(
        self, name: str, kind: str, *, auto_delete: bool, internal: bool, arguments: Mapping[str, object]
    ) -> None: ...

    def exchange_deleted(self, name: str) -> None:
        """With its bindings."""

    def bound(
        self, source: str, destination: str, key: str, *, to_exchange: bool, arguments: Mapping[str, object]
    ) -> None: ...

    def unbound(
        self, source: str, destination: str, key: str, *, to_exchange: bool, arguments: Mapping[str, object]
    ) -> None: ...

    def enqueued(self, queue: str, entry: Entry) -> None:
        """A message that must outlive the broker."""

    def moved(self, queue: str, entry: Entry, place: Place, detail: Detail) -> None:
        """Such a message is in another place of its queue; its counts may have changed as well."""

    def removed(self, queue: str, position: int) -> None:
        """That message has left that queue, for whatever reason."""


class NullStore:
    """Remembers nothing: a restart finds an empty broker."""

    def queue_declared(self, spec: QueueSpec) -> None: ...

    def queue_deleted(self, name: str) -> None: ...

    def exchange_declared(
        self, name: str, kind: str, *, auto_delete: bool, internal: bool, arguments: Mapping[str, object]
    ) -> None: ...

    def exchange_deleted(self, name: str) -> None: ...

    def bound(
        self, source: str, destination: str, key: str, *, to_exchange: bool, arguments: Mapping[str, object]
    ) -> None: ...

    def unbound(
        self, source: str, destination: str, key: str, *, to_exchange: bool, arguments: Mapping[str, object]
    ) -> None: ...

    def enqueued(self, queue: str, entry: Entry) -> None: ...

    def moved(self, queue: str, entry: Entry, place: Place, detail: Detail) -> None: ...

    def removed(self, queue: str, position: int) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptExchange:
    """A durable exchange as it was declared."""

    name: str
    kind: str
    auto_delete: bool
    internal: bool
    arguments: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptBinding:
    """A binding between two things that are kept."""

    source: str
    destination: str
    key: str
    to_exchange: bool
    arguments: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptMessage:
    """A message in a queue; times are on the clock's scale. The counts are None where nothing happened to it."""

    queue: str
    position: int
    message: Message
    expires: float
    place: Place = "fresh"
    detail: Detail = None
    redelivered: bool = False
    count: int | None = None
    unkept: int = 0
    acquired: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What a virtual host held when it ended. Messages come in the order in which they got where they are."""

    queues: tuple[QueueSpec, ...] = ()
    exchanges: tuple[KeptExchange, ...] = ()
    bindings: tuple[KeptBinding, ...] = ()
    messages: Iterator[KeptMessage] = field(default_factory=lambda: iter(()))
