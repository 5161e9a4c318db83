"""For the time of a command: in which of the project's databases the records are, whatever its routers say."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from django.db import models, router

from django_rmq_retry.operating.permitting import LABEL


class _Pin:
    """A router before all others."""

    def __init__(self, alias: str, labels: Collection[str]) -> None:
        self._alias = alias
        self._labels = labels

    def _placed(self, model: type[models.Model], **_hints: object) -> str | None:
        return self._alias if model._meta.app_label in self._labels else None  # noqa: SLF001 - documented

    db_for_read = db_for_write = _placed


@contextmanager
def pinned(alias: str | None, also: Collection[str] = ()) -> Iterator[None]:
    """Ours, and those of further apps, are read and written there."""
    if alias is None:
        yield
        return
    pin = _Pin(alias, {LABEL, *also})
    router.routers.insert(0, pin)
    try:
        yield
    finally:
        router.routers.remove(pin)
