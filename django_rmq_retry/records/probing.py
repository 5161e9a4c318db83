"""Tells a database that is away, or not made yet, from one that takes messages."""

import uuid

from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.utils import timezone

from django_rmq_retry.core.verdict import short
from django_rmq_retry.models import BusinessKey, ErrorGroup, Item, MessageVersion, ParkedMessage, RequeueRun

NEEDED = (ErrorGroup, ParkedMessage, BusinessKey, MessageVersion, RequeueRun, Item)


class _Undone(Exception):
    """Ends the trial, so that nothing of it stays."""


def absent(alias: str) -> str:
    """Why nothing can be stored now, as a sentence; empty where a made-up message could be."""
    connection = connections[alias]
    try:
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()
        connection.ensure_connection()
    except Exception as error:  # noqa: BLE001 - whatever its driver says
        return f"The database {alias!r} does not answer ({_words(error)})."
    try:
        _try(alias)
    except _Undone:
        return ""
    except Exception as error:  # noqa: BLE001 - whatever its driver says
        return _lacking(alias) or f"The database {alias!r} takes no parked messages ({_words(error)})."
    return ""


def _try(alias: str) -> None:
    """Store a message that nobody sent, and take it back: that alone shows that one could be stored."""
    now = timezone.now()
    with transaction.atomic(using=alias):
        name = f"trial:{uuid.uuid4().hex}"
        group = ErrorGroup(fingerprint=name, title=name, reason=name, first_seen=now, last_seen=now)
        group.save(using=alias, force_insert=True)
        ParkedMessage(
            identity=name, group=group, parked_in=name, body=b"", size=0, sha256="", properties=b"", by="other",
            reason="trial", copy="", parked_at=now, recorded_at=now,
        ).save(using=alias, force_insert=True)  # fmt: skip
        raise _Undone


def _lacking(alias: str) -> str:
    """That its tables are missing, or are older than this code; empty where neither is."""
    try:
        for model in NEEDED:
            list(model._default_manager.using(alias).filter(pk=0)[:1])  # noqa: SLF001 - Django's own name for it
    except Exception as error:  # noqa: BLE001 - whatever its driver says
        option = "" if alias == DEFAULT_DB_ALIAS else f" --database {alias}"
        said = _words(error)
        return f"The database {alias!r} is not ready for parked messages: run `manage.py migrate{option}` ({said})."
    return ""


def _words(error: Exception) -> str:
    return short(" ".join(str(error).split()) or type(error).__name__, 200)
