"""The groups of what arrives: found or made by their fingerprints, and counted when their messages have changed."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db.models import Case, F, Value, When
from django.db.models.functions import Greatest, Least

from django_rmq_retry.core.fingerprints import RULE
from django_rmq_retry.models import ErrorGroup
from django_rmq_retry.records.arriving import Arrival
from django_rmq_retry.records.counting import COUNTED_AS, less


def groups_of(arrivals: Iterable[Arrival], *, using: str) -> dict[str, int]:
    """The groups of these failures by fingerprint; what is missing is made, with nothing counted yet."""
    newest = {arrival.group.fingerprint: arrival for arrival in arrivals}
    known = _known(newest, using=using)
    missing = sorted(newest.keys() - known.keys())
    if not missing:
        return known
    # In one order, for two drainers that make the same groups must not wait for each other.
    made = [_made(newest[fingerprint]) for fingerprint in missing]
    ErrorGroup.objects.using(using).bulk_create(made, ignore_conflicts=True)
    return known | _known(missing, using=using)


def _known(fingerprints: Collection[str], *, using: str) -> dict[str, int]:
    found = ErrorGroup.objects.using(using).filter(fingerprint__in=fingerprints)
    return dict(found.values_list("fingerprint", "pk"))


def _made(arrival: Arrival) -> ErrorGroup:
    return ErrorGroup(
        fingerprint=arrival.group.fingerprint,
        rule=RULE,
        title=arrival.title,
        culprit=arrival.group.culprit,
        reason=arrival.failure()["reason"],
        first_seen=arrival.at,
        last_seen=arrival.at,
    )


@dataclass(slots=True)
class _Change:
    """What has happened to one group."""

    counters: Counter[str] = field(default_factory=Counter)
    seen: list[datetime] = field(default_factory=list)
    """When messages were parked into it."""


@dataclass(slots=True)
class Tally:
    """What one transaction has done to groups: told as it goes, written at its end, in one order."""

    changes: defaultdict[int, _Change] = field(default_factory=lambda: defaultdict(_Change))

    def moved(self, group: int, before: str | None, after: str | None) -> None:
        """A message of this group has changed its state; None is before it came, or after it went elsewhere."""
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
        """One change for each group; messages are locked before, runs after."""
        for group in sorted(self.changes):
            changes = _columns(self.changes[group], now)
            if changes:
                ErrorGroup.objects.using(using).filter(pk=group).update(**changes)


def _columns(change: _Change, now: datetime) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    if change.seen:
        # It comes first: MariaDB reads what stands before it as it was just set.
        resolved = When(parked=0, requeued=0, arrived__gt=0, then=Value(now))
        columns["regressed_at"] = Case(resolved, default=F("regressed_at"))
        columns["arrived"] = F("arrived") + len(change.seen)
        columns["first_seen"] = Least("first_seen", Value(min(change.seen)))
        columns["last_seen"] = Greatest("last_seen", Value(max(change.seen)))
    for name, count in change.counters.items():
        if count:
            columns[name] = F(name) + count if count > 0 else less(name, -count)
    return columns
