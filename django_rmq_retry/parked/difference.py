"""The difference of two texts, line by line."""

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import groupby, zip_longest

from django_rmq_retry.messages.json_fields import common_start

CONTEXT_LINES = 3
MOST_LINES = 400
"""Largest number of lines, on both sides, for a full comparison; more would take minutes. More lines are compared in
pairs if both sides have equally many, and otherwise shown as one replacement."""
LONGEST_LINE = 500
"""Longer lines are cut to the part that differs, with ``AROUND_CHARACTERS`` on each side."""
AROUND_CHARACTERS = 80
Step = tuple[str, int, int, int, int]


class Sign(StrEnum):
    SAME = " "
    GONE = "-"
    NEW = "+"
    SKIPPED = "…"


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffLine:
    sign: Sign
    text: str = ""
    parts: tuple[tuple[str, bool], ...] = field(default=(), compare=False)
    """The text in parts, each with True if it differs from the line that it replaces or is replaced by."""


def difference(before: str, after: str) -> list[DiffLine]:
    """Return the removed and added lines, with a few lines of context; nothing if the texts are equal."""
    if before == after:
        return []
    old, new = before.splitlines(), after.splitlines()
    if old == new:
        # Only the line endings differ, which are invisible; show them escaped.
        old, new = (
            [repr(line) for line in before.splitlines(keepends=True)],
            [repr(line) for line in after.splitlines(keepends=True)],
        )
    return list(_lines(old, new))


def _lines(old: Sequence[str], new: Sequence[str]) -> Iterator[DiffLine]:
    shown = 0
    for group in _groups(old, new):
        yield from _left_out(old[shown : group[0][1]])
        shown = group[-1][2]
        for tag, low, high, begin, end in group:
            if tag == "equal":
                yield from (_line(Sign.SAME, text, 0, 0) for text in old[low:high])
                continue
            pairs = [_apart(before, after) for before, after in zip_longest(old[low:high], new[begin:end])]
            yield from (line for line, _new in pairs if line is not None)
            yield from (line for _old, line in pairs if line is not None)
    yield from _left_out(old[shown:])


def _left_out(lines: Sequence[str]) -> Iterator[DiffLine]:
    """Return a mark for equal lines that are not shown; a single one is as short itself."""
    if len(lines) == 1:
        yield _line(Sign.SAME, lines[0], 0, 0)
    elif lines:
        yield DiffLine(sign=Sign.SKIPPED)


def _apart(old: str | None, new: str | None) -> tuple[DiffLine | None, DiffLine | None]:
    """Return a replaced line and its replacement, each with the part that differs."""
    start = stop = 0
    if old is not None and new is not None:
        start = common_start(old, new)
        stop = common_start(old[start:][::-1], new[start:][::-1])
    return (
        None if old is None else _line(Sign.GONE, old, start, len(old) - stop),
        None if new is None else _line(Sign.NEW, new, start, len(new) - stop),
    )


def _line(sign: Sign, text: str, start: int, stop: int) -> DiffLine:
    pieces = [(_part(text[:start], start, start), False), (_part(text[start:stop], 0, 0), True)]
    pieces.append((_part(text[stop:], 0, 0), False))
    return DiffLine(sign=sign, text=_part(text, start, stop), parts=tuple(one for one in pieces if one[0]))


def _part(text: str, start: int, stop: int) -> str:
    if len(text) <= LONGEST_LINE:
        return text
    first, last = max(0, start - AROUND_CHARACTERS), min(len(text), max(stop, start) + AROUND_CHARACTERS)
    return ("…" if first else "") + text[first:last] + ("…" if last < len(text) else "")


def _groups(old: Sequence[str], new: Sequence[str]) -> Iterator[Sequence[Step]]:
    top = common_start(old, new)
    bottom = common_start(old[top:][::-1], new[top:][::-1])
    first, last = max(0, top - CONTEXT_LINES), max(0, bottom - CONTEXT_LINES)
    before, after = old[first : len(old) - last], new[first : len(new) - last]
    steps = _one_by_one(before, after)
    if len(before) + len(after) <= MOST_LINES:
        steps = iter(difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes())
    group: list[Step] = []
    moved = ((tag, low + first, high + first, begin + first, end + first) for tag, low, high, begin, end in steps)
    for tag, low, high, begin, end in moved:
        if tag == "equal" and high - low > 2 * CONTEXT_LINES:
            yield [*group, (tag, low, low + CONTEXT_LINES, begin, begin + CONTEXT_LINES)]
            group = [(tag, high - CONTEXT_LINES, high, end - CONTEXT_LINES, end)]
        else:
            group.append((tag, low, high, begin, end))
    yield group


def _one_by_one(old: Sequence[str], new: Sequence[str]) -> Iterator[Step]:
    """Compare lines at the same position; yield runs of equal and of changed lines."""
    if len(old) != len(new):
        yield "replace", 0, len(old), 0, len(new)
        return
    at = 0
    for same, run in groupby(before == after for before, after in zip(old, new, strict=True)):
        to = at + len(list(run))
        yield "equal" if same else "replace", at, to, at, to
        at = to
