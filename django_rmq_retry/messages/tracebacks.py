"""Exceptions as plain values, and the fingerprint that groups failures by cause.

Nothing here raises, whatever an exception does; and nothing here knows which files are the project's: that is told.
"""

import functools
import hashlib
import json
import os
import sysconfig
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import CodeType, TracebackType
from typing import NamedTuple

NAME_LIMIT = 100
TEXT_LIMIT = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorNote:
    """The short form of an exception: short enough for a header, whatever the exception does."""

    kind: str
    text: str

    @classmethod
    def of(cls, error: BaseException) -> "ErrorNote":
        return cls(kind=short(type(error).__name__, NAME_LIMIT), text=short(error))

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}" if self.text else self.kind


def short(value: object, limit: int = TEXT_LIMIT) -> str:
    """A text that any header, log and database takes: at most so many bytes of UTF-8, no NUL, no lone surrogate."""
    try:
        text = str(value)
    except BaseException as broken:  # noqa: BLE001 - whatever its __str__ does, the message must be parked
        text = f"(its text cannot be made: {type(broken).__name__})"
    if len(text) <= limit and text.isascii() and "\0" not in text:
        return text
    encoded = text[: limit + 1].encode("utf-8", "backslashreplace").replace(b"\0", b"\\x00")
    if len(encoded) <= limit:
        return encoded.decode()
    return encoded[: limit - 3].decode("utf-8", "ignore") + "…"


CAUSES = 20
OUTERMOST, INNERMOST = 10, 40
"""So many frames are kept at either end of a traceback."""
REMEMBERED = 512
"""So many places in the code from which exceptions came are remembered."""
CLASS_LIMIT = 255
TRACE_TEXT_LIMIT = 4000
PLACE_LIMIT = 500

Own = Callable[[str], bool]
"""Whether a file is one of the project's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One call through which an exception came."""

    module: str
    function: str
    file: str
    line: int
    own: bool

    @property
    def place(self) -> str:
        """Where in the code, in words that a change elsewhere in the file leaves alone."""
        return f"{self.module}:{self.function}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stack:
    """The calls through which exceptions came from one and the same place; the same object for all of them."""

    frames: tuple[Frame, ...] = ()
    """The outermost first."""
    left_out: int = 0
    """Frames that are missing between the outermost and the innermost."""
    places: tuple[str, ...] = ()
    """Of the project's own frames, the outermost first; a recursion counts once."""
    codes: tuple[CodeType, ...] = ()
    """Kept, so that what is remembered by them is not found by others in their place."""


class Cause(NamedTuple):
    """One exception of a chain."""

    kind: str
    link: str
    """How it belongs to one before it: "" is the first, then "cause", "context" or "member" (of a group)."""
    text: str
    stack: Stack


def trace(error: BaseException, own: Own) -> tuple[Cause, ...]:
    """An exception and what caused it, the newest first."""
    # Made by place, in a list first: it is asked for at every failure.
    return tuple(
        [Cause(kind_of(one), link, short(one, TRACE_TEXT_LIMIT), stack_of(one, own)) for one, link in causes(error)]
    )


def causes(error: BaseException) -> list[tuple[BaseException, str]]:
    """The exception itself, the members of a group, then what it was raised from; each once, however they circle."""
    if not isinstance(error, BaseExceptionGroup) and not (_get(error, "__cause__") or _get(error, "__context__")):
        return [(error, "")]
    found: list[tuple[BaseException, str]] = []
    todo: deque[tuple[BaseException, str]] = deque([(error, "")])
    seen: set[int] = set()
    while todo and len(found) < CAUSES:
        one, link = todo.popleft()
        if id(one) not in seen:
            seen.add(id(one))
            found.append((one, link))
            todo.extend(_next(one))
    return found


def kind_of(error: BaseException) -> str:
    """The name of its class, with the module unless it is built in."""
    try:
        return _named(type(error))  # type: ignore[arg-type]  # a class is hashable, whatever its instances are
    except BaseException:  # noqa: BLE001 - a metaclass of the project's
        return "?"


@lru_cache(maxsize=REMEMBERED)
def _named(kind: type[BaseException]) -> str:
    module, name = kind.__module__, kind.__qualname__
    return short(name if module in {"builtins", "__main__"} else f"{module}.{name}", CLASS_LIMIT)


