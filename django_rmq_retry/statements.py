"""Statements that Django does not offer: a first write, locks, bulk inserts, counts added to rows, missing tables."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, TypeVar

from django.core.exceptions import EmptyResultSet
from django.db import connections, transaction
from django.db.backends.utils import CursorWrapper
from django.db.models import BinaryField, BooleanField, Case, DateTimeField, F, Model, Q, QuerySet, When
from django.db.models.constants import OnConflict
from django.db.models.lookups import Lookup

M = TypeVar("M", bound=Model)
V = TypeVar("V")

ROWS_AT_ONCE = 100
"""Rows of one statement, if the driver does not choose their number itself."""
KEYS_AT_ONCE = 500
"""Keys in one statement: SQLite may take no more than 999 parameters."""
_IN_TRANSACTION = 2
"""The number of libpq for this state of a connection."""


def in_slices(values: Collection[V], most: int) -> Iterator[list[V]]:
    """Yield the values in parts: no statement takes any number of them."""
    rest = list(values)
    return (rest[start : start + most] for start in range(0, len(rest), most))


T = TypeVar("T", bound=type[Model] | str)


def missing_tables(tables: Iterable[T], using: str) -> set[T]:
    """Return those of these tables, or of models, that the database does not have; raise its errors."""
    there = set(connections[using].introspection.table_names())
    names = {one: one if isinstance(one, str) else one._meta.db_table for one in tables}  # noqa: SLF001 - documented
    return {one for one, name in names.items() if name not in there}


class _OneOf(Lookup):
    """``column = ANY(array)`` of PostgreSQL, with all values in one parameter."""

    lookup_name = "one_of"

    def get_prep_lookup(self) -> tuple[str, str]:
        # One text: of a list, Django hashes each of thousands of values, and the driver quotes each.
        if not self.rhs or isinstance(self.rhs[0], int):
            return "bigint", ",".join(map(str, self.rhs))
        texts, all_of_it = self.rhs, "".join(self.rhs)
        if "\\" in all_of_it or '"' in all_of_it:
            texts = [text.replace("\\", r"\\").replace('"', r"\"") for text in texts]
        return "text", '"' + '","'.join(texts) + '"'

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, tuple[Any, ...]]:
        kind, values = self.rhs
        if not values:
            raise EmptyResultSet
        column, params = self.process_lhs(compiler, connection)
        # PostgreSQL hashes a list only if its type is the column's.
        return f"{column} = ANY(%s::{kind}[])", (*params, f"{{{values}}}")


def one_of(column: str, values: Collection[Any], *, using: str) -> Q:
    """Match rows that have one of these texts or numbers: on PostgreSQL by one parameter, as ``with_one_of`` does."""
    if takes_arrays(using):
        return Q(_OneOf(F(column), list(values)))
    return Q(**{f"{column}__in": list(values)})


def takes_arrays(using: str) -> bool:
    """True if thousands of values are one parameter of a statement."""
    return bool(connections[using].vendor == "postgresql")


def none_of(column: str, values: Collection[Any], *, using: str) -> Q:
    """Match rows that have none of these texts or numbers.

    PostgreSQL 14 does not hash the array of a ``NOT … ANY``, and all versions look at each value to plan it.
    """
    if not takes_arrays(using):
        return ~one_of(column, values, using=using)
    among = When(one_of(column, values, using=using), then=False)
    return Q(Case(among, default=True, output_field=BooleanField()))


def with_one_of(rows: "QuerySet[M]", column: str, values: Collection[Any], *, most: int = 0) -> "Iterator[QuerySet[M]]":
    """Yield the rows that have one of these texts or numbers, in as many queries as the database needs.

    PostgreSQL needs one: an array is one parameter. Each value of an IN is a parameter of its own, and for thousands
    of them Django and the driver take several times longer than the database. Others are asked for ``most`` values at
    once, by default ``KEYS_AT_ONCE``.
    """
    if values and takes_arrays(rows.db):
        yield rows.filter(_OneOf(F(column), list(values)))
    else:
        yield from (rows.filter(**{f"{column}__in": some}) for some in in_slices(values, most or KEYS_AT_ONCE))


@contextmanager
def writing(model: type[Model], *, using: str) -> Iterator[None]:
    """Run the block in a transaction that reads before it writes.

    SQLite refuses the first write at once if another process writes by then; before any read it waits for its turn.
    """
    with transaction.atomic(using=using):
        _write_first(model, using)
        yield


def _write_first(model: type[Model], using: str) -> None:
    if not connections[using].features.has_select_for_update:
        key: Any = model._meta.pk  # noqa: SLF001 - Django's own name for it
        model._base_manager.using(using).filter(pk=0).update(**{key.attname: 0})  # noqa: SLF001 - as above


def locking(rows: "QuerySet[M]", *, keys_stay: bool = False) -> "QuerySet[M]":
    """Return the query with locks on its rows until the transaction ends. On SQLite the whole database is locked.

    With ``keys_stay`` a foreign key to the rows may be checked meanwhile. PostgreSQL checks foreign keys at the commit,
    when a requeue run has the lock on the audit log already: a check that waited for another action, which waits for
    the audit log, would be a deadlock.
    """
    _write_first(rows.model, rows.db)
    return rows.select_for_update(no_key=keys_stay and connections[rows.db].features.has_select_for_no_key_update)


def lock(rows: "QuerySet[M]") -> None:
    """Lock rows until the transaction ends, in the order of their keys."""
    list(locking(rows.order_by("pk")).values_list("pk"))


@lru_cache(maxsize=256)
def insert_of(alias: str, table: str, columns: tuple[str, ...], *, rows: int = 1, returning: str = "") -> str:
    """Return the INSERT of this many rows; ``returning`` is the column whose values it returns."""
    places = f"({', '.join(['%s'] * len(columns))})"
    end = f" RETURNING {connections[alias].ops.quote_name(returning)}" if returning else ""
    into = _table_and_columns(alias, table, columns)
    return f"INSERT INTO {into} VALUES {', '.join([places] * rows)}{end}"  # noqa: S608 - names of our own only


def inserted_id(cursor: Any, statement: str, values: Sequence[Any]) -> int | None:
    """Execute the INSERT of one row that returns its id, by libpq itself, in a third of the driver's time.

    Return None, and execute nothing, with any other driver than psycopg 3, or where the driver has to do more: begin
    the transaction, or show the statement to those who log, count or wrap it.
    """
    connection = cursor.db
    pgconn = getattr(connection.connection, "pgconn", None)
    seen = type(cursor) is not CursorWrapper or connection.execute_wrappers
    if seen or pgconn is None or pgconn.transaction_status != _IN_TRANSACTION or pgconn.pipeline_status:
        return None
    with connection.wrap_database_errors:
        # Texts as bytes with a length: as a C string, one would end at its first NUL.
        forms = [isinstance(value, (str, bytes)) for value in values]
        given = [value if isinstance(value, bytes) else str(value).encode() for value in values]
        result = pgconn.exec_params(_numbered(statement), given, None, forms)
        if result.error_message:
            raise connection.Database.errors.error_from_result(result)
    return int(result.get_value(0, 0))


@lru_cache(maxsize=64)
def _numbered(statement: str) -> bytes:
    """Return a statement with its places in the form of PostgreSQL: ``$1`` for the first ``%s``."""
    first, *others = statement.split("%s")
    return "".join([first, *(f"${number}{rest}" for number, rest in enumerate(others, 1))]).encode()


def _table_and_columns(alias: str, table: str, columns: tuple[str, ...]) -> str:
    quote = connections[alias].ops.quote_name
    return f"{quote(table)} ({', '.join(map(quote, columns))})"


def insert_found(
    model: type[Model],
    columns: Sequence[str],
    found: "QuerySet[Any, tuple[Any, ...]]",
    *,
    using: str,
    ignore: bool = False,
) -> int:
    """Insert the rows of a query, whose values are in the order of the columns, by one statement; return their number.

    With ``ignore`` a row that exists already stays as it is.
    """
    ops, conflict = connections[using].ops, OnConflict.IGNORE if ignore else None
    meta = model._meta  # noqa: SLF001 - documented, in spite of its name
    names = tuple(str(meta.get_field(name).column) for name in columns)  # type: ignore[union-attr]
    try:
        chosen, params = found.query.get_compiler(using=using).as_sql()
    except EmptyResultSet:
        return 0
    into = f"{ops.insert_statement(on_conflict=conflict)} {_table_and_columns(using, meta.db_table, names)} {chosen}"
    with connections[using].cursor() as cursor:
        cursor.execute(f"{into} {ops.on_conflict_suffix_sql([], conflict, [], [])}", params)
        return int(cursor.rowcount)


class BulkInsert:
    """Inserts rows of plain values, several times faster than the ORM's bulk_create."""

    def __init__(self, model: type[Model], columns: Sequence[str]) -> None:
        fields: list[Any] = [model._meta.get_field(name) for name in columns]  # noqa: SLF001 - documented, in spite of its name
        self._table = model._meta.db_table  # noqa: SLF001 - as above
        self._columns = tuple(field.column for field in fields)
        self._times = [place for place, field in enumerate(fields) if isinstance(field, DateTimeField)]
        self._bytes = [place for place, field in enumerate(fields) if isinstance(field, BinaryField)]

    def __call__(self, rows: Sequence[Sequence[Any]], *, using: str) -> None:
        """Insert rows in the way that is cheapest for client and server on each database."""
        connection = connections[using]
        with connection.cursor() as cursor:
            if connection.vendor != "postgresql":
                statement = insert_of(using, self._table, self._columns)
                cursor.executemany(statement, [self._adapted(row, connection) for row in rows])
            elif hasattr(cursor, "copy"):
                with cursor.copy(f"COPY {_table_and_columns(using, self._table, self._columns)} FROM STDIN") as copy:
                    for row in rows:
                        copy.write_row(row)
            else:
                # psycopg 2 has no such copy(), and sends each row of executemany() by itself.
                for some in in_slices(rows, ROWS_AT_ONCE):
                    statement = insert_of(using, self._table, self._columns, rows=len(some))
                    cursor.execute(statement, [value for row in some for value in self._adapted(row, connection)])

    def _adapted(self, row: Sequence[Any], connection: Any) -> list[Any]:
        """Convert the times and bytes of a row for the database's driver."""
        values = list(row)
        for place in self._times:
            values[place] = connection.ops.adapt_datetimefield_value(values[place])
        for place in self._bytes:
            values[place] = connection.Database.Binary(values[place])
        return values


class BulkCount(BulkInsert):
    """Inserts rows, or adds the last column, a counter, to a row whose other columns are the same and unique."""

    def __call__(self, rows: Sequence[Sequence[Any]], *, using: str) -> None:
        """Pass the rows in the order of their columns: two transactions that count the same must not deadlock."""
        connection = connections[using]
        with connection.cursor() as cursor:
            for some in in_slices(rows, ROWS_AT_ONCE):
                statement = insert_of(using, self._table, self._columns, rows=len(some)) + self._adding(connection)
                cursor.execute(statement, [value for row in some for value in self._adapted(row, connection)])

    def _adding(self, connection: Any) -> str:
        *same, counter = map(connection.ops.quote_name, self._columns)
        if connection.vendor == "mysql":
            return f" ON DUPLICATE KEY UPDATE {counter} = {counter} + VALUES({counter})"
        known = f"{connection.ops.quote_name(self._table)}.{counter}"
        return f" ON CONFLICT ({', '.join(same)}) DO UPDATE SET {counter} = {known} + EXCLUDED.{counter}"
