"""The facts of an action in words: their names, and their values."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from typing import Any

from django.core.exceptions import FieldDoesNotExist
from django.template.defaultfilters import yesno
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.formats import number_format
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext_lazy

from django_rmq_retry.admin import labels
from django_rmq_retry.markup import NOTHING
from django_rmq_retry.models import BlockedKey, DiscardCategory, ErrorGroup, GatedAct, OperatorAction, RequeueRun, State
from django_rmq_retry.models.audit import PROCESSES
from django_rmq_retry.parked.edit import as_text
from django_rmq_retry.parked.edited_keys import KeyChange

NAMES: Mapping[str, Any] = {
    "selection": gettext_lazy("Selection"),
    "messages": gettext_lazy("Record numbers"),
    "groups": gettext_lazy("Error groups"),
    "until": gettext_lazy("Until"),
    "before": gettext_lazy("Before"),
    "after": gettext_lazy("After"),
    "left_out": pgettext_lazy("fact of an action", "Left out by a check"),
    "include": pgettext_lazy("fact of an action", "Sent although"),
    "category": gettext_lazy("reason for the discard"),
    "version": gettext_lazy("Version"),
    "difference": pgettext_lazy("fact of an action", "Difference"),
    "headers": gettext_lazy("Headers"),
    "change": pgettext_lazy("edit", "Change"),
    "path": gettext_lazy("Path"),
    "act": gettext_lazy("Action"),
    "find": pgettext_lazy("fact of an action", "Replaced text"),
    "value": gettext_lazy("Value"),
    "number": pgettext_lazy("fact of an action", "As a number"),
    "form": gettext_lazy("Format"),
    "payload": pgettext_lazy("fact of an action", "Bodies"),
    "lines": pgettext_lazy("fact of an action", "Lines of the file"),
    "older_than_days": pgettext_lazy("fact of an action", "Older than, in days"),
    "counts": pgettext_lazy("fact of an action", "Messages by status"),
    "up_to": pgettext_lazy("fact of an action", "Up to row"),
    "paused_by": pgettext_lazy("fact of an action", "Had been paused by"),
    "breaker": pgettext_lazy("fact of an action", "Cause of its open breaker"),
    "outbox": pgettext_lazy("fact of an action", "Database of the outbox"),
    "unblocked": pgettext_lazy("fact of an action", "Went first until then"),
    "goes_first": pgettext_lazy("fact of an action", "Goes first since then"),
    "place": pgettext_lazy("fact of an action", "Field"),
    "sha256": "SHA-256",
    "bytes": gettext_lazy("Bytes"),
    "keys": gettext_lazy("Keys"),
    "request": gettext_lazy("Approval request"),
    "approved_by": gettext_lazy("Approved by"),
    "asked_by": gettext_lazy("Asked for by"),
    "seal": gettext_lazy("Seal"),
    "members": pgettext_lazy("fact of an action", "SHA-256 of the messages with their revisions"),
    "expires": gettext_lazy("Expires"),
    PROCESSES: gettext_lazy("Processes"),
    "rows": pgettext_lazy("fact of an action", "Rows of the audit log whose texts were erased"),
}
"""Names of facts that are no columns of the things that are acted on."""
CHANGED = (RequeueRun, ErrorGroup, BlockedKey)
CHOICES: Mapping[str, Any] = {
    "category": dict(DiscardCategory.choices),
    "state": dict(State.choices),
    "act": dict(GatedAct.choices),
}


def facts_in_words(action: OperatorAction, *, without: Collection[str] = ()) -> Iterator[tuple[str, str]]:
    """Yield the name and the value of each fact. Those of other software keep the names that they have."""
    odd = action.facts and not action.details
    for name, value in _in_order({_("facts"): action.facts} if odd else action.details):
        if name in without or value in ([], {}):
            continue
        yield name_in_words(name), _in_words(name, value)


def _in_order(facts: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return facts as they are listed above: a database may return them in an order of its own."""
    places = {name: place for place, name in enumerate(NAMES)}
    return sorted(facts.items(), key=lambda fact: places.get(str(fact[0]), len(places)))


def name_in_words(fact: str) -> str:
    if fact in NAMES:
        return str(capfirst(NAMES[fact]))
    for model in CHANGED:
        with suppress(FieldDoesNotExist):
            return str(capfirst(getattr(model._meta.get_field(fact), "verbose_name", fact)))  # noqa: SLF001 - Django's own way
    return str(dict(State.choices).get(fact, fact))


def _in_words(fact: str, value: Any) -> str:
    if isinstance(value, Mapping):
        parts = (f"{name_in_words(str(name))}: {_in_words(str(name), inner)}" for name, inner in _in_order(value))
        return _selection(value) if "as_of" in value else "\n".join(parts)
    if fact == "keys" and isinstance(value, list):
        return "\n".join(map(_key_change, value))
    if isinstance(value, list):
        return ("\n" if fact == "difference" else ", ").join(_in_words("", one) for one in value)
    if isinstance(value, str) and value:
        return str(CHOICES.get(fact, {}).get(value, "")) or _time(value) or value
    return _plain(value)


def _key_change(entry: Any) -> str:
    """Return the business keys of one edited message, before and after."""
    with suppress(TypeError, KeyError, AttributeError):
        change = KeyChange(before=tuple(map(str, entry["before"])), after=tuple(map(str, entry["after"])))
        return f"#{as_text(entry['message'])}: {change}"
    return as_text(entry)


def _plain(value: object) -> str:
    if value is None or value == "":
        return NOTHING
    if isinstance(value, bool):
        return str(yesno(value))
    if isinstance(value, float):
        return number_format(int(value) if value.is_integer() else value)
    return as_text(value)


def _selection(value: Mapping[str, Any]) -> str:
    with suppress(TypeError, KeyError, AttributeError):
        numbers = ", ".join(f"#{pk}" for pk in value.get("ids", ()))
        return " · ".join(filter(None, (labels.selection_text(value), numbers, _time(value["as_of"]))))
    return as_text(value)


def _time(text: str) -> str:
    """Return a time that a fact has, in the user's time zone; empty if the text is none."""
    with suppress(ValueError):
        at = parse_datetime(text) if len(text) > len("2026-11-27") else None
        return "" if at is None or at.tzinfo is None else f"{timezone.localtime(at):%Y-%m-%d %H:%M:%S}"
    return ""
