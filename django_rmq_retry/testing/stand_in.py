"""What a test uses instead of the broker and of the outbox's relay."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_rmq_retry import database_clock
from django_rmq_retry.amqp.contracts import Caller, Publisher
from django_rmq_retry.amqp.session import Session
from django_rmq_retry.messages.message import Message
from django_rmq_retry.publishing import broker_connections, outbox, outbox_rows
from django_rmq_retry.publishing.broker_connections import Connections, Reach
from django_rmq_retry.publishing.outbox import OutboxWriter
from django_rmq_retry.publishing.target_queues import TargetQueues


class _Reachable(Reach):
    """The reachability of an object of the test."""

    def lost(self, why: str) -> None:
        """Publishing may fail, but the object cannot be out of reach."""


class _Empty:
    """Queues that always have room, and a consumer."""

    def is_reachable(self) -> bool:
        return True

    def ready(self, queue: str) -> int | None:
        return 0

    def lacks_consumers(self, queue: str) -> bool:
        return False

    def added(self, queue: str, count: int) -> None: ...

    def close(self) -> None: ...


class StandIn(Connections):
    """The broker of a test. It is always available, and opens no connection."""

    def __init__(self, publisher: Publisher, caller: Callable[[bool], Caller]) -> None:
        super().__init__(_Reachable())
        self.publisher = publisher
        self._caller = caller

    def caller(self, *, exclusive: bool = False) -> Caller:
        return self._caller(exclusive)

    def session(self, *, purpose: str, patience: float) -> AbstractContextManager[Session | None]:
        return nullcontext()

    def target_queues(self, patience: float) -> TargetQueues:
        return _Empty()

    def close(self) -> None:
        """Nothing is open, and the test goes on publishing."""


class OutboxOfTest(OutboxWriter):
    """The outbox of a test. The transaction that TestCase wraps around a test never commits, so it does not count."""

    def __init__(self) -> None:
        self._written_in: set[str] = set()

    def waits_for(self, connection: BaseDatabaseWrapper) -> bool:
        blocks = connection.atomic_blocks
        return super().waits_for(connection) and not all(getattr(one, "_from_testcase", False) for one in blocks)

    def sends_here(self, connection: BaseDatabaseWrapper) -> bool:
        return True

    def keep(self, messages: Sequence[Message], *, using: str) -> None:
        self._written_in.add(using)
        super().keep(messages, using=using)

    def send_left(self) -> int:
        """Send all rows of this test, ignoring the waits after failures. Return the number of sent rows."""
        # Only where this test has written: it may have no database at all.
        return sum(_send_left(using) for using in list(self._written_in))


def _send_left(using: str) -> int:
    if connections[using].needs_rollback or not outbox_rows.allowed(using) or not outbox_rows.table_exists(using):
        return 0
    # Models need the project's settings, before which pytest loads the kit.
    from django.db.models import Q  # noqa: PLC0415 - as above

    from django_rmq_retry.models import OutboxMessage  # noqa: PLC0415 - as above
    from django_rmq_retry.publishing.relay import Relay  # noqa: PLC0415 - as above

    # Other rows are still leased to their writers: inside a TestCase their transaction has not committed.
    left = Q(attempts__gt=0) | Q(due_at__lte=database_clock.now(using))
    rows = OutboxMessage.objects.using(using).filter(left, failed_at__isnull=True)
    if not rows.exists():
        return 0
    rows.update(due_at=database_clock.now(using))
    relay, sent = Relay(using, ended=threading.Event()), 0
    while (turn := relay.turn()).sent:
        sent += turn.sent
    return sent


@contextmanager
def standing_in(publisher: Publisher, caller: Callable[[bool], Caller]) -> Iterator[OutboxOfTest]:
    """Publish and call through the given objects inside the block; yield the outbox."""
    before, outbox.writer = outbox.writer, OutboxOfTest()
    broker = broker_connections.replace_connections(StandIn(publisher, caller))
    try:
        yield outbox.writer
    finally:
        outbox.writer = before
        broker_connections.replace_connections(broker if broker.usable else Connections())
