"""A pasted text as a list of keys, and a list of keys as a text."""

import re
from collections.abc import Iterable, Iterator, Sequence

from django.utils.translation import gettext as _

from django_rmq_retry.handlers.business_keys import KEY_BYTES
from django_rmq_retry.messages.texts import short
from django_rmq_retry.parked.operators import Refused

MOST_KEYS_OF_LIST = 10_000
MOST_TEXT = 4_000_000
"""Largest length of a pasted text, in characters."""
CELL_SEPARATORS = ",;\t\uff0c\uff1b"
SEPARATORS = f"{CELL_SEPARATORS}\r\n\v\f\x85\u2028\u2029"
_APART = frozenset(SEPARATORS)
TRIMMED = " \u00a0\u200b\u2060\ufeff"
"""Characters that are removed around a key: mail and office programs add them."""
_ENTRY = re.compile(
    rf'[{TRIMMED}]*(?:"([^"]*(?:""[^"]*)*)"[{TRIMMED}]*(?=[{SEPARATORS}]|\Z)|([^{SEPARATORS}]*))([{SEPARATORS}]|\Z)'
)
MOST_COLUMNS = 1000
"""Largest number of cells in a line that may belong to a table."""
HEADER_SHARE = 0.9
"""Minimum share of a header's cells without a digit, such as "amount"; most keys have a digit."""


def parse(text: str, *, spaces: bool = False) -> list[str]:
    """Return the keys of a text, each once, in its order.

    Spaces separate keys only if ``spaces`` is set, or if the text has no other separator.
    """
    if len(text) > MOST_TEXT:
        sentence = _("The text has %(count)d characters; at most %(most)d are allowed. Nothing was looked up.")
        raise Refused(sentence % {"count": len(text), "most": MOST_TEXT})
    header = _header(text)
    if header:
        sentence = _(
            "The text is a table of %(count)d columns with the header “%(header)s”. Give only the column of the keys, "
            "one key per line. Nothing was looked up."
        )
        raise Refused(sentence % {"count": len(header), "header": short(", ".join(filter(None, header)), 100)})
    entries = list(_entries(text))
    apart = spaces or len(entries) == 1
    parts = (part for entry, quoted in entries for part in (entry.split() if apart and not quoted else [entry]))
    keys = list(dict.fromkeys(short(part, KEY_BYTES) for part in parts if part))
    if len(keys) > MOST_KEYS_OF_LIST:
        sentence = _("The list has %(count)d keys; at most %(most)d are allowed. Split it. Nothing was looked up.")
        raise Refused(sentence % {"count": len(keys), "most": MOST_KEYS_OF_LIST})
    return keys


def _entries(text: str) -> Iterator[tuple[str, bool]]:
    """Yield each entry, with True if it was in quotation marks."""
    for entry in _ENTRY.finditer(text):
        quoted, bare, _end = entry.groups()
        if quoted is not None:
            yield quoted.replace('""', '"'), True
        elif bare.strip(TRIMMED):
            yield bare.strip(TRIMMED), False


def _header(text: str) -> list[str]:
    """Return the header of a table; empty for a list, even if all its lines hold equally many keys.

    A header is a line of words above lines with as many columns, at least one of which has a digit in every line.
    Lines of separators only are skipped, because spreadsheets write them for empty rows.
    """
    lines = (line for line in _lines(text) if any(cell.strip(TRIMMED) for cell, _end in line))
    first = next(lines, [])
    by = {end for _cell, end in first[:-1]}
    if len(by) != 1:
        return []
    header = _cells(first, separator := by.pop())
    numbered = [not _numbered(cell) for cell in header]
    if sum(numbered) < HEADER_SHARE * len(header) or sum(map(bool, header)) <= 1:
        return []
    rows = 0
    for line in lines:
        cells = _cells(line, separator)
        if len(cells) != len(header):
            return []
        rows += 1
        numbered = [still and _numbered(cell) for still, cell in zip(numbered, cells, strict=True)]
    return header if rows and any(numbered) else []


def _lines(text: str) -> Iterator[list[tuple[str, str]]]:
    """Yield the entries of each nonempty line with their separators; a line with too many cells is the last one."""
    line: list[tuple[str, str]] = []
    for entry in _ENTRY.finditer(text):
        quoted, bare, end = entry.groups()
        line.append((bare.strip(TRIMMED) if quoted is None else quoted.replace('""', '"'), end))
        if end and end in CELL_SEPARATORS and len(line) <= MOST_COLUMNS:
            continue
        if len(line) > 1 or line[0][0]:
            yield line
        if len(line) > MOST_COLUMNS:
            return
        line = []


def _cells(line: Sequence[tuple[str, str]], separator: str) -> list[str]:
    """Split a line by the table's separator only: a cell may contain others, such as 100,50 between semicolons."""
    cells = [""]
    for part, end in line:
        cells[-1] += part
        if end == separator:
            cells.append("")
    return cells


def _numbered(cell: str) -> bool:
    return any(char.isdigit() for char in cell)


def text_of_keys(keys: Iterable[str]) -> str:
    """Return a list as text, one key per line, that is parsed to the same keys."""
    lines = [_quoted(key) if _ambiguous(key) else key for key in keys]
    # A single key with a space would be parsed as two keys.
    return "\n".join(_quoted(line) if len(lines) == 1 and " " in line and line[0] != '"' else line for line in lines)


def _ambiguous(key: str) -> bool:
    return key.startswith('"') or key != key.strip(TRIMMED) or not _APART.isdisjoint(key)


def _quoted(key: str) -> str:
    return '"{}"'.format(key.replace('"', '""'))
