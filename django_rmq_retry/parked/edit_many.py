"""One change by path for many messages: shown for each of them, then stored for all that it changes, or for none."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from difflib import get_close_matches
from enum import StrEnum

from django.db.models import F, Sum
from django.utils.translation import gettext as _

from django_rmq_retry import database_clock
from django_rmq_retry.conf import settings
from django_rmq_retry.errors import UndecodableHeaders
from django_rmq_retry.messages.json_fields import FieldSpan, fields, is_number, path_of, path_text
from django_rmq_retry.messages.masking import HIDDEN, TooDeep, hides, is_json, without
from django_rmq_retry.messages.properties import decode_properties
from django_rmq_retry.messages.texts import short
from django_rmq_retry.models import Action, GatedAct, MessageVersion, ParkedMessage
from django_rmq_retry.parked.audit import log_action
from django_rmq_retry.parked.copies import contents
from django_rmq_retry.parked.database import locked_messages, records_alias, transaction_of
from django_rmq_retry.parked.edit import (
    HEADER,
    Proposal,
    check_json,
    editable,
    editable_text,
    next_version,
    propose,
    rows,
)
from django_rmq_retry.parked.edited_keys import Others, check_free, equal_names, key_facts, others_with, store_keys
from django_rmq_retry.parked.four_eyes import Wish, require_second
from django_rmq_retry.parked.operators import Actor, Allowed, NothingChosen, Refused
from django_rmq_retry.parked.selection import Selection
from django_rmq_retry.parked.siblings import store_contents

MOST_EDITED = 500
MOST_EDITED_BYTES = 16 * 1024 * 1024
"""Largest total size of the bodies that are edited at once."""
MOST_PATHS = 200
"""The most paths of a body that a form offers, and that are compared with a mistyped one."""


class Act(StrEnum):
    REPLACE = "replace"
    SET = "set"
    REMOVE = "remove"


class DoesNotFit(Exception):
    """The change cannot be applied to this message; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PathChange:
    """What is changed at one path of a body, or in one header."""

    path: str
    act: str
    find: str = ""
    value: str = ""
    number: bool = False
    """True if a text becomes a number."""

    @property
    def header(self) -> str:
        return self.path.removeprefix(HEADER) if self.path.startswith(HEADER) else ""

    @property
    def wrong(self) -> str:
        """Why the change means nothing; empty if it means something."""
        if self.act not in [*Act]:
            return _("Choose what to do.")
        try:
            path_of(self.path)
        except ValueError:
            return _("Enter a path, such as amount, items[0].price or headers.tenant.")
        if self.act == Act.REPLACE and not self.find and not self.number:
            return _("Enter the text that is replaced.")
        if self.act == Act.SET and not self.header and check_json(self.value)[0]:
            return _("The new value must be JSON: 8.50, true, null, or a text in quotes, such as %(text)s.") % {
                "text": json.dumps(self.value, ensure_ascii=False)
            }
        return ""

    @property
    def sentence(self) -> str:
        """Return the change in one line, without confidential values, such as ``amount: "," → ".", as a number``."""
        if self.act == Act.REMOVE:
            removed = _("removed")
            return f"{self.path}: {removed}"
        value = self.shown(self.value)
        texts = [f"{self.path} = {value}"] if self.act == Act.SET else []
        if self.act == Act.REPLACE:
            texts = [f"{self.path}: “{self.shown(self.find)}” → “{value}”"] if self.find else [self.path]
        return ", ".join([*texts, *([_("as a number")] if self.number else [])])

    def facts(self) -> dict[str, object]:
        """Return the change for the audit log, without confidential values."""
        facts: dict[str, object] = {name: value for name, value in asdict(self).items() if value}
        return facts | {name: self.shown(str(facts[name])) for name in ("find", "value") if name in facts}

    def shown(self, value: str) -> str:
        """Return a value at this path without what is confidential in it."""
        names, masks = [one for one in path_of(self.path) if isinstance(one, str)], settings().operators.mask
        names = [self.header] if self.header else names
        if hides(names, masks):
            return HIDDEN
        if self.header or not is_json(value):
            return value
        whole = json.loads(value)
        some = without(whole, names, masks)
        return value if some == whole else json.dumps(some, ensure_ascii=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class EditResult:
    """The result of the change for one message."""

    message: ParkedMessage
    before: str = ""
    after: str | None = None
    """None if the value is removed."""
    proposal: Proposal | None = None
    why: str = ""
    """Why the message is left out; empty if it is edited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EditsStored:
    at: datetime
    edited: int
    left: tuple[EditResult, ...]


def too_many() -> str:
    text = _("At most %(most)s messages, and %(size)s MB, can be edited at once. Choose fewer.")
    return text % {"most": MOST_EDITED, "size": MOST_EDITED_BYTES // 1024**2}


def results_of(selection: Selection, change: PathChange, *, allowed: Allowed | None = None) -> list[EditResult]:
    """Return the result for each message of a selection, by their names; nothing is stored."""
    if change.wrong:
        raise Refused(change.wrong)
    chosen = selection.queryset().order_by()
    count = chosen.count()
    selection.check(count)
    if count > MOST_EDITED or (chosen.aggregate(size=Sum("size"))["size"] or 0) > MOST_EDITED_BYTES:
        raise Refused(too_many())
    known, rows_now = selection.revisions, selection.queryset().select_related("group").order_by("parked_at", "pk")
    return _without_equal_names([
        _result_of(row, change, known.get(row.pk, row.revision), allowed)
        for row in sorted(rows_now, key=_as_counted)
    ])  # fmt: skip


def _as_counted(message: ParkedMessage) -> list[tuple[bool, int, str]]:
    """Return the name of a message as it is sorted: BAD-9 comes before BAD-10."""
    parts = re.findall(r"[0-9]{1,18}|[^0-9]+", str(message))
    return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts]


def others_of(some: Iterable[EditResult]) -> Others:
    """Return the other messages that have a business key which one of these gets."""
    return others_with({one.message.pk: one.proposal.keys for one in some if one.proposal is not None})


def _without_equal_names(some: Sequence[EditResult]) -> list[EditResult]:
    """Leave out the messages that would get the same first business key: they would be one payment, made twice."""
    equal = equal_names({one.message.pk: one.proposal.keys for one in some if one.proposal is not None})
    text = _("Several of these messages would get the business key %(key)s.")
    return [
        replace(one, proposal=None, why=text % {"key": equal[one.message.pk]}) if one.message.pk in equal else one
        for one in some
    ]


def store_many(
    change: PathChange,
    actor: Actor,
    *,
    revisions: Mapping[int, int],
    reason: str,
    known: str = "",
    allowed: Allowed | None = None,
) -> EditsStored:
    """Store the change for messages that are as they were when it was shown, in one transaction with its audit row.

    ``known`` is the mark of the other messages with the new business keys, if the operator knows that there are some.
    """
    if change.wrong:
        raise Refused(change.wrong)
    if not reason.strip():
        raise Refused(_("Enter the reason for the edit."))
    return _store(change, actor, revisions, reason=reason, known=known, allowed=allowed)


@transaction_of(ParkedMessage)
def _store(
    change: PathChange,
    actor: Actor,
    revisions: Mapping[int, int],
    *,
    reason: str,
    known: str,
    allowed: Allowed | None,
) -> EditsStored:
    using, now = records_alias(), database_clock.now(records_alias())
    rows_now = locked_messages(list(revisions))
    made = _without_equal_names([_result_of(row, change, revisions[pk], allowed) for pk, row in rows_now.items()])
    meant = [(one.message, one.proposal) for one in made if one.proposal is not None]
    if not meant:
        raise NothingChosen(_("The change fits none of the messages any more. Nothing was done."))
    check_free({message.pk: proposal.keys for message, proposal in meant}, known)
    chosen = Selection(
        revisions={message.pk: message.revision for message, _proposal in meant},
        as_of=max(message.parked_at for message, _proposal in meant),
        count=len(meant),
    )
    terms = {"change": asdict(change), "known": known}
    require_second(
        actor,
        Wish(
            act=GatedAct.EDIT_MANY, count=len(meant), subject=change.path, reason=reason, selection=chosen, terms=terms
        ),
    )
    versions = [next_version(message, proposal, actor, at=now, reason=reason) for message, proposal in meant]
    MessageVersion.objects.using(using).bulk_create(versions)
    edited = ParkedMessage.objects.using(using).filter(pk__in=[message.pk for message, _proposal in meant])
    edited.update(version=F("version") + 1, revision=F("revision") + 1)
    keys = [(message, proposal.keys) for message, proposal in meant]
    store_keys(keys)
    store_contents({one.message_id: one.sha256 for one in versions}, using=using)
    log_action(
        actor,
        Action.EDIT,
        reason=reason,
        messages=[message.pk for message, _proposal in meant],
        groups=Counter(message.group_id for message, _proposal in meant),
        subject=str(meant[0][0]) if len(meant) == 1 else change.path,
        count=len(meant),
        facts={"change": change.facts(), **key_facts(keys)},
    )
    return EditsStored(at=now, edited=len(meant), left=tuple(one for one in made if one.why))


def _result_of(message: ParkedMessage, change: PathChange, revision: int, allowed: Allowed | None) -> EditResult:
    why = editable(message) or (allowed(message) if allowed else "")
    if not why and message.revision != revision:
        why = _("It has changed meanwhile.")
    if why:
        return EditResult(message=message, why=why)
    before = ""
    try:
        if change.header:
            before, after = _header(message, change)
            proposal = propose(message, text=editable_text(message) or "", headers={change.header: after})
        else:
            text = editable_text(message) or ""
            before, after, changed = _changed(text, change)
            proposal = propose(message, text=changed)
    except DoesNotFit as error:
        return EditResult(message=message, before=before, why=_with_edited_before(message, str(error)))
    why = _with_edited_before(message, " ".join(proposal.problems) or proposal.unread)
    return EditResult(message=message, before=before, after=after, proposal=None if why else proposal, why=why)


def _with_edited_before(message: ParkedMessage, why: str) -> str:
    """Return why a message is left out, and that it is edited: it looks done, but no requeue follows."""
    if not why or message.version == 1:
        return why
    return " ".join((why, _("It is edited already, but not sent; the requeue after this edit leaves it out.")))


def _header(message: ParkedMessage, change: PathChange) -> tuple[str, str | None]:
    try:
        headers = decode_properties(contents(message).raw).headers
    except UndecodableHeaders as error:
        raise DoesNotFit(_("Its headers cannot be read.")) from error
    row = next((one for one in rows(headers) if one.name == change.header), None)
    if row is None:
        raise DoesNotFit(_("It has no such header."))
    if change.act == Act.REMOVE:
        return row.text, None
    return row.text, change.value if change.act == Act.SET else _replaced(row.text, change)


def _changed(text: str, change: PathChange) -> tuple[str, str | None, str]:
    """Return the value before and after the change, as they are written, and the whole text after it."""
    if not is_json(text):
        raise DoesNotFit(_("Its body is not JSON."))
    path = path_of(change.path)
    try:
        known = list(fields(text))
    except TooDeep as error:
        raise DoesNotFit(_("Its body is nested too deeply.")) from error
    found = [one for one in known if one.path == path]
    if len(found) > 1:
        raise DoesNotFit(_("The path occurs several times."))
    if not found:
        raise DoesNotFit(_no_such_path(change.path, known))
    one = found[0]
    literal = text[one.start : one.stop]
    if change.act == Act.REMOVE:
        return literal, None, _removed(text, one)
    after = change.value.strip() if change.act == Act.SET else _literal(literal, change)
    return literal, after, text[: one.start] + after + text[one.stop :]


def _no_such_path(typed: str, known: Sequence[FieldSpan]) -> str:
    """Return that a body has no such path, with the one that may be meant."""
    paths = {path_text(one.path): None for one in known[:MOST_PATHS] if one.leaf}
    folded = {path.casefold(): path for path in paths}
    near = get_close_matches(typed.casefold(), folded, n=1) or [path for path in folded if path.endswith(f".{typed}")]
    if near:
        return _("It has no such path. Did you mean %(path)s?") % {"path": folded[near[0]]}
    return _("It has no such path.")


def paths_of(message: ParkedMessage) -> list[str]:
    """Return paths that a change can name: those of values of the body, then those of headers."""
    text = editable_text(message) or ""
    paths: list[str] = []
    with suppress(TooDeep):
        if is_json(text) and not check_json(text)[0]:
            paths = [path_text(one.path) for one in fields(text) if one.leaf and one.path]
    with suppress(UndecodableHeaders):
        headers = decode_properties(contents(message).raw).headers
        paths += [f"{HEADER}{row.name}" for row in rows(headers) if not row.locked]
    return list(dict.fromkeys(paths))[:MOST_PATHS]


def _literal(literal: str, change: PathChange) -> str:
    if literal[0] == '"':
        value = _replaced(json.loads(literal, strict=False), change)
        if not change.number:
            return json.dumps(value, ensure_ascii=False)
    elif is_number(literal):
        value = _replaced(literal, change)
    else:
        raise DoesNotFit(_("Its value is neither a text nor a number."))
    if not is_number(value):
        raise DoesNotFit(_("“%(value)s” is not a number.") % {"value": short(value, 80)})
    return value


def _replaced(value: str, change: PathChange) -> str:
    if not change.find:
        return value
    if change.find not in value:
        raise DoesNotFit(_("Its value does not contain “%(text)s”.") % {"text": short(change.find, 80)})
    return value.replace(change.find, change.value)


def _removed(text: str, one: FieldSpan) -> str:
    """Return the text without an entry and the comma that separated it."""
    start, stop = one.entry, one.stop
    rest = text[stop:].lstrip()
    if rest.startswith(","):
        rest = rest[1:].lstrip()
        return text[:start] + rest
    front = text[:start].rstrip()
    return (front[:-1] if front.endswith(",") else text[:start]) + text[stop:]
