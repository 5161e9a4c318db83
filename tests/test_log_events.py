"""The log: every event is on the page of logs."""

import ast
import re
from functools import cache
from pathlib import Path

import django_rmq_retry
from tests.tooling.pages import page

PACKAGE = Path(django_rmq_retry.__file__).parent
PAGE = page("logs.md").read_text()
QUIET = {"trace", "twin_handled"}
"""Events below WARNING whose fields have a name."""
QUIETEST = {"ack", "duplicate", "retry", "halt", "discard", "park"}
"""Events of the line about an attempt, whose names are not literals."""
METHODS = {"warning", "error", "critical", "exception"}
EVENT = re.compile(r"`([a-z_]+)`")
EVENTS_OF_VERDICTS = {"halt", "discard", "park"}
"""Events of the line about an attempt; its level follows from the verdict."""


@cache
def calls() -> list[ast.Call]:
    """The calls of a logger at WARNING and above, or at a level that the code chooses; calls of ``log_failure``."""
    trees = (ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py")))
    nodes = (node for tree in trees for node in ast.walk(tree))
    return [node for node in nodes if isinstance(node, ast.Call) and is_loud(node.func)]


def is_loud(function: ast.expr) -> bool:
    if isinstance(function, ast.Name):
        return function.id == "log_failure"
    named = isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == "log"
    return named and (function.attr in METHODS or function.attr == "log")  # type: ignore[attr-defined]  # by `named`


def extra_of(call: ast.Call) -> ast.expr | None:
    return next((keyword.value for keyword in call.keywords if keyword.arg == "extra"), None)


def events() -> set[str]:
    """The events in the records' extra fields, and in names or functions that hold these fields."""
    sources = [path.read_text() for path in sorted(PACKAGE.rglob("*.py"))]
    direct = [ast.unparse(extra) for extra in map(extra_of, calls()) if extra is not None]
    known = {event for text in direct for event in re.findall(r"'event': '([a-z_]+)'|_extra\(row, '([a-z_]+)'\)", text)}
    held = {event for text in sources for event in re.findall(r"(?:names|extra) = \{\"event\": \"([a-z_]+)\"", text)}
    return {one or other for one, other in known} | (held - QUIET) | EVENTS_OF_VERDICTS


LOUD = ("Events of the outbox", "Warnings and errors")
REST = ("Records of attempts", "Other events")


def listed(sections: tuple[str, ...]) -> set[str]:
    """The events at the beginning of the items of these sections."""
    texts = [PAGE.partition(f"## {name}\n")[2].partition("\n## ")[0] for name in sections]
    heads = [head for text in texts for head in re.findall(r"^- (`[^:]*?)(?: \(\w+\))?: ", text, re.MULTILINE)]
    return {event for head in heads for event in EVENT.findall(head)}


def test_every_event_at_warning_and_above_is_on_the_logs_page() -> None:
    written = listed(LOUD)

    assert len(events()) > 30
    assert events() - written == set(), "docs/reference/logs.md: add these events to the list"
    assert written - events() == set(), "docs/reference/logs.md: no code writes these events"


def test_every_event_below_warning_is_on_the_logs_page() -> None:
    sources = "".join(path.read_text() for path in sorted(PACKAGE.rglob("*.py")))
    literal = set(re.findall(r'"event": "([a-z_]+)"', sources))
    written = listed(LOUD + REST)

    assert literal - written == set(), "docs/reference/logs.md: add these events"
    assert listed(REST) >= QUIETEST
    assert written - literal - events() - QUIETEST == set(), "docs/reference/logs.md: no code writes these events"
