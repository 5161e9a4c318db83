"""Editing: a new version of a message's contents. Its original stays, and what decides who handles it cannot change."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from django.db import transaction
from django.db.models import F
from django.utils import timezone
from django.utils.translation import gettext as _

from django_rmq_retry.conf import settings
from django_rmq_retry.core.comparing import Line, difference
from django_rmq_retry.core.errors import UndecodableHeaders
from django_rmq_retry.core.masking import is_json, masked
from django_rmq_retry.core.properties import decode_properties, encode_properties
from django_rmq_retry.core.verdict import short
from django_rmq_retry.models import MessageVersion, ParkedMessage, Verb
from django_rmq_retry.operating.actors import Actor
from django_rmq_retry.operating.auditing import note
from django_rmq_retry.operating.heading import changed_headers
from django_rmq_retry.operating.locking import database, locked_messages, steadily
from django_rmq_retry.operating.refusals import NothingChosen, Outdated, Refused
from django_rmq_retry.operating.sending import contents
from django_rmq_retry.operating.validating import check_json

SHOWN_LINES = 200
"""Of a difference, in the audit log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What an edit would make of a message."""

    body: bytes
    properties: bytes
    problems: tuple[str, ...]
    """Why it cannot be stored."""
    warnings: tuple[str, ...]
    difference: tuple[Line, ...]
    """Of the bodies; unmasked, for whoever may see the body."""
    headers: Mapping[str, tuple[str, str]]
    """What changes in the headers: before and after."""


def editable(message: ParkedMessage) -> str:
    """Nothing if a message may be edited at all, else why not. By default none may."""
    name = message.type or message.queue
    allowed = [yes for pattern, yes in settings().editable.items() if fnmatchcase(name, pattern)]
    if not allowed or not all(allowed):
        return _("Messages of the type “%(type)s” are not to be edited in this project (EDITABLE).") % {"type": name}
    if not message.open:
        return _("Only a message that is open can be edited.")
    if text_of(message) is None:
        return _("Its body is no text, or it is compressed: only text can be edited.")
    return ""


def text_of(message: ParkedMessage) -> str | None:
    """The exact text that an edit begins with; None where the body is none."""
    body = contents(message).body
    if message.content_encoding.lower() not in ("", "identity", "utf-8", "utf8"):
        return None
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def propose(
    message: ParkedMessage, *, text: str, headers: Mapping[str, str | None] | None = None, new_id: str = ""
) -> Proposal:
    """What an edit would make of a message, without making it. ``headers`` has new values; None takes one away."""
    original = contents(message)
    before = text_of(message) or ""
    # Browsers end each line of a text area their own way.
    after = text if "\r" in before else text.replace("\r\n", "\n")
    problems: list[str] = []
    warnings: list[str] = []
    if "json" in message.content_type.lower() or is_json(before):
        problems, warnings = check_json(after)
    try:
        known = decode_properties(original.raw)
        made, differing, refused = changed_headers(known.headers, headers or {})
        problems += refused
        kept = known.message_id if not new_id else short(new_id, 255)
        raw = encode_properties(replace(known, headers=made, message_id=kept))
    except (UndecodableHeaders, ValueError) as error:
        raw, differing = original.raw, {}
        problems.append(_("The headers cannot be written: %(error)s") % {"error": error})
    if after == before and raw == original.raw:
        problems.append(_("Nothing was changed."))
    return Proposal(
        body=after.encode("utf-8", "backslashreplace"),
        properties=raw,
        problems=tuple(problems),
        warnings=tuple(warnings),
        difference=tuple(difference(before, after)),
        headers=differing,
    )


def store(message: int, actor: Actor, proposal: Proposal, *, version: int, reason: str) -> MessageVersion:
    """Store a proposal as the next version; ``version`` is the one that was edited. Requeueing it is another act."""
    if proposal.problems:
        raise Refused(" ".join(proposal.problems))
    if not reason.strip():
        raise Refused(_("Say why the message is edited."))
    return steadily(lambda: _store(message, actor, proposal, version=version, reason=reason))


def _store(message: int, actor: Actor, proposal: Proposal, *, version: int, reason: str) -> MessageVersion:
    using, now = database(), timezone.now()
    with transaction.atomic(using=using):
        known = locked_messages([message]).get(message)
        if known is None:
            raise NothingChosen(_("There is no message %(message)s.") % {"message": message})
        if known.version != version:
            last = known.versions.order_by("-number").first()
            said = _("%(who)s stored version %(number)s meanwhile. Compare it with yours.")
            raise Outdated(said % {"who": last.by if last else "?", "number": known.version})
        refusal = editable(known)
        if refusal:
            raise Refused(refusal)
        before = contents(known)
        made = MessageVersion.objects.using(using).create(
            message=known,
            number=version + 1,
            body=proposal.body,
            properties=proposal.properties,
            sha256=hashlib.sha256(proposal.body).hexdigest(),
            at=now,
            by=actor.name,
            reason=short(reason, 255),
        )
        rows = ParkedMessage.objects.using(using).filter(pk=message)
        rows.update(version=version + 1, revision=F("revision") + 1)
        facts = _facts(known, before.body, proposal, version + 1)
        note(actor, Verb.EDIT, reason=reason, message=message, group=known.group_id, subject=str(known), facts=facts)
    return made


def _facts(message: ParkedMessage, before: bytes, proposal: Proposal, version: int) -> dict[str, object]:
    """For the audit log: digests, and the difference without what is masked."""
    paths = settings().mask
    texts = [masked(body, message.content_type, paths)[0] for body in (before, proposal.body)]
    known = texts[0] is not None and texts[1] is not None
    lines = difference(texts[0] or "", texts[1] or "") if known else []
    return {
        "version": version,
        "before": hashlib.sha256(before).hexdigest(),
        "after": hashlib.sha256(proposal.body).hexdigest(),
        "difference": [f"{line.sign}{short(line.text, 500)}" for line in lines[:SHOWN_LINES]],
        "headers": sorted(proposal.headers),
    }
