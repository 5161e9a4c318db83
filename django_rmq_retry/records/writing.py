"""Attempts into their table: many at once, by one statement that is worked out once.

The ORM's own bulk_create takes several times as long for each row, on the processor that the handlers need.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from django.conf import settings
from django.db import connections, router, transaction
from django.utils import timezone

from django_rmq_retry.models import Attempt, ParkedMessage
from django_rmq_retry.records.rows import Draft, Row, Scribe

TIMES = (Row._fields.index("started_at"), Row._fields.index("next_at"))
AT_ONCE = 100
"""Rows by one statement, where each is written out in it."""


class Writer:
    """Makes rows of drafts, and adds them to the table."""

    def __init__(self, scribe: Scribe) -> None:
        self._scribe = scribe

    def __call__(self, drafts: Sequence[Draft], *, plain: bool = False) -> None:
        """Add them, all or none; plain ones hold no character that some database might not have."""
        rows = _known(drafts, [self._scribe.row(draft) for draft in drafts])
        write([_plain(row) for row in rows] if plain else rows)


def _plain(row: Row) -> Row:
    told = (value.encode("ascii", "replace").decode() if isinstance(value, str) else value for value in row)
    return Row._make(told)


def _known(drafts: Sequence[Draft], rows: list[Row]) -> list[Row]:
    """What was requeued has its record's identity, for it may have been edited or sent elsewhere."""
    records = {draft.ticket.record for draft in drafts if draft.ticket}
    if not records:
        return rows
    found = ParkedMessage.objects.using(router.db_for_write(ParkedMessage)).filter(pk__in=records)
    names = dict(found.values_list("pk", "identity"))
    known = (names.get(draft.ticket.record) if draft.ticket else None for draft in drafts)
    return [row._replace(identity=name) if name else row for row, name in zip(rows, known, strict=True)]


def write(rows: Sequence[Row]) -> None:
    """Add these rows, all or none."""
    alias = router.db_for_write(Attempt)
    connection = connections[alias]
    values = _values(rows, alias)
    with transaction.atomic(using=alias), connection.cursor() as cursor:
        # By far the cheapest ways for both sides; psycopg 2 knows no copy() of this kind.
        if connection.vendor == "postgresql" and hasattr(cursor, "copy"):
            with cursor.copy(f"COPY {_target(alias)} FROM STDIN") as copy:
                for row in values:
                    copy.write_row(row)
        elif connection.vendor == "sqlite":
            cursor.executemany(_statement(alias, 1), values)
        else:
            for start in range(0, len(values), AT_ONCE):
                some = values[start : start + AT_ONCE]
                cursor.execute(_statement(alias, len(some)), [value for row in some for value in row])


def _values(rows: Sequence[Row], alias: str) -> Sequence[Sequence[Any]]:
    """With times as the project stores them, in the database's form."""
    connection = connections[alias]
    if settings.USE_TZ and connection.vendor == "postgresql":
        return rows
    values: list[list[Any]] = [list(row) for row in rows]
    adapt = connection.ops.adapt_datetimefield_value
    for row in values:
        for place in TIMES:
            at = row[place]
            row[place] = adapt(at if at is None or settings.USE_TZ else timezone.make_naive(at))
    return values


@lru_cache(maxsize=256)
def _statement(alias: str, rows: int) -> str:
    places = f"({', '.join(['%s'] * len(Row._fields))})"
    return f"INSERT INTO {_target(alias)} VALUES {', '.join([places] * rows)}"  # noqa: S608 - names of our own only


@lru_cache(maxsize=32)
def _target(alias: str) -> str:
    quote = connections[alias].ops.quote_name
    table = quote(Attempt._meta.db_table)  # noqa: SLF001 - documented, in spite of its name
    return f"{table} ({', '.join(quote(name) for name in Row._fields)})"
