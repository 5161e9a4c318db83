"""A message as a row, and a row as a message. The ORM's own ways take several times as long, at every publish."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils import timezone

from django_rmq_retry.core.message import Message
from django_rmq_retry.core.properties import decode_properties, encode_properties
from django_rmq_retry.core.verdict import short
from django_rmq_retry.outbox.placing import TABLE

COLUMNS = (
    *("message_id", "exchange", "routing_key", "mandatory", "body", "size", "properties", "order_key"),
    *("created_at", "due_at", "tries", "error"),
)
AT_ONCE = 80
"""Rows of one statement: an old SQLite takes 999 values."""
MOST_BYTES = 4 * 1024 * 1024
"""Of bodies in one statement: more is refused by a MariaDB of default settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One message that is to be sent."""

    id: int
    message: Message
    tries: int = 0
    due_at: datetime | None = None
    """Until then it is its writer's; nobody else's lease ends at the same microsecond."""

    @property
    def order_key(self) -> str:
        return self.message.order_key


def insert(messages: Sequence[Message], *, using: str, lease: float) -> list[Row]:
    """Write them in their order, all or none; for `lease` seconds nobody but the writer sends them."""
    connection = connections[using]
    now = timezone.now()
    due = now + timedelta(seconds=lease)
    times = (_adapted(connection, now), _adapted(connection, due))
    rows: list[Row] = []
    at_once = AT_ONCE if connection.features.can_return_rows_from_bulk_insert else 1
    parts = _parts(messages, at_once)
    with nullcontext() if len(parts) < 2 else transaction.atomic(using=using, savepoint=False):  # noqa: PLR2004
        for some in parts:
            values = [value for message in some for value in _values(connection, message, times)]
            ids = _inserted(connection, values, len(some))
            rows += [Row(id=id, message=message, due_at=due) for id, message in zip(ids, some, strict=True)]  # noqa: A001
    return rows


def _parts(messages: Sequence[Message], at_once: int) -> list[list[Message]]:
    parts: list[list[Message]] = [[]]
    size = 0
    for message in messages:
        if len(parts[-1]) == at_once or (parts[-1] and size + len(message.body) > MOST_BYTES):
            parts.append([])
            size = 0
        parts[-1].append(message)
        size += len(message.body)
    return [part for part in parts if part]


def _inserted(connection: BaseDatabaseWrapper, values: list[Any], count: int) -> list[int]:
    returning = connection.features.can_return_columns_from_insert
    with connection.cursor() as cursor:
        cursor.execute(_statement(connection.alias, count, returning=returning), values)
        if returning:
            # Numbers are given in the order of the rows, and need not be returned in it.
            return sorted(int(one) for (one,) in cursor.fetchall())
        return [int(cursor.lastrowid)]


@lru_cache(maxsize=256)
def _statement(alias: str, count: int, *, returning: bool) -> str:
    quote = connections[alias].ops.quote_name
    columns = ", ".join(map(quote, COLUMNS))
    places = ", ".join([f"({', '.join(['%s'] * len(COLUMNS))})"] * count)
    ending = f" RETURNING {quote('id')}" if returning else ""
    return f"INSERT INTO {quote(TABLE)} ({columns}) VALUES {places}{ending}"  # noqa: S608 - names of our own only


def _values(connection: BaseDatabaseWrapper, message: Message, times: tuple[Any, Any]) -> tuple[Any, ...]:
    binary = connection.Database.Binary  # type: ignore[attr-defined]  # the driver, on every backend
    return (
        stored_name(message),
        message.exchange,
        message.routing_key,
        message.mandatory,
        binary(bytes(message.body)),
        len(message.body),
        binary(encode_properties(message.properties)),
        message.order_key,
        *times,
        0,
        "",
    )


def stored_name(message: Message) -> str:
    """Its id, as any database takes it."""
    name = message.properties.message_id or ""
    return name if name.isprintable() else short(name, 255)


def _adapted(connection: BaseDatabaseWrapper, at: datetime) -> Any:
    return connection.ops.adapt_datetimefield_value(at)


READ = ("id", "exchange", "routing_key", "mandatory", "body", "properties", "order_key", "tries")
"""What ``message_of`` wants of a row, in its order."""


def row_of(found: Sequence[Any]) -> Row:
    """As it was given to ``insert``, byte for byte."""
    id, exchange, routing_key, mandatory, body, properties, order_key, tries = found  # noqa: A001
    message = Message(
        body=bytes(body),
        properties=decode_properties(bytes(properties)),
        exchange=exchange,
        routing_key=routing_key,
        mandatory=bool(mandatory),
        order_key=order_key,
    )
    return Row(id=id, message=message, tries=tries)
