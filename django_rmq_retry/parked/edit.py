"""Edits of a parked message: body and headers, with their difference."""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any, NoReturn

from django.db.models import F
from django.utils.translation import gettext as _

from django_rmq_retry import database_clock
from django_rmq_retry.conf import settings
from django_rmq_retry.errors import InvalidBody, UndecodableBody, UndecodableHeaders
from django_rmq_retry.handlers import registry
from django_rmq_retry.handlers.subscription import Subscription
from django_rmq_retry.messages.codecs import decoded
from django_rmq_retry.messages.header_names import BROKERS_OWN, PREFIX
from django_rmq_retry.messages.json_fields import differing, rejoined
from django_rmq_retry.messages.masking import indented, is_json, masked
from django_rmq_retry.messages.message import Delivery
from django_rmq_retry.messages.parked_copy import Original
from django_rmq_retry.messages.properties import Headers, decode_properties, encode_properties
from django_rmq_retry.messages.texts import COLUMN_BYTES, short, short_reason
from django_rmq_retry.models import Action, GatedAct, MessageVersion, ParkedMessage
from django_rmq_retry.parked.audit import log_action
from django_rmq_retry.parked.copies import contents
from django_rmq_retry.parked.database import locked_messages, records_alias, transaction_of
from django_rmq_retry.parked.difference import DiffLine, difference
from django_rmq_retry.parked.edited_keys import KeyChange, check_free, key_facts, store_keys
from django_rmq_retry.parked.four_eyes import Wish, require_second
from django_rmq_retry.parked.operators import Actor, NothingChosen, Outdated, Refused
from django_rmq_retry.parked.selection import Selection
from django_rmq_retry.parked.siblings import store_contents

Change = tuple[str, str | None, str | None]
"""A path, or a header with its prefix, with the value before and after; None for a value that is not there."""
HEADER = "headers."
"""How the path of a header begins."""
SHOWN_NAMES = 5
SHOWN_CHANGES = 3
SHOWN_CHARACTERS = 120
MOST_LAID_OUT = 512 * 1024
"""Longest JSON text, laid out, that an edit shows in this form, and compares by paths; longer ones take seconds."""
SHOWN_LINES = 200
"""Largest number of lines of a difference in the audit log."""


class HeaderKind(StrEnum):
    CUSTOM = "custom"
    ROUTING = "routing"
    """Headers by which handlers are chosen."""
    SYSTEM = "system"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderRow:
    name: str
    kind: HeaderKind
    text: str
    type: str
    """The name of its Python type, to which an edited text is converted."""
    locked: bool


def rows(headers: Headers) -> list[HeaderRow]:
    """Return all headers. Only the sender's own strings, integers and booleans can be edited."""
    rows_of_headers = []
    for name in headers:
        kind = kind_of_header(name)
        try:
            value = headers[name]
        except UndecodableHeaders:
            rows_of_headers.append(HeaderRow(name=name, kind=kind, text=_("unreadable"), type="", locked=True))
            continue
        simple = isinstance(value, (str, int))
        shown = as_text(value)
        locked = kind is not HeaderKind.CUSTOM or not simple
        rows_of_headers.append(HeaderRow(name=name, kind=kind, text=shown, type=type(value).__name__, locked=locked))
    return rows_of_headers


