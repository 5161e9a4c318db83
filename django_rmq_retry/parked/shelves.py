"""Rows in which a search looks for what was not parked: by the names that they have, or by their contents."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from django.db.models import BinaryField
from django.db.models.functions import Substr
from django.utils.translation import gettext as _

from django_rmq_retry.parked.found import Found
from django_rmq_retry.parked.key_match import Wanted, text_of
from django_rmq_retry.parked.stored_keys import MOST_LISTED_BYTES, keys_of
from django_rmq_retry.statements import with_one_of

MOST_NAMED = 20
"""The most that is named of what a search finds for one key."""
NAMES_AT_ONCE = 20_000
MOST_READ = 5000
"""The most messages of an outbox, or behind blocked keys, whose contents are searched, in some 0.2 seconds."""
MOST_READ_BYTES = 16 * 1024 * 1024
READ_AT_ONCE = 500
MOST_DECODED = 200
"""The most of them that handlers decode for business keys that do not stand in the text, for some 20 milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shelf:
    """Rows in which a search looks: a table, or one of several outboxes."""

    rows: Any
    columns: Sequence[str]
    """Those with names."""
    found: Callable[[Any, str, str], Found]
    """Makes what is shown of a row, by its first business key, if one was read, and why it was found."""
    contents: bool = False
    """True if the rows have bodies and properties."""

    def look(self, wanted: Wanted) -> "ShelfLook":
        return ShelfLook(self, wanted)


class ShelfLook:
    """One look at a shelf."""

    cut = False

    def __init__(self, shelf: Shelf, wanted: Wanted, most: int = MOST_NAMED + 1) -> None:
        self._shelf, self._wanted, self._most = shelf, wanted, most
        self._why = dict[str, dict[int, str]]()
        """Of each key some rows that it names, each with how, as it is shown."""
        self._first = dict[int, str]()
        """The first business keys of the rows that handlers have decoded."""
        self.read = 0
        self.stopped = False
        """True if there are more contents than were read."""

    def found(self) -> Iterator[tuple[str, Found]]:
        yield from ((key, self._shelf.found(row, self._first.get(row.pk, ""), why)) for key, row, why in self.rows())

    def rows(self) -> Iterator[tuple[str, Any, str]]:
        """Yield the rows that were found, each with the key that names it, and how."""
        latest = self._latest() if self._shelf.contents else []
        if not self._shelf.contents or len(latest) == MOST_DECODED:
            self._look_at_names()
        for row in latest:
            self._add_names(row.pk, (getattr(row, column) for column in self._shelf.columns))
        if latest:
            self._look_at_contents(latest)
        numbers = {pk for rows in self._why.values() for pk in rows}
        rows = self._shelf.rows.defer("body", "properties") if self._shelf.contents else self._shelf.rows
        known = {row.pk: row for some in with_one_of(rows, "pk", numbers) for row in some}
        for key, why in self._why.items():
            yield from ((key, known[pk], how) for pk, how in why.items() if pk in known)

    def _add(self, keys: Any, pk: int, how: str) -> None:
        for key in keys:
            if len(rows := self._why.setdefault(key, {})) < self._most:
                rows.setdefault(pk, how)

    def _add_names(self, pk: int, names: Iterable[str]) -> None:
        for name in names:
            if name:
                self._add(self._wanted.of_name(name), pk, name)

    def _look_at_names(self) -> None:
        columns = self._shelf.columns
        rows = self._wanted.among(self._shelf.rows, columns).values_list("pk", *columns)
        for pk, *names in _latest_first(rows, NAMES_AT_ONCE):
            self._add_names(pk, names)

    def _contents(self) -> Any:
        start = Substr("body", 1, MOST_LISTED_BYTES, output_field=BinaryField())
        return self._shelf.rows.defer("body").annotate(start=start)

    def _latest(self) -> Sequence[Any]:
        return list(self._contents().order_by("-pk")[:MOST_DECODED])

    def _look_at_contents(self, latest: Sequence[Any]) -> None:
        rows, size = self._contents(), 0
        for row in latest:
            if len(row.start) < MOST_LISTED_BYTES:
                for key in keys_of(row, bytes(row.start)):
                    self._first.setdefault(row.pk, key)
                    self._add(self._wanted.of_name(key), row.pk, key)
        more = rows.filter(pk__lt=latest[-1].pk) if len(latest) == MOST_DECODED else rows.none()
        values, how = ((row.pk, row.start, row.properties) for row in latest), _("in its content")
        for pk, body, properties in chain(values, _latest_first(more.values_list("pk", "start", "properties"))):
            if self.read == MOST_READ or size > MOST_READ_BYTES:
                self.stopped = True
                return
            self._add(self._wanted.in_text(text_of(body, properties)), pk, how)
            self.read += 1
            size += len(body)


def _latest_first(rows: Any, most: int = READ_AT_ONCE) -> Iterator[Any]:
    """Yield the values of rows, whose first one is their number; read in parts, because there may be any number."""
    rows = rows.order_by("-pk")
    some = list(rows[:most])
    while some:
        yield from some
        some = list(rows.filter(pk__lt=some[-1][0])[:most]) if len(some) == most else []


def named(names: Iterable[str], why: str, *more: str) -> str:
    """Return the names of a message, its first business key first, with why it was found if they do not tell it."""
    known = list(dict.fromkeys(filter(None, names)))
    told = ", ".join([*([] if why in known else [why]), *more])
    return f"{', '.join(known)} ({told})" if told else ", ".join(known)
