"""Export and import of parked messages."""

import base64
import binascii
import csv
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from itertools import islice
from typing import Any

from django.db.models import QuerySet
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _

from django_rmq_retry.conf import settings
from django_rmq_retry.errors import UndecodableHeaders
from django_rmq_retry.handlers import registry
from django_rmq_retry.handlers.layout import homes_of
from django_rmq_retry.messages.header_names import KEPT_RAW, PREFIX
from django_rmq_retry.messages.masking import HIDDEN, masked, without
from django_rmq_retry.messages.message import Delivery
from django_rmq_retry.messages.properties import Headers, Properties, decode_properties, encode_properties
from django_rmq_retry.messages.stamp import Stamp
from django_rmq_retry.messages.texts import COLUMN_BYTES, short
from django_rmq_retry.models import Action, EarlyRetry, ItemState, OperatorAction, ParkedMessage, RequeueItem
from django_rmq_retry.parked.audit import WHOLE_LOG, log_action
from django_rmq_retry.parked.database import records_alias
from django_rmq_retry.parked.key_lists import mark_kept
from django_rmq_retry.parked.operators import Actor, Allowed, Refused
from django_rmq_retry.parked.selection import Selection
from django_rmq_retry.parked.store import RecordStore

SCHEMA = "rmq_retry.parked/1"
STREAMED_AT_ONCE = 100
LOGGED_AT_ONCE = 10_000
"""Messages that one row of the audit log names; a larger export has several rows."""
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""A spreadsheet treats a cell that begins with one of these as a formula; some accept the wide forms as well."""
COLUMNS = (
    *("id", "state", "group", "business_key", "message_id", "correlation_id", "type", "handler", "queue", "reason"),
    *("error", "attempts", "cycle", "version", "copies", "published_at", "failed_at", "parked_at", "held_until"),
    *("requeued_at", "requeued_by", "resolved_at", "resolution", "erased_at", "erased_by", "size", "sha256"),
)

AUDIT_COLUMNS = (
    *("number", "at", "actor_name", "actor_key", "behalf", "action", "reason", "message", "group", "run", "subject"),
    *("count", "facts", "ip", "source", "salt", "digest", "previous", "seal"),
)
HEAVY = ("message__body", "message__properties", "message__detail", "message__error_text", "message__summary")
IMPORTED_AT_ONCE = 200
MOST_REFUSED = 100


class Payload(StrEnum):
    """The part of a message's contents that is exported."""

    NONE = "none"
    MASKED = "masked"
    WHOLE = "whole"


def export(
    selection: Selection, actor: Actor, *, form: str = "csv", payload: Payload = Payload.NONE, reason: str = ""
) -> Iterator[str]:
    """Return the lines of an export, "csv" or "jsonl"; only one with the whole payload can be imported again."""
    chosen = selection.queryset()
    selection.check(chosen.count())
    rows = chosen.filter(erased_at__isnull=True)
    count = rows.count()
    if not count and chosen.exists():
        raise Refused(_("The contents of these messages were erased, so there is nothing to export."))
    mark_kept(selection.filter)
    facts = {"form": form, "payload": payload.value, "selection": selection.facts()}
    alone = rows.select_related(None).defer("body", "properties").first() if count == 1 else None
    subject = str(alone) if alone else selection.subject
    numbers, after = rows.order_by("pk").values_list("pk", flat=True), 0
    while some := list(numbers.filter(pk__gt=after)[:LOGGED_AT_ONCE]):
        log_action(actor, Action.EXPORT, reason=reason, messages=some, subject=subject, count=len(some), facts=facts)
        after = some[-1]
    if form == "csv":
        return csv_lines(COLUMNS, _table(rows))
    return (json.dumps(as_data(row, payload), ensure_ascii=False) + "\n" for row in _streamed(rows))


def as_data(message: ParkedMessage, payload: Payload = Payload.NONE) -> dict[str, Any]:
    """Return a record as data for programs, with times in UTC and stable names."""
    plain = {name: _plain(getattr(message, name)) for name in COLUMNS if name != "group"}
    group = message.group
    about_group = {"id": group.pk, "title": group.title, "culprit": group.culprit, "fingerprint": group.fingerprint}
    more = ("parked_in", "exchange", "routing_key", "by", "content_type", "content_encoding")
    data = {"schema": SCHEMA, **plain, "group": about_group, "keys": [key.value for key in message.keys.all()]}
    data |= {name: getattr(message, name) for name in more}
    if payload is Payload.NONE:
        return data
    data |= {name: getattr(message, name) for name in ("detail", "error_text", "summary")}
    if payload is Payload.MASKED:
        text, hidden = masked(bytes(message.body), message.content_type, settings().operators.mask)
        return {**data, "body": text, "hidden": hidden, "headers": _headers(message)}
    whole = {"body": bytes(message.body), "properties": bytes(message.properties)}
    data["unacked"] = message.unacked
    return {**data, **{f"{name}_base64": base64.b64encode(value).decode() for name, value in whole.items()}}


