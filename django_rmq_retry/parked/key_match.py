"""Whether a stored name, or the content of a message, names a key that is looked for; upper and lower case are ignored.

A content names a key if the key stands in it as a word of its own: PAY-8 does not stand in PAY-80.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from functools import reduce
from operator import or_
from typing import Any, NamedTuple, Protocol

from django.db import connections
from django.db.models import Q
from django.db.models.functions import Lower

from django_rmq_retry.messages.texts import COLUMN_BYTES, short
from django_rmq_retry.models.parked import folded
from django_rmq_retry.parked.selection import beginning
from django_rmq_retry.statements import KEYS_AT_ONCE, in_slices, one_of, takes_arrays

FEW = 20
"""Keys up to which each is looked for in a text by itself."""
MOST_NAMES = 1000
"""The most rows that are read for one text: one customer may have any number of messages."""
FEW_NAMES = 5
"""The rows for each text of a list that are read at once, besides: most have one or two."""

_WORD = re.compile(r"[\w-]+")
_ESCAPED = re.compile(r"\\(?:u([0-9a-f]{4})|(.))")


class Rows(NamedTuple):
    """Rows that were found."""

    some: list[Any]
    cut: bool
    """True if there are more for a text that is looked for."""


class Wanted(Protocol):
    """What is looked for."""

    def among(self, rows: Any, columns: Sequence[str]) -> Any:
        """Return the rows that may have a name that is looked for in one of these columns, and perhaps others."""
        ...

    def folded(self, rows: Any) -> "Rows":
        """Return the rows whose ``folded`` is looked for, by its index, but not more than some for each text."""
        ...

    def of_name(self, name: str) -> Iterable[str]:
        """Return what this stored key or id names."""
        ...

    def in_text(self, text: str) -> Iterable[str]:
        """Return what stands in this text, as ``text_of`` returns it."""
        ...


class Keys:
    """The keys of a list, each named by the same text."""

    def __init__(self, keys: Collection[str]) -> None:
        self._by_text = dict[str, list[str]]()
        for key in keys:
            self._by_text.setdefault(_shortened(key), []).append(key)
        # Some databases know upper and lower case of ASCII only.
        self._lower = {*self._by_text, *(_lower_ascii(short(key, COLUMN_BYTES)) for key in keys)}
        self._by_word = dict[str, list[str]]()
        for text in self._by_text:
            self._by_word.setdefault(max(_WORD.findall(text), key=len, default=""), []).append(text)

    def among(self, rows: Any, columns: Sequence[str]) -> Any:
        if connections[rows.db].vendor == "sqlite" and len(self._by_text) > KEYS_AT_ONCE:
            # It takes no more parameters, and to read all names is faster than a scan for every few hundred keys.
            return rows
        lower = {f"lower_{column}": Lower(column) for column in columns}
        return rows.alias(**lower).filter(reduce(or_, (one_of(name, self._lower, using=rows.db) for name in lower)))

    def folded(self, rows: Any) -> Rows:
        at_once = len(self._by_text) if takes_arrays(rows.db) else KEYS_AT_ONCE
        parts = [_named(rows, texts) for texts in in_slices(self._by_text, at_once)]
        return Rows([row for some, _cut in parts for row in some], any(cut for _some, cut in parts))

    def of_name(self, name: str) -> Sequence[str]:
        return self._by_text.get(folded(name), ())

    def in_text(self, text: str) -> list[str]:
        if len(self._by_text) <= FEW:
            texts: Iterable[str] = (one for one in self._by_text if _stands_in(one, text))
        else:
            words = self._by_word.keys() & set(_WORD.findall(text))
            texts = (one for word in words for one in self._by_word[word] if one == word or _stands_in(one, text))
        return [key for one in texts for key in self._by_text[one]]


class Beginnings:
    """The words of a search, each of which names what begins with it."""

    def __init__(self, words: Iterable[str]) -> None:
        self._texts = {_shortened(word): word for word in words}

    def among(self, rows: Any, columns: Sequence[str]) -> Any:
        begins = (
            Q(**{f"{column}__istartswith": text}) & _first_letter(column, text)
            for column in columns
            for text in self._texts
        )
        return rows.filter(reduce(or_, begins))

    def folded(self, rows: Any) -> Rows:
        parts = [list(rows.filter(beginning("folded", text))[: MOST_NAMES + 1]) for text in self._texts]
        return Rows([row for some in parts for row in some[:MOST_NAMES]], any(len(some) > MOST_NAMES for some in parts))

    def of_name(self, name: str) -> list[str]:
        begun = folded(name)
        return [word for text, word in self._texts.items() if begun.startswith(text)]

    def in_text(self, text: str) -> list[str]:
        return [word for one, word in self._texts.items() if _stands_in(one, text)]


def _named(rows: Any, texts: Sequence[str]) -> Rows:
    """Return the rows with one of these texts. If they are many, one text may have most: the others are read apart."""
    most = FEW_NAMES * len(texts) + MOST_NAMES
    some = list(rows.filter(one_of("folded", texts, using=rows.db))[: most + 1])
    if len(some) <= most or len(texts) == 1:
        return Rows(some[:most], len(some) > most)
    half = len(texts) // 2
    first, second = _named(rows, texts[:half]), _named(rows, texts[half:])
    return Rows(first.some + second.some, first.cut or second.cut)


def text_of(*contents: Any) -> str:
    """Return bytes as a text in which keys can be looked for, also those that JSON has escaped."""
    # Each by itself: ASCII is folded in a tenth of the time, and properties are not all ASCII.
    text = " ".join(bytes(one).decode("utf-8", "replace").casefold() for one in contents)
    return f"{text}\n{_ESCAPED.sub(_unescaped, text).casefold()}" if "\\" in text else text


def _unescaped(found: "re.Match[str]") -> str:
    if found[1]:
        return chr(int(found[1], 16))
    return " " if found[2] in "bfnrt" else found[2]


def _first_letter(column: str, text: str) -> Q:
    """Match the names that begin with the first letter of a text, in either case.

    Without an index a database reads all names. It compares a letter in a fraction of the time that it takes to change
    the case of a name, which is then done with few of them.
    """
    first = text[:1]
    if not first.isascii():
        return Q()
    # The long s is an s in upper case.
    letters = {first, first.upper(), *("\N{LATIN SMALL LETTER LONG S}" if first == "s" else "")}
    return reduce(or_, (Q(**{f"{column}__startswith": letter}) for letter in sorted(letters)))


def _shortened(text: str) -> str:
    return folded(short(text, COLUMN_BYTES))


def _lower_ascii(text: str) -> str:
    return text.encode().lower().decode()


def _stands_in(one: str, text: str) -> bool:
    return one in text and re.search(rf"(?<![\w-]){re.escape(one)}(?![\w-])", text) is not None
