"""Erases the personal data of messages for good: contents, keys and texts. That they existed, and when, remains."""

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import F, QuerySet
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_rmq_retry import database_clock
from django_rmq_retry.messages.properties import Properties, encode_properties
from django_rmq_retry.models import (
    Action,
    ApprovalRequest,
    Attempt,
    BlockedKey,
    BusinessKey,
    EarlyRetry,
    FormerName,
    GatedAct,
    ListedKey,
    MessageVersion,
    OperatorAction,
    ParkedMessage,
    RequeueItem,
    RequeueRun,
)
from django_rmq_retry.models.parked import RESOLVED
from django_rmq_retry.models.runs import ACTIVE
from django_rmq_retry.parked.admin_history import forget
from django_rmq_retry.parked.attempts import attempts_of
from django_rmq_retry.parked.audit import ERASED, acts_on, log_action, spans
from django_rmq_retry.parked.database import database, locked_messages, transaction_of
from django_rmq_retry.parked.key_lists import look_up
from django_rmq_retry.parked.operators import Actor, NothingChosen, Refused
from django_rmq_retry.statements import in_slices

ERASED_AT_ONCE = 500
"""Messages of one transaction, and keys of one statement."""
MOST_NAMED = 20
IN_PLACE_OF_A_KEY = "(erased)"
"""What a stored list of keys has in the place of an erased one."""
EMPTY = {"body": b"", "properties": encode_properties(Properties()), "sha256": hashlib.sha256(b"").hexdigest()}
"""The contents of an erased message, and of each of its versions."""
TEXTS = ("business_key", "detail", "error_text", "summary", "hold_reason", "traceparent")


@dataclass(frozen=True, slots=True, kw_only=True)
class Traces:
    """What is stored about some keys, counted."""

    messages: int
    versions: int
    attempts: int
    actions: int
    """Rows of the audit log that are about one of the messages alone, or whose texts name a key."""
    runs: int
    listed: int
    """Keys in stored lists."""
    former: int
    """Names of messages that retention has deleted."""
    early: int
    """Names of messages whose retries were sent before they were due."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
    """What is erased: messages, also those that retention has deleted, and keys."""

    numbers: Sequence[int]
    keys: Collection[str]
    """The keys as given, and those of the messages that no other message has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """What is stored about some of the messages."""

    messages: Sequence[ParkedMessage]
    versions: Collection[int]
    attempts: Collection[int]
    actions: Sequence[OperatorAction]
    runs: Collection[int]
    requests: Collection[int]
    """Requests for a second person."""


def traces(keys: Sequence[str]) -> Traces:
    """Return what an erasure of these keys would empty; raise Refused if it cannot be done yet."""
    return _traces_of(_subject(keys))


def _traces_of(subject: _Subject) -> Traces:
    return _counted(subject, [_part(subject, some) for some in _slices(subject)])


def erase(keys: Sequence[str], actor: Actor, *, reason: str) -> Traces:
    """Empty everything that is stored about these keys; each slice of messages has its row in the audit log."""
    if not reason.strip():
        raise Refused(_("Enter the reason for the erasure."))
    if any(_named_in(reason, keys)):
        raise Refused(_("The reason is kept, so it must not contain what is erased. Name the request instead."))
    subject = _subject(keys)
    counts = _traces_of(subject)
    if not any((counts.messages, counts.actions, counts.runs, counts.listed, counts.former, counts.early)):
        raise NothingChosen(_("Nothing is stored about these keys."))
    for some in _slices(subject):
        _erase(subject, some, actor, reason)
    return counts


def _subject(keys: Sequence[str]) -> _Subject:
    using = database()
    numbers = sorted({one for some in look_up(keys).values() for one in some})
    own = {value for some in in_slices(numbers, ERASED_AT_ONCE) for value in _keys_of(some)}
    known = {*keys, *(own - _shared(own, set(numbers)))}
    former = FormerName.objects.using(using)
    deleted = {one for rows in _having(former, "value", known) for one in rows.values_list("message", flat=True)}
    _check(numbers, known)
    return _Subject(numbers=[*numbers, *sorted(deleted - set(numbers))], keys=known)


def _keys_of(numbers: Collection[int]) -> Iterable[str]:
    return BusinessKey.objects.using(database()).filter(message__in=numbers).values_list("value", flat=True)


