"""Outcomes of requeued copies: they end their records and their items, and are counted in the requeue runs.

Locks are taken in one order: the message, its group, runs, their items.
"""

import logging
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from django.db import router, transaction
from django.db.models import F, Value
from django.db.models.functions import Coalesce, Greatest

from django_rmq_retry import database_clock
from django_rmq_retry.handlers.ticket import Ticket
from django_rmq_retry.models import (
    Attempt,
    ErrorGroup,
    ItemState,
    ParkedMessage,
    ParkedOrigin,
    RequeueItem,
    RequeueRun,
    State,
)
from django_rmq_retry.models.parked import OPEN, UNRESOLVED, OriginKey, reduced
from django_rmq_retry.models.runs import MAY_BE_DELIVERED, NOTHING_SENT
from django_rmq_retry.parked.database import NOT_WAITING, move, records_alias
from django_rmq_retry.policies.verdict import ACK
from django_rmq_retry.statements import lock, locking, with_one_of

log = logging.getLogger("django_rmq_retry")

IN_FLIGHT = (State.REQUEUEING, State.REQUEUED)


def succeeded(ticket: Ticket, at: datetime, *, handled: bool = True, redelivered: bool = False) -> None:
    """Close the record of a requeued copy that was handled. If it has failed since, only note the success.

    ``handled`` is False if this delivery did nothing: ``once`` did not run the handler again, or it raised Discard.
    ``redelivered`` is True if another delivery of the copy may have done the work, too.
    """
    with transaction.atomic(using=records_alias()):
        record = _locked(ticket.record)
        if record is None:
            return
        noted_before = record.succeeded_at == at
        closes = ticket.cycle >= record.cycle and _closes(record, at)
        if closes:
            _close(record, handled_at=at, at=at)
        elif record.succeeded_at is None or (handled and record.succeeded_at < at):
            _note_success(record, at)
        if handled and not noted_before:
            _count_handled(ticket, at, redelivered=redelivered)
        # An item that failed in a run stays failed, unless this success closes the record.
        _end_items(
            ticket, ItemState.PROCESSED, at, of=(*MAY_BE_DELIVERED, ItemState.FAILED) if closes else MAY_BE_DELIVERED
        )


def handled_beside(times: Mapping[str, datetime]) -> None:
    """Note on the unresolved and discarded records of these identities that a copy without a ticket was handled.

    Their state stays: the operator who decides has to know, and a requeue leaves them out.
    """
    rows = ParkedMessage.objects.using(records_alias()).filter(state__in=(*UNRESOLVED, State.DISCARDED)).order_by()
    known = [pk for some in with_one_of(rows, "identity", times) for pk in some.values_list("pk", flat=True)]
    for pk in sorted(known):
        with transaction.atomic(using=records_alias()):
            record = _locked(pk)
            if record is None or record.state == State.PROCESSED:
                continue
            at = times[record.identity]
            if record.succeeded_at is None or record.succeeded_at < at:
                _note_success(record, at)
                if record.open or record.state == State.DISCARDED:
                    text = "A copy of message #%s was handled, although the message is %s. Check what that did"
                    extra = {"event": "handled_anyway", "queue": record.queue, "message_id": record.message_id}
                    log.warning(text, record.pk, record.state, extra=extra)


def note_earlier_handlings(identities: Collection[str]) -> None:
    """Note on records that were just stored that a copy without a ticket was handled before; call it after the commit.

    A handling that ended before the message was published was that of an earlier message with its id.
    """
    attempts = Attempt.objects.using(router.db_for_write(Attempt)).filter(verdict=ACK.name, cycle=1)
    found = [
        one
        for some in with_one_of(attempts.exclude(message_id="").order_by(), "identity", identities)
        for one in some.only("identity", "started_at", "seconds")
    ]
    if not found:
        return
    rows = ParkedMessage.objects.using(records_alias()).filter(identity__in={one.identity for one in found})
    published = dict(rows.values_list("identity", "published_at"))
    times: dict[str, datetime] = {}
    for one in found:
        since = published.get(one.identity)
        if since is None or one.ended_at >= since:
            times[one.identity] = max(one.ended_at, times.get(one.identity, one.ended_at))
    handled_beside(times)


def handled_elsewhere(pk: int, handled_at: datetime) -> bool:
    """Close a parked, unedited record because another copy of its message was handled; True if it was closed."""
    with transaction.atomic(using=records_alias()):
        record = _locked(pk)
        if record is None or record.state != State.PARKED or record.version > 1:
            return False
        _close(record, handled_at=handled_at, at=database_clock.now(records_alias()))
    return True


