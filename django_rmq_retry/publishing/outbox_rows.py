"""Outbox rows in plain SQL: several times faster than the ORM, and importable before Django loads the models."""

import logging
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from django.db import connections, router, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from django_rmq_retry import database_clock
from django_rmq_retry.amqp.contracts import PublishResult
from django_rmq_retry.conf import settings
from django_rmq_retry.messages.message import Message
from django_rmq_retry.messages.properties import decode_properties, encode_properties
from django_rmq_retry.messages.texts import COLUMN_BYTES, short
from django_rmq_retry.statements import in_slices, insert_of, inserted_id, missing_tables

log = logging.getLogger("django_rmq_retry")

TABLE = "rmq_retry_outboxmessage"
LOOKUP_SECONDS = 60.0
"""Seconds after which a missing table is looked up again."""

_missing_until: dict[Hashable, float] = {}
"""By database: the time until which the table counts as missing; 0 if it exists."""
_logged: set[Hashable] = set()

COLUMNS = (
    *("message_id", "exchange", "routing_key", "mandatory", "body", "size", "properties", "order_key"),
    *("created_at", "due_at"),
)
"""The columns of an INSERT. The database has defaults for the others, because the driver quotes each value."""
INSERTED_AT_ONCE = 99
"""Rows in one statement: an old SQLite accepts at most 999 values."""
COPIED_FROM = 50
"""The number of rows from which PostgreSQL takes them faster by COPY, which needs two statements."""
RESERVED_IDS = (
    "SELECT nextval(name) FROM (SELECT pg_get_serial_sequence(%s, 'id')::regclass AS name) AS own, "
    "generate_series(1, %s) WHERE has_sequence_privilege(name, 'USAGE')"
)
MOST_STATEMENT_BYTES = 4 * 1024 * 1024
"""Bytes of bodies in one statement: MariaDB with default settings refuses larger ones."""

READ = ("id", "exchange", "routing_key", "mandatory", "body", "properties", "order_key", "attempts", "alone")
"""The columns that ``row_of`` needs, in its order."""

CHANNEL = "rmq_retry_outbox"
"""The PostgreSQL notification channel on which relays listen."""
DELETED_AT_ONCE = 1000
wakers: set[Callable[[], None]] = set()
"""The wake-up functions of the relays in this process."""
SKEW_SECONDS = 2.0
"""Seconds by which the clocks of two hosts may differ."""
SPARE_SECONDS = 10.0
"""Seconds beyond the publish timeout for which rows are leased to their writer."""


def lease() -> float:
    """Return the seconds for which only its writer may send a row."""
    return settings().publish_timeout + SPARE_SECONDS


def takes(using: str) -> bool:
    """True if a message published inside a transaction of this database is written to its outbox."""
    named = settings().outbox
    if named is False or (named is not True and using not in named):
        return False
    if connections[using].needs_rollback:
        # A transaction marked for rollback accepts no further statement.
        return False
    # A database named in the setting is trusted to have the table, without a query.
    return allowed(using) and (named is not True or table_exists(using) or _log_missing(using))


def allowed(using: str) -> bool:
    """True if the project's database routers allow the table in this database."""
    return bool(router.allow_migrate(using, "rmq_retry", model_name="outboxmessage"))


def served() -> list[str]:
    """Return the databases that a relay serves, also those for which OUTBOX was switched off since."""
    return [alias for alias in connections if allowed(alias) and connections[alias].vendor != "unknown"]


def table_exists(using: str) -> bool:
    """True if the table exists. The lookup is cached; a missing table is looked up again after LOOKUP_SECONDS."""
    place = _database_key(using)
    until = _missing_until.get(place)
    if until is None or 0 < until < time.monotonic():
        missing = missing_tables([TABLE], using)
        _missing_until[place] = time.monotonic() + LOOKUP_SECONDS if missing else 0.0
    return not _missing_until[place]


def _log_missing(using: str) -> bool:
    """Log once that a message needed the missing table, and return False."""
    if _database_key(using) not in _logged:
        _logged.add(_database_key(using))
        text = (
            "Database %r has no outbox table. Run `manage.py migrate`, or list the databases with an outbox in 'OUTBOX'"
        )
        log.warning(text, using, extra={"event": "outbox_missing"})
    return False


def _database_key(using: str) -> Hashable:
    known = connections[using].settings_dict
    return (using, known.get("NAME"), known.get("HOST"), known.get("PORT"))


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxRow:
    id: int
    message: Message
    attempts: int = 0
    alone: bool = False
    """True if it is sent with no other row in flight."""
    due_at: datetime | None = None
    """The end of its lease. It identifies the holder: no other lease of the row ends at the same microsecond."""
    until: float = float("inf")
    """The monotonic time after which it is not sent: its lease could end before the publish does."""


