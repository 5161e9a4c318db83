"""Groups of parked messages with one cause: counters, notes and trends."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

from django.db import router
from django.db.models import (
    BooleanField,
    Case,
    Count,
    ExpressionWrapper,
    F,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    Sum,
    Value,
    When,
)
from django.db.models.functions import Coalesce, Greatest, Least
from django.utils.translation import gettext as _

from django_rmq_retry import database_clock
from django_rmq_retry.messages.texts import short
from django_rmq_retry.models import Action, ErrorGroup, ParkedMessage, ParkedMinute, ParkedOrigin, RequeueRun
from django_rmq_retry.models.parked import COUNTED_AS, COUNTERS, OPEN, OriginKey, State, reduced
from django_rmq_retry.parked.audit import log_action
from django_rmq_retry.parked.database import records_alias, transaction_of
from django_rmq_retry.parked.operators import Actor, NothingChosen
from django_rmq_retry.statements import BulkCount, in_slices, lock, locking

GROUPS_AT_ONCE = 500
NOTE_LIMIT = 10_000
LIMITS = {"note": NOTE_LIMIT, "owner": 150, "ticket": 150, "plain": 255}
BUCKETS, BUCKET = 18, timedelta(minutes=10)
"""Three hours in total."""
MINUTE, MINUTES_KEPT = timedelta(minutes=1), timedelta(hours=4)
count_minutes = BulkCount(ParkedMinute, ("group_id", "minute", "new", "count"))
GROWTH, GROWTH_SPAN = 2, timedelta(minutes=5)
"""The new messages in the last minutes from which a group grows: a single one is an event, and no growth.

Copies that a requeue sent, and that failed again, are no new ones. Minutes are counted: texts say since which one.
"""
BURST_TOLD = timedelta(hours=1)
"""The time after its last new failure for which the number of a burst is told; the most that is added up for it."""
STILL_GROWS = timedelta(minutes=1)
"""The time after its last new failure for which a group still grows."""
SETTLES = timedelta(seconds=10)
"""The time after a new failure from which a requeue that is handled shows that the cause is gone."""
FAILED_AGAIN = Q(cycle__gt=1, unconfirmed=False, published_again=False)
"""The open messages that have failed again. One whose requeue was not confirmed may not have been handled since."""
OF_LAST_TIME = Q(group__regressed_at=None) | Q(minute__gt=F("group__regressed_at") - MINUTE)
"""The minutes since a group occurred again, after all its messages had been resolved: its burst begins anew then."""


def recount(groups: Collection[int] | None = None) -> int:
    """Count the messages of these groups, or of all, again; return the number of groups with wrong counters."""
    chosen = ErrorGroup.objects.order_by("pk")
    if groups is not None:
        chosen = chosen.filter(pk__in=groups)
    numbers = list(chosen.values_list("pk", flat=True))
    return sum(_recount_groups(some) for some in in_slices(numbers, GROUPS_AT_ONCE))


@transaction_of(ErrorGroup)
def _recount_groups(groups: Collection[int]) -> int:
    alias = router.db_for_write(ErrorGroup)
    # A concurrent change of a counter waits, and is added later.
    lock(ErrorGroup.objects.using(alias).filter(pk__in=groups))
    true = {group: dict.fromkeys(COUNTERS, 0) for group in groups}
    counted = ParkedMessage.objects.using(alias).filter(group__in=groups).order_by()
    for group, state, count in counted.values_list("group", "state").annotate(count=Count("pk")):
        true[group][COUNTED_AS[state]] += count
    wrong = _recount_origins(groups, using=alias)
    for group, counts in true.items():
        if ErrorGroup.objects.using(alias).filter(pk=group).exclude(**counts).update(**counts):
            wrong.add(group)
    return len(wrong)


def _recount_origins(groups: Collection[int], *, using: str) -> set[int]:
    """Count the origins of locked groups again; return the groups with wrong counters."""
    parked = ParkedMessage.objects.using(using).filter(group__in=groups, state=State.PARKED).order_by()
    handled = Case(When(succeeded_at__isnull=False, then=True), default=False, output_field=BooleanField())
    counted = parked.values_list("group", "queue", "handler", "type", handled).annotate(n=Count("pk"))
    true = {OriginKey._make((*row[:4], bool(row[4]))): row[5] for row in counted}
    known = ParkedOrigin.objects.using(using).filter(group__in=groups)
    stored = known.exclude(count=0).values_list("group", "queue", "handler", "type", "handled", "count")
    different = true.items() ^ {(OriginKey(*row[:5]), row[5]) for row in stored}
    wrong = {origin.group for origin, _count in different}
    known.filter(group__in=wrong).delete()
    ParkedOrigin.objects.add({one: count for one, count in true.items() if one.group in wrong}, using=using)
    return wrong


@dataclass(slots=True)
class _Change:
    counters: Counter[str] = field(default_factory=Counter)
    new: list[datetime] = field(default_factory=list)
    """Times at which messages were parked that had not been parked before."""
    again: list[datetime] = field(default_factory=list)
    """Times at which messages were parked again."""
    copies: list[datetime] = field(default_factory=list)
    """Times at which another copy of a message was parked that is parked: no message more."""

    @property
    def seen(self) -> list[datetime]:
        return self.new + self.again + self.copies


@dataclass(slots=True)
class GroupTally:
    """The changes to groups in one transaction, collected as they happen and written at its end, in one order."""

    changes: defaultdict[int, _Change] = field(default_factory=partial(defaultdict, _Change))
    origins: Counter[OriginKey] = field(default_factory=Counter)

    def moved(self, origin: OriginKey, before: str | None, after: str | None) -> None:
        """Count a message's change of state; None means that it was not in the group before, or is not any more."""
        counters = self.changes[origin.group].counters
        if before is not None:
            counters[COUNTED_AS[before]] -= 1
        if after is not None:
            counters[COUNTED_AS[after]] += 1
        self.origins[origin] += (after == State.PARKED) - (before == State.PARKED)

    def arrived(self, group: int, at: datetime, *, new: bool = False) -> None:
        change = self.changes[group]
        (change.new if new else change.again).append(at)

    def copied(self, group: int, at: datetime) -> None:
        self.changes[group].copies.append(at)

    def failed_again(self, group: int) -> None:
        self.changes[group].counters["failed_again"] += 1

    def write(self, *, using: str, now: datetime) -> None:
        """Update each changed group with one statement. Messages are locked before groups, and runs after."""
        for group in sorted(self.changes):
            changes = _columns(self.changes[group])
            if changes:
                ErrorGroup.objects.using(using).filter(pk=group).update(**changes)
        ParkedOrigin.objects.add(self.origins, using=using)
        self._write_minutes(using=using, now=now)

    def _write_minutes(self, *, using: str, now: datetime) -> None:
        """Count what was parked by the minute, for the trends."""
        oldest = now - MINUTES_KEPT
        seen = Counter(
            (group, minute_of(at), new)
            for group, change in self.changes.items()
            for new, times in ((True, change.new), (False, change.again))
            for at in times
        )
        rows = sorted((group, minute, new, count) for (group, minute, new), count in seen.items() if minute >= oldest)
        if rows:
            count_minutes(rows, using=using)


