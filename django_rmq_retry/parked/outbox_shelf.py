"""Messages of the outboxes, as a search looks for them."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from django.db import router
from django.utils.translation import gettext as _

from django_rmq_retry.models import OutboxMessage
from django_rmq_retry.parked.found import Found, Room
from django_rmq_retry.parked.key_match import Beginnings
from django_rmq_retry.parked.shelves import Shelf, ShelfLook, named
from django_rmq_retry.publishing import outbox_rows

MOST_FOUND = 1000
"""The most messages that a search of one outbox finds."""


def shelves() -> Iterator[Shelf]:
    shown = router.db_for_read(OutboxMessage)
    for alias in outbox_rows.served():
        if outbox_rows.table_exists(alias):
            yield _shelf(alias, _unsent if alias == shown else _unsent_unseen)


def look_for(asked: str, *, using: str) -> ShelfLook:
    """Return a look at the messages of one outbox that this key or id names, or whose key or id begins so."""
    return ShelfLook(_shelf(using, _unsent), Beginnings([asked]), most=MOST_FOUND)


def _shelf(alias: str, found: Callable[[OutboxMessage, str, str], Found]) -> Shelf:
    rows = OutboxMessage.objects.using(alias)
    return Shelf(rows=rows, columns=("message_id", "order_key"), found=found, contents=True)


def _unsent(row: OutboxMessage, first: str, why: str) -> Found:
    words = _("In the outbox, not sent") if row.failed_at else _("In the outbox, not sent yet")
    return Found(name=named((first, str(row)), why), words=words, room=Room.OUTBOX, place=row.pk)


def _unsent_unseen(row: OutboxMessage, first: str, why: str) -> Found:
    """Of an outbox that no page shows."""
    return replace(_unsent(row, first, why), place=None)