def _shared(keys: Collection[str], numbers: Collection[int]) -> set[str]:
    """Return the keys that other messages have too, such as the number of a branch."""
    rows = (row for some in _having(BusinessKey.objects.using(database()), "value", keys)
            for row in some.values_list("value", "message"))  # fmt: skip
    return {value for value, message in rows if message not in numbers}


def _check(numbers: Sequence[int], keys: Collection[str]) -> None:
    """Raise Refused if a message may still be handled, or others wait for it."""
    rows = [one for some in _having(ParkedMessage.objects.using(database()), "pk", numbers)
            for one in some.order_by("pk").values_list("pk", "state", "identity")]  # fmt: skip
    unresolved = [pk for pk, state, _identity in rows if state not in RESOLVED]
    if unresolved:
        text = ngettext(
            "%(count)d message is open or requeued: %(numbers)s. Discard it, or wait for its outcome.",
            "%(count)d messages are open or requeued: %(numbers)s. Discard them, or wait for their outcome.",
            len(unresolved),
        )
        shown = ", ".join(f"#{number}" for number in unresolved[:MOST_NAMED])
        more = " …" if len(unresolved) > MOST_NAMED else ""
        raise Refused(text % {"count": len(unresolved), "numbers": shown + more})
    blocked = BlockedKey.objects.using(database())
    found = [
        *_having(blocked, "key", keys),
        *_having(blocked, "identity", [identity for _pk, _state, identity in rows]),
    ]
    first = next((row for some in found for row in some[:1]), None)
    if first is not None:
        text = _("An ordering key of %(handler)s is blocked, and messages wait behind it. Unblock it first.")
        raise Refused(text % {"handler": first.handler})


def _slices(subject: _Subject) -> Iterator[Sequence[int]]:
    """Yield the messages in parts; one empty part if only names are left of them."""
    yield from in_slices(subject.numbers, ERASED_AT_ONCE) if subject.numbers else [()]


def _having(rows: "QuerySet[Any] | Any", column: str, values: Collection[Any]) -> Iterator[Any]:
    """Yield the rows with one of these values, by as many statements as they need."""
    for some in in_slices(sorted(values), ERASED_AT_ONCE):
        yield rows.filter(**{f"{column}__in": some})


def _part(subject: _Subject, numbers: Sequence[int]) -> _Part:
    messages = list(ParkedMessage.objects.using(database()).filter(pk__in=numbers).order_by("pk"))
    versions = MessageVersion.objects.using(database()).filter(message__in=numbers)
    return _Part(
        messages=messages,
        versions=list(versions.values_list("pk", flat=True)),
        attempts={one for row in messages for one in attempts_of(row).values_list("pk", flat=True)},
        actions=_actions(numbers, subject.keys),
        runs=_runs(numbers, subject.keys),
        requests=_requests(numbers, subject.keys),
    )


def _requests(numbers: Collection[int], keys: Collection[str]) -> list[int]:
    """Return the requests for a second person that hold an edit of these messages, or whose texts name a key.

    Raise Refused if one of them waits.
    """
    now, alone, naming = database_clock.now(database()), set(numbers), []
    for one in ApprovalRequest.objects.using(database()).defer("body", "properties").order_by("pk"):
        chosen = {int(pk) for pk in json.loads(one.wish)["selection"].get("ids", ())}
        edits = one.act == GatedAct.EDIT and chosen <= alone
        if not edits and not any(_named_in(_text(one.reason, one.remark, one.subject, one.wish), keys)):
            continue
        if one.waits(now):
            text = _("%(request)s names one of these keys, or edits one of the messages. Reject it first.")
            raise Refused(text % {"request": one})
        naming.append(one.pk)
    return naming


def _runs(numbers: Collection[int], keys: Collection[str]) -> list[int]:
    """Return the requeue runs of these messages whose texts name a key; raise Refused if one has not ended."""
    of_messages = RequeueItem.objects.using(database()).filter(message__in=numbers).values("run")
    naming = []
    for run in RequeueRun.objects.using(database()).filter(pk__in=of_messages).order_by("pk"):
        if not any(_named_in(_text(run.reason, run.note, run.description, run.selection), keys)):
            continue
        if run.state in ACTIVE:
            text = _("Requeue run %(number)d names one of these keys and has not ended. Stop it first.")
            raise Refused(text % {"number": run.pk})
        naming.append(run.pk)
    return naming


