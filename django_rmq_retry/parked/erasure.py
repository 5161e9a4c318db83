"""Erases the personal data of messages for good: contents, keys and texts. That they existed, and when, remains."""

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from django.db.models import F, Model, Q, QuerySet
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_rmq_retry import database_clock
from django_rmq_retry.attempts.history import attempts_of
from django_rmq_retry.breakers.halts import halted, known_last
from django_rmq_retry.handlers.business_keys import KEY_BYTES
from django_rmq_retry.messages.properties import Properties, encode_properties
from django_rmq_retry.messages.texts import short
from django_rmq_retry.models import (
    Action,
    ApprovalRequest,
    Attempt,
    BlockedKey,
    BusinessKey,
    DiscardCategory,
    EarlyRetry,
    FormerName,
    MessageVersion,
    OperatorAction,
    ParkedMessage,
    RequestState,
    RequeueItem,
    RequeueRun,
)
from django_rmq_retry.models.parked import RESOLVED
from django_rmq_retry.models.runs import ACTIVE
from django_rmq_retry.parked.admin_history import forget
from django_rmq_retry.parked.audit import ERASED, acts_on, log_action, spans
from django_rmq_retry.parked.database import locked_messages, records_alias, transaction_of
from django_rmq_retry.parked.four_eyes import selection_of
from django_rmq_retry.parked.key_lists import look_up
from django_rmq_retry.parked.operators import Actor, NothingChosen, Refused
from django_rmq_retry.parked.traces import EMPTY_ATTEMPT, ErasedElsewhere, having, named_in
from django_rmq_retry.statements import in_slices

ERASED_AT_ONCE = 500
"""Messages of one transaction."""
MOST_NUMBERS_NAMED = 20
EMPTY = {"body": b"", "properties": encode_properties(Properties()), "sha256": hashlib.sha256(b"").hexdigest()}
"""The contents of an erased message, and of each of its versions."""
M = TypeVar("M", bound=Model)
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
    states: int
    """Rows of queues, consumers and alerts that name one of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
    """What is erased: messages, also those that retention has deleted, and keys."""

    numbers: Sequence[int]
    keys: Collection[str]
    """The keys as given, and those of the messages that no other message has; long ones as they are stored."""
    ids: Collection[str]
    """The message ids of the messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """What is stored about some of the messages."""

    messages: Sequence[ParkedMessage]
    versions: Collection[int]
    attempts: Collection[int]
    actions: Sequence[OperatorAction]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rest:
    """What is stored about the keys in rows that belong to no message, or to several."""

    actions: Sequence[OperatorAction]
    runs: Collection[int]
    requests: Collection[int]
    """Requests for a second person."""
    elsewhere: ErasedElsewhere


def traces(keys: Sequence[str]) -> Traces:
    """Return what an erasure of these keys would empty; raise Refused if it cannot be done yet."""
    return _traces_of(_subject(keys))


def _traces_of(subject: _Subject) -> Traces:
    parts, rest = [_part(subject, some) for some in _slices(subject)], _rest(subject)
    elsewhere = rest.elsewhere
    return Traces(
        messages=sum(len(part.messages) for part in parts),
        versions=sum(len(part.versions) for part in parts),
        attempts=len({*elsewhere.attempts, *(one for part in parts for one in part.attempts)}),
        actions=len({one.number for some in (rest.actions, *(part.actions for part in parts)) for one in some}),
        runs=len(rest.runs),
        listed=len(elsewhere.listed),
        former=len(elsewhere.former),
        early=len(elsewhere.early),
        states=len(elsewhere.queues) + len(elsewhere.processes) + len(elsewhere.alerts),
    )


def erase(keys: Sequence[str], actor: Actor, *, reason: str) -> Traces:
    """Empty everything that is stored about these keys; each slice of messages has its row in the audit log."""
    if not reason.strip():
        raise Refused(_("Enter the reason for the erasure."))
    if named_in([reason], keys):
        raise Refused(_("The reason is kept, so it must not contain what is erased. Name the request instead."))
    subject = _subject(keys)
    counts = _traces_of(subject)
    if not any((counts.messages, counts.attempts, counts.actions, counts.runs, counts.listed, counts.former,
                counts.early, counts.states)):  # fmt: skip
        raise NothingChosen(_("Nothing is stored about these keys."))
    for place, some in enumerate(_slices(subject)):
        # With the first messages, because their own keys are not known any more if the command is killed after it.
        _erase(subject, some, actor, reason, rest=place == 0)
    return counts


