"""The database of parked messages: whether it accepts them, its transactions and its locks."""

import uuid
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from django.db import DEFAULT_DB_ALIAS, OperationalError, connections, router, transaction
from django.db.models import F, Model
from django.utils import timezone

from django_rmq_retry import database_clock
from django_rmq_retry.database_errors import clashed
from django_rmq_retry.messages.texts import one_line
from django_rmq_retry.models import (
    BusinessKey,
    ErrorGroup,
    MessageVersion,
    ParkedMessage,
    ParkedOrigin,
    RequeueItem,
    RequeueRun,
    State,
)
from django_rmq_retry.statements import locking, writing

NEEDED = (ErrorGroup, ParkedMessage, BusinessKey, MessageVersion, RequeueRun, RequeueItem)
P = ParamSpec("P")
T = TypeVar("T")
CONFLICT_TRIES = 5
NOT_HELD: Mapping[str, Any] = {"held_until": None, "hold_reason": ""}
"""The columns of a record that is not on hold."""
NOT_WAITING: Mapping[str, Any] = {"claimed_until": None, **NOT_HELD}
"""The columns of a record that is neither being sent nor on hold."""


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
        return f"The database {alias!r} does not answer ({one_line(error)})."
    try:
        _try(alias)
    except _RolledBack:
        return ""
    except Exception as error:  # noqa: BLE001 - drivers raise many types
        return _missing_tables(alias) or f"The database {alias!r} does not accept parked messages ({one_line(error)})."
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
        return (
            f"The database {alias!r} is not ready for parked messages: "
            f"run `manage.py migrate{option}` ({one_line(error)})."
        )
    return ""


def records_alias() -> str:
    """Return the alias of the database in which parked messages are stored."""
    return router.db_for_write(ParkedMessage)


def locked_messages(ids: Collection[int], *, whole: bool = True) -> dict[int, ParkedMessage]:
    """Return the records by primary key, locked until the transaction ends; with bodies only if ``whole``."""
    rows = ParkedMessage.objects.using(records_alias()).filter(pk__in=ids).order_by("pk")
    return {row.pk: row for row in locking(rows if whole else rows.defer("body", "properties"), keys_stay=True)}


def move(rows: Collection[ParkedMessage], state: str, **changes: Any) -> None:
    """Put locked records into a state, change other columns with it, and count them in their groups.

    The rows have the state in which they were locked. Groups are changed in the order of their keys.
    """
    if state == State.PARKED:
        # Whoever chose messages before has not seen these.
        changes |= {"reopened_at": database_clock.now(records_alias())}
    records = ParkedMessage.objects.using(records_alias()).filter(pk__in=[row.pk for row in rows])
    records.update(state=state, revision=F("revision") + 1, **changes)
    ErrorGroup.objects.count_all_moved(Counter((row.group_id, row.state) for row in rows), state)
    ParkedOrigin.objects.count_moved(rows, state, using=records_alias())


def locked_run(run_id: int) -> RequeueRun | None:
    """Return a run, locked until the transaction ends; messages must be locked before it."""
    return locking(RequeueRun.objects.using(records_alias()).filter(pk=run_id), keys_stay=True).first()


def transaction_of(model: type[Model]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Run a function in a transaction of a model's database, and again if it lost a race against another one."""

    def wrapped(change: Callable[P, T]) -> Callable[P, T]:
        @wraps(change)
        def changed(*args: P.args, **kwargs: P.kwargs) -> T:
            using = router.db_for_write(model)
            for left in reversed(range(CONFLICT_TRIES)):
                try:
                    with writing(model, using=using):
                        return change(*args, **kwargs)
                except OperationalError as error:
                    if not left or not clashed(error) or connections[using].in_atomic_block:
                        raise
            raise AssertionError("the last try returns or raises")

        return changed

    return wrapped
