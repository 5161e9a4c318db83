"""The outbox inside a transaction: its messages are rows of it, which are handed over to be sent after the commit."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from django.core import mail
from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from django_rmq_retry.amqp.contracts import unwritable
from django_rmq_retry.amqp.frames import check_writable
from django_rmq_retry.errors import RmqRetryError
from django_rmq_retry.messages.message import Message
from django_rmq_retry.publishing import broker_connections, outgoing, sender
from django_rmq_retry.publishing.outbox_rows import OutboxRow, insert, lease
from django_rmq_retry.publishing.outgoing import Handed
from django_rmq_retry.publishing.sending import WINDOW


@dataclass(slots=True, eq=False)
class AfterCommit:
    """The rows of one transaction or savepoint, handed over by an on_commit callback and dropped with a rollback."""

    using: str
    here: bool
    """True if the committing thread sends them itself."""
    before: tuple[int, int] = (0, 0)
    """The number of rows that the transaction had before, and the bytes of their bodies."""
    rows: list[OutboxRow] = field(default_factory=list)
    size: int = 0
    more: bool = False
    """True if the transaction has rows that are left to the relays."""
    waits_in: Sequence[Sequence[Any]] = ()
    """Django's list of on_commit callbacks at the time when this one was added."""
    done: bool = False

    def __call__(self) -> None:
        """Hand the rows over. Errors are logged, not raised, because the commit cannot be undone."""
        self.done = True
        try:
            self._hand_over()
        except Exception as error:  # noqa: BLE001 - the rows are committed, and a relay sends them
            outgoing.log_left(len(self.rows), self.using, error)

    def _hand_over(self) -> None:
        connection, reach = connections[self.using], broker_connections.connections.reach
        # Django creates a new list when a savepoint is rolled back. While it runs callbacks, the list that it works
        # off no longer contains this one.
        new_list = connection.run_on_commit is not self.waits_in
        handed = Handed(
            rows=self.rows,
            doubtful=new_list and any(one[1] is self for one in self.waits_in),
            send=not reach.away or reach.take_probe(),
            more=self.more,
        )
        if self.here or connection.in_atomic_block:
            # In a block that TestCase never commits, no other thread sees the rows.
            sender.sender.send_here(self.using, handed)
        else:
            sender.sender.outgoing(self.using).hand_over(handed)

    @property
    def taken(self) -> tuple[int, int]:
        return self.before[0] + len(self.rows), self.before[1] + self.size


class OutboxWriter:
    """Keeps messages with the transaction in which they are published, and sends them after its commit."""

    def open_transaction(self) -> str | None:
        """Return the database with an open transaction, preferring the default one; None if none is open."""
        begun = [one.alias for one in connections.all(initialized_only=True) if self.waits_for(one)]
        return DEFAULT_DB_ALIAS if DEFAULT_DB_ALIAS in begun else next(iter(begun), None)

    def waits_for(self, connection: BaseDatabaseWrapper) -> bool:
        """True if a message that is published now waits for the commit on this connection."""
        return connection.in_atomic_block

    def sends_here(self, connection: BaseDatabaseWrapper) -> bool:
        """True if the committing thread sends.

        On SQLite another thread that writes would break transactions. In a test of Django's the messages must have left
        when the commit returns, and a further connection would keep the test database from being dropped.
        """
        return connection.vendor == "sqlite" or "outbox" in vars(mail)

    def keep(self, messages: Sequence[Message], *, using: str) -> None:
        """Write messages, all or none, as rows of the open transaction; those of an ``order_key`` are sent in turn."""
        for message in messages:
            _check(message)
        reach, connection = broker_connections.connections.reach, connections[using]
        if reach.away and not reach.probe_due():
            insert(messages, using=using, lease=0.0)
            return
        pending, joined = _last_of(connection)
        taken = (0, 0) if pending is None else pending.taken
        here = self.sends_here(connection) if pending is None else pending.here
        count = _fitting(messages, using, taken, here=here)
        rows = insert(messages[:count], using=using, lease=lease()) if count else []
        if count < len(messages):
            insert(messages[count:], using=using, lease=0.0)
        if pending is None or not joined:
            pending = _added(connection, here=here, before=taken)
        pending.rows += rows
        pending.size += sum(len(row.message.body) for row in rows)
        pending.more = pending.more or count < len(messages)


writer = OutboxWriter()
"""The outbox writer of this process; the test kit has one for each test."""


def _check(message: Message) -> None:
    """Raise MessageUnsent for a message that never can be sent, as a publish outside of a transaction does."""
    try:
        check_writable(message)
        # Only bytes that came from a broker may be no text, and no row can hold them.
        f"{message.exchange}{message.routing_key}".encode()
    except RmqRetryError:
        raise
    except ValueError as problem:
        raise unwritable(str(problem)).error(message) from problem


def _fitting(messages: Sequence[Message], using: str, taken: tuple[int, int], *, here: bool) -> int:
    """Return how many of these messages the process sends itself; relays send the others."""
    rows, size = (WINDOW, outgoing.MOST_BYTES) if here else sender.sender.outgoing(using).room()
    rows, size = rows - taken[0], size - taken[1]
    if len(messages) <= rows and sum(len(one.body) for one in messages) <= size:
        return len(messages)
    return min(max(rows, 0), sum(total <= size for total in accumulate(len(one.body) for one in messages)))


def _added(connection: BaseDatabaseWrapper, *, here: bool, before: tuple[int, int]) -> AfterCommit:
    pending = AfterCommit(connection.alias, here=here, before=before)
    # Robust, so that the callbacks after it run even if it raises.
    transaction.on_commit(pending, using=connection.alias, robust=True)
    pending.waits_in = connection.run_on_commit
    return pending


def _last_of(connection: BaseDatabaseWrapper) -> tuple[AfterCommit | None, bool]:
    """Return the last AfterCommit of the open transaction, and whether new rows can join it: those of its savepoint."""
    if not connection.in_atomic_block or getattr(connection.atomic_blocks[0], "_from_testcase", False):
        return None, False
    for entry in reversed(connection.run_on_commit):
        savepoints, callback = entry[:2]
        if isinstance(callback, AfterCommit):
            return callback, savepoints == set(connection.savepoint_ids) and not callback.done
    return None, False
