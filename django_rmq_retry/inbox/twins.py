"""Closes records whose message was handled after all: by a copy of it, as the inbox knows for certain."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db import router
from django.db.models import QuerySet

from django_rmq_retry import registry
from django_rmq_retry.core.naming import nameless
from django_rmq_retry.core.subscription import Subscription
from django_rmq_retry.inbox.naming import digest_of, key_by_id
from django_rmq_retry.inbox.running import alias_of
from django_rmq_retry.models import InboxEntry, ParkedMessage, State
from django_rmq_retry.models.walking import behind
from django_rmq_retry.records.outcomes import handled_elsewhere

log = logging.getLogger("django_rmq_retry")

EVERY = 60.0
"""Seconds between two walks over what is parked."""
BATCH = 500
TURN = 4
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
        for _ in range(TURN):
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
            extra = {"event": "twin handled", "handler": row.handler, "message_id": row.message_id}
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