def _actions(numbers: Collection[int], keys: Collection[str]) -> list[OperatorAction]:
    """Return the rows of the audit log that are about one of these messages alone, or name a key."""
    items = RequeueItem.objects.using(database()).filter(message__in=numbers)
    former = FormerName.objects.using(database()).filter(message__in=numbers, run__isnull=False)
    runs = {run for rows in (items, former) for run in rows.values_list("run", flat=True) if run is not None}
    log = OperatorAction.objects.using(database()).exclude(action=Action.ERASE).exclude(salt="")
    rows = {row.number: row for row in log.filter(acts_on(numbers, runs=runs))}
    rows |= {row.number: row for some in _having(log, "subject", keys) for row in some}
    # Ordering keys are named by actions on no message.
    rows |= {row.number: row for row in log.filter(action=Action.UNBLOCK)}
    alone = set(numbers)
    return [
        row
        for _number, row in sorted(rows.items())
        if row.message in alone or any(_named_in(_text(row.subject, row.reason, row.facts), keys))
    ]


def _text(*parts: object) -> str:
    return "\n".join(part if isinstance(part, str) else json.dumps(part, ensure_ascii=False) for part in parts)


def _named_in(text: str, keys: Collection[str]) -> Iterator[str]:
    """Yield the keys that a text has as words of their own."""
    folded = text.casefold()
    for key in keys:
        if key.casefold() in folded and re.search(rf"(?<!\w){re.escape(key)}(?!\w)", text, re.IGNORECASE):
            yield key


def _counted(subject: _Subject, parts: Sequence[_Part]) -> Traces:
    columns = ((ListedKey, "value"), (FormerName, "value"), (EarlyRetry, "shown"))
    listed, former, early = (
        sum(rows.count() for rows in _having(model.objects.using(database()), column, subject.keys))
        for model, column in columns
    )
    return Traces(
        messages=sum(len(part.messages) for part in parts),
        versions=sum(len(part.versions) for part in parts),
        attempts=len({one for part in parts for one in part.attempts}),
        actions=len({one.number for part in parts for one in part.actions}),
        runs=len({run for part in parts for run in part.runs}),
        listed=listed,
        former=former,
        early=early,
    )


@transaction_of(ParkedMessage)
def _erase(subject: _Subject, numbers: Sequence[int], actor: Actor, reason: str) -> None:
    using, now = database(), database_clock.now(database())
    locked_messages(numbers, whole=False)
    _check(numbers, subject.keys)
    part = _part(subject, numbers)
    for row in part.messages:
        _empty(row, subject.keys, using, erased_at=now, erased_by=actor.name)
    MessageVersion.objects.using(using).filter(pk__in=part.versions).update(**EMPTY, reason="")
    BusinessKey.objects.using(using).filter(message__in=numbers).delete()
    for some in _having(Attempt.objects.using(using), "pk", part.attempts):
        some.update(error_text="", chain=[], logs="", traceparent="")
    for some in _having(ListedKey.objects.using(using), "value", subject.keys):
        some.update(value=IN_PLACE_OF_A_KEY)
    for some in _having(FormerName.objects.using(using), "value", subject.keys):
        some.update(value="")
    for some in _having(EarlyRetry.objects.using(using), "shown", subject.keys):
        some.update(shown="")
    ApprovalRequest.objects.using(using).filter(pk__in=part.requests).delete()
    RequeueRun.objects.using(using).filter(pk__in=part.runs).update(selection={}, description="", reason="", note="")
    forget(part.actions, using)
    OperatorAction.objects.filter(pk__in=[one.pk for one in part.actions]).forget(using)
    facts = {"keys": len(subject.keys), ERASED: spans([one.number for one in part.actions])}
    log_action(actor, Action.ERASE, reason=reason, messages=numbers, count=len(numbers), facts=facts)


def _empty(row: ParkedMessage, keys: Collection[str], using: str, **erased: object) -> None:
    # A copy of the message that comes later must not open a record that has nothing to send.
    identity = f"erased:{row.pk}"
    Attempt.objects.using(using).filter(identity=row.identity).update(identity=identity)
    EarlyRetry.objects.using(using).filter(identity=row.identity).update(identity=identity, shown="")
    ids = [name for name in ("message_id", "correlation_id") if getattr(row, name) in keys]
    ParkedMessage.objects.using(using).filter(pk=row.pk).update(
        **{**EMPTY, **dict.fromkeys([*TEXTS, *ids], ""), **erased},
        identity=identity,
        size=0,
        resolution=row.resolution.partition(":")[0],
        revision=F("revision") + 1,
    )
