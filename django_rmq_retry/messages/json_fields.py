"""The fields of a JSON text: found by their paths, compared, and changed with every other character in its place."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from django_rmq_retry.messages.masking import MOST_LEVELS, PLAIN_NAME, TooDeep, tokens

Path = tuple[str | int, ...]
"""The names and list positions that lead to a value."""
MOST_COMPARED = 600
"""Largest number of tokens, on each side, searched for what was inserted or removed; more would take seconds."""
_STEP = re.compile(r'\.?([\w$-]+)|\.?("(?:[^"\\]|\\.)*")|\[(\d{1,9})\]')
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldSpan:
    """A value in a text."""

    path: Path
    start: int
    stop: int
    entry: int
    """The start of its name, or of the value itself in a list."""
    leaf: bool
    """False for an object or array that holds something."""


@dataclass(slots=True)
class _Container:
    path: Path
    start: int
    entry: int
    step: str | int | None
    """The current list position or name; None before a name."""
    named_at: int = 0
    filled: bool = False


def fields(text: str) -> Iterator[FieldSpan]:
    """Yield the values of a checked JSON text, objects and arrays after their contents; raise TooDeep if they are."""
    levels: list[_Container] = []
    for mark, start, stop in tokens(text):
        level = levels[-1] if levels else None
        if mark in "}]":
            ended = levels.pop()
            yield FieldSpan(path=ended.path, start=ended.start, stop=stop, entry=ended.entry, leaf=not ended.filled)
        elif mark == "," and level:
            level.step = level.step + 1 if isinstance(level.step, int) else None
        elif mark == ":":
            continue
        elif level and level.step is None:
            level.step, level.named_at, level.filled = str(json.loads(mark, strict=False)), start, True
        else:
            path = (*level.path, level.step) if level and level.step is not None else ()
            entry = level.named_at if level and isinstance(level.step, str) else start
            if level:
                level.filled = True
            if mark not in "{[":
                yield FieldSpan(path=path, start=start, stop=stop, entry=entry, leaf=True)
            elif len(levels) == MOST_LEVELS:
                raise TooDeep
            else:
                levels.append(_Container(path, start, entry, 0 if mark == "[" else None))


def path_text(path: Path) -> str:
    """Return a path as text, such as ``items[0].price``."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            part = step if PLAIN_NAME.fullmatch(step) else json.dumps(step, ensure_ascii=False)
            text += f".{part}" if text else part
    return text


def path_of(text: str) -> Path:
    """Return the path that a text names; raise ValueError if it names none."""
    path: list[str | int] = []
    at = 0
    while at < len(text):
        found = _STEP.match(text, at)
        if found is None or (found[0].startswith(".") != bool(at)) is not (found[3] is not None and bool(at)):
            raise ValueError(text)
        plain, quoted, position = found.groups()
        path.append(int(position) if position else str(json.loads(quoted)) if quoted else plain)
        at = found.end()
    if not path:
        raise ValueError(text)
    return tuple(path)


def differing(before: str, after: str) -> list[tuple[str, str | None, str | None]]:
    """Return the paths of values that differ in two checked JSON texts, with both literals; None for a missing one."""
    old, new = _leaves(before), _leaves(after)
    places = dict.fromkeys([*old, *new])
    return [(path_text(one[0]), old.get(one), new.get(one)) for one in places if old.get(one) != new.get(one)]


def _leaves(text: str) -> dict[tuple[Path, int], str]:
    """Return the literals of a text by path; a path that occurs several times has a number too."""
    seen: Counter[Path] = Counter()
    leaves = {}
    for one in fields(text):
        if one.leaf:
            leaves[one.path, seen[one.path]] = text[one.start : one.stop]
            seen[one.path] += 1
    return leaves


def is_number(text: str) -> bool:
    """Return True for the exact text of a JSON number."""
    return bool(_NUMBER.fullmatch(text))


def rejoined(before: str, typed: str) -> str:
    """Return the first of two checked JSON texts with the tokens of the second one.

    What the texts have in common keeps all its characters, and so does the space between; only tokens that differ are
    taken from the second one.
    """
    old, new = list(tokens(before)), [word for word, _start, _stop in tokens(typed)]
    words = [word for word, _start, _stop in old]
    if words == new:
        return before
    gaps = [before[stop:start] for (_w, _s, stop), (_v, start, _e) in zip([("", 0, 0), *old], old, strict=False)]
    usual: dict[tuple[str, bool], str] = {}
    for at in range(1, len(words)):
        usual.setdefault(_between(words[at - 1], words[at]), gaps[at])
    pieces = [gaps[0] if gaps else ""]
    before_it, due = "", 0
    """The token before, and the place that would follow it in the old text."""
    for number, (word, place) in enumerate(zip(new, _places(words, new), strict=True)):
        if number:
            own = "" if place is None else gaps[place]
            pieces.append(own if place == due else usual.get(_between(before_it, word), own))
        pieces.append(word)
        before_it, due = word, -1 if place is None else place + 1
    if old:
        pieces.append(before[old[-1][2] :])
    text = "".join(pieces)
    return text if [word for word, _start, _stop in tokens(text)] == new else typed


def _between(word: str, following: str) -> tuple[str, bool]:
    return (word if word in "{[,:" else ""), following in "}]"


def _places(old: Sequence[str], new: Sequence[str]) -> Iterator[int | None]:
    """Yield the place in the old text that each new token has; None for one that was inserted."""
    top = common_start(old, new)
    bottom = min(common_start(old[::-1], new[::-1]), len(old) - top, len(new) - top)
    middle, typed = old[top : len(old) - bottom], new[top : len(new) - bottom]
    yield from range(top)
    if len(middle) == len(typed):
        yield from range(top, top + len(middle))
    elif max(len(middle), len(typed)) > MOST_COMPARED:
        yield from [None] * len(typed)
    else:
        for tag, low, high, begin, end in SequenceMatcher(None, middle, typed, autojunk=False).get_opcodes():
            same = tag == "equal" or high - low == end - begin
            yield from range(top + low, top + high) if same else [None] * (end - begin)
    yield from range(len(old) - bottom, len(old))


def common_start(old: Sequence[str], new: Sequence[str]) -> int:
    """Return the number of characters, tokens or lines that both begin with."""
    pairs = enumerate(zip(old, new, strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(old), len(new)))
