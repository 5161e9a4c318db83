"""How much waits behind messages that have failed, and when that is too much."""

from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count, Max, Min, Q, Sum

from django_rmq_retry.conf import settings
from django_rmq_retry.models import BlockedKey
from django_rmq_retry.ordering.blocking import database


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """All blocked keys in figures."""

    keys: int
    held: int
    """Messages that wait, of all keys."""
    most: int
    """Of the key with the most."""
    parked: int
    """Keys on which a person has to decide."""
    oldest: datetime | None
    full: bool
    """Whether messages of a blocked key are slowed down, and with them their queue."""


def standing() -> Standing:
    """How it is now; one query over the blocked keys."""
    figures = {"keys": Count("pk"), "parked": Count("pk", filter=Q(parked=True)), "oldest": Min("since")}
    found = BlockedKey.objects.using(database()).aggregate(total=Sum("held"), most=Max("held"), **figures)
    held, most, now = found["total"] or 0, found["most"] or 0, settings()
    return Standing(
        keys=found["keys"],
        held=held,
        most=most,
        parked=found["parked"],
        oldest=found["oldest"],
        full=most >= now.held_per_key or held >= now.held_in_all,
    )