def insert(messages: Sequence[Message], *, using: str, lease: float) -> list[OutboxRow]:
    """Insert messages in their order, all or none. For `lease` seconds only the writer may send them."""
    connection = connections[using]
    # Before the database is asked for anything: it may keep the insert waiting, while the lease runs.
    until = time.monotonic() + SPARE_SECONDS
    now = database_clock.now(using)
    due = now + timedelta(seconds=lease)
    adapted = connection.ops.adapt_datetimefield_value
    times = adapted(now), adapted(due)
    if len(messages) >= COPIED_FROM and (ids := _copy(connection, messages, times)):
        return _rows(ids, messages, due, until)
    rows: list[OutboxRow] = []
    at_once = INSERTED_AT_ONCE if connection.features.can_return_rows_from_bulk_insert else 1
    parts = _parts(messages, at_once) if len(messages) > 1 else [messages]
    with nullcontext() if len(parts) < 2 else transaction.atomic(using=using, savepoint=False):  # noqa: PLR2004
        for some in parts:
            values = [value for message in some for value in _values(message, times)]
            ids = _insert_values(connection, values, len(some))
            rows += _rows(ids, some, due, until)
    return rows


def _rows(ids: Sequence[int], messages: Sequence[Message], due: datetime, until: float) -> list[OutboxRow]:
    pairs = zip(ids, messages, strict=True)
    return [OutboxRow(id=number, message=message, due_at=due, until=until) for number, message in pairs]


def _copy(connection: BaseDatabaseWrapper, messages: Sequence[Message], times: tuple[Any, Any]) -> list[int]:
    """Insert rows by COPY and return their ids; none if that is impossible, as only psycopg 3 has such a copy()."""
    with connection.cursor() as cursor:
        if connection.vendor != "postgresql" or not hasattr(cursor, "copy"):
            return []
        # COPY returns no ids. A user who may insert need not have the right to use the sequence by its name.
        cursor.execute(RESERVED_IDS, [TABLE, len(messages)])
        ids = sorted(int(one) for (one,) in cursor.fetchall())
        if ids:
            quote = connection.ops.quote_name
            columns = ", ".join(map(quote, ("id", *COLUMNS)))
            with cursor.copy(f"COPY {quote(TABLE)} ({columns}) FROM STDIN") as copy:
                for id, message in zip(ids, messages, strict=True):  # noqa: A001
                    copy.write_row((id, *_values(message, times)))
        return ids


def _parts(messages: Sequence[Message], at_once: int) -> Sequence[Sequence[Message]]:
    parts: list[list[Message]] = [[]]
    size = 0
    for message in messages:
        if len(parts[-1]) == at_once or (parts[-1] and size + len(message.body) > MOST_STATEMENT_BYTES):
            parts.append([])
            size = 0
        parts[-1].append(message)
        size += len(message.body)
    return [part for part in parts if part]


def _insert_values(connection: BaseDatabaseWrapper, values: Sequence[Any], count: int) -> list[int]:
    returning = "id" if connection.features.can_return_columns_from_insert else ""
    statement = insert_of(connection.alias, TABLE, COLUMNS, rows=count, returning=returning)
    with connection.cursor() as cursor:
        if count == 1 and (number := inserted_id(cursor, statement, values)) is not None:
            return [number]
        cursor.execute(statement, values)
        if returning:
            # The database assigns ids in the order of the rows, but may return them in another order.
            return sorted(int(one) for (one,) in cursor.fetchall())
        return [int(cursor.lastrowid)]


def _values(message: Message, times: tuple[Any, Any]) -> tuple[Any, ...]:
    return (
        stored_name(message),
        message.exchange,
        message.routing_key,
        message.mandatory,
        bytes(message.body),
        len(message.body),
        encode_properties(message.properties),
        message.order_key,
        *times,
    )


def stored_name(message: Message) -> str:
    """Return the message's id in a form that any database can store."""
    name = message.properties.message_id or ""
    return name if name.isprintable() else short(name, COLUMN_BYTES)


def row_from_table(values: Sequence[Any], *, until: float = float("inf")) -> OutboxRow:
    """Return a row read from the table; its message equals the inserted one, byte for byte."""
    id, exchange, routing_key, mandatory, body, properties, order_key, attempts, alone = values  # noqa: A001
    raw = bytes(properties)
    decoded = decode_properties(raw)
    # So that they are not encoded again.
    object.__setattr__(decoded, "encoded", raw)
    message = Message(
        body=bytes(body),
        properties=decoded,
        exchange=exchange,
        routing_key=routing_key,
        mandatory=bool(mandatory),
        order_key=order_key,
    )
    return OutboxRow(id=id, message=message, attempts=attempts, alone=bool(alone), until=until)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowResult:
    row: OutboxRow
    result: PublishResult


def delete(ids: Sequence[int], *, using: str) -> None:
    """Delete confirmed rows. After a power loss PostgreSQL may restore one, whose message is sent twice."""
    connection = connections[using]
    # Do not wait for the disk: a restored row is a duplicate, which handlers must expect in any case.
    lazily = "SET LOCAL synchronous_commit TO OFF; " if connection.vendor == "postgresql" else ""
    table = connection.ops.quote_name(TABLE)
    for some in in_slices(ids, DELETED_AT_ONCE):
        with connection.cursor() as cursor:
            cursor.execute(f"{lazily}DELETE FROM {table} WHERE id IN ({_listed(some)})")  # noqa: S608 - numbers only


