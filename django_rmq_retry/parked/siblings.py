"""Siblings: parked messages that are one message, published several times.

A sender that publishes a payment again gives it another id, so each copy has a record of its own. They are siblings if
queue, type, first business key and body are the same. A message without a business key has none: a heartbeat is
repeated on purpose. One of several siblings is sent, and the others only if an operator includes them.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from django.db.models import Count, Exists, Min, OuterRef, Q, QuerySet

from django_rmq_retry.messages.identity import text_digest
from django_rmq_retry.models import ItemReason, ParkedMessage
from django_rmq_retry.models.parked import FOR_ANOTHER, OPEN, State, discarded_for
from django_rmq_retry.parked.may_have_run import may_have_run
from django_rmq_retry.statements import KEYS_AT_ONCE, ROWS_AT_ONCE, in_slices, with_one_of

DIGITS = 15
"""Of the hexadecimal digest: as many as fit into a number of 64 bits."""
EITHER = (False, True)
"""Whether marked or not: the index begins with the mark."""
PERHAPS_DONE = Q(state=State.DISCARDED) & ~discarded_for(FOR_ANOTHER)
"""The discarded messages whose effect somebody may have had by hand, or did not want."""
RESTORED = Q(state__in=OPEN, restored=True)
"""The open messages whose discard was undone, but by its reason somebody may have done what they request."""
SENT = Q(succeeded_at__isnull=False) | Q(state__in=(State.REQUEUEING, State.REQUEUED, State.PROCESSED))
"""The messages that were handled, or may be at any moment."""
Rows = QuerySet[ParkedMessage]


def content_of(queue: str, kind: str, business_key: str, sha256: str) -> int | None:
    """Return the number that a message shares with its siblings; None if it can have none."""
    return int(text_digest(queue, kind, business_key, sha256)[:DIGITS], 16) if business_key else None


def mark(contents: Iterable[int | None], *, using: str) -> None:
    """Mark the messages that have siblings: a preview of very many compares only these.

    Call it after the commit of a new message, because another process may store its sibling at the same time: the one
    that commits last sees both.
    """
    for rows in _with_contents({*contents} - {None}, using):
        counts = rows.values_list("content").annotate(count=Count("*"))
        for shared in _with_contents([content for content, count in counts if count > 1], using):
            shared.filter(has_siblings=False).update(has_siblings=True)


def store_contents(edited: Mapping[int, str], *, using: str) -> None:
    """Store what edits made of these messages, which are locked: each with the SHA-256 of its new body."""
    records = ParkedMessage.objects.using(using)
    for numbers in in_slices(edited, KEYS_AT_ONCE):
        rows = list(records.filter(pk__in=numbers).only("queue", "type", "business_key", "content", "has_siblings"))
        for row in rows:
            row.content = content_of(row.queue, row.type, row.business_key, edited[row.pk])
            row.has_siblings = False
        records.bulk_update(rows, ["content", "has_siblings"], batch_size=ROWS_AT_ONCE)
        mark((row.content for row in rows), using=using)


def firsts(contents: Iterable[int | None], *, using: str) -> list[int]:
    """Return the first message of each of these contents that several messages have.

    A driver locks it before it sends one of them, so two drivers never send two of them at once.
    """
    counts = [
        rows.values_list("content").annotate(count=Count("*"), first=Min("pk"))
        for rows in _with_contents({*contents} - {None}, using)
    ]
    return [first for some in counts for _content, count, first in some if count > 1]


def _with_contents(contents: Collection[Any], using: str) -> Iterable[Rows]:
    return with_one_of(
        ParkedMessage.objects.using(using).filter(has_siblings__in=EITHER).order_by(), "content", contents
    )


def kept_back(chosen: Q, under_way: Q, now: datetime) -> Q:
    """Match the open messages with a sibling that was sent, waits for a decision of an operator, or is sent first.

    The first one is the oldest of the chosen ones, because messages are sent in this order. Both conditions are asked
    of siblings only.
    """
    alike = others(has_siblings=True)
    earlier = Q(parked_at__lt=OuterRef("parked_at")) | Q(parked_at=OuterRef("parked_at"), pk__lt=OuterRef("pk"))
    earlier &= Q(state__in=OPEN) & chosen
    waits = _waits(now)
    # Of two that both wait, and were included, the first one is sent.
    before = ~waits & Exists(alike.filter(waits | earlier)) | waits & Exists(alike.filter(waits & earlier))
    gone = Exists(alike.filter(SENT | under_way))
    return Q(state__in=OPEN, has_siblings=True) & (gone | before)


def kept_back_since(
    messages: Sequence[ParkedMessage], include: Collection[str], now: datetime, *, using: str
) -> Mapping[int, ItemReason]:
    """Return which of these messages, the next ones of a run, must not be sent after all, each with the reason.

    A sibling was sent, held or discarded after they were chosen, or was stored at the same moment.
    """
    found: dict[int, ItemReason] = {}
    alike, waits = others(has_siblings__in=EITHER), _waits(now)
    rows = ParkedMessage.objects.using(using).filter(pk__in=[message.pk for message in messages])
    if "key_discarded" not in include:
        discarded = rows.filter(Exists(alike.filter(PERHAPS_DONE)))
        found |= dict.fromkeys(discarded.values_list("pk", flat=True), ItemReason.KEY_DISCARDED)
    if "copies" not in include:
        kept = rows.filter(Q(Exists(alike.filter(SENT))) | ~waits & Exists(alike.filter(waits)))
        found |= dict.fromkeys(kept.values_list("pk", flat=True), ItemReason.COPIES)
        first: dict[int | None, int] = {}
        for message in messages:
            if message.pk not in found and first.setdefault(message.content, message.pk) != message.pk:
                found[message.pk] = ItemReason.COPIES
    return found


def others(**which: Any) -> Rows:
    """Return the siblings of the message of an outer query."""
    return ParkedMessage.objects.filter(content=OuterRef("content"), **which).exclude(pk=OuterRef("pk"))


def _waits(now: datetime) -> Q:
    """Match the open messages that only an operator may send, whatever becomes of their siblings."""
    held = Q(state=State.ON_HOLD) & ~Q(held_until__lte=now)
    unsure = Q(unconfirmed=True) | may_have_run() | Q(discarded_at__isnull=False)
    return held | RESTORED | Q(state__in=OPEN) & unsure
