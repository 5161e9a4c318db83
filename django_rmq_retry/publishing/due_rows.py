"""Outbox rows that are due, claimed by a relay for one batch."""

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import accumulate
from typing import TypeAlias

from django.db import connections, transaction
from django.db.models import Exists, Min, OuterRef, Q, QuerySet

from django_rmq_retry import database_clock
from django_rmq_retry.models import OutboxMessage
from django_rmq_retry.publishing.outbox_rows import READ, SPARE_SECONDS, OutboxRow, row_from_table
from django_rmq_retry.statements import with_one_of, writing

MOST_BATCH_ROWS = 1000
MOST_BATCH_BYTES = 16 * 1024 * 1024
"""Bytes of bodies in one batch."""
Sized: TypeAlias = tuple[int, str, int]
"""The id of a row, its ordering key, and the bytes of its body."""


def skips_locked(using: str) -> bool:
    """True if the database supports SKIP LOCKED, so that rows in flight stay locked and other relays skip them."""
    return bool(connections[using].features.has_select_for_update_skip_locked)


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedRows:
    """The selection of rows for one batch."""

    most: int = MOST_BATCH_ROWS
    only: Collection[int] = ()
    """The ids of the rows to select from; all rows if empty."""
    alone: bool = False
    """True for the rows that are sent one by one, False for all others; without effect if `only` names rows."""
    without: Collection[str] = ()


@contextmanager
def claimed(using: str, wanted: WantedRows, *, lease: float) -> Iterator[list[OutboxRow]]:
    """Claim rows that no other process sends: locked until the block ends, or leased without SKIP LOCKED."""
    if skips_locked(using):
        with transaction.atomic(using=using):
            yield _take_rows(using, wanted, lock=True)
        return
    yield _lease_rows(using, wanted, lease) if waiting(using) else []


def waiting(using: str) -> bool:
    return _due(using, database_clock.now(using)).exists()


def next_due(using: str) -> float | None:
    """Return the seconds until the next row becomes due; None if no row is waiting."""
    now = database_clock.now(using)
    later = OutboxMessage.objects.using(using).filter(failed_at__isnull=True, due_at__gt=now)
    at = later.aggregate(at=Min("due_at"))["at"]
    return None if at is None else float((at - now).total_seconds())


def _due(using: str, now: datetime) -> QuerySet[OutboxMessage]:
    return OutboxMessage.objects.using(using).filter(failed_at__isnull=True, due_at__lte=now)


def _lease_rows(using: str, wanted: WantedRows, lease: float) -> list[OutboxRow]:
    with writing(OutboxMessage, using=using):
        rows = _take_rows(using, wanted, lock=False)
        until = database_clock.now(using) + timedelta(seconds=lease)
        OutboxMessage.objects.using(using).filter(pk__in=[row.id for row in rows]).update(due_at=until)
    return [replace(row, due_at=until) for row in rows]


def _take_rows(using: str, wanted: WantedRows, *, lock: bool) -> list[OutboxRow]:
    ready = _due(using, database_clock.now(using)).filter(
        *([Q(pk__in=wanted.only)] if wanted.only else [Q(alone=wanted.alone)]),
        *([~Q(exchange__in=wanted.without)] if wanted.without else []),
    )
    heads = _heads(using, ready, wanted, lock=lock)
    room = 0 if wanted.only or wanted.alone else wanted.most - len(heads)
    followers = _followers(using, ready, heads, room, lock=lock) if room else []
    ids = sorted(_within([*heads, *followers]))
    found = with_one_of(OutboxMessage.objects.using(using).order_by("pk"), "id", ids)
    until = time.monotonic() + SPARE_SECONDS
    return [row_from_table(row, until=until) for some in found for row in some.values_list(*READ)]


def _heads(using: str, ready: QuerySet[OutboxMessage], wanted: WantedRows, *, lock: bool) -> list[Sized]:
    """Return the due rows without an ordering key, and the first row of each ordering key."""
    earlier = OutboxMessage.objects.using(using).filter(order_key=OuterRef("order_key"), pk__lt=OuterRef("pk"))
    rows = ready.filter(Q(order_key="") | ~Exists(earlier)).order_by("pk")
    return list(rows.select_for_update(skip_locked=lock).values_list("pk", "order_key", "size")[: wanted.most])


def _followers(
    using: str, ready: QuerySet[OutboxMessage], heads: Sequence[Sized], most: int, *, lock: bool
) -> list[Sized]:
    """Return the rows behind the first ones of their keys, up to one that is not due or claimed elsewhere."""
    open_keys = {key for _pk, key, _size in heads if key}
    if not open_keys:
        return []
    first, known = min(pk for pk, key, _size in heads if key), [pk for pk, _key, _size in heads]
    rows = OutboxMessage.objects.using(using).filter(order_key__in=open_keys, pk__gt=first).exclude(pk__in=known)
    listed = list(rows.order_by("pk").values_list("pk", "order_key", "size")[:most])
    mine = ready.filter(pk__in=[pk for pk, _key, _size in listed]).select_for_update(skip_locked=lock)
    free = set(mine.values_list("pk", flat=True))
    found = []
    for pk, key, size in listed:
        # A database collation may treat different ordering keys as equal, so compare again here. Rows of other keys
        # wait for a later batch.
        if pk not in free:
            open_keys.discard(key)
        elif key in open_keys:
            found.append((pk, key, size))
    return found


def _within(rows: Sequence[Sized]) -> list[int]:
    """Return the ids of the first rows that fit MOST_BATCH_BYTES of a batch, at least one."""
    fitting = sum(total <= MOST_BATCH_BYTES for total in accumulate(size for _pk, _key, size in rows))
    return [pk for pk, _key, _size in rows[: max(1, fitting)]]
