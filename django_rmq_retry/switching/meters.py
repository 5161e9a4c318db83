"""The moments of handlers as rows: who takes some moves the next one on, if nobody has moved it meanwhile."""

from datetime import UTC, datetime

from django.db import IntegrityError, transaction

from django_rmq_retry.models import Meter
from django_rmq_retry.switching.pacing import AHEAD, begun
from django_rmq_retry.switching.table import database

TRIES = 20


class MeterTable:
    """One row for each handler. No transaction is held: a row is moved on where it still is as it was read."""

    def take(self, handler: str, count: int, rate: float, now: float) -> float:
        rows = Meter.objects.using(database()).filter(handler=handler)
        for _ in range(TRIES):
            known = rows.values_list("next_at", flat=True).first()
            first = now if known is None else begun(known.timestamp(), rate, now)
            if first > now + AHEAD:
                return -first
            following = datetime.fromtimestamp(first + count / rate, UTC)
            if known is None:
                if self._began(handler, following):
                    return first
            elif rows.filter(next_at=known).update(next_at=following):
                return first
        # Others were quicker each time: there is a rate for all, and it is theirs for now.
        return -now

    def _began(self, handler: str, following: datetime) -> bool:
        try:
            with transaction.atomic(using=database()):
                Meter.objects.using(database()).create(handler=handler, next_at=following)
        except IntegrityError:
            return False
        return True