def run_lines(run_id: int, actor: Actor, *, allowed: Allowed | None = None) -> Iterator[str]:
    """Return the result of each message of a run, as the lines of a table."""
    items = RequeueItem.objects.filter(run=run_id).order_by("place").select_related("message").defer(*HEAVY)
    log_action(actor, Action.EXPORT, run=run_id, count=items.count(), facts={"form": "csv"})
    names = ("place", "id", "business_key", "message_id", "queue")
    head = (*names, "state", "skip_code", "error", "sent_at", "ended_at", "handled", "redelivered")
    shown = (one for one in items.iterator(chunk_size=1000) if allowed is None or not allowed(one.message))
    return csv_lines(head, map(_result, shown))


def early_lines(run_id: int, actor: Actor, *, named: bool = True) -> Iterator[str]:
    """Return the same for a run that sends retries before they are due; without their names unless ``named``."""
    rows = EarlyRetry.objects.filter(run=run_id).order_by("pk")
    log_action(actor, Action.EXPORT, run=run_id, count=rows.count(), facts={"form": "csv"})
    head = ("message", "state", "error", "sent_at", "ended_at", "handled", "redelivered")
    return csv_lines(head, ([one.shown if named else "", *_early_result(one)] for one in rows))


def audit_lines(rows: "QuerySet[OperatorAction]", actor: Actor, *, form: str = "csv") -> Iterator[str]:
    """Return the lines of the audit log, or of a part of it; the export is itself an action in the log."""
    log_action(actor, Action.EXPORT, subject=WHOLE_LOG, count=rows.count(), facts={"form": form})
    names = AUDIT_COLUMNS
    streamed = rows.order_by("number").iterator(chunk_size=1000)
    if form == "csv":
        return csv_lines(names, ([_plain(getattr(row, name)) for name in names] for row in streamed))
    return (json.dumps({name: _plain(getattr(row, name)) for name in names}) + "\n" for row in streamed)


def csv_lines(head: Iterable[str], rows: Iterable[Iterable[object]]) -> Iterator[str]:
    """Yield a table as CSV, line by line, without formulas."""
    writer = csv.writer(_Echo())
    yield str(writer.writerow(head))
    for row in rows:
        yield str(writer.writerow([neutral(cell) for cell in row]))


def neutral(cell: object) -> str:
    """Return a cell as text, with an apostrophe in front if a spreadsheet would treat it as a formula."""
    text = json.dumps(cell) if isinstance(cell, (dict, list)) else "" if cell is None else str(cell)
    return f"'{text}" if text.startswith(FORMULA) and not isinstance(cell, (int, float)) else text


def _early_result(one: EarlyRetry) -> list[object]:
    return [one.state, one.error, _plain(one.sent_at), _plain(one.ended_at), one.handled, one.redelivered]


def _result(item: RequeueItem) -> list[object]:
    message = item.message
    names = [message.pk, message.business_key, message.message_id, message.queue]
    error = message.error if item.state == ItemState.FAILED else ""
    outcome = [item.state, item.skip_code, error, _plain(item.sent_at), _plain(item.ended_at)]
    return [item.place, *names, *outcome, item.handled, item.redelivered]


class _Echo:
    """A file whose ``write`` returns the line, because csv.writer returns the result of ``write``."""

    def write(self, line: str) -> str:
        return line


def _table(rows: QuerySet[ParkedMessage]) -> Iterator[list[object]]:
    names = ["pk" if name == "id" else name for name in COLUMNS]
    for row in rows.order_by("pk").values_list(*names).iterator(chunk_size=1000):
        yield [_plain(cell) for cell in row]


def _streamed(rows: QuerySet[ParkedMessage]) -> Iterator[ParkedMessage]:
    """Yield rows, each chunk by its own query: some databases return a whole result at once, with all its bodies."""
    ordered, after = rows.order_by("pk").select_related("group").prefetch_related("keys"), 0
    while chunk := list(ordered.filter(pk__gt=after)[:STREAMED_AT_ONCE]):
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
        return str(without(headers[name], [name], settings().operators.mask))
    except UndecodableHeaders:
        return HIDDEN


