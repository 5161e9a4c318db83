"""Groups of parked messages with one cause: counters, notes and trends."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db import connections, router, transaction
from django.db.models import Case, Count, F, IntegerField, Value, When
from django.db.models.expressions import Combinable
from django.db.models.functions import Greatest, Least
from django.utils import timezone
from django.utils.translation import gettext as _

from django_rmq_retry import server
from django_rmq_retry.messages.tracebacks import RULE, short
from django_rmq_retry.models import Action, ErrorGroup, ParkedMessage, State
from django_rmq_retry.parked.audit import note as audit
from django_rmq_retry.parked.database import database, steadily
from django_rmq_retry.parked.operators import Actor, NothingChosen
from django_rmq_retry.parked.record import Arrival

COUNTED_AS: Mapping[str, str] = {
    State.PARKED: "parked",
    State.ON_HOLD: "parked",
    State.REQUEUEING: "requeued",
    State.REQUEUED: "requeued",
    State.PROCESSED: "processed",
    State.DISCARDED: "discarded",
}
"""The counter of a group that counts messages in this state."""
COUNTERS = ("parked", "requeued", "processed", "discarded")
SLICE = 500


def moved(group: int, before: str | None, after: str | None, count: int = 1) -> None:
    """Update the counters of a group after ``count`` of its messages changed state.

    As a state, None means that they were not in the group before, or are not in it any more. Call this in the
    transaction that changed the messages, after the change: messages are locked before groups.
    """
    left, entered = COUNTED_AS[before] if before else None, COUNTED_AS[after] if after else None
    if left == entered or not count:
        return
    changes: dict[str, Combinable] = {}
    if left is not None:
        changes[left] = less(left, count)
    if entered is not None:
        changes[entered] = F(entered) + count
    ErrorGroup.objects.filter(pk=group).update(**changes)


def gone(counts: Mapping[tuple[int, str], int]) -> None:
    """Update the counters of groups whose messages were deleted; one statement serves all that lose equally many.

    Call it like ``moved``. The groups are locked in order of their keys before any of them changes.
    """
    groups = ErrorGroup.objects.using(router.db_for_write(ErrorGroup)).filter(pk__in={group for group, _ in counts})
    list(groups.order_by("pk").select_for_update().values_list("pk"))
    alike: dict[tuple[str, int], list[int]] = {}
    for (group, state), count in counts.items():
        alike.setdefault((COUNTED_AS[state], count), []).append(group)
    for (counter, count), members in alike.items():
        groups.filter(pk__in=members).update(**{counter: less(counter, count)})


def less(counter: str, count: int = 1) -> Case:
    """Return a counter minus ``count``, at least 0: a wrong counter must not block a message's change of state."""
    enough = When(**{f"{counter}__gte": count}, then=F(counter) - count)
    return Case(enough, default=Value(0), output_field=IntegerField())


def recount(groups: Collection[int] | None = None) -> int:
    """Count the messages of these groups, or of all, again; return the number of groups with wrong counters."""
    chosen = ErrorGroup.objects.order_by("pk")
    if groups is not None:
        chosen = chosen.filter(pk__in=groups)
    numbers = list(chosen.values_list("pk", flat=True))
    return sum(_recounted(numbers[start : start + SLICE]) for start in range(0, len(numbers), SLICE))


def _recounted(groups: Collection[int]) -> int:
    alias = router.db_for_write(ErrorGroup)
    with transaction.atomic(using=alias):
        # This update changes no value but takes the locks: a concurrent change of a counter waits and is added later.
        ErrorGroup.objects.using(alias).filter(pk__in=groups).update(parked=F("parked"))
        true = {group: dict.fromkeys(COUNTERS, 0) for group in groups}
        counted = ParkedMessage.objects.using(alias).filter(group__in=groups).order_by()
        for group, state, count in counted.values_list("group", "state").annotate(count=Count("pk")):
            true[group][COUNTED_AS[state]] += count
        wrong = 0
        for group, counts in true.items():
            wrong += ErrorGroup.objects.using(alias).filter(pk=group).exclude(**counts).update(**counts)
    return wrong


def groups_of(arrivals: Iterable[Arrival], *, using: str) -> dict[str, int]:
    """Return the groups of these failures by fingerprint; missing groups are created with counters at 0."""
    newest = {arrival.group.fingerprint: arrival for arrival in arrivals}
    known = _known(newest, using=using)
    missing = sorted(newest.keys() - known.keys())
    if not missing:
        return known
    # Sorted, because two drainers that create the same groups must not deadlock.
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
    """The changes to one group in a transaction."""

    counters: Counter[str] = field(default_factory=Counter)
    seen: list[datetime] = field(default_factory=list)
    """Times at which messages of the group were parked."""


@dataclass(slots=True)
class Tally:
    """The changes to groups in one transaction, collected as they happen and written at its end, in one order."""

    changes: defaultdict[int, _Change] = field(default_factory=lambda: defaultdict(_Change))

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
            columns[name] = F(name) + count if count > 0 else less(name, -count)
    return columns


NOTE_LIMIT = 10_000
LIMITS = {"note": NOTE_LIMIT, "owner": 150, "ticket": 150, "plain": 255}


def annotate(group: int, actor: Actor, **texts: str) -> ErrorGroup:
    """Set note, owner, ticket or plain of a group; texts that are not given stay unchanged."""
    unknown = sorted(set(texts) - set(LIMITS))
    if unknown:
        raise TypeError(f"annotate() does not know {', '.join(unknown)}; it takes {', '.join(LIMITS)}.")
    changes = {name: short(text, LIMITS[name]) for name, text in texts.items()}
    return _change(group, actor, Action.NOTE, changes, reason=changes.get("note", ""))


def mute(group: int, actor: Actor, *, muted: bool = True, reason: str = "") -> ErrorGroup:
    """Stop alarms about a group, or allow them again; its messages are displayed as before."""
    return _change(group, actor, Action.MUTE, {"muted": muted}, reason=reason)


def _change(group: int, actor: Actor, action: Action, changes: Mapping[str, object], *, reason: str) -> ErrorGroup:
    def act() -> ErrorGroup:
        using = database()
        with transaction.atomic(using=using):
            rows = ErrorGroup.objects.using(using).filter(pk=group)
            if not connections[using].features.has_select_for_update:
                rows.update(parked=F("parked"))
            known = rows.select_for_update().first()
            if known is None:
                raise NothingChosen(_("There is no error group %(group)s.") % {"group": group})
            differing = {name: value for name, value in changes.items() if getattr(known, name) != value}
            if not differing:
                return known
            before = {name: getattr(known, name) for name in differing}
            noted = {"noted_at": server.now(database()), "noted_by": actor.name} if action == Action.NOTE else {}
            rows.update(**differing, **noted)
            facts = {"before": before, "after": differing}
            audit(actor, action, reason=reason, group=group, subject=str(known), count=0, facts=facts)
            known.refresh_from_db(using=using)
        return known

    return steadily(act)


BUCKETS, BUCKET = 18, timedelta(minutes=10)
"""Three hours in total. A cause counts as growing while a message was parked in the newest bucket."""


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
