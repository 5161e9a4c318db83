"""What lies in the outbox, for whoever shows it."""

from datetime import datetime
from typing import NamedTuple

from django.db.models import Count, Min, Q

from django_rmq_retry.models import OutboxMessage


class Pending(NamedTuple):
    """Rows that wait to be sent, since when the oldest does, and rows that wait for a person."""

    waiting: int
    oldest: datetime | None
    stuck: int


def pending(using: str) -> Pending:
    """What lies in the outbox of this database."""
    open_ = Q(stuck_at__isnull=True)
    rows = OutboxMessage.objects.using(using)
    found = rows.aggregate(
        waiting=Count("pk", filter=open_),
        oldest=Min("created_at", filter=open_),
        stuck=Count("pk", filter=~open_),
    )
    return Pending(**found)
