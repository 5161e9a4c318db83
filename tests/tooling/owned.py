"""Sends a test's records to a separate database, which threads and processes share with it."""

from typing import Any

from django.db.models import Model

from tests.tooling.filled import ALIAS


class ToOwn:
    """A database router."""

    def db_for_read(self, model: type[Model], **_hints: Any) -> str | None:
        return ALIAS if model._meta.app_label == "rmq_retry" else None

    db_for_write = db_for_read


class AllToOwn:
    """A database router for accounts too."""

    def db_for_read(self, _model: type[Model], **_hints: Any) -> str:
        return ALIAS

    db_for_write = db_for_read


def all_routed(settings: Any) -> None:
    """Route the records and the accounts to it until the end of the test."""
    settings.DATABASE_ROUTERS = [AllToOwn()]


def routed(settings: Any) -> None:
    """Route the records to it until the end of the test."""
    settings.DATABASE_ROUTERS = [ToOwn()]
