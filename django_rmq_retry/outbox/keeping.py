"""What everybody publishes through inside a transaction: a row of it, sent when it has committed."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from django_rmq_retry import wiring
from django_rmq_retry.broker.base import Publisher
from django_rmq_retry.core.message import Message
from django_rmq_retry.outbox import placing
from django_rmq_retry.outbox.leaving import Leaving, lease
from django_rmq_retry.outbox.reach import reach
from django_rmq_retry.outbox.rows import Row, insert
from django_rmq_retry.publishing import check_writable

MOST = 1000
"""Messages of one transaction that are sent by itself; what is more is left to the relays."""


touched: set[tuple[str, Publisher]] = set()
"""In tests: the databases in which rows were written while something stood in the broker's place, and what."""


class Outbox:
    """What ``publishing`` hands messages to."""

    def takes(self, using: str) -> bool:
        """Whether there is one in this database. A transaction that is bound to fail takes no statement more."""
        return not connections[using].needs_rollback and placing.takes(using)

    def keep(self, messages: Iterable[Message], *, using: str) -> int:
        """Write them, all or none; return how many."""
        given = list(messages)
        _keep(given, using=using)
        return len(given)


def keep(message: Message, *, using: str, order_key: str = "") -> None:
    """Write a message as a row of the open transaction of a database; it is sent when that has committed.

    Messages with the same ``order_key`` leave in the order in which they were written, one confirmed before the next.
    """
    _keep([replace(message, order_key=order_key) if order_key else message], using=using)


def _keep(messages: Sequence[Message], *, using: str) -> None:
    for message in messages:
        check_writable(message)
    if wiring.stands_in():
        touched.add((using, wiring.publisher()))
    leaves = reach.worth_keeping()
    # Before the rows are written: a database may keep them waiting, and their lease has begun.
    begun = time.monotonic()
    rows = insert(messages[:MOST], using=using, lease=lease() if leaves else 0.0)
    if len(messages) > MOST:
        insert(messages[MOST:], using=using, lease=0.0)
    if leaves:
        _leave(rows, using, begun)


def _leave(rows: Sequence[Row], using: str, begun: float) -> None:
    connection = connections[using]
    leaving = _last_of(connection)
    if leaving is None or len(leaving.rows) + len(rows) > MOST:
        leaving = Leaving(using, begun=begun)
        # Robust: whatever it meets, the callbacks after it are called.
        leaving.rows += rows
        transaction.on_commit(leaving, using=using, robust=True)
        leaving.waits_in = connection.run_on_commit
    else:
        leaving.rows += rows


def _last_of(connection: BaseDatabaseWrapper) -> Leaving | None:
    """Whoever leaves with the same commit or savepoint, if nothing of ours came between: they go together."""
    if not connection.in_atomic_block or getattr(connection.atomic_blocks[0], "_from_testcase", False):
        return None
    for entry in reversed(connection.run_on_commit):
        savepoints, callback = entry[:2]
        if isinstance(callback, Leaving):
            same = savepoints == set(connection.savepoint_ids) and not callback.done
            return callback if same else None
    return None