def as_text(value: object) -> str:
    """Return a value as text, without the syntax of a programming language."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, bytes):
        return value.hex(" ")
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return ", ".join(f"{name} = {as_text(inner)}" for name, inner in value.items())
    if isinstance(value, list):
        return "; ".join(map(as_text, value))
    return str(value)


def kind_of_header(name: str) -> HeaderKind:
    """Return the kind of a header: the system's, one that chooses a handler, or the sender's own."""
    if name.startswith((PREFIX, "x-")) or name in BROKERS_OWN:
        return HeaderKind.SYSTEM
    # Of all queues, because a message may be sent to any of them.
    routing = (subscription.match.headers for subscription in registry.subscriptions())
    return HeaderKind.ROUTING if any(name in headers for headers in routing) else HeaderKind.CUSTOM


def changed_headers(
    headers: Headers, wanted: Mapping[str, str | None]
) -> tuple[Headers, dict[str, tuple[str, str]], list[str]]:
    """Return the edited headers, the real changes, and why some were refused; all other headers keep their bytes."""
    known = {row.name: row for row in rows(headers)}
    drop: list[str] = []
    put: dict[str, object] = {}
    refused: list[str] = []
    changes: dict[str, tuple[str, str]] = {}
    for name, text in wanted.items():
        row = known.get(name)
        before = row.text if row else ""
        if (row and text == before) or (row is None and text is None):
            continue
        if (row and row.locked) or kind_of_header(name) is not HeaderKind.CUSTOM or not name:
            refused.append(_("The header %(name)r cannot be changed.") % {"name": name})
            continue
        changes[name] = before, text or ""
        if text is None:
            drop.append(name)
            continue
        try:
            put[name] = _typed(text, row.type if row else "str")
        except ValueError:
            refused.append(_("The header %(name)r must be a whole number, or true or false.") % {"name": name})
    return headers.replacing(drop=drop, put=put), changes, refused


def _typed(text: str, kind: str) -> object:
    if kind == "bool":
        if text.lower() not in ("true", "false"):
            raise ValueError(text)
        return text.lower() == "true"
    return int(text) if kind == "int" else text


class _Forbidden(ValueError):
    """A constant that is not valid JSON, such as NaN."""


def check_json(text: str) -> tuple[list[str], list[str]]:
    """Return the errors of a text as JSON, and the warnings, as sentences."""
    twice: Counter[str] = Counter()

    def pairs(entries: list[tuple[str, Any]]) -> dict[str, Any]:
        counts = Counter(name for name, _value in entries)
        twice.update(name for name, count in counts.items() if count > 1)
        return dict(entries)

    try:
        json.loads(text, parse_float=Decimal, parse_int=Decimal, parse_constant=_refuse, object_pairs_hook=pairs)
    except json.JSONDecodeError as error:
        sentence = _("Line %(line)s, column %(column)s: invalid JSON (%(problem)s).")
        named = sentence % {"line": error.lineno, "column": error.colno, "problem": error.msg}
        line = text.split("\n")[error.lineno - 1].strip()
        return [f"{named} {short(line, SHOWN_CHARACTERS)}"], []
    except _Forbidden as error:
        return [_("%(constant)s is not valid JSON, and most parsers reject it.") % {"constant": error}], []
    except (RecursionError, ValueError, ArithmeticError):
        return [_("The JSON is nested too deeply, or contains a number that cannot be read.")], []
    names = ", ".join(list(twice)[:SHOWN_NAMES])
    return [], [_("These names occur twice in one object: %(names)s.") % {"names": names}] if twice else []


def _refuse(constant: str) -> NoReturn:
    raise _Forbidden(constant)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedValue:
    """A JSON value that an edit changes."""

    path: str
    before: str | None
    """Its text before the edit; None if there was none."""
    after: str | None
    """Its text after the edit; None if it is removed."""
    problem: str
    """Why the handler's type refuses it; empty if it does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """The message that an edit would result in."""

    body: bytes
    properties: bytes
    problems: tuple[str, ...]
    """Reasons why it cannot be stored; empty if it can."""
    warnings: tuple[str, ...]
    unread: str
    """Why the message's handler could not read it; empty if it could."""
    difference: tuple[DiffLine, ...]
    """Difference of the bodies, unmasked, for operators with permission to see the body."""
    headers: Mapping[str, tuple[str, str]]
    """Changed headers, each with its value before and after."""
    paths: tuple[ChangedValue, ...]
    """The JSON values that differ."""
    misfits: tuple[tuple[str, str], ...]
    """The other values that the handler's type refuses, each with its path and the problem."""
    keys: KeyChange
    """The business keys before and after the edit."""

    @property
    def changes(self) -> list[Change]:
        """Return what it changes: JSON values, then headers."""
        values = [(one.path, one.before, one.after) for one in self.paths]
        return [*values, *((f"{HEADER}{name}", *texts) for name, texts in self.headers.items())]


