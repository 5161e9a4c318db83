"""Groups of parked messages with one cause: counters, notes and trends."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.db import router
from django.db.models import Case, Count, F, IntegerField, Value, When
from django.db.models.functions import Greatest, Least
from django.utils import timezone
from django.utils.translation import gettext as _

from django_rmq_retry import database_clock
from django_rmq_retry.messages.texts import short
from django_rmq_retry.models import Action, ErrorGroup, ParkedMessage
from django_rmq_retry.models.parked import COUNTED_AS, COUNTERS, reduced
from django_rmq_retry.parked.audit import log_action
from django_rmq_retry.parked.database import database, transaction_of
from django_rmq_retry.parked.operators import Actor, NothingChosen
from django_rmq_retry.statements import lock, locking

GROUPS_AT_ONCE = 500
NOTE_LIMIT = 10_000
LIMITS = {"note": NOTE_LIMIT, "owner": 150, "ticket": 150, "plain": 255}
BUCKETS, BUCKET = 18, timedelta(minutes=10)
"""Three hours in total."""
GROWTH = 2
"""The messages in the newest bucket from which a group grows: a single one is an event, and no growth."""


def recount(groups: Collection[int] | None = None) -> int:
    """Count the messages of these groups, or of all, again; return the number of groups with wrong counters."""
    chosen = ErrorGroup.objects.order_by("pk")
    if groups is not None:
        chosen = chosen.filter(pk__in=groups)
    numbers = list(chosen.values_list("pk", flat=True))
    return sum(_recounted(numbers[start : start + GROUPS_AT_ONCE]) for start in range(0, len(numbers), GROUPS_AT_ONCE))


@transaction_of(ErrorGroup)
def _recounted(groups: Collection[int]) -> int:
    alias = router.db_for_write(ErrorGroup)
    # A concurrent change of a counter waits, and is added later.
    lock(ErrorGroup.objects.using(alias).filter(pk__in=groups))
    true = {group: dict.fromkeys(COUNTERS, 0) for group in groups}
    counted = ParkedMessage.objects.using(alias).filter(group__in=groups).order_by()
    for group, state, count in counted.values_list("group", "state").annotate(count=Count("pk")):
        true[group][COUNTED_AS[state]] += count
    wrong = 0
    for group, counts in true.items():
        wrong += ErrorGroup.objects.using(alias).filter(pk=group).exclude(**counts).update(**counts)
    return wrong


@dataclass(slots=True)
class _Change:
    counters: Counter[str] = field(default_factory=Counter)
    seen: list[datetime] = field(default_factory=list)
    """Times at which messages of the group were parked."""


@dataclass(slots=True)
class GroupTally:
    """The changes to groups in one transaction, collected as they happen and written at its end, in one order."""

    changes: defaultdict[int, _Change] = field(default_factory=partial(defaultdict, _Change))

    def moved(self, group: int, before: str | None, after: str | None) -> None:
        """Count a message's change of state; None means that it was not in the group before, or is not any more."""
        counters = self.changes[group].counters
        if before is not None:
            counters[COUNTED_AS[before]] -= 1
        if after is not None:
            counters[COUNTED_AS[after]] += 1

    def arrived(self, group: int, at: datetime) -> None:
        self.changes[group].seen.append(at)

    def failed_again(self, group: int) -> None:
        self.changes[group].counters["failed_again"] += 1

    def write(self, *, using: str, now: datetime) -> None:
        """Update each changed group with one statement. Messages are locked before groups, and runs after."""
        for group in sorted(self.changes):
            changes = _columns(self.changes[group], now)
            if changes:
                ErrorGroup.objects.using(using).filter(pk=group).update(**changes)


def _columns(change: _Change, now: datetime) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    if change.seen:
        # This column comes first: MariaDB evaluates an assignment with the new values of those before it.
        resolved = When(parked=0, requeued=0, arrived__gt=0, then=Value(now))
        columns["regressed_at"] = Case(resolved, default=F("regressed_at"))
        columns["arrived"] = F("arrived") + len(change.seen)
        columns["first_seen"] = Least("first_seen", Value(min(change.seen)))
        columns["last_seen"] = Greatest("last_seen", Value(max(change.seen)))
    for name, count in change.counters.items():
        if count:
            columns[name] = F(name) + count if count > 0 else reduced(name, -count)
    return columns


def annotate(group: int, actor: Actor, **texts: str) -> ErrorGroup:
    """Set note, owner, ticket or plain of a group; texts that are not given stay unchanged."""
    unknown = sorted(set(texts) - set(LIMITS))
    if unknown:
        raise TypeError(f"annotate() has no argument {', '.join(unknown)}. Use one of {', '.join(LIMITS)}.")
    changes = {name: short(text, LIMITS[name]) for name, text in texts.items()}
    return _change(group, actor, Action.NOTE, changes, reason=changes.get("note", ""))


def mute(group: int, actor: Actor, *, muted: bool = True, reason: str = "") -> ErrorGroup:
    """Stop alarms about a group, or allow them again; its messages are displayed as before."""
    return _change(group, actor, Action.MUTE, {"muted": muted}, reason=reason)


@transaction_of(ErrorGroup)
def _change(group: int, actor: Actor, action: Action, changes: Mapping[str, object], *, reason: str) -> ErrorGroup:
    rows = ErrorGroup.objects.using(database()).filter(pk=group)
    known = locking(rows).first()
    if known is None:
        raise NothingChosen(_("There is no error group %(group)s.") % {"group": group})
    differing = {name: value for name, value in changes.items() if getattr(known, name) != value}
    if differing:
        before = {name: getattr(known, name) for name in differing}
        noted = {"noted_at": database_clock.now(database()), "noted_by": actor.name} if action == Action.NOTE else {}
        rows.update(**differing, **noted)
        facts = {"before": before, "after": differing}
        log_action(actor, action, reason=reason, group=group, subject=str(known), count=0, facts=facts)
        known.refresh_from_db(using=database())
    return known


def grows(recent: int) -> bool:
    """Return True if a group grows; ``recent`` is the number of its messages in the newest bucket."""
    return recent >= GROWTH


def parked_lately(
    groups: Iterable[int], *, buckets: int = BUCKETS
) -> tuple[Sequence[datetime], Mapping[int, Sequence[int]]]:
    """Return the start of each bucket, and each group's counts, oldest first; one query serves all groups."""
    end = timezone.now()
    starts = tuple(end - BUCKET * (buckets - place) for place in range(buckets))
    # Newest bucket first: during an incident most rows are in it, and need only one comparison.
    spans = [When(parked_at__gte=start, then=Value(place)) for place, start in reversed(list(enumerate(starts)))]
    counts = {group: [0] * buckets for group in groups}
    if counts:
        recent = ParkedMessage.objects.filter(group__in=list(counts), parked_at__gte=starts[0]).order_by()
        placed = recent.annotate(place=Case(*spans, output_field=IntegerField())).values_list("group", "place")
        for group, place, count in placed.annotate(count=Count("pk")):
            counts[group][place] += count
    return starts, counts
