"""The rows of the management API: their readers rely on the shape that is checked here, once for all of them."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]
ValueCheck = Callable[[object], bool]

_HUGE_NUMBER = 2**63
"""No number of a broker is as large, and larger ones would not fit into times and floats."""
_EXCERPT_CHARACTERS = 60
_COUNTS = ("messages", "messages_ready", "messages_unacknowledged", "messages_dlx", "messages_delayed", "consumers")
_ENDS = ("source", "destination", "destination_type", "routing_key")
_RIGHTS = ("configure", "write", "read")


class Misshapen(Exception):
    """An answer is not what was asked for; the text is a clause that tells the difference."""


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_table(value: object) -> bool:
    return isinstance(value, dict)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -_HUGE_NUMBER < value < _HUGE_NUMBER


def _is_count(value: object) -> bool:
    return isinstance(value, int) and _is_number(value)


def _is_stats(value: object) -> bool:
    """Return True for figures, each of which may have ``…_details`` with a rate."""
    if not isinstance(value, dict):
        return False
    details = [one for name, one in value.items() if name.endswith("_details")]
    return all(isinstance(one, dict) and _is_number(one.get("rate", 0.0)) for one in details)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowKind:
    many: str
    one: str
    fields: Mapping[str, ValueCheck]
    """The fields that are read, if an answer has them."""
    needed: frozenset[str]
    """Those that one row for itself must have; a list may show queues of a stopped node, of which less is known."""
    named: frozenset[str]
    """Those that each row of a list must have."""


QUEUES = RowKind(
    many="a list of queues",
    one="a queue",
    fields={
        **dict.fromkeys(("name", "type", "policy", "operator_policy"), _is_text),
        **dict.fromkeys(("arguments", "effective_policy_definition"), _is_table),
        **dict.fromkeys(_COUNTS, _is_count),
        "message_stats": _is_stats,
    },
    needed=frozenset({"name", "type", "arguments"}),
    named=frozenset({"name"}),
)
EXCHANGES = RowKind(
    many="a list of exchanges",
    one="an exchange",
    fields={"name": _is_text, "type": _is_text, "arguments": _is_table},
    needed=frozenset({"name", "type", "arguments"}),
    named=frozenset({"name"}),
)
BINDINGS = RowKind(
    many="a list of bindings",
    one="a binding",
    fields={**dict.fromkeys(_ENDS, _is_text), "arguments": _is_table},
    needed=frozenset({*_ENDS, "arguments"}),
    named=frozenset({*_ENDS, "arguments"}),
)
PERMISSIONS = RowKind(
    many="a list of permissions",
    one="the permissions of a user",
    fields=dict.fromkeys(_RIGHTS, _is_text),
    needed=frozenset(_RIGHTS),
    named=frozenset(_RIGHTS),
)


def json_of(body: bytes) -> object:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise Misshapen("it is not JSON") from None


def rows_of(answer: object, kind: RowKind) -> list[Row]:
    if not isinstance(answer, list):
        raise Misshapen(f"it is {_words(answer)}")
    return [_checked(row, kind, kind.named) for row in answer]


def row_of(answer: object, kind: RowKind) -> Row:
    return _checked(answer, kind, kind.needed)


def _checked(row: object, kind: RowKind, needed: frozenset[str]) -> Row:
    if not isinstance(row, dict):
        raise Misshapen(f"{kind.one} is {_words(row)}")
    clean = dict(row)
    for name, check in kind.fields.items():
        value = row.get(name)
        if check(value):
            continue
        # Erlang writes what is not known as null or an empty text, and a table without entries as an empty list.
        if check is _is_table and value == []:
            clean[name] = {}
        elif value not in (None, "", []):
            raise Misshapen(f"the field {name!r} of {kind.one} is {_words(value)}")
        elif name in needed:
            raise Misshapen(f"{kind.one} has no field {name!r}")
        else:
            clean.pop(name, None)
    return clean


def _words(value: object) -> str:
    """Return a short form of a value for a sentence."""
    if isinstance(value, list):
        return "a list"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, int) and not -_HUGE_NUMBER < value < _HUGE_NUMBER:
        return "a huge number"
    text = json.dumps(value)
    return text if len(text) <= _EXCERPT_CHARACTERS else f"{text[:_EXCERPT_CHARACTERS]}…"
