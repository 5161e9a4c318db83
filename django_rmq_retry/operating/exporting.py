"""Exports: tables for people and lines for programs, streamed, and written into the audit log before the first row."""

import base64
import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from django.db.models import QuerySet

from django_rmq_retry.conf import settings
from django_rmq_retry.core.errors import UndecodableHeaders
from django_rmq_retry.core.masking import HIDDEN, masked, without
from django_rmq_retry.core.properties import decode_properties
from django_rmq_retry.models import Item, ItemState, OperatorAction, ParkedMessage, Verb
from django_rmq_retry.operating.actors import Actor
from django_rmq_retry.operating.auditing import note
from django_rmq_retry.operating.selecting import Selection
from django_rmq_retry.operating.slicing import Allowed

SCHEMA = "rmq_retry.parked/1"
CHUNK = 100
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""A spreadsheet takes a cell that begins with one of these for a formula; some take the wide forms as well."""
COLUMNS = (
    *("id", "state", "group", "business_key", "message_id", "correlation_id", "type", "handler", "queue", "reason"),
    *("error", "attempts", "cycle", "version", "copies", "published_at", "failed_at", "parked_at", "held_until"),
    *("requeued_at", "requeued_by", "resolved_at", "resolution", "size", "sha256"),
)


class Payload(StrEnum):
    """How much of what was sent goes along."""

    NONE = "none"
    MASKED = "masked"
    WHOLE = "whole"


def export(
    selection: Selection, actor: Actor, *, form: str = "csv", payload: Payload = Payload.NONE, reason: str = ""
) -> Iterator[str]:
    """The lines of an export, "csv" or "jsonl"; only one whose payload is whole can be imported again."""
    rows = selection.queryset()
    count = rows.count()
    selection.check(count)
    facts = {"form": form, "payload": payload.value, "selection": selection.facts()}
    note(actor, Verb.EXPORT, reason=reason, subject=selection.said, count=count, facts=facts)
    if form == "csv":
        return csv_lines(COLUMNS, _table(rows))
    return (json.dumps(as_data(row, payload), ensure_ascii=False) + "\n" for row in _streamed(rows))


def as_data(message: ParkedMessage, payload: Payload = Payload.NONE) -> dict[str, Any]:
    """A record as programs read it; times in UTC, keys that stay."""
    plain = {name: _plain(getattr(message, name)) for name in COLUMNS if name != "group"}
    group = message.group
    told = {"id": group.pk, "title": group.title, "culprit": group.culprit, "fingerprint": group.fingerprint}
    more = ("parked_in", "exchange", "routing_key", "by", "content_type", "content_encoding")
    data = {"schema": SCHEMA, **plain, "group": told, "keys": [key.value for key in message.keys.all()]}
    data |= {name: getattr(message, name) for name in more}
    if payload is Payload.NONE:
        return data
    data |= {name: getattr(message, name) for name in ("detail", "error_text", "summary")}
    if payload is Payload.MASKED:
        text, hidden = masked(bytes(message.body), message.content_type, settings().mask)
        return {**data, "body": text, "hidden": hidden, "headers": _headers(message)}
    whole = {"body": bytes(message.body), "properties": bytes(message.properties)}
    return {**data, **{f"{name}_base64": base64.b64encode(value).decode() for name, value in whole.items()}}


def run_lines(run: int, actor: Actor, *, allowed: Allowed | None = None) -> Iterator[str]:
    """What became of each message of a run, as a table."""
    items = Item.objects.filter(run=run).order_by("place").select_related("message").defer(*HEAVY)
    note(actor, Verb.EXPORT, run=run, count=items.count(), facts={"form": "csv"})
    head = ("place", "id", "business_key", "message_id", "queue", "state", "why", "error", "sent_at", "ended_at")
    shown = (one for one in items.iterator(chunk_size=1000) if allowed is None or not allowed(one.message))
    return csv_lines(head, map(_result, shown))


def audit_lines(rows: "QuerySet[OperatorAction]", actor: Actor, *, form: str = "csv") -> Iterator[str]:
    """The audit log, or a part of it; exporting it is an act as well."""
    note(actor, Verb.EXPORT, subject="audit log", count=rows.count(), facts={"form": form})
    names = (
        *("number", "at", "actor_name", "actor_key", "behalf", "verb", "reason", "message", "group", "run", "subject"),
        *("count", "facts", "ip", "source", "previous", "seal"),
    )
    streamed = rows.order_by("number").iterator(chunk_size=1000)
    if form == "csv":
        return csv_lines(names, ([_plain(getattr(row, name)) for name in names] for row in streamed))
    return (json.dumps({name: _plain(getattr(row, name)) for name in names}) + "\n" for row in streamed)


def csv_lines(head: Iterable[str], rows: Iterable[Iterable[object]]) -> Iterator[str]:
    """A table as CSV, line by line; no cell of it is a formula."""
    writer = csv.writer(_Echo())
    yield str(writer.writerow(head))
    for row in rows:
        yield str(writer.writerow([neutral(cell) for cell in row]))


def neutral(cell: object) -> str:
    """A cell as text; one that a spreadsheet would calculate begins with an apostrophe."""
    text = json.dumps(cell) if isinstance(cell, (dict, list)) else "" if cell is None else str(cell)
    return f"'{text}" if text.startswith(FORMULA) and not isinstance(cell, (int, float)) else text


HEAVY = ("message__body", "message__properties", "message__detail", "message__error_text", "message__summary")


def _result(item: Item) -> Iterator[object]:
    message = item.message
    yield from (item.place, message.pk, message.business_key, message.message_id, message.queue, item.state, item.why)
    yield message.error if item.state == ItemState.FAILED else ""
    yield from (_plain(item.sent_at), _plain(item.ended_at))


class _Echo:
    """csv.writer gives back what the file's write gives back."""

    def write(self, line: str) -> str:
        return line


def _table(rows: QuerySet[ParkedMessage]) -> Iterator[list[object]]:
    names = ["pk" if name == "id" else name for name in COLUMNS]
    for row in rows.order_by("pk").values_list(*names).iterator(chunk_size=1000):
        yield [_plain(cell) for cell in row]


def _streamed(rows: QuerySet[ParkedMessage]) -> Iterator[ParkedMessage]:
    """A statement for each chunk: some databases hand over a whole result at once, with all its bodies."""
    ordered, after = rows.order_by("pk").select_related("group").prefetch_related("keys"), 0
    while chunk := list(ordered.filter(pk__gt=after)[:CHUNK]):
        yield from chunk
        after = chunk[-1].pk


def _plain(value: object) -> Any:
    return value.astimezone(UTC).isoformat().replace("+00:00", "Z") if isinstance(value, datetime) else value


def _headers(message: ParkedMessage) -> Mapping[str, str]:
    try:
        known = decode_properties(bytes(message.properties)).headers
    except UndecodableHeaders:
        return {}
    return {name: _shown(known, name) for name in known}


def _shown(headers: Mapping[str, object], name: str) -> str:
    try:
        return str(without(headers[name], [name], settings().mask))
    except UndecodableHeaders:
        return HIDDEN
