"""Locks on records, the same on every database, and always taken in one order: messages, groups, runs, items, audit."""

from collections.abc import Callable, Collection
from typing import TypeVar

from django.db import OperationalError, connections, router
from django.db.models import F

from django_rmq_retry.models import ParkedMessage, RequeueRun

T = TypeVar("T")
TRIES = 5


def database() -> str:
    """Where records are written."""
    return router.db_for_write(ParkedMessage)


def locked_messages(ids: Collection[int], *, whole: bool = True) -> dict[int, ParkedMessage]:
    """The records by their key, as nobody else can change them until the transaction ends; bodies only if whole."""
    using = database()
    rows = ParkedMessage.objects.using(using).filter(pk__in=ids).order_by("pk")
    if not connections[using].features.has_select_for_update:
        # SQLite refuses a transaction that has read when another one has written since: it writes first.
        rows.update(revision=F("revision"))
    if not whole:
        rows = rows.defer("body", "properties")
    return {row.pk: row for row in rows.select_for_update(of=_of(using))}


def locked_run(run: int) -> RequeueRun | None:
    """A run, as nobody else can change it until the transaction ends; messages are locked before it."""
    using = database()
    rows = RequeueRun.objects.using(using).filter(pk=run)
    if not connections[using].features.has_select_for_update:
        rows.update(sent=F("sent"))
    return rows.select_for_update(of=_of(using)).first()


def steadily(act: Callable[[], T]) -> T:
    """Do again what lost against another transaction: nothing of it is left in the database then."""
    for _ in range(TRIES - 1):
        try:
            return act()
        except OperationalError as error:
            if not _lost_a_race(error) or connections[database()].in_atomic_block:
                raise
    return act()


RACES = ("deadlock", "lock wait timeout", "database is locked", "could not serialize")


def _lost_a_race(error: OperationalError) -> bool:
    said = str(error).lower()
    return any(one in said for one in RACES)


def _of(using: str) -> tuple[str, ...]:
    return ("self",) if connections[using].features.has_select_for_update_of else ()
