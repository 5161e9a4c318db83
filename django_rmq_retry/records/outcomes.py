"""What became of a requeued copy in the end: its record, its place in a run and its group are told.

Locks are taken in one order: the message, its group, runs, their items.
"""

from datetime import datetime
from typing import Any

from django.db import connections, router, transaction
from django.db.models import F, QuerySet
from django.utils import timezone

from django_rmq_retry.models import ErrorGroup, Item, ItemState, ParkedMessage, RequeueRun, State
from django_rmq_retry.models.messages import OPEN
from django_rmq_retry.records.counting import less, moved
from django_rmq_retry.records.tickets import Ticket

UNDER_WAY = (State.REQUEUEING, State.REQUEUED)
SENT = (ItemState.CLAIMED, ItemState.SENT, ItemState.UNCONFIRMED)
COUNTED = {ItemState.FAILED: "failed", ItemState.UNCONFIRMED: "unconfirmed"}


def succeeded(ticket: Ticket, at: datetime) -> None:
    """A requeued copy was handled. Older copies than the newest failure leave the record as it is, with a note."""
    with transaction.atomic(using=_alias()):
        record = _locked(ticket.record)
        if record is None:
            return
        closes = ticket.cycle >= record.cycle and _closes(record, at)
        if closes:
            _close(record, handled_at=at, at=at)
        elif record.succeeded_at is None or record.succeeded_at < at:
            _change(record, succeeded_at=at)
        # What failed in a run stays failed there, unless this closes the record after all.
        _end_items(ticket, ItemState.PROCESSED, at, of=(*SENT, ItemState.FAILED) if closes else SENT)


def handled_elsewhere(pk: int, handled_at: datetime) -> bool:
    """Another copy of its message was handled: a record that waits for a person, and is as it came, is closed."""
    with transaction.atomic(using=_alias()):
        record = _locked(pk)
        if record is None or record.state != State.PARKED or record.version > 1:
            return False
        _close(record, handled_at=handled_at, at=timezone.now())
    return True


def failed(ticket: Ticket, at: datetime, *, error: str, text: str) -> None:
    """A requeued copy failed where nothing is parked: its record holds the message, and is open again."""
    with transaction.atomic(using=_alias()):
        record = _locked(ticket.record)
        if record is None:
            return
        if ticket.cycle == record.cycle and record.state in UNDER_WAY:
            told = {"parked_at": at, "error": error, "error_text": text, "detail": "", "unconfirmed": False}
            _change(record, state=State.PARKED, claimed_until=None, **told)
            moved(record.group_id, record.state, State.PARKED)
            ErrorGroup.objects.filter(pk=record.group_id).update(failed_again=F("failed_again") + 1)
        _end_items(ticket, ItemState.FAILED, at, of=SENT)


def _closes(record: ParkedMessage, at: datetime) -> bool:
    if record.state in UNDER_WAY:
        # This very cycle is under way, and no failure of it is known; two clocks may differ by more than it took.
        return True
    return record.state in OPEN and (record.unconfirmed or at >= record.parked_at)


def _close(record: ParkedMessage, *, handled_at: datetime, at: datetime) -> None:
    ended: dict[str, Any] = {"state": State.PROCESSED, "resolved_at": at, "succeeded_at": handled_at}
    _change(record, **ended, unconfirmed=False, claimed_until=None, held_until=None, hold_reason="")
    moved(record.group_id, record.state, State.PROCESSED)


def _alias() -> str:
    return router.db_for_write(ParkedMessage)


def _locked(pk: int) -> ParkedMessage | None:
    rows = _rows(pk)
    if not connections[_alias()].features.has_select_for_update:
        # SQLite refuses a transaction that has read when another one has written since: it writes first.
        rows.update(revision=F("revision"))
    return rows.defer("body", "properties").select_for_update().first()


def _rows(pk: int) -> QuerySet[ParkedMessage]:
    return ParkedMessage.objects.using(_alias()).filter(pk=pk)


def _change(record: ParkedMessage, **changes: Any) -> None:
    _rows(record.pk).update(revision=F("revision") + 1, **changes)


def _end_items(ticket: Ticket, state: ItemState, at: datetime, *, of: tuple[ItemState, ...]) -> None:
    """The places of this cycle in runs, counted where they really change."""
    items = Item.objects.using(_alias()).filter(message=ticket.record, cycle=ticket.cycle, state__in=of)
    for run in sorted(set(items.values_list("run", flat=True))):
        rows = RequeueRun.objects.using(_alias()).filter(pk=run)
        # Whoever else changes items holds their run.
        rows.update(sent=F("sent"))
        for before in of:
            if items.filter(run=run, state=before).update(state=state, ended_at=at):
                rows.update(**_counters(before, state))


def _counters(before: ItemState, after: ItemState) -> dict[str, Any]:
    """The counters of a run for one item: those sent are all that were confirmed or came to an outcome."""
    changes: dict[str, Any] = {COUNTED.get(after, "processed"): F(COUNTED.get(after, "processed")) + 1}
    if before in COUNTED:
        changes[COUNTED[before]] = less(COUNTED[before])
    if before == ItemState.UNCONFIRMED:
        changes["sent"] = F("sent") + 1
    return changes
