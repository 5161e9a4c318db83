"""Which messages wait for their next attempt, as their last one tells; the broker is not asked."""

from datetime import datetime, timedelta

from django.db.models import Exists, OuterRef, QuerySet

from django_rmq_retry.models import Attempt

OVERDUE = timedelta(hours=1)
"""So long after its time a message still counts as waiting: consumers may be away, or busy."""


def waiting(at: datetime, *, overdue: timedelta = OVERDUE) -> QuerySet[Attempt]:
    """The last attempts of messages that are to be tried again, the next ones first; ``next_at`` says when."""
    later = Attempt.objects.filter(identity=OuterRef("identity"), started_at__gt=OuterRef("started_at"))
    return Attempt.objects.filter(next_at__gt=at - overdue).exclude(Exists(later)).order_by("next_at", "pk")
