"""Hides fields of a JSON text from people who may not read them; every other character stays as it came."""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from email.message import Message as Mime
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

HIDDEN = "•••"
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)
_PLAIN = re.compile(r"[\w$-]+")


def masked(
    data: bytes | str, content_type: str, paths: Sequence[str], *, shown: Collection[str] = ()
) -> tuple[str | None, tuple[str, ...]]:
    """The text without what `paths` hide, and where something is hidden, such as ``cards[0].pan``.

    Those places that `shown` names stay legible. None instead of a text that is no JSON object or array: what cannot be
    told apart can only be hidden whole.
    """
    text = data if isinstance(data, str) else decoded(data, content_type)
    if text is None or not is_json(text):
        return None, ()
    pieces: list[str] = []
    hidden: list[str] = []
    done = 0
    for start, stop, place in _hidden_spans(text, tuple(paths)):
        if place not in shown:
            pieces += [text[done:start], f'"{HIDDEN}"']
            done = stop
        if place not in hidden:
            hidden.append(place)
    return "".join([*pieces, text[done:]]), tuple(hidden)


def hides(parts: Sequence[str], paths: Sequence[str]) -> bool:
    """Whether a field is hidden, whatever the case of its letters; places in lists count for nothing."""
    return _hides(tuple(part.casefold() for part in parts), tuple(paths))


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
    except (ValueError, RecursionError):
        return False
    return True


def tokens(text: str) -> Iterator[tuple[str, int, int]]:
    """The words and marks of a JSON text, with where each stands."""
    return ((found.group(), found.start(), found.end()) for found in _TOKEN.finditer(text))


@dataclass(slots=True)
class _Level:
    """An object or array that is open: the field that comes next, or the place."""

    listed: bool
    key: str | None = None
    index: int = 0


@dataclass(slots=True)
class _Walk:
    """Where in the text one is."""

    levels: list[_Level] = field(default_factory=list)

    def fields(self) -> tuple[str, ...]:
        return tuple(level.key.casefold() for level in self.levels if level.key is not None)

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
            levels[-1].key = str(json.loads(mark, strict=False))
        else:
            opens = mark in "{["
            if inside is None and levels and _hides(walk.fields(), paths):
                if opens:
                    inside = len(levels), start, walk.place()
                else:
                    yield start, stop, walk.place()
            if opens:
                levels.append(_Level(listed=mark == "["))


@lru_cache(maxsize=4096)
def _hides(parts: tuple[str, ...], paths: tuple[str, ...]) -> bool:
    return any(_fits(parts, tuple(path.casefold().split("."))) for path in paths)


def _fits(parts: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "*" and len(pattern) > 1:
        return any(_fits(parts[skipped:], pattern[1:]) for skipped in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _fits(parts[1:], pattern[1:])


def _charset(content_type: str) -> str | None:
    if "charset" not in content_type.lower():
        return None
    mime = Mime()
    mime["Content-Type"] = content_type.replace("\r", " ").replace("\n", " ")
    return mime.get_content_charset()
