"""Where a message may be that has no record: in the outbox, at a blocked key, at the head of a halted queue."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import reduce
from operator import or_
from typing import Any

from django.db import Error, router
from django.db.models import Q
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_rmq_retry.messages.texts import COLUMN_BYTES, short
from django_rmq_retry.models import BlockedKey, BlockedMessage, OutboxMessage, QueueControl
from django_rmq_retry.models.parked import folded
from django_rmq_retry.ordering.keys import keys_alias
from django_rmq_retry.parked.outbox_keys import MOST_LISTED_BYTES, keys_of
from django_rmq_retry.publishing import outbox_rows

MOST_NAMED = 5
MOST_WORDS = 10
"""The most words of one search that are looked for: several words are several keys."""
MOST_DECODED = 200
"""The most messages of an outbox, the latest first, whose bodies are read for their business keys."""


class Room(Enum):
    """A place of messages that were not parked, or not yet."""

    OUTBOX = gettext_lazy("the outbox, by business key its latest %(most)d small messages")
    KEYS = gettext_lazy("blocked keys")
    QUEUES = gettext_lazy("the first messages of halted queues")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Something that a search has found in a room."""

    name: str
    words: str
    """Where it is, as the beginning of a line."""
    room: Room
    place: object
    """What leads to it: the number of a row of the outbox, a key, or a queue; None if no page shows it."""

    def __str__(self) -> str:
        return f"{self.words}: {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """What a search has found besides records, and where it has looked."""

    found: Sequence[Found] = ()
    searched: Sequence[Room] = ()

    @property
    def limits(self) -> str:
        """Say where else was searched, and that a message may exist or have existed that is found nowhere."""
        places = "; ".join(str(room.value) % {"most": MOST_DECODED} for room in self.searched)
        also = _("Also searched: %(places)s.") % {"places": places}
        return " ".join([*([also] if self.searched else []), _not_found()])


def _not_found() -> str:
    return _(
        "Not searched: messages that wait in a queue of RabbitMQ. A message that was handled without being parked is "
        "not stored here. So it may have come although it is not found."
    )


def elsewhere(asked: str, rooms: Sequence[Room] = tuple(Room)) -> Elsewhere:
    """Look in these rooms for a key or id, or how one begins, without regard to case; a room may not be readable."""
    words = asked.split()
    texts = [short(text, COLUMN_BYTES) for text in dict.fromkeys([asked.strip(), *words[:MOST_WORDS]]) if text.strip()]
    found, searched = list[Found](), list[Room]()
    for room in rooms if texts else ():
        try:
            found += SEARCHES[room](texts)
        except Error:
            continue
        searched.append(room)
    return Elsewhere(found=found, searched=searched)


def _in_outbox(texts: Sequence[str]) -> Iterator[Found]:
    shown = router.db_for_read(OutboxMessage)
    for alias in outbox_rows.served():
        if not outbox_rows.table_exists(alias):
            continue
        rows: Any = OutboxMessage.objects.using(alias)
        named = rows.filter(_begins(texts, "message_id", "order_key")).defer("body", "properties").order_by("-pk")
        latest = rows.filter(size__lte=MOST_LISTED_BYTES).order_by("-pk")[:MOST_DECODED]
        by_key = (row for row in latest if _any_begins(keys_of(row, bytes(row.body)), texts))
        known = {row.pk: row for row in (*named[:MOST_NAMED], *by_key)}
        for row in list(known.values())[:MOST_NAMED]:
            words = _("In the outbox, not sent") if row.failed_at else _("In the outbox, not sent yet")
            yield Found(name=str(row), words=words, room=Room.OUTBOX, place=row.pk if alias == shown else None)


def _at_blocked_keys(texts: Sequence[str]) -> Iterator[Found]:
    for row in BlockedKey.objects.using(keys_alias()).filter(_begins(texts, "key", "blocker"))[:MOST_NAMED]:
        name = _("%(key)s, where %(message)s goes first") % {"key": row.key, "message": row.blocker}
        yield Found(name=name, words=_("Blocked ordering key"), room=Room.KEYS, place=row.key)
    behind = BlockedMessage.objects.using(keys_alias()).filter(_begins(texts, "shown")).select_related("block")
    for one in behind.defer("body", "properties")[:MOST_NAMED]:
        name = _("%(message)s, behind %(key)s") % {"message": one.shown, "key": one.block.key}
        yield Found(name=name, words=_("Waits for a blocked ordering key"), room=Room.KEYS, place=one.block.key)


def _in_halted_queues(texts: Sequence[str]) -> Iterator[Found]:
    halted = QueueControl.objects.filter(_begins(texts, "halted_message"), halted_at__isnull=False)
    for row in halted[:MOST_NAMED]:
        name = _("%(message)s, first in %(queue)s") % {"message": row.halted_message, "queue": row.queue}
        yield Found(name=name, words=_("In a halted queue"), room=Room.QUEUES, place=row.queue)


SEARCHES: dict[Room, Callable[[Sequence[str]], Iterator[Found]]] = {
    Room.OUTBOX: _in_outbox,
    Room.KEYS: _at_blocked_keys,
    Room.QUEUES: _in_halted_queues,
}


def _begins(texts: Sequence[str], *fields: str) -> Q:
    return reduce(or_, (Q(**{f"{field}__istartswith": text}) for field in fields for text in texts))


def _any_begins(keys: Sequence[str], texts: Sequence[str]) -> bool:
    return any(folded(key).startswith(folded(text)) for key in keys for text in texts)
