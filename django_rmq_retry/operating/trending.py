"""How many messages of a cause were parked lately: what the admin draws, and what is called growing everywhere."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from django.db.models import Case, Count, IntegerField, Value, When
from django.utils import timezone

from django_rmq_retry.models import ParkedMessage

BUCKETS, BUCKET = 18, timedelta(minutes=10)
"""Three hours; a cause grows while something was parked in the newest span."""


def parked_lately(
    groups: Iterable[int], *, buckets: int = BUCKETS
) -> tuple[Sequence[datetime], Mapping[int, Sequence[int]]]:
    """When each span of time began, and each group's counts, the oldest first; one query for all of them."""
    end = timezone.now()
    starts = tuple(end - BUCKET * (buckets - place) for place in range(buckets))
    # The newest span first: most rows are in it while something is wrong, and are compared once.
    spans = [When(parked_at__gte=start, then=Value(place)) for place, start in reversed(list(enumerate(starts)))]
    counts = {group: [0] * buckets for group in groups}
    if counts:
        recent = ParkedMessage.objects.filter(group__in=list(counts), parked_at__gte=starts[0]).order_by()
        placed = recent.annotate(place=Case(*spans, output_field=IntegerField())).values_list("group", "place")
        for group, place, count in placed.annotate(count=Count("pk")):
            counts[group][place] += count
    return starts, counts