def _subject(keys: Sequence[str]) -> _Subject:
    given = list(dict.fromkeys(short(key, KEY_BYTES) for key in keys))
    numbers = sorted({one for some in look_up(given).values() for one in some})
    own = {value for some in in_slices(numbers, ERASED_AT_ONCE) for value in _keys_of(some)}
    known = {*given, *(own - _shared(own, set(numbers)))}
    deleted = {one.message for one in having(_rows(FormerName), "value", known) if one.message is not None}
    rows = having(_rows(ParkedMessage).only("message_id"), "pk", numbers)
    subject = _Subject(
        numbers=[*numbers, *sorted(deleted - set(numbers))],
        keys=known,
        ids={row.message_id for row in rows if row.message_id},
    )
    _check(subject)
    return subject


def _keys_of(numbers: Collection[int]) -> Iterable[str]:
    return BusinessKey.objects.using(records_alias()).filter(message__in=numbers).values_list("value", flat=True)


def _shared(keys: Collection[str], numbers: Collection[int]) -> set[str]:
    """Return the keys that other messages have too, such as the number of a branch."""
    return {one.value for one in having(_rows(BusinessKey), "value", keys) if one.message_id not in numbers}


def _check(subject: _Subject) -> None:
    """Raise Refused if a message may still be handled, or others wait for it."""
    rows = list(having(_rows(ParkedMessage).only("state", "identity"), "pk", subject.numbers))
    unresolved = [row.pk for row in rows if row.state not in RESOLVED]
    if unresolved:
        text = ngettext(
            "%(count)d message is open or requeued: %(numbers)s. Discard it, or wait for its outcome.",
            "%(count)d messages are open or requeued: %(numbers)s. Discard them, or wait for their outcome.",
            len(unresolved),
        )
        shown = ", ".join(f"#{number}" for number in unresolved[:MOST_NUMBERS_NAMED])
        more = " …" if len(unresolved) > MOST_NUMBERS_NAMED else ""
        raise Refused(text % {"count": len(unresolved), "numbers": shown + more})
    blocked = [
        *having(_rows(BlockedKey), "key", subject.keys),
        *having(_rows(BlockedKey), "identity", [row.identity for row in rows]),
    ]
    if blocked:
        text = _("An ordering key of %(handler)s is blocked, and messages wait behind it. Unblock it first.")
        raise Refused(text % {"handler": blocked[0].handler})
    now = database_clock.now(records_alias())
    for row in [one for one in halted(now) if not known_last(one, now)]:
        named = [row.halted_message, row.halted_key, row.halted_error]
        if row.halted_message in subject.ids or named_in(named, subject.keys):
            text = _("Queue %(queue)s is halted by one of these messages. Wait until it is handled or parked.")
            raise Refused(text % {"queue": row.queue})


def _rows(model: type[M]) -> "QuerySet[M]":
    return model._default_manager.using(records_alias())  # noqa: SLF001 - documented


def _slices(subject: _Subject) -> Iterator[Sequence[int]]:
    """Yield the messages in parts; one empty part if only names are left of them."""
    yield from in_slices(subject.numbers, ERASED_AT_ONCE) if subject.numbers else [()]


def _part(subject: _Subject, numbers: Sequence[int]) -> _Part:
    messages = list(ParkedMessage.objects.using(records_alias()).filter(pk__in=numbers).order_by("pk"))
    versions = MessageVersion.objects.using(records_alias()).filter(message__in=numbers)
    return _Part(
        messages=messages,
        versions=list(versions.values_list("pk", flat=True)),
        attempts={one for row in messages for one in attempts_of(row).values_list("pk", flat=True)},
        actions=_actions(numbers, subject.keys),
    )


def _rest(subject: _Subject) -> _Rest:
    return _Rest(
        actions=_actions_on_none(subject.keys),
        runs=_runs(subject.keys),
        requests=_requests(subject),
        elsewhere=ErasedElsewhere.of(subject.keys, subject.ids),
    )


def _requests(subject: _Subject) -> list[int]:
    """Return the requests for a second person that are about these messages alone, or whose texts name a key.

    Raise Refused if one of them waits, or was approved and is being carried out.
    """
    now, alone, naming = database_clock.now(records_alias()), set(subject.numbers), []
    for one in ApprovalRequest.objects.using(records_alias()).defer("body", "properties").order_by("pk"):
        chosen = set(selection_of(one).revisions)
        about = bool(chosen) and chosen <= alone
        if not about and not named_in([one.reason, one.remark, one.subject, _values(one)], subject.keys):
            continue
        if one.waits(now):
            text = _("%(request)s names one of these keys, or is about these messages alone. Reject it first.")
            raise Refused(text % {"request": one})
        if one.state == RequestState.APPROVED:
            text = _("%(request)s is being carried out, and names one of these keys or messages. Wait for its end.")
            raise Refused(text % {"request": one})
        naming.append(one.pk)
    return naming


