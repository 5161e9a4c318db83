"""The difference of two texts, line by line, as data: whoever shows it makes of it what it can show."""

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

CONTEXT = 3
MOST_LINES = 5000
"""Longer texts take minutes to compare well; of them the lines in which they differ from both ends are told."""


class Sign(StrEnum):
    SAME = " "
    GONE = "-"
    NEW = "+"
    SKIPPED = "…"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a difference."""

    sign: Sign
    text: str = ""


def difference(before: str, after: str) -> list[Line]:
    """What has to be taken away and put in, with a few lines around it; nothing for two that are the same."""
    if before == after:
        return []
    old, new = before.splitlines(), after.splitlines()
    if old == new:
        # They differ in the ends of lines only, which no line shows.
        old, new = (
            [repr(line) for line in before.splitlines(keepends=True)],
            [repr(line) for line in after.splitlines(keepends=True)],
        )
    return list(_lines(old, new))


def _lines(old: Sequence[str], new: Sequence[str]) -> Iterator[Line]:
    for number, group in enumerate(_groups(old, new)):
        if number:
            yield Line(sign=Sign.SKIPPED)
        for tag, low, high, begin, end in group:
            if tag == "equal":
                yield from (Line(sign=Sign.SAME, text=text) for text in old[low:high])
                continue
            yield from (Line(sign=Sign.GONE, text=text) for text in old[low:high])
            yield from (Line(sign=Sign.NEW, text=text) for text in new[begin:end])


def _groups(old: Sequence[str], new: Sequence[str]) -> Iterator[Sequence[tuple[str, int, int, int, int]]]:
    if len(old) + len(new) <= MOST_LINES:
        yield from difflib.SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(CONTEXT)
        return
    top = next(
        (at for at, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]), min(len(old), len(new))
    )
    most = min(len(old), len(new)) - top
    bottom = next((at for at in range(most) if old[-1 - at] != new[-1 - at]), most)
    yield [("replace", top, len(old) - bottom, top, len(new) - bottom)]
