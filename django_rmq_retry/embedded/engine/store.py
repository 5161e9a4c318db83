"""The state that durable queues need after a restart, and the store that is told of its changes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from django_rmq_retry.embedded.engine.entries import Entry
from django_rmq_retry.embedded.engine.specs import ExchangeSpec, QueueSpec

MessagePlace = Literal["fresh", "held", "back", "delayed", "dying"]
"""The place of a message in its queue. "fresh" is never delivered or at the back, "held" unacked, "back" returned,
"delayed" waiting for a time, and "dying" a dead letter that no queue has accepted yet.
"""
Detail = float | str | None
"""A time for "delayed", on the clock's scale; a reason for "dying"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptBinding:
    source: str
    destination: str
    key: str
    to_exchange: bool
    arguments: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptMessage:
    """A message at its place in a queue; a "fresh" one was never delivered."""

    queue: str
    entry: Entry
    place: MessagePlace = "fresh"
    detail: Detail = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptContent:
    """The durable content of a virtual host. Messages are in the order in which they reached their places."""

    queues: tuple[QueueSpec, ...] = ()
    exchanges: tuple[ExchangeSpec, ...] = ()
    bindings: tuple[KeptBinding, ...] = ()
    messages: Iterator[KeptMessage] = field(default_factory=lambda: iter(()))


class DurableStore:
    """Gets every durable change at once, in order, and keeps nothing. Queue and position identify a message."""

    def queue_declared(self, spec: QueueSpec) -> None: ...

    def queue_deleted(self, name: str) -> None:
        """Delete a queue, with its messages and bindings."""

    def exchange_declared(self, spec: ExchangeSpec) -> None: ...

    def exchange_deleted(self, name: str) -> None:
        """Delete an exchange, with its bindings."""

    def bound(self, binding: KeptBinding) -> None: ...

    def unbound(self, binding: KeptBinding) -> None: ...

    def enqueued(self, queue: str, entry: Entry) -> None:
        """Keep a message that must survive a restart."""

    def moved(self, queue: str, entry: Entry, place: MessagePlace, detail: Detail) -> None:
        """Keep a message's new place in its queue; its counts may have changed too."""

    def removed(self, queue: str, position: int) -> None:
        """Delete a message that has left a queue, for any reason."""