def _columns(change: _Change) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    if change.seen:
        # This column comes first: MariaDB evaluates an assignment with the new values of those before it.
        resolved = When(parked=0, requeued=0, arrived__gt=0, then=Value(min(change.seen)))
        columns["regressed_at"] = Case(resolved, default=F("regressed_at"))
        columns["arrived"] = F("arrived") + len(change.seen)
        columns["first_seen"] = Least("first_seen", Value(min(change.seen)))
        columns["last_seen"] = Greatest("last_seen", Value(max(change.seen)))
    if change.new:
        newest = Value(max(change.new))
        # With NULL some databases know no greatest value.
        columns["last_new"] = Greatest(Coalesce("last_new", newest), newest)
    for name, count in change.counters.items():
        if count:
            columns[name] = F(name) + count if count > 0 else reduced(name, -count)
    return columns


def last_parked() -> "QuerySet[ParkedMessage]":
    """Return the messages that wait in a group, the one parked last first, for a subquery."""
    return ParkedMessage.objects.filter(group=OuterRef("pk"), state=State.PARKED).order_by("-parked_at")


def with_held(groups: "QuerySet[ErrorGroup]") -> "QuerySet[Any]":
    """Add the number of messages on hold, which its counter of parked messages includes."""
    origins = ParkedOrigin.objects.filter(group=OuterRef("pk"), count__gt=0).order_by()
    waiting = origins.values("group").annotate(n=Sum("count")).values("n")
    return groups.annotate(held=Greatest(F("parked") - Coalesce(Subquery(waiting), 0), 0))


def annotate(group: int, actor: Actor, **texts: str) -> ErrorGroup:
    """Set note, owner, ticket or plain of a group; texts that are not given stay unchanged."""
    unknown = sorted(set(texts) - set(LIMITS))
    if unknown:
        raise TypeError(f"annotate() has no argument {', '.join(unknown)}. Use one of {', '.join(LIMITS)}.")
    changes = {name: short(text, LIMITS[name]) for name, text in texts.items()}
    return _change(group, actor, Action.NOTE, changes, reason=changes.get("note", ""))


def mute(group: int, actor: Actor, *, muted: bool = True) -> ErrorGroup:
    """Stop alarms about a group, or allow them again; its messages are displayed as before."""
    return _change(group, actor, Action.MUTE, {"muted": muted})


@transaction_of(ErrorGroup)
def _change(group: int, actor: Actor, action: Action, changes: Mapping[str, object], *, reason: str = "") -> ErrorGroup:
    rows = ErrorGroup.objects.using(records_alias()).filter(pk=group)
    known = locking(rows).first()
    if known is None:
        raise NothingChosen(_("There is no error group %(group)s.") % {"group": group})
    differing = {name: value for name, value in changes.items() if getattr(known, name) != value}
    if differing:
        before = {name: getattr(known, name) for name in differing}
        noted = (
            {"noted_at": database_clock.now(records_alias()), "noted_by": actor.name} if action == Action.NOTE else {}
        )
        rows.update(**differing, **noted)
        facts = {"before": before, "after": differing}
        log_action(actor, action, reason=reason, group=group, subject=str(known), count=0, facts=facts)
        known.refresh_from_db(using=records_alias())
    return known


