"""The outbox inside a transaction: rows are inserted, sent after the commit, and deleted after their confirms."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from django_rmq_retry.amqp.contracts import unwritable
from django_rmq_retry.amqp.frames import check_writable
from django_rmq_retry.conf import settings
from django_rmq_retry.errors import RmqRetryError
from django_rmq_retry.messages.message import Message
from django_rmq_retry.publishing import broker_connections, late_results, outbox_rows
from django_rmq_retry.publishing.batch import SPARE_SECONDS, RowBatch, lease
from django_rmq_retry.publishing.faults import RowFault, fault
from django_rmq_retry.publishing.outbox_rows import OutboxRow, RowResult, insert

log = logging.getLogger("django_rmq_retry")

MOST_AT_COMMIT = 1000
"""The largest number of messages that a transaction sends itself; relays send the others."""
CONFIRM_SECONDS = 1.0
"""Seconds that publishing after a commit waits for confirms before the broker counts as unreachable."""


@dataclass(slots=True, eq=False)
class AfterCommit:
    """The rows of one transaction or savepoint, sent by an on_commit callback and dropped with a rollback."""

    using: str
    begun: float
    rows: list[OutboxRow] = field(default_factory=list)
    waits_in: Sequence[Sequence[Any]] = ()
    """Django's list of on_commit callbacks at the time when this one was added."""
    done: bool = False

    def __call__(self) -> None:
        """Send the rows after the commit. Errors are logged, not raised, because the commit cannot be undone."""
        self.done = True
        try:
            self._send_rows()
        except Exception as error:  # noqa: BLE001 - the rows are committed, and a relay sends them
            text = "After the commit %s messages stay in the outbox of %r until a relay sends them: %s"
            log.warning(text, len(self.rows), self.using, error, extra={"event": "outbox_waiting"})

    def _send_rows(self) -> None:
        # Django creates a new list when a savepoint is rolled back. While it runs callbacks, the list that it works
        # off no longer contains this one.
        if connections[self.using].run_on_commit is not self.waits_in and any(one[1] is self for one in self.waits_in):
            # A savepoint rolled back by hand may have removed rows without notice, so read which ones exist.
            self.rows = outbox_rows.rows_in_table(self.rows, using=self.using)
        if not self.rows:
            return
        # Results for which no thread could be started may be waiting.
        late_results.result_writer.start()
        reach = broker_connections.connections.reach
        answers, in_flight = self._send_free_rows() if not reach.away or reach.take_probe() else ([], set())
        confirmed = [answer.row for answer in answers if answer.result.confirmed]
        if confirmed:
            outbox_rows.delete([row.id for row in confirmed], using=self.using)
        missing = [answer for answer in answers if not answer.result.confirmed]
        if missing:
            late_results.record_results(missing, using=self.using)
        done = {answer.row.id for answer in answers} | in_flight
        free = [row for row in self.rows if row.id not in done]
        keys = {row.message.order_key for row in confirmed} - {""}
        if free:
            outbox_rows.release(free, using=self.using)
        elif keys and outbox_rows.can_notify(self.using) and outbox_rows.earliest(keys, using=self.using):
            # Other transactions may have left rows of these ordering keys behind ours: a relay can send them now.
            outbox_rows.notify(self.using)

    def _send_free_rows(self) -> tuple[list[RowResult], set[int]]:
        """Send the rows that no relay can have taken, and return the results and the ids of the rows in flight."""
        timeout, reach = settings().publish_timeout, broker_connections.connections.reach
        if time.monotonic() - self.begun >= SPARE_SECONDS / 2 and not self._renew_lease():
            return [], set()
        rows = self._in_turn() if any(row.message.order_key for row in self.rows) else self.rows
        if not rows:
            return [], set()
        batch = RowBatch(rows, timeout=timeout, until=self.begun + SPARE_SECONDS, late=partial(_late, self.using))
        batch.begin()
        answers, in_flight = batch.wait(0.0 if reach.away else CONFIRM_SECONDS)
        if any(answer.result.confirmed for answer in answers):
            if reach.away:
                reach.found()
            return answers, in_flight
        lost = next((answer.result for answer in answers if fault(answer.result, alone=False) is RowFault.BROKER), None)
        if in_flight or lost:
            reach.lost(lost.text if lost else "no confirm in time")
        return answers, in_flight

    def _renew_lease(self) -> bool:
        """Extend the lease of the rows after a long transaction; False if a relay has claimed any of them."""
        self.begun = time.monotonic()
        renewed = outbox_rows.renew(self.rows, using=self.using, seconds=lease())
        self.rows = renewed or self.rows
        return bool(renewed)

    def _in_turn(self) -> list[OutboxRow]:
        """Return all rows except those of ordering keys with an earlier row in the table, which a relay sends."""
        firsts: dict[str, int] = {}
        for row in self.rows:
            firsts.setdefault(row.message.order_key, row.id)
        firsts.pop("", None)
        earliest = outbox_rows.earliest(firsts, using=self.using)
        late = {key for key, first in firsts.items() if earliest.get(key) != first}
        return [row for row in self.rows if row.message.order_key not in late]


def _late(using: str, answer: RowResult) -> None:
    # Read at each call, because a forked child has its own writer.
    late_results.result_writer.take(using, answer)


class OutboxWriter:
    """Keeps messages with the transaction in which they are published, and sends them after its commit."""

    def open_transaction(self) -> str | None:
        """Return the database with an open transaction, preferring the default one; None if none is open."""
        begun = [one.alias for one in connections.all(initialized_only=True) if self.waits_for(one)]
        return DEFAULT_DB_ALIAS if DEFAULT_DB_ALIAS in begun else next(iter(begun), None)

    def waits_for(self, connection: BaseDatabaseWrapper) -> bool:
        """True if a message that is published now waits for the commit on this connection."""
        return connection.in_atomic_block

    def keep(self, messages: Sequence[Message], *, using: str) -> None:
        """Write messages, all or none, as rows of the open transaction; those of an ``order_key`` are sent in turn."""
        for message in messages:
            _check(message)
        reach = broker_connections.connections.reach
        send_now = not reach.away or reach.probe_due()
        # Read before the insert: the lease starts then, and the database may keep the insert waiting.
        begun = time.monotonic()
        rows = insert(messages[:MOST_AT_COMMIT], using=using, lease=lease() if send_now else 0.0)
        if len(messages) > MOST_AT_COMMIT:
            insert(messages[MOST_AT_COMMIT:], using=using, lease=0.0)
        if send_now:
            _send_on_commit(rows, using, begun)


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


def _send_on_commit(rows: Sequence[OutboxRow], using: str, begun: float) -> None:
    connection = connections[using]
    pending = _last_of(connection)
    if pending is None or len(pending.rows) + len(rows) > MOST_AT_COMMIT:
        pending = AfterCommit(using, begun, [*rows])
        # Robust, so that the callbacks after it run even if it raises.
        transaction.on_commit(pending, using=using, robust=True)
        pending.waits_in = connection.run_on_commit
    else:
        pending.rows += rows


def _last_of(connection: BaseDatabaseWrapper) -> AfterCommit | None:
    """Return the last AfterCommit of this connection if it belongs to the same savepoint; new rows can join it."""
    if not connection.in_atomic_block or getattr(connection.atomic_blocks[0], "_from_testcase", False):
        return None
    for entry in reversed(connection.run_on_commit):
        savepoints, callback = entry[:2]
        if isinstance(callback, AfterCommit):
            same = savepoints == set(connection.savepoint_ids) and not callback.done
            return callback if same else None
    return None
