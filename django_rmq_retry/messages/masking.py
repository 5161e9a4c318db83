"""JSON texts for display: fields hidden or lines indented, with every other character unchanged."""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from email.message import Message as Mime
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

HIDDEN = "•••"
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)
_PLAIN = re.compile(r"[\w$-]+")
DEEPEST = 100
"""Levels of a text that are told apart; a place in a deeper one would be as long as the text itself."""
_REMEMBERED = 100
"""Letters of a field whose fit is remembered: longer ones would fill the memory."""
Steps = tuple[tuple[str, ...], ...]
"""What is left of each pattern after the fields so far; an empty one has been met."""


def masked(
    data: bytes | str, content_type: str, paths: Sequence[str], *, shown: Collection[str] = ()
) -> tuple[str | None, tuple[str, ...]]:
    """The text without what `paths` hide, and where something is hidden, such as ``cards[0].pan``.

    Those places that `shown` names stay legible. None instead of a text that is no JSON object or array: what cannot be
    told apart can only be hidden whole, and so is one of more than `DEEPEST` levels.
    """
    text = data if isinstance(data, str) else decoded(data, content_type)
    if text is None or not is_json(text):
        return None, ()
    pieces: list[str] = []
    hidden: dict[str, None] = {}
    done = 0
    try:
        for start, stop, place in _hidden_spans(text, tuple(paths)):
            if place not in shown:
                pieces += [text[done:start], f'"{HIDDEN}"']
                done = stop
            hidden[place] = None
    except TooDeep:
        return None, ()
    return "".join([*pieces, text[done:]]), tuple(hidden)


def hides(parts: Sequence[str], paths: Sequence[str]) -> bool:
    """Whether a field is hidden, whatever the case of its letters; places in lists count for nothing."""
    steps = _first_steps(tuple(paths))
    for part in parts:
        steps = _step(steps, part)
    return () in steps


def without(value: Any, fields: Sequence[str], paths: Sequence[str]) -> Any:
    """A value of tables and lists that stands under these fields, such as a header's, without what is hidden in it."""
    if hides(fields, paths):
        return HIDDEN
    if isinstance(value, Mapping):
        return {name: without(inner, [*fields, str(name)], paths) for name, inner in value.items()}
    return [without(inner, fields, paths) for inner in value] if isinstance(value, list) else value


def decoded(data: bytes, content_type: str) -> str | None:
    """The text of a body, by its charset or else as JSON is written; None where it is none."""
    try:
        return data.decode(_charset(content_type) or json.detect_encoding(data)) if data else ""
    except (UnicodeDecodeError, LookupError):
        return None


def is_json(text: str) -> bool:
    """Whether a text is a JSON object or array. Its numbers are not looked at, so none is too long."""
    if text.lstrip(" \t\r\n")[:1] not in ("{", "["):
        return False
    try:
        json.loads(text, strict=False, parse_int=str, parse_float=str)
    except RecursionError:
        # Python before 3.13 reads about a thousand levels. Readers of deep texts have a limit of their own.
        return True
    except ValueError:
        return False
    return True


def tokens(text: str) -> Iterator[tuple[str, int, int]]:
    """The words and marks of a JSON text, with where each stands."""
    return ((found.group(), found.start(), found.end()) for found in _TOKEN.finditer(text))


class TooDeep(ValueError):
    """A JSON text of more levels than are told apart."""


@dataclass(slots=True)
class _Level:
    """An object or array that is open: the field that comes next, or the place."""

    listed: bool
    outside: Steps
    inside: Steps
    """The same at the value that comes next: beyond the field of it."""
    key: str | None = None
    index: int = 0


@dataclass(slots=True)
class _Walk:
    """Where in the text one is."""

    levels: list[_Level] = field(default_factory=list)

    def enter(self, level: _Level) -> None:
        if len(self.levels) == DEEPEST:
            raise TooDeep
        self.levels.append(level)

    def place(self) -> str:
        said = ""
        for level in self.levels:
            if level.listed:
                said += f"[{level.index}]"
            elif level.key is not None:
                part = level.key if _PLAIN.fullmatch(level.key) else json.dumps(level.key)
                said += f".{part}" if said else part
        return said


def _hidden_spans(text: str, paths: tuple[str, ...]) -> Iterator[tuple[int, int, str]]:
    walk = _Walk()
    begin = _first_steps(paths)
    inside: tuple[int, int, str] | None = None
    for mark, start, stop in tokens(text):
        levels = walk.levels
        if mark in "}]":
            levels.pop()
            if inside and len(levels) == inside[0]:
                yield inside[1], stop, inside[2]
                inside = None
        elif mark == ",":
            levels[-1].index += 1
            levels[-1].key = None
        elif mark == ":":
            continue
        elif levels and not levels[-1].listed and levels[-1].key is None:
            levels[-1].key = key = str(json.loads(mark, strict=False))
            levels[-1].inside = _step(levels[-1].outside, key)
        else:
            opens, steps = mark in "{[", levels[-1].inside if levels else begin
            if inside is None and levels and () in steps:
                if opens:
                    inside = len(levels), start, walk.place()
                else:
                    yield start, stop, walk.place()
            if opens:
                walk.enter(_Level(listed=mark == "[", outside=steps, inside=steps))


@lru_cache(maxsize=64)
def _first_steps(paths: tuple[str, ...]) -> Steps:
    return _from_here(tuple(path.casefold().split(".")) for path in paths)


def _step(steps: Steps, part: str) -> Steps:
    """What is left of the patterns behind one more field."""
    short = len(part) <= _REMEMBERED
    return (_known_step if short else _known_step.__wrapped__)(steps, part.casefold())


@lru_cache(maxsize=4096)
def _known_step(steps: Steps, part: str) -> Steps:
    # A star before other parts stands for any number of fields: it stays where it is.
    return _from_here(
        left if _any(left) else left[1:] for left in steps if left and (_any(left) or fnmatchcase(part, left[0]))
    )


def _any(left: tuple[str, ...]) -> bool:
    return left[0] == "*" and len(left) > 1


def _from_here(lefts: Iterable[tuple[str, ...]]) -> Steps:
    """Each of them, and what stands behind the star that it begins with, which may also stand for no field."""
    found: dict[tuple[str, ...], None] = {}
    for left in lefts:
        found[left] = None
        while left and _any(left):
            left = left[1:]  # noqa: PLW2901 - it gets shorter
            found[left] = None
    return tuple(found)


def _charset(content_type: str) -> str | None:
    if "charset" not in content_type.lower():
        return None
    mime = Mime()
    mime["Content-Type"] = content_type.replace("\r", " ").replace("\n", " ")
    return mime.get_content_charset()


STEP = "  "


def indented(text: str, *, most: int) -> str | None:
    """A line for each entry. The text is JSON: whoever calls has made sure of it.

    None where it has more than `DEEPEST` levels, or would grow longer than `most`: each level indents all lines inside.
    """
    pieces: list[str] = []
    depth, length, before = 0, 0, ""
    for word, _start, _stop in tokens(text):
        if word in "}]":
            depth = max(0, depth - 1)
        ends, begins = word in "}]" and before not in "{[", before in ("{", "[", ",") and word not in "}]"
        if pieces and (ends or begins):
            pieces.append("\n" + STEP * depth)
            length += len(pieces[-1])
        pieces.append(": " if word == ":" else word)
        length += len(pieces[-1])
        depth += word in "{["
        before = word
        if depth > DEEPEST or length > most:
            return None
    return "".join(pieces)
