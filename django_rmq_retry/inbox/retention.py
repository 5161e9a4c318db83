"""Deletes old inbox entries, and closes records of parked messages of which another copy was handled (twins)."""

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from django.db import router
from django.db.models import Min, Q, QuerySet

from django_rmq_retry import database_clock
from django_rmq_retry.conf import settings
from django_rmq_retry.handlers import registry
from django_rmq_retry.handlers.subscription import Subscription
from django_rmq_retry.inbox.names import digest_of, key_by_id
from django_rmq_retry.inbox.once import alias_of
from django_rmq_retry.messages.identity import named_by_bytes
from django_rmq_retry.models import InboxEntry, ParkedMessage, State
from django_rmq_retry.models.parked import UNRESOLVED, behind
from django_rmq_retry.parked.outcomes import handled_elsewhere

log = logging.getLogger("django_rmq_retry")

BATCH_ENTRIES = 500
TURN_BATCHES = 8
"""Batches in one turn, after which other chores get the thread."""
EntryRow = tuple[datetime, UUID, str, str]
"""The time of handling, the key, the handler and the name of an entry."""
Longer = Mapping[tuple[str, bool], datetime]
"""The time from which entries are kept, by handler and by a flag that is True for names made of bytes."""

TWINS_SECONDS = 60.0
TWINS_TURN_BATCHES = 4
"""Batches in one turn, after which other chores get the thread."""


@dataclass(slots=True)
class EntryRetention:
    """The chore that deletes old entries; its position is remembered, so that kept entries are read once."""

    _reached: dict[str, tuple[datetime, UUID]] = field(default_factory=dict)

    def __call__(self) -> bool:
        """Delete some of the entries that are old enough. True if there may be more."""
        once = [one for one in registry.subscriptions() if one.once]
        days = timedelta(days=settings().inbox_days)
        times = {alias: database_clock.trusted(alias) for alias in sorted({alias_of(one) for one in once})}
        more = [self._turn(alias, now - days, once) for alias, now in times.items() if now is not None]
        return any(more)

    def _turn(self, alias: str, before: datetime, once: Collection[Subscription]) -> bool:
        longer: Longer | None = None
        for _ in range(TURN_BATCHES):
            rows = self._next(alias, before)
            if rows and longer is None:
                longer = kept_longer(once)
            due = [row for row in rows if not _kept(row, longer or {})]
            delete_entries(alias, due, once)
            if len(rows) < BATCH_ENTRIES:
                self._reached.pop(alias, None)
                return False
            self._reached[alias] = rows[-1][:2]
        return True

    def _next(self, alias: str, before: datetime) -> list[EntryRow]:
        rows = InboxEntry.objects.using(alias).filter(handled_at__lt=before)
        reached = self._reached.get(alias)
        if reached is not None:
            at, key = reached
            rows = rows.filter(behind("handled_at", at, "key", key))
        ordered = rows.order_by("handled_at", "key")
        return list(ordered.values_list("handled_at", "key", "handler", "name")[:BATCH_ENTRIES])


def delete_entries(alias: str, rows: Collection[EntryRow], once: Iterable[Subscription] = ()) -> int:
    """Delete entries, except those whose message is parked and not resolved. Return the number deleted."""
    if not rows:
        return 0
    parked = ParkedMessage.objects.using(router.db_for_read(ParkedMessage))
    parked_again = parked.filter(message_id__in={name for _, _, _, name in rows}, state__in=UNRESOLVED)
    # A message parked by the broker itself has no handler in its record, and one of a renamed handler its new name.
    stored_as = {name: one.inbox_name for one in once for name in one.names}
    records = parked_again.values_list("handler", "message_id")
    still = {(stored_as.get(handler, handler), message_id) for handler, message_id in records}
    keys = [key for _, key, handler, name in rows if not still & {(stored_as.get(handler, handler), name), ("", name)}]
    InboxEntry.objects.using(alias).filter(key__in=keys).delete()
    return len(keys)


