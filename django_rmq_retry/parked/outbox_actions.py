"""The operators' actions on messages of the outbox that the broker has refused: retry and discard."""

from collections.abc import Collection

from django.db import transaction
from django.db.models import Q, QuerySet

from django_rmq_retry import database_clock
from django_rmq_retry.models import Action, OutboxMessage
from django_rmq_retry.ordering.keys import keys_alias, never_sent
from django_rmq_retry.parked.audit import log_action
from django_rmq_retry.parked.operators import Actor
from django_rmq_retry.publishing import outbox_rows
from django_rmq_retry.statements import locking

MOST_NAMED_ROWS = 500
FAILING = Q(failed_at__isnull=False) | Q(attempts__gt=0)
"""Messages that the broker has refused at least once; the relay sends all others without an operator."""


def failing(using: str) -> QuerySet[OutboxMessage]:
    """Return the rows that an operator may act on."""
    return OutboxMessage.objects.using(using).filter(FAILING)


def retry_outbox(actor: Actor, ids: Collection[int] | None, *, using: str) -> int:
    """Schedule these rows, or all failed rows, to be sent again; return their number."""
    count = 0
    with transaction.atomic(using=using):
        rows = _locked_rows(failing(using) if ids is not None else failing(using).filter(failed_at__isnull=False), ids)
        if rows:
            chosen = OutboxMessage.objects.using(using).filter(pk__in=[row.pk for row in rows])
            count = chosen.update(failed_at=None, attempts=0, due_at=database_clock.now(using))
            _log_outbox_action(actor, Action.REQUEUE, rows, using=using)
    if count:
        outbox_rows.notify(using)
    return count


def discard_outbox(actor: Actor, ids: Collection[int], *, using: str, reason: str) -> int:
    """Delete these rows, so that their messages are never sent; return their number."""
    with transaction.atomic(using=using):
        rows = _locked_rows(failing(using), ids)
        if rows:
            _log_outbox_action(actor, Action.DISCARD, rows, using=using, reason=reason)
            if using == keys_alias():
                never_sent(rows)
            outbox_rows.delete([row.pk for row in rows], using=using)
    if rows:
        # Messages that waited behind them may be sent now.
        outbox_rows.notify(using)
    return len(rows)


def _locked_rows(rows: QuerySet[OutboxMessage], ids: Collection[int] | None) -> list[OutboxMessage]:
    """Return the chosen rows, locked. Rows that a relay is sending are waited for, and may be gone afterwards."""
    chosen = rows if ids is None else rows.filter(pk__in=ids)
    return list(locking(chosen.order_by("pk").defer("body", "properties")))


def _log_outbox_action(
    actor: Actor, action: Action, rows: list[OutboxMessage], *, using: str, reason: str = ""
) -> None:
    subject = rows[0].message_id if len(rows) == 1 else ""
    names = [row.message_id or f"#{row.pk}" for row in rows[:MOST_NAMED_ROWS]]
    log_action(
        actor, action, reason=reason, subject=subject, count=len(rows), facts={"outbox": using, "messages": names}
    )
