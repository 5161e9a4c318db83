"""The opening for a file: what has to be written down so that durable queues survive a restart."""

from collections.abc import Mapping
from typing import Protocol

from django_rmq_retry.embedded.engine.arguments import QueueSpec
from django_rmq_retry.embedded.engine.messages import Message


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

    def enqueued(self, queue: str, position: int, message: Message, expires: float) -> None:
        """A message that must outlive the broker; `expires` is on the clock's scale, infinite for never."""

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

    def enqueued(self, queue: str, position: int, message: Message, expires: float) -> None: ...

    def removed(self, queue: str, position: int) -> None: ...
