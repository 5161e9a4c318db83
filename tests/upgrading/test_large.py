"""A database with very many parked messages is migrated while it is written to: nobody waits for the migration."""

import pytest
from django.db import connections

from django_rmq_retry.models import ParkedMessage
from tests.tooling import databases
from tests.tooling.filled import ALIAS
from tests.upgrading.migrating import TABLE, back, migrating, rewriting
from tests.upgrading.rows import Made, filled, version_1

pytestmark = [pytest.mark.database, pytest.mark.long]

ROWS = 100_000


def fill(rows: int) -> None:
    """As many as asked for, each like the first but for its identity."""
    made: Made = {}
    for model in version_1(ALIAS):
        made[model] = filled(model, made, ALIAS)
    columns = [str(field.column) for field in ParkedMessage._meta.concrete_fields if not field.primary_key]
    values = ["'copy:' || i" if column == "identity" else column for column in columns]
    with connections[ALIAS].cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {TABLE} ({', '.join(columns)}) "  # noqa: S608 - all of it is ours
            f"SELECT {', '.join(values)} FROM {TABLE}, generate_series(2, {rows}) AS i"
        )


@pytest.mark.skipif(databases.chosen() != databases.POSTGRESQL, reason="measured where tables are locked: PostgreSQL")
@pytest.mark.usefixtures("own_database")
def test_nobody_who_writes_waits_while_a_hundred_thousand_messages_are_migrated() -> None:
    back(ALIAS)
    fill(ROWS)

    migrated, rewritten = migrating(ALIAS), rewriting(ALIAS)

    assert ParkedMessage.objects.using(ALIAS).count() == ROWS
    assert migrated < rewritten / 3
