"""Where a message may be that has no record: in the outbox, at a blocked key, at the head of a halted queue."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import reduce
from operator import or_
from typing import Any

from django.db import Error, connections, router
from django.db.models import Q
from django.db.models.functions import Length
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_rmq_retry.messages.texts import COLUMN_BYTES, short
from django_rmq_retry.models import BlockedKey, BlockedMessage, OutboxMessage, QueueControl
from django_rmq_retry.models.parked import folded
from django_rmq_retry.ordering.keys import keys_alias
from django_rmq_retry.parked.outbox_keys import MOST_LISTED_BYTES, keys_behind, keys_of
from django_rmq_retry.publishing import outbox_rows
from django_rmq_retry.statements import with_one_of

MOST_NAMED = 5
MOST_WORDS = 10
"""The most words of one search that are looked for: several words are several keys."""
MOST_ROWS = 20_000
"""The most rows of one query that a list of keys reads: several messages may have one key."""
MOST_DECODED = 200
"""The most messages of an outbox, or behind blocked keys, whose bodies are read for their business keys."""


class Room(Enum):
    """A place of messages that were not parked, or not yet."""

    OUTBOX = gettext_lazy("the outbox, by business key its latest %(most)d small messages that a handler here takes")
    KEYS = gettext_lazy("blocked keys, by business key the latest %(most)d small messages behind them")
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


def places_of(keys: Sequence[str], rooms: Sequence[Room] = tuple(Room)) -> dict[str, list[Found]]:
    """Return what each of these keys and ids names exactly in these rooms, a few things for each."""
    asked = dict[str, list[str]]()
    for key in keys:
        asked.setdefault(short(key, COLUMN_BYTES), []).append(key)
    found = dict[str, list[Found]]()
    for room in rooms if asked else ():
        # A room may not be readable: what the others have is named all the same.
        with suppress(Error):
            for text, one in NAMED[room](list(asked)):
                # Some databases treat texts as equal that differ in case, accents or trailing spaces.
                for key in asked.get(text, ()):
                    if one not in found.setdefault(key, []) and len(found[key]) < MOST_NAMED:
                        found[key].append(one)
    return found


def _outboxes() -> Iterator[tuple[Any, bool]]:
    """Yield the rows of each outbox, and True if a page shows them."""
    shown = router.db_for_read(OutboxMessage)
    for alias in outbox_rows.served():
        if outbox_rows.table_exists(alias):
            yield OutboxMessage.objects.using(alias).order_by("-pk"), alias == shown


def _latest(rows: Any) -> Iterator[tuple[OutboxMessage, list[str]]]:
    """Yield the messages of an outbox whose bodies are read, with their business keys."""
    for row in rows.filter(size__lte=MOST_LISTED_BYTES)[:MOST_DECODED]:
        yield row, keys_of(row, bytes(row.body))


def _unsent(row: OutboxMessage, *, shown: bool) -> Found:
    words = _("In the outbox, not sent") if row.failed_at else _("In the outbox, not sent yet")
    return Found(name=str(row), words=words, room=Room.OUTBOX, place=row.pk if shown else None)


def _first(row: BlockedKey) -> Found:
    name = _("%(key)s, where %(message)s goes first") % {"key": row.key, "message": row.blocker}
    return Found(name=name, words=_("Blocked ordering key"), room=Room.KEYS, place=row.key)


def _behind(row: BlockedMessage) -> Found:
    name = _("%(message)s, behind %(key)s") % {"message": row.shown, "key": row.block.key}
    return Found(name=name, words=_("Waits for a blocked ordering key"), room=Room.KEYS, place=row.block.key)


def _halted(row: QueueControl) -> Found:
    name = _("%(message)s, first in %(queue)s") % {"message": row.halted_message, "queue": row.queue}
    return Found(name=name, words=_("In a halted queue"), room=Room.QUEUES, place=row.queue)


def _blocked() -> Any:
    return BlockedMessage.objects.using(keys_alias()).select_related("block").defer("body", "properties")


def _waiting() -> Iterator[tuple[BlockedMessage, list[str]]]:
    """Yield the latest messages behind blocked keys whose bodies are read, with their business keys."""
    rows = BlockedMessage.objects.using(keys_alias()).select_related("block").order_by("-pk")
    for row in rows.annotate(size=Length("body")).filter(size__lte=MOST_LISTED_BYTES)[:MOST_DECODED]:
        yield row, keys_behind(row)


def _halts() -> Any:
    return QueueControl.objects.filter(halted_at__isnull=False)


def _in_outbox(texts: Sequence[str]) -> Iterator[Found]:
    for rows, shown in _outboxes():
        named = rows.filter(_begins(texts, "message_id", "order_key")).defer("body", "properties")
        by_key = (row for row, keys in _latest(rows) if _any_begins(keys, texts))
        known = {row.pk: row for row in (*named[:MOST_NAMED], *by_key)}
        yield from (_unsent(row, shown=shown) for row in list(known.values())[:MOST_NAMED])


def _at_blocked_keys(texts: Sequence[str]) -> Iterator[Found]:
    yield from map(_first, BlockedKey.objects.using(keys_alias()).filter(_begins(texts, "key", "blocker"))[:MOST_NAMED])
    named = _blocked().filter(_begins(texts, "shown"))
    by_key = (row for row, keys in _waiting() if _any_begins(keys, texts))
    known = {row.pk: row for row in (*named[:MOST_NAMED], *by_key)}
    yield from map(_behind, list(known.values())[:MOST_NAMED])


def _in_halted_queues(texts: Sequence[str]) -> Iterator[Found]:
    yield from map(_halted, _halts().filter(_begins(texts, "halted_message"))[:MOST_NAMED])


def _named_in_outbox(texts: Sequence[str]) -> Iterator[tuple[str, Found]]:
    for rows, shown in _outboxes():
        for column in ("message_id", "order_key"):
            for row in _with_one_of(rows.defer("body", "properties"), column, texts):
                yield getattr(row, column), _unsent(row, shown=shown)
        for row, keys in _latest(rows):
            yield from ((short(key, COLUMN_BYTES), _unsent(row, shown=shown)) for key in keys)


def _named_at_blocked_keys(texts: Sequence[str]) -> Iterator[tuple[str, Found]]:
    for column in ("key", "blocker"):
        for row in _with_one_of(BlockedKey.objects.using(keys_alias()), column, texts):
            yield getattr(row, column), _first(row)
    yield from ((row.shown, _behind(row)) for row in _with_one_of(_blocked(), "shown", texts))
    for row, keys in _waiting():
        yield from ((short(key, COLUMN_BYTES), _behind(row)) for key in keys)


def _named_in_halted_queues(texts: Sequence[str]) -> Iterator[tuple[str, Found]]:
    yield from ((row.halted_message, _halted(row)) for row in _with_one_of(_halts(), "halted_message", texts))


def _with_one_of(rows: Any, column: str, texts: Sequence[str]) -> Iterator[Any]:
    # No index has these columns, so that each query reads all rows.
    most = 0 if connections[rows.db].vendor == "sqlite" else len(texts)
    for some in with_one_of(rows, column, texts, most=most):
        yield from some[:MOST_ROWS]


SEARCHES: dict[Room, Callable[[Sequence[str]], Iterator[Found]]] = {
    Room.OUTBOX: _in_outbox,
    Room.KEYS: _at_blocked_keys,
    Room.QUEUES: _in_halted_queues,
}

NAMED: dict[Room, Callable[[Sequence[str]], Iterable[tuple[str, Found]]]] = {
    Room.OUTBOX: _named_in_outbox,
    Room.KEYS: _named_at_blocked_keys,
    Room.QUEUES: _named_in_halted_queues,
}


def _begins(texts: Sequence[str], *fields: str) -> Q:
    return reduce(or_, (Q(**{f"{field}__istartswith": text}) for field in fields for text in texts))


def _any_begins(keys: Sequence[str], texts: Sequence[str]) -> bool:
    return any(folded(key).startswith(folded(text)) for key in keys for text in texts)
