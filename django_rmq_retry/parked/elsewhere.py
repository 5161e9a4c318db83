"""Where a message without a record may be: the outbox, a blocked key, a waiting retry, a halted queue, a handler."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import Enum
from itertools import chain
from typing import Any

from django.db import Error, router
from django.db.models import BinaryField
from django.db.models.functions import Substr
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_rmq_retry import database_clock
from django_rmq_retry.attempts.history import waiting
from django_rmq_retry.conf import settings
from django_rmq_retry.models import Attempt, BlockedKey, BlockedMessage, ConsumerProcess, OutboxMessage, QueueControl
from django_rmq_retry.ordering.keys import keys_alias
from django_rmq_retry.parked.database import records_alias
from django_rmq_retry.parked.key_match import Beginnings, Keys, Wanted, text_of
from django_rmq_retry.parked.stored_keys import MOST_LISTED_BYTES, keys_of
from django_rmq_retry.policies.verdict import Kind
from django_rmq_retry.publishing import outbox_rows
from django_rmq_retry.statements import with_one_of

MOST_NAMED = 5
MOST_WORDS = 10
"""The most words of one search that are looked for: several words are several keys."""
NAMES_AT_ONCE = 20_000
MOST_RETRIES = 200_000
OVERDUE = timedelta(days=1)
"""How long a retry that is due is looked for: consumers may have been down for hours."""
MOST_PROCESSES = 200
MOST_READ = 5000
"""The most messages of an outbox, or behind blocked keys, whose contents are searched, in some 0.2 seconds."""
MOST_READ_BYTES = 16 * 1024 * 1024
READ_AT_ONCE = 500
MOST_DECODED = 200
"""The most of them that handlers decode for business keys that do not stand in the text, for some 20 milliseconds."""


class Room(Enum):
    """A place of messages that were not parked, or not yet."""

    OUTBOX = gettext_lazy("the outbox")
    KEYS = gettext_lazy("blocked keys and the messages behind them")
    RETRIES = gettext_lazy("waiting retries, by message id or first business key")
    QUEUES = gettext_lazy("the first messages of halted queues, by message id or first business key")
    HANDLERS = gettext_lazy("messages in a handler, by message id or first business key")


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

    found: Mapping[str, Sequence[Found]] = field(default_factory=dict)
    """By the key or word that was looked for."""
    searched: Sequence[str] = ()

    @property
    def every(self) -> list[Found]:
        """All that was found, each once."""
        return list(dict.fromkeys(one for some in self.found.values() for one in some))

    @property
    def limits(self) -> str:
        """Say where else was searched, and that a message may exist or have existed that is found nowhere."""
        also = _("Also searched: %(places)s.") % {"places": "; ".join(self.searched)}
        return " ".join([*([also] if self.searched else []), _not_found()])


def _not_found() -> str:
    return _(
        "Not searched: messages that wait in a queue of RabbitMQ, and contents beyond their first 16 KB or that are "
        "not plain text. A message that was handled without being parked is not stored here. So it may have come "
        "although it is not found."
    )


def elsewhere(asked: str, rooms: Sequence[Room] = tuple(Room)) -> Elsewhere:
    """Look in these rooms for a key or id, or how one begins, without regard to case; a room may not be readable."""
    words = [text for text in dict.fromkeys([asked.strip(), *asked.split()[:MOST_WORDS]]) if text]
    return _look_in(rooms, Beginnings(words)) if words else Elsewhere()


def places_of(keys: Sequence[str], rooms: Sequence[Room] = tuple(Room)) -> Elsewhere:
    """Look in these rooms for what each of these keys and ids names, but for its case; a few things for each."""
    return _look_in(rooms, Keys(keys)) if keys else Elsewhere()


def behind_keys(keys: Sequence[str]) -> dict[int, str]:
    """Return the blocked keys behind which messages wait that these keys and ids name, each with one of them."""
    _blocked, waiting = _at_keys()
    known = _Look(waiting, Keys(keys), most=MOST_READ).rows() if keys else ()
    return {row.block_id: key for key, row, _why in known}


def _look_in(rooms: Sequence[Room], wanted: Wanted) -> Elsewhere:
    found, searched = dict[str, list[Found]](), list[str]()
    for room in rooms:
        # A room may not be readable: what the others have is named all the same.
        try:
            looks = [shelf.look(wanted) for shelf in SHELVES[room]()]
            known = [one for look in looks for one in look.found()]
        except Error:
            continue
        for key, one in known:
            if len(of_key := found.setdefault(key, [])) < MOST_NAMED and one not in of_key:
                of_key.append(one)
        if looks:
            searched.append(_said(room, [look.read for look in looks if look.stopped]))
    return Elsewhere(found=found, searched=searched)


def _said(room: Room, read: Sequence[int]) -> str:
    if not read:
        return str(room.value)
    text = _("%(place)s, but not the contents of more than the latest %(count)d messages")
    return text % {"place": room.value, "count": sum(read)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shelf:
    """Rows in which a search looks: a table, or one of several outboxes."""

    rows: Any
    columns: Sequence[str]
    """Those with names."""
    found: Callable[[Any, str], Found]
    """Makes what is shown of a row, with why it was found."""
    contents: bool = False
    """True if the rows have bodies and properties."""
    by_time: bool = False
    """True if an index finds them in the order that they have, and by their number the whole table would be read."""

    def look(self, wanted: Wanted) -> "_Look":
        return _Look(self, wanted)


class _Look:
    """One look at a shelf."""

    def __init__(self, shelf: _Shelf, wanted: Wanted, most: int = MOST_NAMED) -> None:
        self._shelf, self._wanted, self._most = shelf, wanted, most
        self._why = dict[str, dict[int, str]]()
        """Of each key some rows that it names, each with how, as it is shown."""
        self.read = 0
        self.stopped = False
        """True if there are more contents than were read."""

    def found(self) -> Iterator[tuple[str, Found]]:
        yield from ((key, self._shelf.found(row, why)) for key, row, why in self.rows())

    def rows(self) -> Iterator[tuple[str, Any, str]]:
        """Yield the rows that were found, each with the key that names it, and how."""
        self._look_at_names()
        if self._shelf.contents:
            self._look_at_contents()
        numbers = {pk for rows in self._why.values() for pk in rows}
        rows = self._shelf.rows.defer("body", "properties") if self._shelf.contents else self._shelf.rows
        known = {row.pk: row for some in with_one_of(rows, "pk", numbers) for row in some}
        for key, why in self._why.items():
            yield from ((key, known[pk], how) for pk, how in why.items() if pk in known)

    def _add(self, keys: Any, pk: int, how: str) -> None:
        for key in keys:
            if len(rows := self._why.setdefault(key, {})) < self._most:
                rows.setdefault(pk, how)

    def _look_at_names(self) -> None:
        shelf, of_name = self._shelf, self._wanted.of_name
        rows = self._wanted.among(shelf.rows, shelf.columns).values_list("pk", *shelf.columns)
        for pk, *names in rows[:MOST_RETRIES] if shelf.by_time else _latest_first(rows, NAMES_AT_ONCE):
            for name in names:
                if name and (keys := of_name(name)):
                    self._add(keys, pk, name)

    def _look_at_contents(self) -> None:
        start = Substr("body", 1, MOST_LISTED_BYTES, output_field=BinaryField())
        rows, size = self._shelf.rows.defer("body").annotate(start=start), 0
        latest = list(rows.order_by("-pk")[:MOST_DECODED])
        for row in latest:
            if len(row.start) < MOST_LISTED_BYTES:
                for key in keys_of(row, bytes(row.start)):
                    self._add(self._wanted.of_name(key), row.pk, key)
        more = rows.filter(pk__lt=latest[-1].pk) if len(latest) == MOST_DECODED else rows.none()
        values = ((row.pk, row.start, row.properties) for row in latest)
        for pk, body, properties in chain(values, _latest_first(more.values_list("pk", "start", "properties"))):
            if self.read == MOST_READ or size > MOST_READ_BYTES:
                self.stopped = True
                return
            self._add(self._wanted.in_text(text_of(body, properties)), pk, _("in its content"))
            self.read += 1
            size += len(body)


class _Handlers:
    """What the processes had in their handlers at their last heartbeat; each entry names one message."""

    read, stopped = 0, False

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted

    @classmethod
    def look(cls, wanted: Wanted) -> "_Handlers":
        return cls(wanted)

    def found(self) -> Iterator[tuple[str, Found]]:
        using = router.db_for_read(ConsumerProcess)
        rows = ConsumerProcess.objects.using(using).exclude(in_flight=[]).order_by("-beat_at")[:MOST_PROCESSES]
        for row in rows:
            gone = row.ended_at is not None or row.silent(database_clock.reckoned(using))
            for entry in row.in_flight:
                names = [str(entry.get(name) or "") for name in ("key", "message_id")]
                one = _in_handler(row, entry, next(filter(None, names), ""), gone=gone)
                yield from ((key, one) for name in names if name for key in self._wanted.of_name(name))


def _latest_first(rows: Any, most: int = READ_AT_ONCE) -> Iterator[Any]:
    """Yield the values of rows, whose first one is their number; read in parts, because there may be any number."""
    rows = rows.order_by("-pk")
    some = list(rows[:most])
    while some:
        yield from some
        some = list(rows.filter(pk__lt=some[-1][0])[:most]) if len(some) == most else []


def _with(name: object, why: str) -> str:
    """Return a name with why it was found, if the name does not tell it."""
    return str(name) if why in str(name) else f"{name} ({why})"


def _outboxes() -> Iterator[_Shelf]:
    shown = router.db_for_read(OutboxMessage)
    for alias in outbox_rows.served():
        if outbox_rows.table_exists(alias):
            rows = OutboxMessage.objects.using(alias)
            found = _unsent if alias == shown else _unsent_unseen
            yield _Shelf(rows=rows, columns=("message_id", "order_key"), found=found, contents=True)


def _unsent(row: OutboxMessage, why: str) -> Found:
    words = _("In the outbox, not sent") if row.failed_at else _("In the outbox, not sent yet")
    return Found(name=_with(row, why), words=words, room=Room.OUTBOX, place=row.pk)


def _unsent_unseen(row: OutboxMessage, why: str) -> Found:
    """Of an outbox that no page shows."""
    return replace(_unsent(row, why), place=None)


def _at_keys() -> Iterator[_Shelf]:
    using = keys_alias()
    behind = BlockedMessage.objects.using(using).select_related("block")
    yield _Shelf(rows=BlockedKey.objects.using(using), columns=("key", "blocker"), found=_first)
    yield _Shelf(rows=behind, columns=("shown",), found=_behind, contents=True)


def _first(row: BlockedKey, _why: str) -> Found:
    name = _("%(key)s, where %(message)s goes first") % {"key": row.key, "message": row.blocker}
    return Found(name=name, words=_("Blocked ordering key"), room=Room.KEYS, place=row.key)


def _behind(row: BlockedMessage, why: str) -> Found:
    text = _("%(message)s, behind %(first)s (ordering key %(key)s)")
    name = text % {"message": _with(row.shown, why), "first": row.block.blocker, "key": row.block.key}
    return Found(name=name, words=_("Waits for a blocked ordering key"), room=Room.KEYS, place=row.block.key)


def _retries() -> Iterator[_Shelf]:
    if settings().records:
        rows = waiting(database_clock.now(records_alias()), overdue=OVERDUE).filter(verdict=Kind.RETRY.value)
        yield _Shelf(rows=rows, columns=("business_key", "message_id"), found=_retried, by_time=True)


def _retried(row: Attempt, why: str) -> Found:
    name = f"{why} ({row.queue})"
    return Found(name=name, words=_("Failed, and waits for its retry"), room=Room.RETRIES, place=row.queue)


def _halted_queues() -> Iterator[_Shelf]:
    halted = QueueControl.objects.filter(halted_at__isnull=False)
    yield _Shelf(rows=halted, columns=("halted_key", "halted_message"), found=_halted)


def _halted(row: QueueControl, why: str) -> Found:
    name = _("%(message)s, first in %(queue)s") % {"message": why, "queue": row.queue}
    return Found(name=name, words=_("In a halted queue"), room=Room.QUEUES, place=row.queue)


def _in_handler(row: ConsumerProcess, entry: Mapping[str, Any], name: str, *, gone: bool) -> Found:
    text = _("In a handler on %(host)s")
    if gone:
        text = _("In a handler on %(host)s when its process was last heard of, outcome unknown")
    return Found(
        name=f"{name} ({entry.get('queue')})", words=text % {"host": row.host}, room=Room.HANDLERS, place=row.host
    )


SHELVES: Mapping[Room, Callable[[], Iterable[_Shelf | type[_Handlers]]]] = {
    Room.OUTBOX: _outboxes,
    Room.KEYS: _at_keys,
    Room.RETRIES: _retries,
    Room.QUEUES: _halted_queues,
    Room.HANDLERS: lambda: [_Handlers],
}
