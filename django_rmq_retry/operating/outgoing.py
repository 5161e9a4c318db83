"""What people do with messages that stay in the outbox: send them again, or discard them."""

from collections.abc import Collection

from django.db import connections, transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from django_rmq_retry.models import OutboxMessage, Verb
from django_rmq_retry.operating.actors import Actor
from django_rmq_retry.operating.auditing import note
from django_rmq_retry.ordering.blocking import database
from django_rmq_retry.ordering.releasing import never_sent
from django_rmq_retry.outbox import settling

MOST = 500
FAILING = Q(stuck_at__isnull=False) | Q(tries__gt=0)
"""What the broker has refused at least once; everything else is on its way by itself."""


def failing(using: str) -> QuerySet[OutboxMessage]:
    """The rows that a person may act on."""
    return OutboxMessage.objects.using(using).filter(FAILING)


def resend(actor: Actor, ids: Collection[int] | None, *, using: str, reason: str = "") -> int:
    """Have these rows sent again, or all that are stuck; return how many."""
    count = 0
    with transaction.atomic(using=using):
        rows = _locked(failing(using) if ids is not None else failing(using).filter(stuck_at__isnull=False), ids)
        if rows:
            chosen = OutboxMessage.objects.using(using).filter(pk__in=[row.pk for row in rows])
            count = chosen.update(stuck_at=None, tries=0, due_at=timezone.now())
            _note(actor, Verb.REQUEUE, rows, using=using, reason=reason)
    if count:
        settling.notify(using)
    return count


def discard(actor: Actor, ids: Collection[int], *, using: str, reason: str) -> int:
    """Delete these rows, whose messages are then never sent; return how many."""
    with transaction.atomic(using=using):
        rows = _locked(failing(using), ids)
        if rows:
            _note(actor, Verb.DISCARD, rows, using=using, reason=reason)
            if using == database():
                never_sent(rows)
            settling.delete([row.pk for row in rows], using=using)
    if rows:
        # What was held behind them may go.
        settling.notify(using)
    return len(rows)


def _locked(rows: QuerySet[OutboxMessage], ids: Collection[int] | None) -> list[OutboxMessage]:
    """What a relay has in hand is waited for: it may be gone then."""
    if not connections[rows.db].features.has_select_for_update:
        # SQLite refuses a transaction that has read when another one has written since: it writes first.
        OutboxMessage.objects.using(rows.db).filter(pk=0).update(tries=0)
    chosen = rows if ids is None else rows.filter(pk__in=ids)
    return list(chosen.order_by("pk").defer("body", "properties").select_for_update())


def _note(actor: Actor, verb: Verb, rows: list[OutboxMessage], *, using: str, reason: str) -> None:
    subject = rows[0].message_id if len(rows) == 1 else ""
    names = [row.message_id or f"#{row.pk}" for row in rows[:MOST]]
    note(actor, verb, reason=reason, subject=subject, count=len(rows), facts={"outbox": using, "messages": names})
