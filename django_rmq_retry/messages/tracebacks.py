"""Exceptions as plain values, and their fingerprint. Nothing here raises, whatever the exception's methods do."""

import functools
import hashlib
import inspect
import json
import os
import sysconfig
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any, NamedTuple

from django_rmq_retry.messages.texts import short

MOST_CHAINED_ERRORS = 20
OUTERMOST, INNERMOST = 10, 40
"""The number of frames kept at the outer and the inner end of a traceback."""
MOST_REMEMBERED = 512
"""The number of cached stacks, and of cached exception class names."""
CLASS_BYTES = 255
TRACE_TEXT_BYTES = 4000
PLACE_BYTES = 500

Own = Callable[[str], bool]
"""The type of a function that returns True for a file of the project."""

GROUPING_RULE = 1
MOST_PLACES = 5
CULPRIT_BYTES = 255

INSTALLED = frozenset({"site-packages", "dist-packages"})
_paths = sysconfig.get_paths()


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    module: str
    function: str
    file: str
    line: int
    own: bool

    @property
    def place(self) -> str:
        """The module and function, without the line number, which changes when other code in the file changes."""
        return f"{self.module}:{self.function}"


def place_of(function: Callable[..., object]) -> str:
    """Return the place of a function's frames; empty if it has no Python code."""
    inner: Any = inspect.unwrap(function)
    for one in (inner, type(inner).__call__):
        code = getattr(one, "__code__", None)
        if isinstance(code, CodeType):
            return f"{short(str(one.__globals__.get('__name__')), PLACE_BYTES)}:{short(code.co_qualname, PLACE_BYTES)}"
    return ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stack:
    """The frames of a traceback. Exceptions raised at the same place through the same calls share one object."""

    frames: tuple[Frame, ...] = ()
    """The frames, the outermost first."""
    left_out: int = 0
    """The number of frames dropped between the outermost and the innermost ones."""
    places: tuple[str, ...] = ()
    """The places of the project's own frames, the outermost first. Repeated calls in a row count once."""
    codes: tuple[CodeType, ...] = ()
    """The code objects of the frames. The reference keeps their ids, which are cache keys, from being reused."""


class ChainedError(NamedTuple):
    kind: str
    link: str
    """Its relation to an exception before it: "cause", "context" or "member" (of a group); "" for the first."""
    text: str
    stack: Stack


def trace(error: BaseException, own: Own) -> tuple[ChainedError, ...]:
    # Positional arguments and a list, for speed: this runs at every failure.
    return tuple(
        [
            ChainedError(class_name(one), link, short(one, TRACE_TEXT_BYTES), stack_of(one, own))
            for one, link in causes(error)
        ]
    )


def causes(error: BaseException) -> list[tuple[BaseException, str]]:
    """Return the exception, the members of its group and what it was raised from, each once even in a cycle."""
    if not isinstance(error, BaseExceptionGroup) and not (_get(error, "__cause__") or _get(error, "__context__")):
        return [(error, "")]
    chain: list[tuple[BaseException, str]] = []
    todo: deque[tuple[BaseException, str]] = deque([(error, "")])
    seen: set[int] = set()
    while todo and len(chain) < MOST_CHAINED_ERRORS:
        one, link = todo.popleft()
        if id(one) not in seen:
            seen.add(id(one))
            chain.append((one, link))
            todo.extend(_next(one))
    return chain


def class_name(error: BaseException) -> str:
    """Return the name of its class, with the module unless that is builtins or __main__."""
    try:
        return _named(type(error))  # type: ignore[arg-type]  # a class is hashable even if its instances are not
    except BaseException:  # noqa: BLE001 - a metaclass of the project may raise
        return "?"


@lru_cache(maxsize=MOST_REMEMBERED)
def _named(kind: type[BaseException]) -> str:
    module, name = kind.__module__, kind.__qualname__
    return short(name if module in {"builtins", "__main__"} else f"{module}.{name}", CLASS_BYTES)


def stack_of(error: BaseException, own: Own) -> Stack:
    """Return the frames of its traceback, cached by place in the code, because most failures repeat an earlier one."""
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
        if len(_stacks) >= MOST_REMEMBERED:
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
        module=short(module, PLACE_BYTES) if isinstance(module, str) else "?",
        function=short(code.co_qualname, PLACE_BYTES),
        file=short(file, PLACE_BYTES),
        # tb_lineno can be None, because some instructions belong to no line; the type stubs omit this.
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
    except BaseException:  # noqa: BLE001 - a property of the project's class may raise
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouping:
    fingerprint: str
    culprit: str = ""
    """The innermost function of the project in the traceback."""


def traced(causes: Sequence[ChainedError], *, reason: str, handler: str = "") -> Grouping | None:
    """Return the group of an exception and its causes; None if no traceback contains code of the project.

    ``handler`` is the place of the handler's function: a cause behind several handlers is one group.
    """
    for cause in causes:
        places = _called(cause.stack.places, handler)[-MOST_PLACES:]
        if places:
            kinds = _kinds(causes) if len(causes) > 1 else (causes[0].kind,)
            return _ruled(kinds, places, reason)
    return None


def _called(places: tuple[str, ...], handler: str) -> tuple[str, ...]:
    """Return the places that the handler's function called; all of them if the function itself has failed."""
    if handler not in places:
        return places
    last = len(places) - 1 - places[::-1].index(handler)
    return places[last + 1 :] or places


def _kinds(causes: Sequence[ChainedError]) -> tuple[str, ...]:
    # Sorted, because the members of a group have no fixed order.
    members = sorted({cause.kind for cause in causes if cause.link == "member"})
    return (causes[0].kind, *members, *(cause.kind for cause in causes[1:] if cause.link != "member"))


@lru_cache(maxsize=512)
def _ruled(kinds: tuple[str, ...], places: tuple[str, ...], reason: str) -> Grouping:
    return Grouping(fingerprint=_digest(GROUPING_RULE, kinds, places, reason), culprit=short(places[-1], CULPRIT_BYTES))


def untraced(error: str, *, reason: str, queue: str) -> Grouping:
    """Return the group of a failure without a traceback, by the error's class name (if any), reason and queue."""
    return Grouping(fingerprint=_digest(GROUPING_RULE, error, reason, queue))


def named_fingerprint(name: str) -> str:
    return _digest("named", name)


def fields_fingerprint(handler: str, fields: Sequence[str]) -> str:
    """Return the group of messages whose data do not fit the handler's type, by the fields that are wrong."""
    return _digest("invalid", handler, sorted(set(fields)))


def _digest(*parts: object) -> str:
    # JSON keeps the parts separate, so different parts never give the same text. It escapes to ASCII, because a name
    # may contain a lone surrogate, which UTF-8 cannot encode.
    return hashlib.sha1(json.dumps(parts).encode(), usedforsecurity=False).hexdigest()


_found = (_paths["stdlib"], _paths["platstdlib"], str(Path(os.__file__).parent), str(Path(__file__).parents[1]))

_ELSEWHERE = tuple({f"{folder}{os.sep}" for path in _found for folder in (path, os.path.realpath(path))})


@functools.lru_cache(maxsize=4096)
def projects_own(file: str) -> bool:
    """True if a file named in a traceback belongs to the project. False for code without a file, such as <string>."""
    if not file or file.startswith("<"):
        return False
    return not file.startswith(_ELSEWHERE) and INSTALLED.isdisjoint(Path(file).parts)