def failed(ticket: Ticket, at: datetime, *, error: str, text: str) -> None:
    """Reopen the record of a requeued copy that failed and was not parked: only the record still has the message."""
    with transaction.atomic(using=records_alias()):
        record = _locked(ticket.record)
        if record is None:
            return
        if ticket.cycle == record.cycle and record.state in IN_FLIGHT:
            failure = {"parked_at": at, "error": error, "error_text": text, "detail": "", "unconfirmed": False}
            move([record], State.PARKED, claimed_until=None, published_again=False, **failure)
            ErrorGroup.objects.filter(pk=record.group_id).update(failed_again=F("failed_again") + 1)
        _end_items(ticket, ItemState.FAILED, at, of=MAY_BE_DELIVERED)


def _closes(record: ParkedMessage, at: datetime) -> bool:
    if record.state in IN_FLIGHT:
        # This cycle is in flight and has no known failure. Times are not compared, because two clocks may differ by
        # more than the attempt took.
        return True
    return record.state in OPEN and (record.unconfirmed or at >= record.parked_at)


def _close(record: ParkedMessage, *, handled_at: datetime, at: datetime) -> None:
    move([record], State.PROCESSED, resolved_at=at, succeeded_at=handled_at, unconfirmed=False, **NOT_WAITING)
    # With NULL some databases know no greatest value.
    latest = Greatest(Coalesce("last_handled", Value(handled_at)), Value(handled_at))
    ErrorGroup.objects.filter(pk=record.group_id).update(last_handled=latest)


def _locked(pk: int) -> ParkedMessage | None:
    return locking(ParkedMessage.objects.using(records_alias()).filter(pk=pk).defer("body", "properties")).first()


def _note_success(record: ParkedMessage, at: datetime) -> None:
    """Note the time of a success on a locked record whose state does not change."""
    rows = ParkedMessage.objects.using(records_alias()).filter(pk=record.pk)
    rows.update(succeeded_at=at, revision=F("revision") + 1)
    _count_as_handled(record)


def _count_as_handled(record: ParkedMessage) -> None:
    """Count a locked record, as it was before its first success, as one of those that were handled already."""
    if record.state != State.PARKED or record.succeeded_at is not None:
        return
    lock(ErrorGroup.objects.using(records_alias()).filter(pk=record.group_id))
    origin = OriginKey.of(record)
    ParkedOrigin.objects.add({origin: -1, origin._replace(handled=True): 1}, using=records_alias())


def _count_handled(ticket: Ticket, at: datetime, *, redelivered: bool) -> None:
    """Count that the handler did its work for the items of this cycle; a run counts each item at its second time.

    Before that it counts those with a doubt, of which the handler may have done its work in another delivery.

    The record is locked, so nobody else counts them. An outcome whose commit was not confirmed is noted again with
    the same time, which is then the end of its item.
    """
    items = RequeueItem.objects.using(records_alias()).filter(message=ticket.record, cycle=ticket.cycle)
    sent, facts = items.exclude(state__in=NOTHING_SENT).order_by("run"), ("run", "handled", "ended_at", "redelivered")
    for run, before, ended_at, doubted in list(sent.values_list(*facts)):
        if ended_at == at:
            continue
        rows = RequeueRun.objects.using(records_alias()).filter(pk=run)
        lock(rows)
        items.filter(run=run).update(handled=F("handled") + 1, redelivered=redelivered or doubted)
        if before == 0 and redelivered and not doubted:
            rows.update(perhaps_twice=F("perhaps_twice") + 1)
        elif before == 1:
            doubts = {"perhaps_twice": reduced("perhaps_twice")} if doubted else {}
            rows.update(handled_twice=F("handled_twice") + 1, **doubts)


def _end_items(ticket: Ticket, state: ItemState, at: datetime, *, of: tuple[ItemState, ...]) -> None:
    """End the items of this cycle in all runs; the counters of a run change only if an item did."""
    items = RequeueItem.objects.using(records_alias()).filter(message=ticket.record, cycle=ticket.cycle, state__in=of)
    for run in sorted(set(items.values_list("run", flat=True))):
        rows = RequeueRun.objects.using(records_alias()).filter(pk=run)
        # Every process that changes a run's items holds this lock.
        lock(rows)
        for before in of:
            if items.filter(run=run, state=before).update(state=state, ended_at=at):
                rows.update(**_counters(before, state))


def _counters(before: ItemState, after: ItemState) -> dict[str, Any]:
    """Return a run's counter changes for one item; ``sent`` counts items that were confirmed or have an outcome."""
    changes: dict[str, Any] = {after.value: F(after.value) + 1}
    if before in (ItemState.FAILED, ItemState.UNCONFIRMED):
        changes[before.value] = reduced(before.value)
    if before in (ItemState.CLAIMED, ItemState.UNCONFIRMED):
        changes["sent"] = F("sent") + 1
    return changes
