"""Deletes old inbox entries and closes twins."""

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from django.db import router
from django.db.models import Min, Q, QuerySet

from django_rmq_retry import server
from django_rmq_retry.conf import settings
from django_rmq_retry.handlers import registry
from django_rmq_retry.handlers.subscription import Subscription
from django_rmq_retry.inbox.names import digest_of, key_by_id
from django_rmq_retry.inbox.once import alias_of
from django_rmq_retry.messages.parked import nameless
from django_rmq_retry.models import InboxEntry, ParkedMessage, State
from django_rmq_retry.models.parked import UNRESOLVED, behind
from django_rmq_retry.parked.claims import handled_elsewhere

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
        days = timedelta(days=settings().inbox_days)
        times = {alias: server.trusted(alias) for alias in sorted({alias_of(one) for one in once})}
        more = [self._turn(alias, now - days, once) for alias, now in times.items() if now is not None]
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


log = logging.getLogger("django_rmq_retry")

EVERY = 60.0
"""Seconds between two walks over what is parked."""
TWINS_TURN = 4
"""So many batches, then others get the thread."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A record that waits for a person, and whose message its handler would know again by its id."""

    pk: int
    parked_at: datetime
    handler: str
    message_id: str

    @property
    def key(self) -> UUID:
        return UUID(key_by_id(self.handler, self.message_id))


class Twins:
    """A chore. It walks over what is parked for each handler, the oldest first, and remembers where it was."""

    def __init__(self) -> None:
        self._reached: dict[str, tuple[datetime, int]] = {}

    def __call__(self) -> bool:
        """Close what was handled in a part of them; tell whether there are more."""
        more = [self._turn(one) for one in registry.subscriptions() if one.once is True]
        return any(more)

    def _turn(self, subscription: Subscription) -> bool:
        name = subscription.name
        for _ in range(TWINS_TURN):
            rows = self._next(subscription)
            _close(alias_of(subscription), rows)
            if len(rows) < BATCH:
                self._reached.pop(name, None)
                return False
            self._reached[name] = rows[-1].parked_at, rows[-1].pk
        return True

    def _next(self, subscription: Subscription) -> list[Waiting]:
        # By the index over queues: many that are parked elsewhere cost nothing.
        rows = _parked().filter(queue=subscription.queue.name, state=State.PARKED, handler=subscription.name, version=1)
        reached = self._reached.get(subscription.name)
        if reached is not None:
            at, pk = reached
            rows = rows.filter(behind("parked_at", at, "pk", pk))
        ordered = rows.exclude(message_id="").order_by("parked_at", "pk")
        return [Waiting(*row) for row in ordered.values_list("pk", "parked_at", "handler", "message_id")[:BATCH]]


def _close(alias: str, rows: Iterable[Waiting]) -> None:
    known = {row.key: row for row in rows if not nameless(row.message_id)}
    if not known:
        return
    entries = InboxEntry.objects.using(alias).filter(key__in=known)
    found = {key: (digest, at) for key, digest, at in entries.values_list("key", "digest", "handled_at")}
    for row, at in _same(known, found):
        if handled_elsewhere(row.pk, at):
            said = "Message %r of %s was parked, and another copy of it was handled: its record %s is closed"
            extra = {"event": "twin_handled", "handler": row.handler, "message_id": row.message_id}
            log.info(said, row.message_id, row.handler, row.pk, extra=extra)


def _same(
    known: Mapping[UUID, Waiting], found: Mapping[UUID, tuple[UUID, datetime]]
) -> Iterator[tuple[Waiting, datetime]]:
    """Those with the very body that was handled, and when; another body under the same id is another message."""
    for key, (digest, at) in found.items():
        row = known[key]
        body = _parked().filter(pk=row.pk).values_list("body", flat=True).first()
        if body is not None and digest_of(bytes(body)) == digest:
            yield row, at


def _parked() -> QuerySet[ParkedMessage]:
    return ParkedMessage.objects.using(router.db_for_write(ParkedMessage))