def editable(message: ParkedMessage) -> str:
    """Return why a message cannot be edited; empty if it can. By default no message can be edited."""
    if why := kind_not_editable(message):
        return why
    if not message.open:
        return _("Only an open message can be edited.")
    if editable_text(message) is None:
        return _("Its body is not text, or is compressed. Only text can be edited.")
    return ""


def kind_not_editable(message: ParkedMessage) -> str:
    """Return why no message of this type, or of this queue if it has none, can be edited; empty if some can."""
    name = message.type or message.queue
    text = _("This project does not allow messages of “%(type)s” to be edited (setting EDITABLE).")
    return "" if may_be_edited(name) else text % {"type": name}


def may_be_edited(name: str) -> bool:
    """Return True if the project allows messages of this type to be edited."""
    allowed = [yes for pattern, yes in settings().operators.editable.items() if fnmatchcase(name, pattern)]
    return bool(allowed) and all(allowed)


def editable_text(message: ParkedMessage) -> str | None:
    """Return the exact text that an edit starts from; None if the body is not text."""
    body = contents(message).body
    if message.content_encoding.lower() not in ("", "identity", "utf-8", "utf8"):
        return None
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def laid_out(text: str) -> str | None:
    """Return a JSON text with one value in each line, all else unchanged; None if it is not JSON, or too deep."""
    if len(text) > MOST_LAID_OUT or not is_json(text) or check_json(text)[0]:
        return None
    return indented(text, most=MOST_LAID_OUT)


def typed_text(message: ParkedMessage, typed: str) -> str:
    """Return the text that a form means: it shows JSON laid out, so there only what is no space was edited."""
    before = editable_text(message) or ""
    if laid_out(before) is None or check_json(typed)[0]:
        return typed
    return rejoined(before, typed)


def _delivery(message: ParkedMessage, body: bytes, raw: bytes) -> Delivery:
    return Delivery(body=body, raw=raw, queue=message.queue, exchange=message.exchange, routing_key=message.routing_key)


def _subscription(message: ParkedMessage, delivery: Delivery) -> Subscription | None:
    """Return the message's handler: the one that parked it, or the one that its queue would choose."""
    named = next((one for one in registry.subscriptions() if one.name == message.handler), None)
    if named is not None:
        return named
    queue = next((one for one in registry.work_queues() if one.queue.name == message.queue), None)
    try:
        return queue.choose(delivery) if queue else None
    except UndecodableHeaders:
        return None


def _unread(subscription: Subscription | None, delivery: Delivery) -> UndecodableBody | None:
    """Return the error with which the message's handler could not read this body; None if it could, or is unknown."""
    if subscription is None:
        return None
    try:
        decoded(delivery, subscription.codec, subscription.limits)
    except UndecodableHeaders:
        return None
    except UndecodableBody as error:
        return error
    return None


def _why_unread(subscription: Subscription | None, error: UndecodableBody | None) -> str:
    if subscription is None or error is None:
        return ""
    text = _("The handler %(handler)s could not read this body: %(problem)s.")
    return text % {"handler": subscription.name, "problem": str(error).removesuffix(".")}


def _problems_by_path(error: UndecodableBody | None) -> dict[str, str]:
    """Return what the handler's type refuses, by paths as a difference names them."""
    if not isinstance(error, InvalidBody):
        return {}
    return {path.removeprefix("$").removeprefix("."): problem for path, problem in error.misfit.problems}


def propose(
    message: ParkedMessage, *, text: str, headers: Mapping[str, str | None] | None = None, new_id: str = ""
) -> Proposal:
    """Return the result of an edit without storing it. ``headers`` has the new values; None removes a header."""
    original = contents(message)
    # Browsers send CRLF at the end of each line of a text area.
    after = text if "\r" in (editable_text(message) or "") else text.replace("\r\n", "\n")
    try:
        known = decode_properties(original.raw)
        changed, changes, refused = changed_headers(known.headers, headers or {})
        kept = known.message_id if not new_id else short(new_id, COLUMN_BYTES)
        raw = encode_properties(replace(known, headers=changed, message_id=kept))
    except (UndecodableHeaders, ValueError) as error:
        raw, changes = original.raw, {}
        refused = [_("The headers cannot be encoded: %(error)s") % {"error": error}]
    return _examined(message, original, after, raw=raw, headers=changes, refused=refused)


