"""What a queue knows of its virtual host."""

from collections import Counter, deque
from collections.abc import Callable
from typing import Protocol

from django_rmq_retry.embedded.engine.arguments import QueueSpec
from django_rmq_retry.embedded.engine.behaviour import Behaviour
from django_rmq_retry.embedded.engine.clock import Clock
from django_rmq_retry.embedded.engine.entries import Entry
from django_rmq_retry.embedded.engine.store import Detail, Place, Store


class Source(Protocol):
    """The queue in which something died."""

    name: str
    spec: QueueSpec
    pending: int
    closed: bool

    def forget(self, entry: Entry) -> None: ...

    def note(self, entry: Entry, place: Place, detail: Detail = None) -> None: ...


class Surroundings:
    """Where time comes from, and where what died goes."""

    __slots__ = ("behaviour", "clock", "graves", "lost", "settle", "store")

    settle: Callable[[], None]
    """Dead-letter what lies in `graves`; a timer ends with it."""

    def __init__(self, clock: Clock, behaviour: Behaviour, store: Store) -> None:
        self.clock = clock
        self.behaviour = behaviour
        self.store = store
        self.graves: deque[tuple[Source, Entry, str]] = deque()
        """What died and has not been dead-lettered yet: the queue it lay in, and the reason."""
        self.lost: Counter[str] = Counter()
        """Messages that are gone without a consumer's ack, by reason."""
