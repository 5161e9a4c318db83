"""The log: every record at WARNING and above is on the page of logs, by its event or by its first sentence."""

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
PLACEHOLDER = re.compile(r"(?:%[-.\d]*[a-z])+")
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


def sentences() -> set[str]:
    """The first sentence of each record without an event, with `…` for each value."""
    bare = [call for call in calls() if extra_of(call) is None]
    texts = [text_of(call.args[1 if is_levelled(call) else 0]) for call in bare]
    return {first for first in map(first_sentence, filter(None, texts)) if re.search("[a-z]{3}", first)}


def is_levelled(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == "log"


def text_of(node: ast.expr) -> str:
    """The text of a literal; an empty one for any other expression."""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def first_sentence(text: str) -> str:
    return re.split(r"(?<=\.)[\s…]", PLACEHOLDER.sub("…", text).strip(), maxsplit=1)[0]


def rows(head: str) -> list[str]:
    """The first cells of the tables with this head."""
    tables = re.findall(rf"^\| {re.escape(head)} \|.*\n\|[-| ]+\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    return [row.split("|")[1].strip() for table in tables for row in table.splitlines()]


def test_every_event_at_warning_and_above_is_on_the_logs_page() -> None:
    written = {event for row in rows("`event=`") for event in EVENT.findall(row)}

    assert len(events()) > 30
    assert events() - written == set(), "docs/reference/logs.md: add these events to the table"
    assert written - events() == set(), "docs/reference/logs.md: no code writes these events"


def test_every_record_without_an_event_is_on_the_logs_page() -> None:
    assert sentences() - set(rows("Record")) == set(), "docs/reference/logs.md: add these records to the table"
    assert set(rows("Record")) - sentences() == set(), "docs/reference/logs.md: no code writes these records"


def test_every_event_below_warning_is_on_the_logs_page() -> None:
    sources = "".join(path.read_text() for path in sorted(PACKAGE.rglob("*.py")))
    literal = set(re.findall(r'"event": "([a-z_]+)"', sources))
    written = {event for head in ("Event", "`event=`") for row in rows(head) for event in EVENT.findall(row)}

    assert literal - written == set(), "docs/reference/logs.md: add these events"
    assert {event for row in rows("Event") for event in EVENT.findall(row)} >= QUIETEST
    assert written - literal - events() - QUIETEST == set(), "docs/reference/logs.md: no code writes these events"
