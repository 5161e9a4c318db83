"""What a queue is to its virtual host: its name, where its dead go, and what a file is told of its messages."""

from django_rmq_retry.embedded.engine.arguments import QueueSpec
from django_rmq_retry.embedded.engine.entries import Entry
from django_rmq_retry.embedded.engine.store import Detail, Place
from django_rmq_retry.embedded.engine.surroundings import Surroundings


class Standing:
    """The part of a queue that others rely on."""

    __slots__ = ("_stores_all", "around", "closed", "name", "pending", "spec", "stores")

    def __init__(self, spec: QueueSpec, around: Surroundings) -> None:
        self.spec = spec
        self.name = spec.name
        self.around = around
        self.closed = False
        self.pending = 0
        """Dead letters that no queue has taken yet (at-least-once)."""
        self.stores = spec.kept
        # A quorum queue keeps messages whatever their delivery mode (docs/quorum-queues, "Feature comparison").
        self._stores_all = spec.quorum

    def bury(self, entry: Entry, reason: str) -> None:
        self.around.graves.append((self, entry, reason))

    def keep(self, entry: Entry) -> None:
        """It is in this queue from now on."""
        if self.stores and (self._stores_all or entry.message.persistent):
            self.around.store.enqueued(self.name, entry)

    def note(self, entry: Entry, place: Place, detail: Detail = None) -> None:
        """It is in another place of this queue, or more is known of it."""
        if self.stores and not self.closed and (self._stores_all or entry.message.persistent):
            self.around.store.moved(self.name, entry, place, detail)

    def forget(self, entry: Entry) -> None:
        """It is nowhere in this queue any more."""
        if self.stores and not self.closed and (self._stores_all or entry.message.persistent):
            self.around.store.removed(self.name, entry.position)
