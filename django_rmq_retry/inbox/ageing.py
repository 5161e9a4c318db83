"""Forgets what was handled long ago; never what may still be sent back by a person."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from django.db import router
from django.db.models import Min, Q
from django.utils import timezone

from django_rmq_retry import registry
from django_rmq_retry.conf import settings
from django_rmq_retry.core.naming import nameless
from django_rmq_retry.core.subscription import Subscription
from django_rmq_retry.inbox.running import alias_of
from django_rmq_retry.models import InboxEntry, ParkedMessage
from django_rmq_retry.models.messages import UNRESOLVED
from django_rmq_retry.models.walking import behind

BATCH = 500
TURN = 8
"""So many batches, then others get the thread."""
Row = tuple[datetime, UUID, str, str]
"""When it was handled, the key, the handler, the name."""
Longer = Mapping[tuple[str, bool], datetime]
"""By handler, and whether the entry's name is made of bytes."""


@dataclass(slots=True)
class Ageing:
    """A chore. It walks from the oldest entry on and remembers where it was: what has to stay is not met each time."""

    _reached: dict[str, tuple[datetime, UUID]] = field(default_factory=dict)

    def __call__(self) -> bool:
        """Delete a part of what is old enough; tell whether there may be more."""
        once = [one for one in registry.subscriptions() if one.once]
        before = timezone.now() - timedelta(days=settings().inbox_days)
        more = [self._turn(alias, before, once) for alias in sorted({alias_of(one) for one in once})]
        return any(more)

    def _turn(self, alias: str, before: datetime, once: Collection[Subscription]) -> bool:
        longer: Longer | None = None
        for _ in range(TURN):
            rows = self._next(alias, before)
            if rows and longer is None:
                longer = kept_longer(once)
            due = [row for row in rows if not _kept(row, longer or {})]
            forget(alias, due)
            if len(rows) < BATCH:
                self._reached.pop(alias, None)
                return False
            self._reached[alias] = rows[-1][:2]
        return True

    def _next(self, alias: str, before: datetime) -> list[Row]:
        rows = InboxEntry.objects.using(alias).filter(handled_at__lt=before)
        reached = self._reached.get(alias)
        if reached is not None:
            at, key = reached
            rows = rows.filter(behind("handled_at", at, "key", key))
        ordered = rows.order_by("handled_at", "key")
        return list(ordered.values_list("handled_at", "key", "handler", "name")[:BATCH])


def forget(alias: str, rows: Collection[Row]) -> int:
    """Delete these, but for those whose message is parked and not resolved."""
    if not rows:
        return 0
    parked = ParkedMessage.objects.using(router.db_for_read(ParkedMessage))
    found = parked.filter(message_id__in={name for _, _, _, name in rows}, state__in=UNRESOLVED)
    # What the broker has parked itself tells of no handler.
    still = set(found.values_list("handler", "message_id"))
    keys = [key for _, key, handler, name in rows if not still & {(handler, name), ("", name)}]
    InboxEntry.objects.using(alias).filter(key__in=keys).delete()
    return len(keys)


def kept_longer(once: Collection[Subscription]) -> Longer:
    """Of each handler with open records: up to when entries go whose name no record tells.

    Its oldest open record may be about what was handled until so many days before it came.
    """
    days = timedelta(days=settings().inbox_days)
    parked = ParkedMessage.objects.using(router.db_for_read(ParkedMessage)).filter(state__in=UNRESOLVED)
    found: dict[tuple[str, bool], datetime] = {}
    for one in once:
        of_it = Q(handler=one.name) | Q(handler="", queue=one.queue.name)
        if one.once is True:
            of_it &= Q(message_id="")
        oldest = parked.filter(of_it).aggregate(oldest=Min("parked_at"))["oldest"]
        if oldest is not None:
            # By its id a record is found; by what a function says, or by bytes, it is not.
            found |= {(one.name, made): oldest - days for made in ((True,) if one.once is True else (True, False))}
    return found


def _kept(row: Row, longer: Longer) -> bool:
    at, _, handler, name = row
    until = longer.get((handler, nameless(name)))
    return until is not None and at >= until
