"""Which rows a relay takes: what is due, and of a key only what nothing earlier of it stands before."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from django.db import connections, transaction
from django.db.models import Exists, Min, OuterRef, Q, QuerySet
from django.utils import timezone

from django_rmq_retry.models import OutboxMessage
from django_rmq_retry.outbox.rows import READ, Row, row_of

MOST = 500
MOST_BYTES = 16 * 1024 * 1024
"""Of bodies in one batch."""


def skips_locked(using: str) -> bool:
    """Whether rows can be locked while they are on their way, and others pass over them."""
    return bool(connections[using].features.has_select_for_update_skip_locked)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a relay asks for."""

    most: int = MOST
    only: Collection[int] = ()
    """Of these; where none are named, of all."""
    without: Collection[str] = ()
    """Exchanges whose rows are not wanted now."""


@contextmanager
def claimed(using: str, wanted: Wanted, *, lease: float) -> Iterator[list[Row]]:
    """Rows that nobody else sends meanwhile: by locks until the block ends, which a death frees, or by a lease."""
    if skips_locked(using):
        with transaction.atomic(using=using):
            yield _taken(using, wanted, lock=True)
        return
    yield _leased(using, wanted, lease) if waiting(using) else []


def waiting(using: str) -> bool:
    """Whether anything is due."""
    return _due(using, timezone.now()).exists()


def next_due(using: str) -> float | None:
    """Seconds until the next row is due that is not yet."""
    now = timezone.now()
    later = OutboxMessage.objects.using(using).filter(stuck_at__isnull=True, due_at__gt=now)
    at = later.aggregate(at=Min("due_at"))["at"]
    return None if at is None else float((at - now).total_seconds())


def _due(using: str, now: datetime, without: Collection[str] = ()) -> QuerySet[OutboxMessage]:
    rows = OutboxMessage.objects.using(using).filter(stuck_at__isnull=True, due_at__lte=now)
    return rows.exclude(exchange__in=without) if without else rows


def _leased(using: str, wanted: Wanted, lease: float) -> list[Row]:
    with transaction.atomic(using=using):
        # SQLite refuses a transaction that has read when another one has written since: it writes first.
        OutboxMessage.objects.using(using).filter(pk=0).update(tries=0)
        rows = _taken(using, wanted, lock=False)
        until = timezone.now() + timedelta(seconds=lease)
        OutboxMessage.objects.using(using).filter(pk__in=[row.id for row in rows]).update(due_at=until)
    return [replace(row, due_at=until) for row in rows]


def _taken(using: str, wanted: Wanted, *, lock: bool) -> list[Row]:
    ready = _due(using, timezone.now(), wanted.without)
    ids = _heads(using, ready, wanted, lock=lock)
    keyed = [key for key in ids.values() if key]
    if keyed and len(ids) < wanted.most and not wanted.only:
        first = min(id for id, key in ids.items() if key)  # noqa: A001
        ids |= _followers(using, ready, ids, (first, wanted.most - len(ids)), lock=lock)
    found = OutboxMessage.objects.using(using).filter(pk__in=ids).order_by("pk")
    return [row_of(row) for row in found.values_list(*READ)]


def _heads(using: str, ready: QuerySet[OutboxMessage], wanted: Wanted, *, lock: bool) -> dict[int, str]:
    """Rows without a key, and the first of each key."""
    earlier = OutboxMessage.objects.using(using).filter(order_key=OuterRef("order_key"), pk__lt=OuterRef("pk"))
    rows = ready.filter(Q(order_key="") | ~Exists(earlier)).order_by("pk")
    if wanted.only:
        rows = rows.filter(pk__in=wanted.only)
    found = _locked(rows, using, lock=lock).values_list("pk", "order_key", "size")[: wanted.most]
    return _within(list(found), 0)


def _followers(
    using: str, ready: QuerySet[OutboxMessage], heads: dict[int, str], limits: tuple[int, int], *, lock: bool
) -> dict[int, str]:
    """What comes directly after the first ones of their keys: up to the first that is not due, or is in other hands."""
    keys, (first, most) = {key for key in heads.values() if key}, limits
    rows = OutboxMessage.objects.using(using).filter(order_key__in=keys, pk__gt=first).exclude(pk__in=heads)
    listed = list(rows.order_by("pk").values_list("pk", "order_key", "size")[:most])
    mine = _locked(ready.filter(pk__in=[pk for pk, _key, _size in listed]), using, lock=lock)
    free = set(mine.values_list("pk", flat=True))
    open_keys = set(keys)
    found = []
    for pk, key, size in listed:
        # A database may take two keys for one that are not: what is no head's here waits.
        if pk not in free:
            open_keys.discard(key)
        elif key in open_keys:
            found.append((pk, key, size))
    return _within(found, 0)


def _within(found: Sequence[tuple[int, str, int]], size: int) -> dict[int, str]:
    """As many as have room in a batch, and one at least."""
    taken: dict[int, str] = {}
    for pk, key, length in found:
        size += length
        if taken and size > MOST_BYTES:
            break
        taken[pk] = key
    return taken


def _locked(rows: QuerySet[OutboxMessage], using: str, *, lock: bool) -> QuerySet[OutboxMessage]:
    features = connections[using].features
    if lock:
        return rows.select_for_update(skip_locked=True, of=("self",) if features.has_select_for_update_of else ())
    return rows.select_for_update() if features.has_select_for_update else rows
