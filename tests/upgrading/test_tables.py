"""The tables of the next version under the code of the last one: every insert of version 1 still works."""

import pytest
from django.db import connection

from django_rmq_retry import models
from tests.upgrading.rows import Made, filled, version_1

pytestmark = [pytest.mark.database, pytest.mark.django_db]


def test_rows_written_by_version_1_are_read_by_the_present_version() -> None:
    made: Made = {}
    for model in version_1():
        made[model] = filled(model, made)

    names = {model.__name__ for model in made}
    assert names >= {"Attempt", "ErrorGroup", "ParkedMessage", "RequeueRun", "RequeueItem", "OperatorAction"}
    for name in names:
        rows = list(getattr(models, name)._default_manager.all())
        assert len(rows) == 1, name


def test_no_column_of_version_1_is_gone() -> None:
    gone = {}
    with connection.cursor() as cursor:
        for model in version_1():
            there = connection.introspection.get_table_description(cursor, model._meta.db_table)
            wanted = {str(field.column) for field in model._meta.concrete_fields}
            gone[model.__name__] = wanted - {column.name for column in there}

    assert {name: columns for name, columns in gone.items() if columns} == {}