def proposed(message: ParkedMessage, *, body: bytes, properties: bytes) -> Proposal:
    """Return an edit of which only the result is known, examined as it would be now."""
    original = contents(message)
    try:
        headers = _differing_headers(decode_properties(original.raw).headers, decode_properties(properties).headers)
    except UndecodableHeaders:
        headers = {}
    return _examined(message, original, body.decode(errors="replace"), raw=properties, headers=headers, refused=[])


def stored_changes(message: ParkedMessage, number: int) -> list[Change]:
    """Return what the edit changed that stored this version of a message; two queries."""
    stored = list(message.versions.filter(number__in=(number - 1, number)).order_by("number"))
    if not stored or stored[-1].number != number:
        return []
    before, after = (message if len(stored) == 1 else stored[0]), stored[-1]
    texts = [bytes(one.body).decode(errors="replace") for one in (before, after)]
    values = differing(*texts) if all(laid_out(text) is not None for text in texts) else []
    try:
        headers = _differing_headers(*(decode_properties(bytes(one.properties)).headers for one in (before, after)))
    except UndecodableHeaders:
        headers = {}
    return [*values, *((f"{HEADER}{name}", *change) for name, change in headers.items())]


def told_changes(changes: Sequence[Change]) -> list[Change]:
    """Return as much of the changes as their line shows, for a request that keeps it after it has ended."""
    most = SHOWN_CHARACTERS
    return [
        (short(path, COLUMN_BYTES), before and short(before, most), after and short(after, most))
        for path, before, after in changes[: SHOWN_CHANGES + 1]
    ]


def changes_in_one_line(changes: Sequence[Change]) -> str:
    """Return changes as a line such as ``amount: "8,50" → "8.50"``; of many only the first ones."""
    added, removed = _("added"), _("removed")
    shown = [
        f"{path}: {_value(before, added)} → {_value(after, removed)}" for path, before, after in changes[:SHOWN_CHANGES]
    ]
    return ", ".join([*shown, *(["…"] if len(changes) > SHOWN_CHANGES else [])])


def _value(text: str | None, otherwise: str) -> str:
    return otherwise if text is None else short(text, SHOWN_CHARACTERS)


def _differing_headers(before: Headers, after: Headers) -> dict[str, tuple[str, str]]:
    texts = [{row.name: row.text for row in rows(one)} for one in (before, after)]
    names = [name for name in {**texts[0], **texts[1]} if texts[0].get(name) != texts[1].get(name)]
    return {name: (texts[0].get(name, ""), texts[1].get(name, "")) for name in names}


def _examined(
    message: ParkedMessage,
    original: Original,
    after: str,
    *,
    raw: bytes,
    headers: Mapping[str, tuple[str, str]],
    refused: Sequence[str],
) -> Proposal:
    before = editable_text(message) or ""
    problems: list[str] = []
    warnings: list[str] = []
    if "json" in message.content_type.lower() or is_json(before):
        problems, warnings = check_json(after)
    problems += refused
    body = after.encode("utf-8", "backslashreplace")
    if after == before and raw == original.raw:
        problems.append(_("Nothing was changed."))
    shown, now = laid_out(before), laid_out(after)
    comparable = shown is not None and now is not None and shown != now
    edited, subscription, keys = _delivery(message, body, raw), None, KeyChange()
    if not problems:
        subscription = _subscription(message, edited)
        keys = KeyChange.of(subscription, _delivery(message, original.body, original.raw), edited)
    error = _unread(subscription, edited)
    refused_by_type = _problems_by_path(error)
    changed = differing(before, after) if comparable else ()
    return Proposal(
        body=body,
        properties=raw,
        problems=tuple(problems),
        warnings=tuple(warnings),
        unread=_why_unread(subscription, error),
        difference=tuple(difference(shown or "", now or "") if comparable else difference(before, after)),
        headers=headers,
        paths=tuple(
            ChangedValue(path=path, before=old, after=new, problem=refused_by_type.pop(path, ""))
            for path, old, new in changed
        ),
        misfits=tuple((path, problem) for path, problem in refused_by_type.items() if path),
        keys=keys,
    )


