"""Erases what other tables hold of a message: stored names, attempts, results, queues, consumers and alerts."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from django.db.models import Model, QuerySet

from django_rmq_retry.breakers.halts import NOT_HALTED
from django_rmq_retry.models import (
    AlertWatch,
    Attempt,
    AttemptName,
    ConsumerProcess,
    EarlyRetry,
    FormerName,
    ListedKey,
    QueueControl,
    StoredResult,
)
from django_rmq_retry.models.audit import GROUPS, MESSAGES
from django_rmq_retry.parked.database import records_alias
from django_rmq_retry.statements import in_slices

VALUES_AT_ONCE = 500
CUT_AT = 100
"""Characters of a long key by which a text is said to name it: columns cut texts off, and a key with them."""
IN_PLACE_OF_A_KEY = "(erased)"
"""What a stored list of keys has in the place of an erased one."""
IDS = "ids"
"""What holds the numbers of the messages of a selection."""
EMPTY_ATTEMPT: Mapping[str, Any] = {"error_text": "", "chain": [], "logs": "", "traceparent": ""}
M = TypeVar("M", bound=Model)


def having(rows: "QuerySet[M]", column: str, values: Collection[Any]) -> Iterator[M]:
    """Yield the rows with one of these values, also where the database treats other texts as equal."""
    wanted = set(values)
    for some in in_slices(sorted(wanted), VALUES_AT_ONCE):
        yield from (row for row in rows.filter(**{f"{column}__in": some}) if getattr(row, column) in wanted)


def named_in(values: Iterable[object], keys: Collection[str]) -> bool:
    """Return True if a text names one of the keys as a word of its own; of JSON values, any text at any depth."""
    texts = [text for value in values for text in texts_of(value)]
    folded = "\n".join(texts).casefold()
    near = [key[:CUT_AT] for key in keys if key[:CUT_AT].casefold() in folded]
    return any(_word(key).search(text) for key in near for text in texts)


def _word(key: str) -> re.Pattern[str]:
    end = r"(?!\w)" if len(key) < CUT_AT else ""
    return re.compile(rf"(?<!\w){re.escape(key)}{end}", re.IGNORECASE)


def texts_of(value: object) -> Iterator[str]:
    """Yield the texts of a JSON value as they are, without the escapes of its JSON."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        named = [pair for pair in value.items() if not _holds_numbers(*pair)]
        yield from (text for pair in named for part in pair for text in texts_of(part))
    elif isinstance(value, list | tuple):
        yield from (text for part in value for text in texts_of(part))