@dataclass(slots=True, kw_only=True)
class Imported:
    """The result of an import, with the first refused lines, each with the reason."""

    stored: int = 0
    refused: int = 0
    problems: list[tuple[int, str]] = field(default_factory=list)

    def refuse(self, line: int, why: str) -> None:
        self.refused += 1
        if len(self.problems) < MOST_REFUSED:
            self.problems.append((line, why))


def import_lines(lines: Iterable[str | bytes], actor: Actor, *, reason: str = "") -> Imported:
    """Park the messages in the lines of an export with the whole payload; unusable lines are skipped and reported.

    Where an edit needs a second person, lines with another body than that of the message are unusable.
    """
    done, edits = Imported(), actor.source == "code" or settings().four_eyes.edit is None
    work_queues = registry.work_queues()
    store = RecordStore(homes_of(work_queues), work_queues)
    numbered = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
    while batch := list(islice(numbered, IMPORTED_AT_ONCE)):
        reads = ((number, _read(number, line, done, edits=edits)) for number, line in batch)
        arrivals = [(number, read) for number, read in reads if read is not None]
        stored = store.store([delivery for _number, delivery in arrivals])
        for (number, _delivery), one in zip(arrivals, stored, strict=True):
            if one.problem:
                done.refuse(number, one.problem)
            else:
                done.stored += 1
        facts = {"lines": [batch[0][0], batch[-1][0]]}
        log_action(actor, Action.IMPORT, reason=reason, count=len(arrivals), facts=facts)
    return done


def _read(number: int, line: str | bytes, done: Imported, *, edits: bool) -> Delivery | None:
    try:
        return _delivery(json.loads(line), edits=edits)
    except (ValueError, TypeError, KeyError, AttributeError, binascii.Error, RecursionError) as error:
        done.refuse(number, str(error) if type(error) is _NotImportable else _("It is not a line of an export."))
        return None


class _NotImportable(ValueError):
    """A line that belongs to an export but cannot be imported."""


def _delivery(row: Mapping[str, Any], *, edits: bool) -> Delivery:
    """Return the message as it would be delivered from a parked queue."""
    if row["schema"] != SCHEMA:
        raise _NotImportable(_("Its schema is not %(schema)s.") % {"schema": SCHEMA})
    if "body_base64" not in row:
        raise _NotImportable(_("It was exported without its exact contents."))
    body, raw = (base64.b64decode(row[f"{name}_base64"], validate=True) for name in ("body", "properties"))
    if not edits:
        _check_unchanged(row, body, raw)
    stamp = Stamp(
        attempts=int(row["attempts"]),
        since=_milliseconds(row["failed_at"]),
        exchange=str(row["exchange"]),
        routing_key=str(row["routing_key"]),
        queue=str(row["queue"]),
        summary=str(row["summary"]),
        unacked=int(row.get("unacked", False) is True),
    )
    group = row["group"]
    failure = {
        **{name: row[name] for name in ("reason", "detail", "error", "handler")},
        "message": row["error_text"],
        "fingerprint": group["fingerprint"],
        "culprit": group["culprit"],
    }
    named: dict[str, object] = {PREFIX + name: short(text, 10_000) for name, text in failure.items() if text}
    headers = {**stamp.headers(), **named, PREFIX + "parked-at": _milliseconds(row["parked_at"]), KEPT_RAW: raw}
    # Redelivered, so that a message that is recorded already is not counted as another failure.
    return Delivery(
        queue=str(row["parked_in"]),
        body=body,
        raw=encode_properties(Properties(headers=Headers.of(headers))),
        redelivered=True,
    )


def _check_unchanged(row: Mapping[str, Any], body: bytes, raw: bytes) -> None:
    """Refuse a line whose body is not what was exported, or not that of the stored message with its id."""
    digest, message_id = hashlib.sha256(body).hexdigest(), decode_properties(raw).message_id
    stored = ParkedMessage.objects.using(records_alias()).filter(queue=row["queue"], erased_at__isnull=True)
    alike = stored.filter(message_id=short(message_id, COLUMN_BYTES)).order_by("pk") if message_id else stored.none()
    other = None if alike.filter(sha256=digest).exists() else alike.only("pk").first()
    if row["sha256"] == digest and other is None:
        return
    text = _("Its body was changed after the export, and an edit needs a second person. Edit the stored message.")
    if other is not None:
        text = _("Its body is not that of message #%(number)s, which has its id, and an edit needs a second person.")
    raise _NotImportable(text % {"number": other.pk if other is not None else ""})


def _milliseconds(text: str | None) -> int:
    at = parse_datetime(text) if text else None
    return 0 if at is None else int(at.timestamp() * 1000)
