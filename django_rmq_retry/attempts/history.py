"""The attempts of a message, and the messages that wait for their next one."""

from datetime import datetime, timedelta

from django.db.models import Exists, OuterRef, QuerySet

from django_rmq_retry.messages.identity import attempt_identities
from django_rmq_retry.models import Attempt, ParkedMessage

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


def waiting(at: datetime, *, overdue: timedelta = COUNTS_AS_WAITING) -> QuerySet[Attempt]:
    """Return the last attempts of messages that wait for a retry, the soonest ``next_at`` first."""
    later = Attempt.objects.filter(identity=OuterRef("identity"), started_at__gt=OuterRef("started_at"))
    return Attempt.objects.filter(next_at__gt=at - overdue).exclude(Exists(later)).order_by("next_at", "pk")