def _values(request: ApprovalRequest) -> Any:
    try:
        return json.loads(request.wish)
    except ValueError:
        return request.wish


def _runs(keys: Collection[str]) -> list[int]:
    """Return the requeue runs whose texts name a key; raise Refused if one of them has not ended."""
    naming = []
    for run in RequeueRun.objects.using(records_alias()).order_by("pk"):
        if not named_in([run.reason, run.note, run.description, run.selection], keys):
            continue
        if run.state in ACTIVE:
            text = _("Requeue run %(number)d names one of these keys and has not ended. Stop it first.")
            raise Refused(text % {"number": run.pk})
        naming.append(run.pk)
    return naming


def _actions(numbers: Collection[int], keys: Collection[str]) -> list[OperatorAction]:
    """Return the rows of the audit log that are about one of these messages alone, or with others and name a key."""
    items = RequeueItem.objects.using(records_alias()).filter(message__in=numbers)
    former = FormerName.objects.using(records_alias()).filter(message__in=numbers, run__isnull=False)
    runs = {run for rows in (items, former) for run in rows.values_list("run", flat=True) if run is not None}
    rows = _log().filter(acts_on(numbers, runs=runs))
    alone = set(numbers)
    return [row for row in rows if row.message in alone or _names(row, keys)]


def _actions_on_none(keys: Collection[str]) -> list[OperatorAction]:
    """Return the rows of the audit log that name a key but no message, such as those of an ordering key or a pause.

    What was checked may name both messages and keys of others that have no record.
    """
    unrecorded = Q(message=None, last_message=None) | Q(action=Action.CHECK)
    rows = {row.number: row for row in _log().filter(unrecorded)}
    rows |= {row.number: row for row in having(_log(), "subject", keys)}
    return [row for _number, row in sorted(rows.items()) if _names(row, keys)]


def _log() -> "QuerySet[OperatorAction]":
    rows: QuerySet[OperatorAction] = OperatorAction.objects.using(records_alias()).exclude(action=Action.ERASE)
    return rows.exclude(salt="").order_by("number")


def _names(row: OperatorAction, keys: Collection[str]) -> bool:
    return named_in([row.subject, row.reason, row.facts], keys)


@transaction_of(ParkedMessage)
def _erase(subject: _Subject, numbers: Sequence[int], actor: Actor, reason: str, *, rest: bool) -> None:
    using, now = records_alias(), database_clock.now(records_alias())
    locked_messages(numbers, whole=False)
    _check(subject)
    part, more = _part(subject, numbers), _rest(subject) if rest else None
    for row in part.messages:
        _empty(row, subject.keys, using, erased_at=now, erased_by=actor.name)
    MessageVersion.objects.using(using).filter(pk__in=part.versions).update(**EMPTY, reason="")
    BusinessKey.objects.using(using).filter(message__in=numbers).delete()
    for some in in_slices(sorted(part.attempts), ERASED_AT_ONCE):
        Attempt.objects.using(using).filter(pk__in=some).update(**EMPTY_ATTEMPT)
    actions = {one.number: one for one in part.actions}
    if more is not None:
        more.elsewhere.forget()
        ApprovalRequest.objects.using(using).filter(pk__in=more.requests).delete()
        runs = RequeueRun.objects.using(using).filter(pk__in=more.runs)
        runs.update(selection={}, description="", reason="", note="")
        actions |= {one.number: one for one in more.actions}
    forget(actions.values(), using)
    OperatorAction.objects.filter(pk__in=[one.pk for one in actions.values()]).forget(using)
    facts = {"keys": len(subject.keys), ERASED: spans(actions)}
    log_action(actor, Action.ERASE, reason=reason, messages=numbers, count=len(numbers), facts=facts)


def _empty(row: ParkedMessage, keys: Collection[str], using: str, **erased: object) -> None:
    # A copy of the message that comes later must not open a record that has nothing to send.
    identity = f"erased:{row.pk}"
    Attempt.objects.using(using).filter(identity=row.identity).update(identity=identity)
    EarlyRetry.objects.using(using).filter(identity=row.identity).update(identity=identity, shown="")
    ids = [name for name in ("message_id", "correlation_id") if named_in([getattr(row, name)], keys)]
    category = row.resolution.partition(":")[0]
    ParkedMessage.objects.using(using).filter(pk=row.pk).update(
        **{**EMPTY, **dict.fromkeys([*TEXTS, *ids], ""), **erased},
        identity=identity,
        size=0,
        content=None,
        has_siblings=False,
        resolution=category if category in DiscardCategory.values else "",
        revision=F("revision") + 1,
    )
