"""A message's headers for people who edit them: which are theirs, and which decide where it goes and who handles it."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from django.utils.translation import gettext as _

from django_rmq_retry import registry
from django_rmq_retry.core.deaths import BROKERS_OWN
from django_rmq_retry.core.errors import UndecodableHeaders
from django_rmq_retry.core.headers import Headers
from django_rmq_retry.core.stamps import PREFIX


class Kind(StrEnum):
    CUSTOM = "custom"
    ROUTING = "routing"
    """Handlers are chosen by it."""
    SYSTEM = "system"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One header as it is shown."""

    name: str
    kind: Kind
    text: str
    type: str
    locked: bool


def rows(headers: Headers) -> list[Row]:
    """All headers; only texts, whole numbers and truth values of the sender's own can be edited."""
    found = []
    for name in headers:
        kind = kind_of(name)
        try:
            value = headers[name]
        except UndecodableHeaders:
            found.append(Row(name=name, kind=kind, text="", type=_("unreadable"), locked=True))
            continue
        simple = isinstance(value, (str, int))
        shown = str(value).lower() if isinstance(value, bool) else str(value)
        locked = kind is not Kind.CUSTOM or not simple
        found.append(Row(name=name, kind=kind, text=shown, type=type(value).__name__, locked=locked))
    return found


def kind_of(name: str) -> Kind:
    """Whose a header is."""
    if name.startswith((PREFIX, "x-")) or name in BROKERS_OWN:
        return Kind.SYSTEM
    return Kind.ROUTING if name in _dispatched_by() else Kind.CUSTOM


def changed_headers(
    headers: Headers, wanted: Mapping[str, str | None]
) -> tuple[Headers, dict[str, tuple[str, str]], list[str]]:
    """The headers with what is wanted, what really changes, and why some cannot; all others keep their bytes."""
    known = {row.name: row for row in rows(headers)}
    drop: list[str] = []
    put: dict[str, object] = {}
    refused: list[str] = []
    differing: dict[str, tuple[str, str]] = {}
    for name, text in wanted.items():
        row = known.get(name)
        before = row.text if row else ""
        if (row and text == before) or (row is None and text is None):
            continue
        if (row and row.locked) or kind_of(name) is not Kind.CUSTOM or not name:
            refused.append(_("The header %(name)r cannot be changed.") % {"name": name})
            continue
        differing[name] = before, text or ""
        if text is None:
            drop.append(name)
            continue
        try:
            put[name] = _typed(text, row.type if row else "str")
        except ValueError:
            refused.append(_("The header %(name)r takes a whole number or true or false.") % {"name": name})
    return headers.replacing(drop=drop, put=put), differing, refused


def _typed(text: str, kind: str) -> object:
    if kind == "bool":
        if text.lower() not in ("true", "false"):
            raise ValueError(text)
        return text.lower() == "true"
    return int(text) if kind == "int" else text


def _dispatched_by() -> set[str]:
    """The headers by which handlers are chosen, of whichever queue a message may be sent to."""
    return {name for one in registry.subscriptions() for name in one.match.headers}
