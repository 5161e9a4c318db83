"""The attempts of a message, and the messages that wait for their next one."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any

from django.db import router
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Count, DateTimeField, Exists, Func, Max, OuterRef, Q, QuerySet
from django.db.models.sql.compiler import SQLCompiler
from django.utils.translation import ngettext

from django_rmq_retry.errors import UndecodableHeaders
from django_rmq_retry.messages.deaths import rejections
from django_rmq_retry.messages.identity import attempt_identities
from django_rmq_retry.messages.parked_copy import By
from django_rmq_retry.messages.properties import decode_properties
from django_rmq_retry.messages.stamp import HIGHEST_COUNT
from django_rmq_retry.models import Attempt, AttemptName, ParkedMessage
from django_rmq_retry.policies.verdict import ACK, DUPLICATE
from django_rmq_retry.statements import with_one_of

WITHHELD = "withheld"
"""The verdict on a copy that was not run, because its message was parked or handled meanwhile."""
NO_FAILURE = (ACK.name, DUPLICATE.name, WITHHELD)
"""Verdicts of attempts that did not fail: the handler ran to its end, or was not run."""
LONGEST_ATTEMPT = timedelta(hours=1)
"""The longest attempt whose failure is looked for by its start."""
COUNTS_AS_WAITING = timedelta(hours=1)
"""Time for which a message still counts as waiting after its retry is due: consumers may be stopped, or busy."""


def attempts_of(record: ParkedMessage) -> QuerySet[Attempt]:
    """Return all known attempts of a parked message, latest first.

    Attempts after a requeue are found by the record's identity, even if the message was edited. Attempts before it
    are found by the message ID. Messages of one queue with no ID and equal bodies share their attempts, because they
    cannot be distinguished.
    """
    identities = [record.identity]
    if not record.message_id:
        identities += attempt_identities(record.queue or record.parked_in, bytes(record.body))
    return Attempt.objects.filter(identity__in=identities).order_by("-started_at", "-pk")


def handlings(attempts: Iterable[Attempt]) -> list[Attempt]:
    """Return those of the attempts in which the handler did its work for this one message, oldest first.

    Before its requeue a message without an id shares its attempts with messages of equal bodies: these are left out.
    """
    done = (one for one in attempts if one.verdict == ACK.name and (one.message_id or one.cycle > 1))
    return sorted(done, key=attrgetter("started_at", "pk"))


def first_keys(ids: Mapping[str, str]) -> dict[str, str]:
    """Return the first business key of each message that was to be tried again, by its identity; one query.

    The first key names a message: others may be those of a customer. ``ids`` are the message ids, by identity.
    """
    keys: dict[str, str] = {}
    rows = AttemptName.objects.using(router.db_for_write(AttemptName)).order_by("pk")
    for some in with_one_of(rows, "identity", ids):
        for identity, value in some.values_list("identity", "value"):
            if value != ids[identity]:
                keys.setdefault(identity, value)
    return keys


@dataclass(frozen=True, slots=True, kw_only=True)
class LostAttempts:
    """Attempts that a message reports and the history does not have."""

    reported: int
    recorded: int

    @property
    def count(self) -> int:
        return self.reported - self.recorded

    def __str__(self) -> str:
        text = ngettext(
            "The message reports %(reported)d attempts, but the history has %(known)d. %(count)d attempt was not "
            "recorded: its consumer crashed, or was an older version or another program.",
            "The message reports %(reported)d attempts, but the history has %(known)d. %(count)d attempts were "
            "not recorded: their consumer crashed, or was an older version or another program.",
            self.count,
        )
        return text % {"reported": self.reported, "known": self.recorded, "count": self.count}


def failures_counted(record: ParkedMessage) -> QuerySet[Any, Any]:
    """Return the query of one number, ``n``: the failures of the cycle parked last, up to what the message reports.

    It has no row if there are none.
    """
    known = attempts_of(record).filter(cycle=max(record.parked_cycle, 1), number__lte=_reported(record))
    known = known.exclude(verdict__in=NO_FAILURE)
    return known.order_by().values("cycle").annotate(n=Count("number", distinct=True)).values("n")


def lost_attempts(record: ParkedMessage, recorded: int | None) -> LostAttempts | None:
    """Return the attempts that were not recorded, by the number of ``failures_counted``; None if none was lost.

    The message reports its attempts up to its last arrival in the parked queue.
    """
    lost = LostAttempts(reported=_reported(record), recorded=recorded or 0)
    return lost if lost.count > 0 and not record.requeued_since else None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptCounts:
    """The attempts of a message, stored or only reported by it, as every page and command tells them."""

    by_cycle: Sequence[tuple[int, int]]
    """Each cycle with its attempts, whether they failed or not."""
    failed: int
    """The failures of the cycle that was parked last, of all copies of the message that were parked in it."""


def count_attempts(
    record: ParkedMessage, lost: LostAttempts | None, known: Sequence[Attempt] | None = None
) -> AttemptCounts:
    """Count the attempts of a message; ``known`` has all that are stored, if they are read already.

    The message itself reports those of one copy only, and the history of two copies has those of both. Of a message
    without an id the first cycle counts as it reports it: the history has those of equal messages too.
    """
    cycle, reported = max(record.parked_cycle, 1), record.attempts
    if known is None:
        rows = attempts_of(record).order_by().values_list("cycle", "verdict").annotate(n=Count("pk"))
        stored = Counter({(row[0], row[1]): row[2] for row in rows})
    else:
        stored = Counter((one.cycle, one.verdict) for one in known)
    if not record.message_id and cycle == 1:
        stored = Counter({pair: count for pair, count in stored.items() if pair[0] > 1})
        reported = _reported(record)
    by_cycle = Counter[int]()
    for (number, verdict), count in stored.items():
        if verdict != WITHHELD:
            by_cycle[number] += count
    missing = lost.count if lost else 0
    failures = sum(count for pair, count in stored.items() if pair[0] == cycle and pair[1] not in NO_FAILURE)
    failed = max(failures + missing, reported)
    by_cycle[cycle] += failed - failures
    return AttemptCounts(by_cycle=sorted(by_cycle.items()), failed=failed)


def failures_of(records: Sequence[ParkedMessage]) -> dict[int, int]:
    """Return ``count_attempts(…).failed`` of several messages, by their ids.

    One query, and a second one for what the consumers have not parked: only its headers count its attempts.
    """
    foreign = {one.pk: one for one in records if one.by != By.CONSUMER and "properties" in one.get_deferred_fields()}
    if foreign:
        headers = ParkedMessage.objects.filter(pk__in=list(foreign)).values_list("pk", "properties")
        for pk, properties in headers:
            foreign[pk].properties = properties
    # Of a message without an id the first cycle counts as it reports it.
    named = [one.identity for one in records if one.message_id or one.parked_cycle > 1]
    stored: dict[tuple[str, int], Mapping[str, Any]] = {}
    for rows in with_one_of(Attempt.objects.exclude(verdict__in=NO_FAILURE).order_by(), "identity", named):
        counted = rows.values("identity", "cycle").annotate(
            n=Count("pk"), numbers=Count("number", distinct=True), last=Max("number")
        )
        stored |= {(row["identity"], row["cycle"]): row for row in counted}
    return {one.pk: _failures(one, stored.get((one.identity, max(one.parked_cycle, 1)))) for one in records}


def _failures(record: ParkedMessage, stored: Mapping[str, Any] | None) -> int:
    known = stored or {"n": 0, "numbers": 0, "last": 0}
    reported, numbers = record.attempts if record.by == By.CONSUMER else _reported(record), known["numbers"]
    if known["last"] > reported:
        # Another copy was attempted more often than this one reports.
        numbers = next((found["n"] for found in failures_counted(record)), 0)
    missing = 0 if record.requeued_since else max(reported - numbers, 0)
    failures: int = known["n"]
    nameless = not record.message_id and record.parked_cycle <= 1
    return max(failures + missing, reported if nameless else record.attempts)


class _Ended(Func):
    """The end of an attempt, computed by the database from its start and its seconds."""

    output_field = DateTimeField()
    arg_joiner = " + "
    template = "(%(expressions)s * INTERVAL '1 second')"

    def as_mysql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **more: Any) -> tuple[str, Any]:
        added = "DATE_ADD(%(expressions)s * 1000000 MICROSECOND)"
        return self.as_sql(compiler, connection, template=added, arg_joiner=", INTERVAL ", **more)

    def as_sqlite(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **more: Any) -> tuple[str, Any]:
        added = "django_format_dtdelta('+', %(expressions)s * 1000000 AS INTEGER))"
        return self.as_sql(compiler, connection, template=added, arg_joiner=", CAST(", **more)


def failed_since(since: datetime, *, most: int) -> int:
    """Count the attempts whose failure is not older than this, however long they took; up to ``most`` and one.

    They are written as they end, so the last rows are those that ended last: an index by start alone would find no end.
    """
    rows = Attempt.objects.filter(started_at__gte=since - LONGEST_ATTEMPT).exclude(verdict__in=NO_FAILURE)
    ended = rows.annotate(ended=_Ended("started_at", "seconds")).order_by("-pk")[: most + 1]
    return int(ended.aggregate(n=Count("pk", filter=Q(ended__gte=since)))["n"])


def failures_from_first(record: ParkedMessage) -> QuerySet[Attempt]:
    """Return the stored attempts of a message that failed, the oldest first."""
    return attempts_of(record).exclude(verdict__in=NO_FAILURE).order_by("started_at")


def first_failed(record: ParkedMessage) -> datetime | None:
    """Return when a message failed first, with a query of its own."""
    began, seconds = failures_from_first(record).values_list("started_at", "seconds").first() or (None, None)
    return first_failure(record, began, seconds)


def first_failure(record: ParkedMessage, began: datetime | None, seconds: float | None) -> datetime | None:
    """Return when a message failed first, by its oldest stored failure and by what it reports itself.

    A message has the time of its present cycle and last copy, in whole seconds of another clock.
    """
    if began is None or (not record.message_id and record.cycle == 1):
        return record.failed_at
    ended = began + timedelta(seconds=seconds or 0)
    return ended if record.failed_at is None else min(ended, record.failed_at)


def _reported(record: ParkedMessage) -> int:
    """Return the attempts of this cycle that the message itself reports, by its stamp or by the broker's count."""
    try:
        headers = decode_properties(bytes(record.properties)).headers
    except UndecodableHeaders:
        return record.attempts
    # The count in x-death can be forged, and no column holds more.
    return max(record.attempts, min(rejections(headers, record.queue), HIGHEST_COUNT))


def last_attempts(identities: Collection[str]) -> QuerySet[Attempt]:
    """Return the last attempt of each of these messages."""
    rows = Attempt.objects.filter(identity__in=identities).exclude(_with_later())
    return rows.defer("chain", "logs")


def waiting(at: datetime, *, overdue: timedelta = COUNTS_AS_WAITING) -> QuerySet[Attempt]:
    """Return the last attempts of messages that wait for a retry, the soonest ``next_at`` first."""
    return Attempt.objects.filter(next_at__gt=at - overdue).exclude(_with_later()).order_by("next_at", "pk")


def _with_later() -> Exists:
    """Match the attempts after which the same message was attempted again."""
    return Exists(Attempt.objects.filter(identity=OuterRef("identity"), started_at__gt=OuterRef("started_at")))
