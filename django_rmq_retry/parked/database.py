"""Checks that the tables accept records, and takes locks in one order."""

import uuid
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from django.db import DEFAULT_DB_ALIAS, OperationalError, connections, router, transaction
from django.db.models import F
from django.utils import timezone

from django_rmq_retry.messages.texts import short
from django_rmq_retry.models import BusinessKey, ErrorGroup, MessageVersion, ParkedMessage, RequeueItem, RequeueRun

NEEDED = (ErrorGroup, ParkedMessage, BusinessKey, MessageVersion, RequeueRun, RequeueItem)

T = TypeVar("T")
TRIES = 5

CONFLICTS = ("deadlock", "lock wait timeout", "database is locked", "could not serialize")


class _RolledBack(Exception):
    """Raised to roll back the trial insert."""


def outage(alias: str) -> str:
    """Return why nothing can be stored now, as a sentence; empty if a trial message could be."""
    connection = connections[alias]
    try:
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()
        connection.ensure_connection()
    except Exception as error:  # noqa: BLE001 - drivers raise many types
        return f"The database {alias!r} does not answer ({_words(error)})."
    try:
        _try(alias)
    except _RolledBack:
        return ""
    except Exception as error:  # noqa: BLE001 - drivers raise many types
        return _missing_tables(alias) or f"The database {alias!r} does not accept parked messages ({_words(error)})."
    return ""


def _try(alias: str) -> None:
    """Store a made-up message, and roll it back: only this proves that a message could be stored."""
    now = timezone.now()
    with transaction.atomic(using=alias):
        name = f"trial:{uuid.uuid4().hex}"
        group = ErrorGroup(fingerprint=name, title=name, reason=name, first_seen=now, last_seen=now)
        group.save(using=alias, force_insert=True)
        ParkedMessage(
            identity=name, group=group, parked_in=name, body=b"", size=0, sha256="", properties=b"", by="other",
            reason="trial", copy="", parked_at=now, recorded_at=now,
        ).save(using=alias, force_insert=True)  # fmt: skip
        raise _RolledBack


def _missing_tables(alias: str) -> str:
    """Return a sentence if tables are missing or older than this code; empty if they are not."""
    try:
        for model in NEEDED:
            list(model._default_manager.using(alias).filter(pk=0)[:1])  # noqa: SLF001 - Django's own name for it
    except Exception as error:  # noqa: BLE001 - drivers raise many types
        option = "" if alias == DEFAULT_DB_ALIAS else f" --database {alias}"
        words = _words(error)
        return f"The database {alias!r} is not ready for parked messages: run `manage.py migrate{option}` ({words})."
    return ""


def _words(error: Exception) -> str:
    return short(" ".join(str(error).split()) or type(error).__name__, 200)


def database() -> str:
    """Return the alias of the database in which parked messages are stored."""
    return router.db_for_write(ParkedMessage)


def locked_messages(ids: Collection[int], *, whole: bool = True) -> dict[int, ParkedMessage]:
    """Return the records by primary key, locked until the transaction ends; with bodies only if ``whole``."""
    using = database()
    rows = ParkedMessage.objects.using(using).filter(pk__in=ids).order_by("pk")
    if not connections[using].features.has_select_for_update:
        # Write first: SQLite refuses a write in a transaction that has read, if another one has written since.
        rows.update(revision=F("revision"))
    if not whole:
        rows = rows.defer("body", "properties")
    return {row.pk: row for row in rows.select_for_update(**_lock_of(using))}


def locked_run(run: int) -> RequeueRun | None:
    """Return a run, locked until the transaction ends; messages must be locked before it."""
    using = database()
    rows = RequeueRun.objects.using(using).filter(pk=run)
    if not connections[using].features.has_select_for_update:
        rows.update(sent=F("sent"))
    return rows.select_for_update(**_lock_of(using)).first()


def retry_conflicts(change: Callable[[], T]) -> T:
    """Repeat an action that lost a race against another transaction; the database has rolled it back by then."""
    for _ in range(TRIES - 1):
        try:
            return change()
        except OperationalError as error:
            if not _is_conflict(error) or connections[database()].in_atomic_block:
                raise
    return change()


def _is_conflict(error: OperationalError) -> bool:
    text = str(error).lower()
    return any(one in text for one in CONFLICTS)


def _lock_of(using: str) -> dict[str, Any]:
    """Return the options of a lock on rows whose keys stay.

    PostgreSQL checks foreign keys at the commit, when a requeue run has the lock on the audit log already. A stronger
    lock would keep that check waiting for another action, which waits for the audit log.
    """
    features = connections[using].features
    of = ("self",) if features.has_select_for_update_of else ()
    return {"of": of, "no_key": features.has_select_for_no_key_update}
