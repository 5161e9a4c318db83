"""The counters of error groups: moved along with their messages, and counted anew where somebody doubts them."""

from collections.abc import Collection, Mapping

from django.db import router, transaction
from django.db.models import Case, Count, F, IntegerField, Value, When
from django.db.models.expressions import Combinable

from django_rmq_retry.models import ErrorGroup, ParkedMessage, State

COUNTED_AS: Mapping[str, str] = {
    State.PARKED: "parked",
    State.ON_HOLD: "parked",
    State.REQUEUEING: "requeued",
    State.REQUEUED: "requeued",
    State.PROCESSED: "processed",
    State.DISCARDED: "discarded",
}
"""Under which of a group's counters a message in this state is counted."""
COUNTERS = ("parked", "requeued", "processed", "discarded")
SLICE = 500


def moved(group: int, before: str | None, after: str | None, count: int = 1) -> None:
    """So many messages of a group have changed their state; None is before they came, or after they went elsewhere.

    To be called in the transaction that changed them, after them: messages are locked before groups.
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
    """So many messages of these groups, in these states, are no more; in a statement for all that lose as many.

    To be called as ``moved`` is. The groups are locked one after another before any of them changes.
    """
    groups = ErrorGroup.objects.using(router.db_for_write(ErrorGroup)).filter(pk__in={group for group, _ in counts})
    list(groups.order_by("pk").select_for_update().values_list("pk"))
    alike: dict[tuple[str, int], list[int]] = {}
    for (group, state), count in counts.items():
        alike.setdefault((COUNTED_AS[state], count), []).append(group)
    for (counter, count), members in alike.items():
        groups.filter(pk__in=members).update(**{counter: less(counter, count)})


def less(counter: str, count: int = 1) -> Case:
    """A counter that is never below zero: a wrong one must not keep a message from changing its state."""
    enough = When(**{f"{counter}__gte": count}, then=F(counter) - count)
    return Case(enough, default=Value(0), output_field=IntegerField())


def recount(groups: Collection[int] | None = None) -> int:
    """Count the messages of these groups, or of all, anew; return how many groups were wrong."""
    chosen = ErrorGroup.objects.order_by("pk")
    if groups is not None:
        chosen = chosen.filter(pk__in=groups)
    numbers = list(chosen.values_list("pk", flat=True))
    return sum(_recounted(numbers[start : start + SLICE]) for start in range(0, len(numbers), SLICE))


def _recounted(groups: Collection[int]) -> int:
    alias = router.db_for_write(ErrorGroup)
    with transaction.atomic(using=alias):
        # A change that changes nothing takes the locks: whoever moves a message waits, and is counted afterwards.
        ErrorGroup.objects.using(alias).filter(pk__in=groups).update(parked=F("parked"))
        true = {group: dict.fromkeys(COUNTERS, 0) for group in groups}
        counted = ParkedMessage.objects.using(alias).filter(group__in=groups).order_by()
        for group, state, count in counted.values_list("group", "state").annotate(count=Count("pk")):
            true[group][COUNTED_AS[state]] += count
        wrong = 0
        for group, counts in true.items():
            wrong += ErrorGroup.objects.using(alias).filter(pk=group).exclude(**counts).update(**counts)
    return wrong