def kept_longer(once: Collection[Subscription]) -> Longer:
    """Return, for each handler with open records, the time from which entries are kept that no record can name.

    The oldest open record may concern a message handled up to the retention period before it was parked.
    """
    days = timedelta(days=settings().inbox_days)
    parked = ParkedMessage.objects.using(router.db_for_read(ParkedMessage)).filter(state__in=UNRESOLVED)
    oldest_times: dict[tuple[str, bool], datetime] = {}
    for one in once:
        of_it = Q(handler__in=one.names) | Q(handler="", queue=one.queue.name)
        if one.once is True:
            of_it &= Q(message_id="")
        oldest = parked.filter(of_it).aggregate(oldest=Min("parked_at"))["oldest"]
        if oldest is not None:
            # A record can be found by message id, but not by the result of a once=… function or by a name made of
            # bytes.
            kinds = (True,) if one.once is True else (True, False)
            oldest_times |= {(name, by_bytes): oldest - days for name in one.names for by_bytes in kinds}
    return oldest_times


def _kept(row: EntryRow, longer: Longer) -> bool:
    at, _, handler, name = row
    until = longer.get((handler, named_by_bytes(name)))
    return until is not None and at >= until


@dataclass(frozen=True, slots=True)
class OpenRecord:
    """A record that waits for an operator, of a message that its handler recognizes by its id."""

    pk: int
    parked_at: datetime
    handler: str
    message_id: str


class Twins:
    """The chore that closes records of twins, the oldest first; its position is remembered."""

    def __init__(self) -> None:
        self._reached: dict[str, tuple[datetime, int]] = {}

    def __call__(self) -> bool:
        """Read some of the records and close those of handled messages. True if there are more."""
        more = [self._turn(one) for one in registry.subscriptions() if one.once is True]
        return any(more)

    def _turn(self, subscription: Subscription) -> bool:
        name = subscription.name
        for _ in range(TWINS_TURN_BATCHES):
            rows = self._next(subscription)
            _close(subscription, rows)
            if len(rows) < BATCH_ENTRIES:
                self._reached.pop(name, None)
                return False
            self._reached[name] = rows[-1].parked_at, rows[-1].pk
        return True

    def _next(self, subscription: Subscription) -> list[OpenRecord]:
        # The filter by queue uses an index, so that many messages parked in other queues cost nothing.
        rows = _parked().filter(queue=subscription.queue.name, state=State.PARKED, version=1)
        rows = rows.filter(handler__in=subscription.names)
        reached = self._reached.get(subscription.name)
        if reached is not None:
            at, pk = reached
            rows = rows.filter(behind("parked_at", at, "pk", pk))
        ordered = rows.exclude(message_id="").order_by("parked_at", "pk")
        return [
            OpenRecord(*row) for row in ordered.values_list("pk", "parked_at", "handler", "message_id")[:BATCH_ENTRIES]
        ]


def _close(subscription: Subscription, rows: Iterable[OpenRecord]) -> None:
    named = [row for row in rows if not named_by_bytes(row.message_id)]
    row_by_key = {UUID(key_by_id(name, row.message_id)): row for row in named for name in subscription.names}
    if not row_by_key:
        return
    entries = InboxEntry.objects.using(alias_of(subscription)).filter(key__in=row_by_key)
    handled = {key: (digest, at) for key, digest, at in entries.values_list("key", "digest", "handled_at")}
    for row, at in _same(row_by_key, handled):
        if handled_elsewhere(row.pk, at):
            text = "Message %r of %s was parked, and another copy of it was handled. Its record %s is closed"
            extra = {"event": "twin_handled", "handler": row.handler, "message_id": row.message_id}
            log.info(text, row.message_id, row.handler, row.pk, extra=extra)


def _same(
    row_by_key: Mapping[UUID, OpenRecord], handled: Mapping[UUID, tuple[UUID, datetime]]
) -> Iterator[tuple[OpenRecord, datetime]]:
    """Yield the records with the handled message's body, and its time; another body is another message."""
    for key, (digest, at) in handled.items():
        row = row_by_key[key]
        body = _parked().filter(pk=row.pk).values_list("body", flat=True).first()
        if body is not None and digest_of(bytes(body)) == digest:
            yield row, at


def _parked() -> QuerySet[ParkedMessage]:
    return ParkedMessage.objects.using(router.db_for_write(ParkedMessage))