def _holds_numbers(name: object, value: object) -> bool:
    """Return True for the numbers of records and error groups, where a key that is a number is not meant.

    Of parked messages an action has their ranges in a text, but of the outbox a list of their ids.
    """
    return name in (IDS, GROUPS) or (name == MESSAGES and isinstance(value, str))


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasedElsewhere:
    """The rows that are about other things, and name an erased key or message."""

    keys: Collection[str]
    ids: Collection[str]
    """Message ids of erased messages. Only what is about one of them is emptied, as an id may stay in its record."""
    listed: Collection[int]
    former: Collection[int]
    early: Collection[int]
    attempts: Collection[int]
    """Also those of messages that were never parked."""
    names: Collection[int]
    """By which a search finds attempts."""
    results: Collection[str]
    queues: Sequence[QueueControl]
    processes: Sequence[ConsumerProcess]
    alerts: Sequence[AlertWatch]

    @classmethod
    def of(cls, keys: Collection[str], ids: Collection[str]) -> "ErasedElsewhere":
        """Find the rows that name one of these keys, or a message by one of these ids."""
        using = records_alias()
        names = list(having(AttemptName.objects.using(using), "value", {*keys, *ids}))
        tried = {row.identity for row in names if row.value in keys}
        return cls(
            keys=keys,
            ids=ids,
            listed=[row.pk for row in having(ListedKey.objects.using(using), "value", keys)],
            former=[row.pk for row in having(FormerName.objects.using(using), "value", keys)],
            early=[row.pk for row in having(EarlyRetry.objects.using(using), "shown", keys)],
            attempts=list(
                dict.fromkeys(
                    row.pk
                    for name, values in (("message_id", keys), ("identity", tried))
                    for row in having(Attempt.objects.using(using).only(name), name, values)
                )
            ),
            names=[row.pk for row in names],
            results=[row.pk for row in having(StoredResult.objects.using(using).only("id"), "id", {*keys, *ids})],
            queues=[row for row in QueueControl.objects.using(using) if _changes(row, keys, ids)],
            processes=[
                row
                for row in ConsumerProcess.objects.using(using)
                if any(_is_of(entry, keys, ids) for entry in row.in_flight) or _names_left(row, keys, ids)
            ],
            alerts=[
                row
                for row in AlertWatch.objects.using(using)
                if any(_tells(entry, keys) for entries in row.told.values() for entry in entries.values())
            ],
        )

    def forget(self) -> None:
        """Empty what these rows say of the messages; call it in the transaction of the erasure."""
        using = records_alias()
        for rows, numbers, values in (
            (ListedKey.objects.using(using), self.listed, {"value": IN_PLACE_OF_A_KEY}),
            (FormerName.objects.using(using), self.former, {"value": "", "folded": ""}),
            (EarlyRetry.objects.using(using), self.early, {"shown": ""}),
            (Attempt.objects.using(using), self.attempts, {**EMPTY_ATTEMPT, "message_id": ""}),
        ):
            for some in in_slices(numbers, VALUES_AT_ONCE):
                rows.filter(pk__in=some).update(**values)
        for some in in_slices(self.names, VALUES_AT_ONCE):
            AttemptName.objects.using(using).filter(pk__in=some).delete()
        for ids in in_slices(self.results, VALUES_AT_ONCE):
            StoredResult.objects.using(using).filter(pk__in=ids).delete()
        for queue in self.queues:
            QueueControl.objects.using(using).filter(pk=queue.pk).update(**_changes(queue, self.keys, self.ids))
        for process in self.processes:
            entries = [_without_names(one) if _is_of(one, self.keys, self.ids) else one for one in process.in_flight]
            # A newer heartbeat has newer entries.
            same = ConsumerProcess.objects.using(using).filter(pk=process.pk, beat_at=process.beat_at)
            same.update(in_flight=entries)
            if _names_left(process, self.keys, self.ids):
                # Without the name it would count as a message that the process had not begun.
                ConsumerProcess.objects.using(using).filter(pk=process.pk).update(let_go=None)
        for watch in self.alerts:
            told = {
                way: {name: _untold(entry, self.keys) for name, entry in entries.items()}
                for way, entries in watch.told.items()
            }
            # Without the lease, the process that has the old texts in its memory cannot write them again.
            AlertWatch.objects.using(using).filter(pk=watch.pk).update(told=told, holder="", leased_until=None)


def _tells(entry: Mapping[str, Any], keys: Collection[str]) -> bool:
    return named_in([entry.get("text")], keys)


def _untold(entry: Mapping[str, Any], keys: Collection[str]) -> Mapping[str, Any]:
    return {**entry, "text": IN_PLACE_OF_A_KEY} if _tells(entry, keys) else entry


def _changes(row: QueueControl, keys: Collection[str], ids: Collection[str]) -> dict[str, Any]:
    """Return the columns of a queue's row that are to be emptied, with their new values."""
    changes: dict[str, Any] = {name: "" for name in ("cause", "reason") if named_in([getattr(row, name)], keys)}
    if row.halted_message in ids or named_in([row.halted_message, row.halted_key, row.halted_error], keys):
        changes |= NOT_HALTED
    return changes


def _is_of(entry: Mapping[str, Any], keys: Collection[str], ids: Collection[str]) -> bool:
    """Return True if an entry of what a process had in flight is of an erased message."""
    return entry.get("message_id") in ids or not {entry.get("key"), entry.get("message_id")}.isdisjoint(keys)


def _names_left(row: ConsumerProcess, keys: Collection[str], ids: Collection[str]) -> bool:
    """Return True if a process tells of an erased message that it had begun it of a stopped queue."""
    return any(name in ids or name in keys for left in (row.let_go or {}).values() for name in left)


def _without_names(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {**entry, "key": "", "message_id": ""}
