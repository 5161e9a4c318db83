"""The entries of the inbox by SQL of our own, one statement each: the ORM would take longer than the database."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from django.db import IntegrityError, connections
from django.utils import timezone

from django_rmq_retry.inbox.naming import Name
from django_rmq_retry.models import InboxEntry

_META = InboxEntry._meta  # noqa: SLF001 - documented, in spite of its name
_DUPLICATE = 1062
_COLUMNS = ("key", "handler", "name", "digest", "handled_at")


@dataclass(frozen=True, slots=True, kw_only=True)
class Statements:
    """In one database's own words."""

    insert: str
    same: str
    present: str


def insert(connection: Any, handler: str, name: Name) -> bool:
    """Add the entry; False where it is there. A transaction that adds the same is waited for.

    It is the first statement of its transaction: on SQLite one that has read first could not write any more.
    """
    at = connection.ops.adapt_datetimefield_value(timezone.now())
    with connection.cursor() as cursor:
        try:
            cursor.execute(_statements(connection.vendor).insert, (name.key, handler, name.text, name.digest, at))
        except IntegrityError as error:
            if connection.vendor == "mysql" and error.args[:1] == (_DUPLICATE,):
                return False
            raise
        return bool(cursor.rowcount)


def same(connection: Any, name: Name) -> bool | None:
    """Whether the entry that is there tells of the same body; None where it has gone meanwhile."""
    with connection.cursor() as cursor:
        cursor.execute(_statements(connection.vendor).same, (name.digest, name.key))
        row = cursor.fetchone()
    return None if row is None else bool(row[0])


def present(connection: Any, name: Name) -> bool:
    """Whether this transaction still has its entry."""
    with connection.cursor() as cursor:
        cursor.execute(_statements(connection.vendor).present, (name.key,))
        return cursor.fetchone() is not None


@lru_cache(maxsize=8)
def _statements(vendor: str) -> Statements:
    quote = next(one for one in connections.all() if one.vendor == vendor).ops.quote_name
    table, key, digest = quote(_META.db_table), quote("key"), quote("digest")
    columns, places = ", ".join(map(quote, _COLUMNS)), ", ".join(["%s"] * len(_COLUMNS))
    # On MariaDB the error says it: IGNORE would hide others, and Django has it count what was found as changed.
    end = "" if vendor == "mysql" else f" ON CONFLICT ({key}) DO NOTHING"
    return Statements(
        insert=f"INSERT INTO {table} ({columns}) VALUES ({places}){end}",  # noqa: S608 - names of our own only
        same=f"SELECT CASE WHEN {digest} = %s THEN 1 ELSE 0 END FROM {table} WHERE {key} = %s",  # noqa: S608 - as above
        present=f"SELECT 1 FROM {table} WHERE {key} = %s",  # noqa: S608 - as above
    )