def store(
    message: int, actor: Actor, proposal: Proposal, *, version: int, reason: str, known: str = ""
) -> MessageVersion:
    """Store a proposal as the next version; ``version`` is the edited one. Requeueing it is a separate action.

    ``known`` is the mark of the other messages with the new business keys, if the operator knows that there are some.
    """
    if proposal.problems:
        raise Refused(" ".join(proposal.problems))
    if not reason.strip():
        raise Refused(_("Enter the reason for the edit."))
    return _store(message, actor, proposal, version=version, reason=reason, known=known)


@transaction_of(ParkedMessage)
def _store(message: int, actor: Actor, proposal: Proposal, *, version: int, reason: str, known: str) -> MessageVersion:
    using, now = records_alias(), database_clock.now(records_alias())
    row = locked_messages([message]).get(message)
    if row is None:
        raise NothingChosen(_("There is no message %(message)s.") % {"message": message})
    if row.version != version:
        last = row.versions.order_by("-number").first()
        text = _("%(who)s stored version %(number)s meanwhile. Compare it with yours.")
        raise Outdated(text % {"who": last.by if last else "?", "number": row.version})
    refusal = editable(row)
    if refusal:
        raise Refused(refusal)
    check_free({message: proposal.keys}, known)
    wish = Wish(
        act=GatedAct.EDIT,
        subject=str(row),
        reason=reason,
        selection=Selection(revisions={message: row.revision}, as_of=row.parked_at, count=1),
        terms={"version": version, "known": known, "changes": told_changes(proposal.changes)},
        body=proposal.body,
        properties=proposal.properties,
    )
    require_second(actor, wish)
    before = contents(row)
    stored = next_version(row, proposal, actor, at=now, reason=reason)
    stored.save(using=using, force_insert=True)
    rows = ParkedMessage.objects.using(using).filter(pk=message)
    rows.update(version=version + 1, revision=F("revision") + 1)
    store_keys([(row, proposal.keys)])
    store_contents({message: stored.sha256}, using=using)
    facts = _facts(row, before.body, proposal, version + 1)
    log_action(actor, Action.EDIT, reason=reason, message=message, group=row.group_id, subject=str(row), facts=facts)
    return stored


def next_version(
    message: ParkedMessage, proposal: Proposal, actor: Actor, *, at: datetime, reason: str
) -> MessageVersion:
    """Return the version that a proposal becomes; it is not stored yet."""
    return MessageVersion(
        message=message,
        number=message.version + 1,
        body=proposal.body,
        properties=proposal.properties,
        sha256=hashlib.sha256(proposal.body).hexdigest(),
        at=at,
        by=actor.name,
        reason=short_reason(reason),
    )


def _facts(message: ParkedMessage, before: bytes, proposal: Proposal, version: int) -> dict[str, object]:
    """Return the facts for the audit log: digests, and the difference without masked fields."""
    paths = settings().operators.mask
    texts = [masked(body, message.content_type, paths)[0] for body in (before, proposal.body)]
    known = texts[0] is not None and texts[1] is not None
    lines = difference(texts[0] or "", texts[1] or "") if known else []
    return {
        "version": version,
        "before": hashlib.sha256(before).hexdigest(),
        "after": hashlib.sha256(proposal.body).hexdigest(),
        "difference": [f"{line.sign}{short(line.text, 500)}" for line in lines[:SHOWN_LINES]],
        "headers": sorted(proposal.headers),
        **key_facts([(message, proposal.keys)]),
    }
