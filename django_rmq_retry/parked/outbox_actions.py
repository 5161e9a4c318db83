"""The operators' actions on messages of the outbox that the broker has refused: retry and discard."""

from collections.abc import Collection
from functools import partial

from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils.translation import gettext as _

from django_rmq_retry import database_clock
from django_rmq_retry.models import Action, FormerName, GatedAct, OperatorAction, OutboxMessage
from django_rmq_retry.ordering.keys import keys_alias, never_sent
from django_rmq_retry.parked.audit import log_action
from django_rmq_retry.parked.database import records_alias
from django_rmq_retry.parked.four_eyes import Wish, require_second
from django_rmq_retry.parked.operators import Actor, Refused
from django_rmq_retry.parked.stored_keys import keys_of
from django_rmq_retry.publishing import outbox_rows
from django_rmq_retry.statements import in_slices, locking
from django_rmq_retry.wording import MOST_IN_A_TEXT

MOST_NAMED_ROWS = 500
NAMED_AT_ONCE = 100
"""Messages whose bodies are read at once."""
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
    if not reason.strip():
        raise Refused(_("Enter a reason: it is kept in the audit log."))
    with transaction.atomic(using=using):
        rows = _locked_rows(failing(using), ids)
        if rows:
            require_second(actor, _wish(rows, using=using, reason=reason))
            action = _log_outbox_action(actor, Action.DISCARD, rows, using=using, reason=reason)
            _keep_names(rows, action, using)
            if using == keys_alias():
                never_sent(rows)
            outbox_rows.delete([row.pk for row in rows], using=using)
            # Messages that waited behind them may be sent now.
            transaction.on_commit(partial(outbox_rows.notify, using), using=using)
    return len(rows)


def _keep_names(rows: list[OutboxMessage], action: OperatorAction, using: str) -> None:
    """Store the names of messages that are to be deleted, for searches."""
    bodies = OutboxMessage.objects.using(using).order_by("pk")
    for some in in_slices([row.pk for row in rows], NAMED_AT_ONCE):
        named = ((row.message_id, *keys_of(row, bytes(row.body))) for row in bodies.filter(pk__in=some))
        names = dict.fromkeys(name for names in named for name in names if name)
        former = [FormerName(value=name, action=action.number, deleted_at=action.at) for name in names]
        FormerName.objects.using(records_alias()).bulk_create(former)


def _wish(rows: list[OutboxMessage], *, using: str, reason: str) -> Wish:
    names = [str(row) for row in rows[:MOST_IN_A_TEXT]]
    subject = ", ".join([*names, "…"] if len(rows) > len(names) else names)
    terms = {"outbox": using, "rows": [row.pk for row in rows]}
    return Wish(act=GatedAct.DISCARD_OUTBOX, count=len(rows), subject=subject, reason=reason, terms=terms)


def _locked_rows(rows: QuerySet[OutboxMessage], ids: Collection[int] | None) -> list[OutboxMessage]:
    """Return the chosen rows, locked. Rows that a relay is sending are waited for, and may be gone afterwards."""
    chosen = rows if ids is None else rows.filter(pk__in=ids)
    return list(locking(chosen.order_by("pk").defer("body", "properties")))


def _log_outbox_action(
    actor: Actor, action: Action, rows: list[OutboxMessage], *, using: str, reason: str = ""
) -> OperatorAction:
    subject = rows[0].message_id if len(rows) == 1 else ""
    names = [row.message_id or f"#{row.pk}" for row in rows[:MOST_NAMED_ROWS]]
    return log_action(
        actor, action, reason=reason, subject=subject, count=len(rows), facts={"outbox": using, "messages": names}
    )