def still_failing(group: ErrorGroup) -> int:
    """Return how many of its open messages have failed again: what was processed or discarded since is none."""
    again = ParkedMessage.objects.filter(FAILED_AGAIN, group=group.pk, state__in=OPEN)
    # The counter of the group has never less; it limits the look at a large group that has had none.
    return again.order_by()[: group.failed_again].count() if group.failed_again else 0


class Origin(NamedTuple):
    """A queue and a handler from which parked messages of a group came; the handler is empty if none took them."""

    queue: str
    handler: str


def origins_of(groups: Collection[int]) -> dict[int, list[Origin]]:
    """Return the origins of the parked messages of each group; one query."""
    origins: dict[int, list[Origin]] = {group: [] for group in groups}
    counted = ParkedOrigin.objects.filter(group__in=list(groups), count__gt=0).order_by("queue", "handler")
    for group, queue, handler in counted.values_list("group", "queue", "handler").distinct():
        origins[group].append(Origin(queue, handler))
    return origins


def grows(newest: int, last_new: datetime, now: datetime, *, settled: datetime | None = None) -> bool:
    """Return True if a group grows; ``newest`` is the number of new messages of its last burst.

    A message that was requeued and fails again is no new one, so it does not make a group grow, nor does one that came
    before it was ``settled``.
    """
    return has_grown(newest) and now - last_new < STILL_GROWS and (settled is None or last_new > settled)


def settled_at(handled: datetime | None, runs: Iterable[RequeueRun] = ()) -> datetime | None:
    """Return the time before which new failures are no growth any more; None if there is none.

    An active run had taken what there was, or what was requeued was ``handled`` some seconds later.
    """
    known = [run.created_at for run in runs]
    return max([*known, *([handled - SETTLES] if handled else [])], default=None)


def group_grows(group: Any, newest: int, now: datetime, *, run: RequeueRun | None = None) -> bool:
    """Return True if a group grows that is annotated by ``with_held``, with its active run.

    None does of which nothing waits.
    """
    settled = settled_at(group.last_handled, [run] if run else [])
    return group.parked > group.held and grows(newest, group.last_new or group.last_seen, now, settled=settled)


def has_grown(newest: int) -> bool:
    """Return True if so many new messages are growth, although none may have come in the last minute."""
    return newest >= GROWTH


def minute_of(at: datetime) -> datetime:
    """Return the minute in which a time is."""
    return at.replace(second=0, microsecond=0)


def burst_of(counts: Mapping[datetime, int]) -> tuple[int, datetime | None]:
    """Return the last burst of new messages: their number, and its first minute; ``counts`` has those of each minute.

    It began with the first one since which no more than ``GROWTH_SPAN`` passed without one, so the number of an
    outage gets no smaller while it lasts, nor after its end.
    """
    number, began = 0, None
    for minute in sorted(counts, reverse=True):
        if began is not None and began - minute >= GROWTH_SPAN:
            break
        number, began = number + counts[minute], minute
    return number, began


class Lately(NamedTuple):
    """The messages of groups that were parked lately."""

    starts: Sequence[datetime]
    """The start of each bucket, the oldest first."""
    counts: Mapping[int, Sequence[int]]
    """The messages of each group in each bucket."""
    newest: Mapping[int, int]
    """The new messages of the last burst of each group."""
    began: Mapping[int, datetime]
    """Its first minute, of each group that has one."""


def parked_lately(groups: Iterable[int], *, buckets: int = BUCKETS) -> Lately:
    """Return how many messages of groups were parked lately; one query serves all groups."""
    end = minute_of(database_clock.now(records_alias())) + MINUTE
    starts = tuple(end - BUCKET * (buckets - place) for place in range(buckets))
    counts = {group: [0] * buckets for group in groups}
    new_ones = {group: dict[datetime, int]() for group in counts}
    first = end - BURST_TOLD
    recent = ParkedMinute.objects.filter(group__in=list(counts), minute__gte=min(first, starts[0])).order_by()
    places: dict[datetime, int] = {}
    # Thousands of rows: a truth is read faster than a number, which Django converts.
    of_last_time = ExpressionWrapper(Q(OF_LAST_TIME, new=True), output_field=BooleanField())
    for group, minute, count, new in recent.values_list("group", "minute", "count", of_last_time):
        if (place := places.get(minute)) is None:
            # By the clock of a worker that is ahead, a message may be parked later than now.
            place = places[minute] = min((minute - starts[0]) // BUCKET, buckets - 1)
        if place >= 0:
            counts[group][place] += count
        if new:
            new_ones[group][minute] = count
    new_ones = {group: {at: n for at, n in some.items() if at >= first} for group, some in new_ones.items()}
    bursts = {group: burst_of(new_ones[group]) for group in counts}
    newest = {group: number for group, (number, _began) in bursts.items()}
    return Lately(starts, counts, newest, {group: began for group, (_n, began) in bursts.items() if began})