def renew(rows: Sequence[OutboxRow], *, using: str, seconds: float) -> list[OutboxRow]:
    """Extend the lease of rows and return them with the new lease; no rows if a relay has taken any of them."""
    until, now = time.monotonic() + SPARE_SECONDS, database_clock.now(using)
    due = now + timedelta(seconds=seconds)
    with transaction.atomic(using=using):
        if _lease(rows, using, due, after=now + timedelta(seconds=SKEW_SECONDS)) == len(rows):
            return [replace(row, due_at=due, until=until) for row in rows]
        # Renewed in part, the rows could not be released: their lease would differ from the one that is known here.
        transaction.set_rollback(True, using=using)
    return []


def release(rows: Sequence[OutboxRow], *, using: str, wake: bool = True) -> None:
    """Release rows to the relays now. A row that a relay has already claimed is left unchanged."""
    now = database_clock.now(using)
    for some in in_slices(rows, DELETED_AT_ONCE):
        _lease(some, using, now, after=now)
    if wake:
        notify(using)


def _lease(rows: Sequence[OutboxRow], using: str, due: datetime, *, after: datetime) -> int:
    """Set the end of the rows' lease to `due` if it is later than `after`; return the number of changed rows."""
    # On databases without row locks, a relay that has taken a row has changed its due_at, so the row does not match.
    times = {row.due_at for row in rows if row.due_at is not None}
    if not times:
        return 0
    adapted, places = connections[using].ops.adapt_datetimefield_value, ", ".join(["%s"] * len(times))
    where = f"id IN ({_listed(row.id for row in rows)}) AND due_at IN ({places}) AND due_at > %s"
    return _update(using, "due_at = %s", where, [adapted(due), *map(adapted, times), adapted(after)])


def postpone(row: int, *, using: str, seconds: float, attempts: int, error: str) -> None:
    due = connections[using].ops.adapt_datetimefield_value(database_clock.now(using) + timedelta(seconds=seconds))
    _update(using, "due_at = %s, attempts = %s, error = %s", "id = %s", [due, attempts, short(error, 1000), row])


def send_alone(ids: Sequence[int], *, using: str) -> None:
    """Mark rows over one of which the broker may have closed the channel or the connection."""
    for some in in_slices(ids, DELETED_AT_ONCE):
        _update(using, "alone = %s", f"id IN ({_listed(some)})", [True])


def mark_failed(row: int, *, using: str, attempts: int, error: str) -> None:
    """Mark a row as failed, which keeps it for an operator."""
    now = connections[using].ops.adapt_datetimefield_value(database_clock.now(using))
    _update(using, "failed_at = %s, attempts = %s, error = %s", "id = %s", [now, attempts, short(error, 1000), row])


def _listed(ids: Iterable[int]) -> str:
    return ", ".join(str(int(one)) for one in ids)


def _update(using: str, changes: str, where: str, values: Sequence[Any]) -> int:
    connection = connections[using]
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE {connection.ops.quote_name(TABLE)} SET {changes} WHERE {where}", values)  # noqa: S608
        return int(cursor.rowcount)


def rows_in_table(rows: Sequence[OutboxRow], *, using: str) -> list[OutboxRow]:
    """Return the rows that are in the table, by id and message id: SQLite reuses the ids of rolled back rows."""
    ids = _listed(row.id for row in rows)
    there = set(_select(using, f"id, message_id FROM {{table}} WHERE id IN ({ids})", ()))
    return [row for row in rows if (row.id, stored_name(row.message)) in there]


def earliest(order_keys: Collection[str], *, using: str, without: Collection[int] = ()) -> dict[str, int]:
    """Return the first row of each of these ordering keys, apart from the given rows."""
    keys = ", ".join(["%s"] * len(order_keys))
    others = f" AND id NOT IN ({_listed(without)})" if without else ""
    # For MariaDB's collation keys that differ in case are equal; MIN() is then the key itself, not another spelling.
    same = "CAST(order_key AS BINARY)" if connections[using].vendor == "mysql" else "order_key"
    clause = f"MIN(order_key), MIN(id) FROM {{table}} WHERE order_key IN ({keys}){others} GROUP BY {same}"
    return {key: int(first) for key, first in _select(using, clause, list(order_keys))}


def _select(using: str, clause: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
    connection = connections[using]
    with connection.cursor() as cursor:
        cursor.execute("SELECT " + clause.format(table=connection.ops.quote_name(TABLE)), values)
        return [tuple(row) for row in cursor.fetchall()]


def notify(using: str) -> None:
    """Wake the relays of this process, and on PostgreSQL those that listen. Other relays poll."""
    connection = connections[using]
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(f"NOTIFY {CHANNEL}")
    for wake in list(wakers):
        wake()


def can_notify(using: str) -> bool:
    return bool(wakers) or connections[using].vendor == "postgresql"
