"""Fill the tables from generated series; indexes and foreign keys are created afterwards."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from django.core.management.color import no_style
from django.db import connection, models

from django_rmq_retry.models import AuditHead
from tests.bench.million import tables
from tests.bench.million.shapes import Shape

CONSTRAINTS = """
    SELECT conrelid::regclass::text, quote_ident(conname), pg_get_constraintdef(oid)
    FROM pg_constraint WHERE contype = 'f' AND conrelid::regclass::text LIKE 'rmq_retry_%'
"""
INDEXES = """
    SELECT quote_ident(indexname), indexdef FROM pg_indexes
    WHERE tablename LIKE 'rmq_retry_%' AND NOT EXISTS (
        SELECT 1 FROM pg_constraint WHERE conindid = quote_ident(indexname)::regclass
    )
"""


def fill(shape: Shape) -> None:
    """Insert messages with all related rows, and update PostgreSQL's statistics."""
    with connection.cursor() as cursor:
        cursor.execute("SET synchronous_commit = off")
        cursor.execute("SET maintenance_work_mem = '256MB'")
        cursor.execute("SELECT setseed(0.4)")
        with _bare(cursor):
            for table in tables.TABLES:
                _insert(cursor, table.model, table.values, table.source.format(**asdict(shape)))
        cursor.execute(tables.COUNTERS)
        made = [table.model for table in tables.TABLES]
        for statement in connection.ops.sequence_reset_sql(no_style(), made):
            cursor.execute(statement)
        cursor.execute("VACUUM ANALYZE")
    AuditHead.objects.update_or_create(pk=1, defaults={"number": tables.ACTS, "seal": "0" * 64})


def _insert(cursor: Any, model: type[models.Model], values: Mapping[str, str], source: str) -> None:
    """Insert rows; columns without an expression get their field's default."""
    names, said, given = [], [], []
    for field in model._meta.concrete_fields:
        column = str(field.column)
        if column in values:
            said.append(values[column].replace("%", "%%"))
        elif field.primary_key:
            continue
        else:
            said.append("%s")
            given.append(field.get_db_prep_save(field.get_default(), connection))
        names.append(connection.ops.quote_name(column))
    table = connection.ops.quote_name(model._meta.db_table)
    body = source.replace("%", "%%")
    cursor.execute(f"INSERT INTO {table} ({', '.join(names)}) SELECT {', '.join(said)} FROM {body}", given)  # noqa: S608 - all of it is ours


@contextmanager
def _bare(cursor: Any) -> Iterator[None]:
    """Drop indexes and foreign keys inside the block, because creating them at the end is faster."""
    cursor.execute(CONSTRAINTS)
    constraints = cursor.fetchall()
    cursor.execute(INDEXES)
    indexes = cursor.fetchall()
    for table, name, _definition in constraints:
        cursor.execute(f"ALTER TABLE {table} DROP CONSTRAINT {name}")
    for name, _definition in indexes:
        cursor.execute(f"DROP INDEX {name}")
    yield
    for _name, definition in indexes:
        cursor.execute(definition)
    for table, name, definition in constraints:
        cursor.execute(f"ALTER TABLE {table} ADD CONSTRAINT {name} {definition}")
