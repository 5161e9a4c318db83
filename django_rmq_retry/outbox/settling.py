"""What becomes of rows: gone, free for the relays, or put off. Plain statements, for each costs a round trip."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import timedelta

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import QuerySet
from django.utils import timezone

from django_rmq_retry.core.verdict import short
from django_rmq_retry.models import OutboxMessage
from django_rmq_retry.outbox.placing import TABLE
from django_rmq_retry.outbox.rows import Row

CHANNEL = "rmq_retry_outbox"
"""On PostgreSQL relays listen to it."""
AT_ONCE = 1000
wakers: set[Callable[[], None]] = set()
"""The relays of this very process."""
SKEW = 2.0
"""Seconds by which clocks of two hosts may differ."""


def delete(ids: Sequence[int], *, using: str) -> None:
    """Forget what the broker has confirmed.

    A PostgreSQL that loses power may bring such a row back: its message is sent again, and that is all.
    """
    connection = connections[using]
    # A row that comes back is sent twice, which may happen anyhow: nobody need wait for the disk.
    lazily = "SET LOCAL synchronous_commit TO OFF; " if connection.vendor == "postgresql" else ""
    for start in range(0, len(ids), AT_ONCE):
        some = _listed(ids[start : start + AT_ONCE])
        _execute(connection, f"{lazily}DELETE FROM {_table(connection)} WHERE id IN ({some})")  # noqa: S608


def renew(rows: Sequence[Row], *, using: str, seconds: float) -> list[Row]:
    """Keep rows a while longer, and return them so; none where somebody else has taken any of them."""
    now = timezone.now()
    due = now + timedelta(seconds=seconds)
    mine = _mine(rows, using).filter(due_at__gt=now + timedelta(seconds=SKEW))
    return [replace(row, due_at=due) for row in rows] if mine.update(due_at=due) == len(rows) else []


def release(rows: Sequence[Row], *, using: str) -> None:
    """Leave rows to the relays, now; one that a relay has in hand is neither waited for nor taken from it."""
    now = timezone.now()
    for start in range(0, len(rows), AT_ONCE):
        _mine(rows[start : start + AT_ONCE], using).filter(due_at__gt=now).update(due_at=now)
    notify(using)


def _mine(rows: Sequence[Row], using: str) -> QuerySet[OutboxMessage]:
    """Where no rows are locked, a relay that has taken one has changed its time."""
    times = {row.due_at for row in rows if row.due_at is not None}
    return OutboxMessage.objects.using(using).filter(pk__in=[row.id for row in rows], due_at__in=times)


def put_off(row: int, *, using: str, seconds: float, tries: int, error: str) -> None:
    """Try it again later, for the reason given."""
    due = timezone.now() + timedelta(seconds=seconds)
    rows = OutboxMessage.objects.using(using).filter(pk=row)
    rows.update(due_at=due, tries=tries, error=short(error, 1000))


def give_up(row: int, *, using: str, tries: int, error: str) -> None:
    """Keep it for a person."""
    rows = OutboxMessage.objects.using(using).filter(pk=row)
    rows.update(stuck_at=timezone.now(), tries=tries, error=short(error, 1000))


def notify(using: str) -> None:
    """Wake the relays that listen; all others look by themselves."""
    connection = connections[using]
    if connection.vendor == "postgresql":
        _execute(connection, f"NOTIFY {CHANNEL}")
    for wake in list(wakers):
        wake()


def heard(using: str) -> bool:
    """Whether anybody may hear of a call."""
    return bool(wakers) or connections[using].vendor == "postgresql"


def _execute(connection: BaseDatabaseWrapper, statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


def _table(connection: BaseDatabaseWrapper) -> str:
    return connection.ops.quote_name(TABLE)


def _listed(ids: Iterable[int]) -> str:
    return ", ".join(str(int(one)) for one in ids)
