"""Rows as version 1 writes them: with its own columns, whatever tables and columns came later."""

import datetime
import itertools
import uuid
from typing import Any

from django.db import DEFAULT_DB_ALIAS, connections, models
from django.db.migrations.loader import MigrationLoader

Made = dict[type[models.Model], models.Model]

THEN = datetime.datetime(2026, 11, 21, 12, tzinfo=datetime.UTC)
numbers = itertools.count(1)


def version_1(alias: str = DEFAULT_DB_ALIAS) -> list[type[models.Model]]:
    """Its models with its columns, those that others point to first."""
    state = MigrationLoader(connections[alias]).project_state(("rmq_retry", "0001_initial"))
    known = [model for model in state.apps.get_models() if model._meta.app_label == "rmq_retry" and model._meta.managed]
    return sorted(known, key=depth)


def depth(model: type[models.Model]) -> int:
    """The number of tables that refer to it."""
    return max((1 + depth(to) for to in pointed_to(model)), default=0)


def pointed_to(model: type[models.Model]) -> list[type[models.Model]]:
    related = [field.related_model for field in model._meta.concrete_fields if field.is_relation and not field.null]
    return [one for one in related if isinstance(one, type) and one is not model and one._meta.app_label == "rmq_retry"]


def filled(model: type[models.Model], made: Made, alias: str = DEFAULT_DB_ALIAS) -> models.Model:
    """A row with every column that version 1 must name, and each of the others as it leaves it."""
    given = {field.name: value(field, made) for field in model._meta.concrete_fields if must_be_named(field)}
    return model._default_manager.using(alias).create(**given)


def must_be_named(field: "models.Field[Any, Any]") -> bool:
    return not (field.has_default() or field.null or isinstance(field, models.AutoField))


def value(field: "models.Field[Any, Any]", made: Made) -> object:
    if field.is_relation:
        related = field.related_model
        assert isinstance(related, type)
        return made[related]
    if isinstance(field, models.DateTimeField):
        return THEN
    if isinstance(field, models.BinaryField):
        return b"\x00"
    if isinstance(field, models.UUIDField):
        return uuid.uuid4()
    if isinstance(field, models.BooleanField | models.IntegerField | models.FloatField):
        return field.to_python(1) if isinstance(field, models.BooleanField) else next(numbers)
    assert isinstance(field, models.CharField | models.TextField), field
    return str(next(numbers))
