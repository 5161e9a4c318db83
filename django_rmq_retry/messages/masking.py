"""JSON texts prepared for display: fields masked or lines indented, with every other character unchanged."""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from email.message import Message as Mime
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

HIDDEN = "•••"
NAMELESS = ""
"""The name of a value that stands in a list: a star that hides every field hides it too."""
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)
PLAIN_NAME = re.compile(r"[\w$-]+")
"""A name that stands in a path without quotes."""
MOST_LEVELS = 100
"""The deepest nesting that is parsed. The path of a field in a deeper text could be as long as the text itself."""
_REMEMBERED = 100
"""The longest field name, in characters, whose match is cached: longer names could fill the memory."""
_SEPARATORS = re.compile(r"(\[[^]]+\])|[_-]")
"""What a name is compared without: ``cardNumber`` is ``card_number``. A pattern's ``[a-z]`` keeps its hyphen."""
Steps = tuple[tuple[str, ...], ...]
"""The parts of each pattern that remain to be matched after the fields so far. An empty tuple is a full match."""

INDENT = "  "


def masked(
    data: bytes | str, content_type: str, paths: Sequence[str], *, shown: Collection[str] = ()
) -> tuple[str | None, tuple[str, ...]]:
    """Return the text with the fields matching `paths` masked, and their places, such as ``cards[0].pan``.

    Places in `shown` are listed but stay readable. The text is None if it is not a JSON object or array or has more
    than `MOST_LEVELS` levels: its fields cannot be separated, so the caller must hide it completely.
    """
    text = data if isinstance(data, str) else body_text(data, content_type)
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
    """True if the field at `parts` is hidden. Case, _ and - are ignored. `parts` contains no list positions."""
    steps = _first_steps(tuple(paths))
    for part in parts:
        steps = _step(steps, part)
    return () in steps


def without(value: Any, fields: Sequence[str], paths: Sequence[str]) -> Any:
    """Return a value of tables and lists, such as a header's, with hidden fields masked; `fields` is the path to it."""
    if hides(fields, paths):
        return HIDDEN
    if isinstance(value, Mapping):
        return {name: without(inner, [*fields, str(name)], paths) for name, inner in value.items()}
    if not isinstance(value, list):
        return value
    nameless = [*fields, NAMELESS]
    return [without(inner, fields if isinstance(inner, Mapping | list) else nameless, paths) for inner in value]


def body_text(data: bytes, content_type: str) -> str | None:
    """Return the text of a body, decoded by its charset or by the detected JSON encoding; None if that fails."""
    try:
        return data.decode(_charset(content_type) or json.detect_encoding(data)) if data else ""
    except (UnicodeDecodeError, LookupError):
        return None


def is_json(text: str) -> bool:
    """True if a text is a JSON object or array. Numbers are not converted, so they can have any length."""
    if text.lstrip(" \t\r\n")[:1] not in ("{", "["):
        return False
    try:
        json.loads(text, strict=False, parse_int=str, parse_float=str)
    except RecursionError:
        # Python before 3.13 parses about 1000 levels. Accept the text: the callers have their own limit, MOST_LEVELS.
        return True
    except ValueError:
        return False
    return True


def tokens(text: str) -> Iterator[tuple[str, int, int]]:
    """Yield each token of a JSON text with its start and end."""
    return ((token.group(), token.start(), token.end()) for token in _TOKEN.finditer(text))


class TooDeep(ValueError):
    """The error for a JSON text with more than MOST_LEVELS levels."""


@dataclass(slots=True)
class _Level:
    """An object or array that is being read, with the current field or list position."""

    listed: bool
    outside: Steps
    inside: Steps
    """The remaining patterns after the current field, which apply to its value."""
    key: str | None = None
    index: int = 0

    def of_value(self, *, opens: bool) -> Steps:
        """Return the patterns for the value that begins here; ``opens`` if it is an object or array."""
        return _step(self.inside, NAMELESS) if self.listed and not opens else self.inside


@dataclass(slots=True)
class _Walk:
    """The current position in the text: the objects and arrays that enclose it."""

    levels: list[_Level] = field(default_factory=list)

    def enter(self, level: _Level) -> None:
        if len(self.levels) == MOST_LEVELS:
            raise TooDeep
        self.levels.append(level)

    def place(self) -> str:
        path = ""
        for level in self.levels:
            if level.listed:
                path += f"[{level.index}]"
            elif level.key is not None:
                part = level.key if PLAIN_NAME.fullmatch(level.key) else json.dumps(level.key)
                path += f".{part}" if path else part
        return path


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
            opens = mark in "{["
            steps = levels[-1].of_value(opens=opens) if levels else begin
            if inside is None and levels and () in steps:
                if opens:
                    inside = len(levels), start, walk.place()
                else:
                    yield start, stop, walk.place()
            if opens:
                walk.enter(_Level(listed=mark == "[", outside=steps, inside=steps))


@lru_cache(maxsize=64)
def _first_steps(paths: tuple[str, ...]) -> Steps:
    return _from_here(tuple(_SEPARATORS.sub(r"\1", path.casefold()).split(".")) for path in paths)


def _step(steps: Steps, part: str) -> Steps:
    """Return the parts of the patterns that remain after matching one more field."""
    short = len(part) <= _REMEMBERED
    name = part.casefold().replace("_", "").replace("-", "")
    return (_known_step if short else _known_step.__wrapped__)(steps, name)


@lru_cache(maxsize=4096)
def _known_step(steps: Steps, part: str) -> Steps:
    # A star followed by other parts matches any number of fields, so it stays in the remaining pattern.
    return _from_here(
        left if _any(left) else left[1:] for left in steps if left and (_any(left) or fnmatchcase(part, left[0]))
    )


def _any(left: tuple[str, ...]) -> bool:
    return left[0] == "*" and len(left) > 1


def _from_here(lefts: Iterable[tuple[str, ...]]) -> Steps:
    """Return the patterns and, for each with leading stars, also the rest, because a star may match no field."""
    paths: dict[tuple[str, ...], None] = {}
    for left in lefts:
        paths[left] = None
        while left and _any(left):
            left = left[1:]  # noqa: PLW2901 - it gets shorter
            paths[left] = None
    return tuple(paths)


def _charset(content_type: str) -> str | None:
    if "charset" not in content_type.lower():
        return None
    mime = Mime()
    mime["Content-Type"] = content_type.replace("\r", " ").replace("\n", " ")
    return mime.get_content_charset()


def indented(text: str, *, most: int) -> str | None:
    """Return checked JSON with one line per entry; None above `MOST_LEVELS` levels or `most` characters."""
    pieces: list[str] = []
    depth, length, before = 0, 0, ""
    for word, _start, _stop in tokens(text):
        if word in "}]":
            depth = max(0, depth - 1)
        ends, begins = word in "}]" and before not in "{[", before in ("{", "[", ",") and word not in "}]"
        if pieces and (ends or begins):
            pieces.append("\n" + INDENT * depth)
            length += len(pieces[-1])
        pieces.append(": " if word == ":" else word)
        length += len(pieces[-1])
        depth += word in "{["
        before = word
        if depth > MOST_LEVELS or length > most:
            return None
    return "".join(pieces)
