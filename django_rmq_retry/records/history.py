"""What was attempted with a message, found again from its record."""

from django.db.models import QuerySet

from django_rmq_retry.models import Attempt, ParkedMessage
from django_rmq_retry.records.rows import identity_of


def attempts_of(record: ParkedMessage) -> QuerySet[Attempt]:
    """All that is known, the latest first.

    Attempts after a requeue are found by the record itself, whatever was edited; those before it by the message's id.
    Without an id, messages of the same bytes in one queue cannot be told apart: they share these attempts.
    """
    identities = [record.identity]
    if not record.message_id:
        identities.append(identity_of(record.queue or record.parked_in, "", bytes(record.body)))
    return Attempt.objects.filter(identity__in=identities).order_by("-started_at", "-pk")
