"""Requeued messages without an outcome: their queue was purged, another program took them, or they still wait there.

Nobody but an operator can close their records, by a discard.
"""

from collections.abc import Collection
from datetime import datetime, timedelta

from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils.translation import ngettext

from django_rmq_retry import database_clock
from django_rmq_retry.models import Attempt, ParkedMessage, State
from django_rmq_retry.models.parked import OPEN
from django_rmq_retry.parked.database import records_alias
from django_rmq_retry.wording import number

OUTCOME_LIMIT = timedelta(hours=1)
"""Time to wait for the outcome of a sent message; then its business key counts as failed, and its run may end."""
RETRY_OVERDUE = timedelta(minutes=10)
"""The time past its due time after which a retry that was not attempted again is overdue."""


def overdue(now: datetime) -> Q:
    """Match the requeued messages without an outcome; a copy that failed and waits for its next attempt has one."""
    waiting = _awaited(now).filter(identity=OuterRef("identity"))
    return Q(state=State.REQUEUED, requeued_at__lt=now - OUTCOME_LIMIT) & ~Q(Exists(waiting))


def lost_among(rows: Collection[ParkedMessage]) -> set[int]:
    """Return which of these locked messages ``overdue`` matches."""
    now = database_clock.now(records_alias())
    sent = [row for row in rows if row.state == State.REQUEUED]
    late = [row for row in sent if row.requeued_at and row.requeued_at < now - OUTCOME_LIMIT]
    names = _awaited(now).filter(identity__in={row.identity for row in late}).values_list("identity", flat=True)
    waiting = set(names) if late else set()
    return {row.pk for row in late if row.identity not in waiting}


def _awaited(now: datetime) -> QuerySet[Attempt]:
    """Return the failed attempts after which another one comes."""
    return Attempt.objects.filter(next_at__gt=now - RETRY_OVERDUE).order_by()


def discardable() -> Q:
    """Match the messages that an operator may discard."""
    return Q(state__in=OPEN) | overdue(database_clock.now(records_alias()))


def lost_sentence(rows: QuerySet[ParkedMessage]) -> str:
    """Return what a discard of these messages means for those without an outcome, in the reader's language."""
    count = rows.filter(state=State.REQUEUED).count()
    text = ngettext(
        "%(count)s of these was requeued and has no outcome. A discard does not take its copy away: one that still "
        "waits in its queue is handled.",
        "%(count)s of these were requeued and have no outcome. A discard does not take their copies away: what still "
        "waits in a queue is handled.",
        count,
    )
    return text % {"count": number(count)} if count else ""