def stack_of(error: BaseException, own: Own) -> Stack:
    """The frames of its traceback: worked out once for a place in the code, for most failures are like one before."""
    steps: list[TracebackType] = []
    step = _get(error, "__traceback__")
    while isinstance(step, TracebackType):
        steps.append(step)
        step = step.tb_next
    count = len(steps)
    if count > OUTERMOST + INNERMOST:
        steps[OUTERMOST:-INNERMOST] = []
    key = (count, own, *[part for one in steps for part in (id(one.tb_frame.f_code), one.tb_lasti)])
    known = _stacks.get(key)
    if known is None:
        if len(_stacks) >= REMEMBERED:
            _stacks.clear()
        known = _stacks[key] = _stack(steps, count, own)
    return known


_stacks: dict[object, Stack] = {}


def _stack(steps: Sequence[TracebackType], count: int, own: Own) -> Stack:
    frames = tuple(_frame(one, own) for one in steps)
    places = [frame.place for frame in frames if frame.own]
    return Stack(
        frames=frames,
        left_out=count - len(steps),
        places=tuple(place for place, before in zip(places, ["", *places], strict=False) if place != before),
        codes=tuple(one.tb_frame.f_code for one in steps),
    )


def _frame(step: TracebackType, own: Own) -> Frame:
    code = step.tb_frame.f_code
    module = step.tb_frame.f_globals.get("__name__")
    file = code.co_filename
    return Frame(
        module=short(module, PLACE_LIMIT) if isinstance(module, str) else "?",
        function=short(code.co_qualname, PLACE_LIMIT),
        file=short(file, PLACE_LIMIT),
        # Some instructions belong to no line; the stubs do not know.
        line=step.tb_lineno or 0,
        own=own(file),
    )


def _next(error: BaseException) -> Iterator[tuple[BaseException, str]]:
    if isinstance(error, BaseExceptionGroup):
        members = _get(error, "exceptions")
        for member in members if isinstance(members, tuple) else ():
            yield member, "member"
    cause = _get(error, "__cause__")
    if isinstance(cause, BaseException):
        yield cause, "cause"
        return
    context = _get(error, "__context__")
    if isinstance(context, BaseException) and not _get(error, "__suppress_context__"):
        yield context, "context"


def _get(error: BaseException, name: str) -> object:
    try:
        return getattr(error, name)
    except BaseException:  # noqa: BLE001 - a property of the project's
        return None


RULE = 1
PLACES = 5
CULPRIT_LIMIT = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouping:
    """To which group a failure belongs."""

    fingerprint: str
    culprit: str = ""
    """The innermost function of the project's that it came through."""


def traced(causes: Sequence[Cause], *, reason: str) -> Grouping | None:
    """The group of an exception and its causes; nothing where none came through code of the project's."""
    for cause in causes:
        places = cause.stack.places[-PLACES:]
        if places:
            return _ruled(_kinds(causes), places, reason)
    return None


def _kinds(causes: Sequence[Cause]) -> tuple[str, ...]:
    if len(causes) == 1:
        return (causes[0].kind,)
    # The members of a group come in any order.
    members = sorted({cause.kind for cause in causes if cause.link == "member"})
    return (causes[0].kind, *members, *(cause.kind for cause in causes[1:] if cause.link != "member"))


@lru_cache(maxsize=512)
def _ruled(kinds: tuple[str, ...], places: tuple[str, ...], reason: str) -> Grouping:
    return Grouping(fingerprint=_digest(RULE, kinds, places, reason), culprit=short(places[-1], CULPRIT_LIMIT))


def untraced(error: str, *, reason: str, queue: str) -> Grouping:
    """The group of what has no traceback: the name of the error's class if there is one, the reason and the queue."""
    return Grouping(fingerprint=_digest(RULE, error, reason, queue))


def named(name: str) -> str:
    """The fingerprint of a group that a handler names itself."""
    return _digest("named", name)


def _digest(*parts: object) -> str:
    # JSON, for no text in it can then be taken for two; in ASCII, for a name may hold what UTF-8 cannot.
    return hashlib.sha1(json.dumps(parts).encode(), usedforsecurity=False).hexdigest()


INSTALLED = frozenset({"site-packages", "dist-packages"})
_paths = sysconfig.get_paths()
_found = (_paths["stdlib"], _paths["platstdlib"], str(Path(os.__file__).parent), str(Path(__file__).parents[1]))
_ELSEWHERE = tuple({f"{folder}{os.sep}" for path in _found for folder in (path, os.path.realpath(path))})


@functools.lru_cache(maxsize=4096)
def projects_own(file: str) -> bool:
    """Whether a file, as a traceback names it, is the project's; code that came from no file is nobody's."""
    if not file or file.startswith("<"):
        return False
    return not file.startswith(_ELSEWHERE) and INSTALLED.isdisjoint(Path(file).parts)
