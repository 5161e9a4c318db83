"""Claims of a requeue run, and the results of their publishes.

If a process is killed after a claim, the claim never counts as unsent: it expires and counts as not confirmed.

Locks are taken in one order: the message, its group, runs, their items.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import F

from django_rmq_retry import database_clock
from django_rmq_retry.amqp.contracts import Cause, PublishEnd, PublishResult
from django_rmq_retry.conf import settings
from django_rmq_retry.messages.message import Message
from django_rmq_retry.models import (
    ErrorGroup,
    ItemReason,
    ItemState,
    ParkedMessage,
    ParkedOrigin,
    RequeueItem,
    RequeueRun,
    RunState,
    State,
)
from django_rmq_retry.models.parked import OriginKey
from django_rmq_retry.parked.database import (
    NOT_WAITING,
    locked_messages,
    locked_run,
    move,
    records_alias,
    transaction_of,
)
from django_rmq_retry.parked.lease import run_of_driver
from django_rmq_retry.parked.siblings import firsts, kept_back_since

CLAIM_SECONDS = 60.0
"""Minimum seconds for which the process that claimed a message is assumed to be sending it."""
EXPIRED_AT_ONCE = 500

Copy = Callable[[ParkedMessage], Message | ItemReason]
"""Returns the copy to send, or the reason why the message cannot be sent."""

RESTORED = ("state", "unconfirmed", "requeued_at", "requeued_by")
"""The columns of a record that return to their values before the claim if nothing was sent."""
UNCONFIRMED: Mapping[str, Any] = {**NOT_WAITING, "unconfirmed": True}
"""The columns of a record whose copy may have been delivered. Only an operator may send it again."""
FAILURES: Mapping[PublishEnd, tuple[ItemReason, bool]] = {
    PublishEnd.RETURNED: (ItemReason.UNROUTABLE, True),
    PublishEnd.NACKED: (ItemReason.QUEUE_FULL, False),
    PublishEnd.TOO_LARGE: (ItemReason.UNWRITABLE, True),
    PublishEnd.UNSENT: (ItemReason.NOT_SENT, False),
}
"""Why a message was not sent, by the result of its publish, and whether the run must not try it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A message that only this process may send now."""

    item: int
    record: int
    cycle: int
    copy: Message
    edited: bool
    """True if the copy is what an operator made of the message."""
    before: Mapping[str, Any]
    """Values that the record gets back if nothing was sent."""
    at: datetime
    """Time before sending, because the consumer may be faster than the broker's confirm."""


def claim_lifetime() -> float:
    """Return the lifetime of a claim in seconds, longer than any publish may take."""
    return max(CLAIM_SECONDS, 3 * settings().publish_timeout)


@transaction_of(ParkedMessage)
def claim(run_id: int, driver: str, items: Sequence[RequeueItem], copies: Callable[[RequeueRun], Copy]) -> list[Claim]:
    """Claim items for sending; items whose record has changed since it was chosen are skipped, with the reason.

    Nothing is claimed if the run is not running or another driver owns it.
    """
    using, now = records_alias(), database_clock.now(records_alias())
    claims: list[Claim] = []
    left_out: dict[int, ItemReason] = {}
    first = firsts((item.message.content for item in items), using=using)
    messages = locked_messages({*(item.message_id for item in items), *first})
    known = RequeueRun.objects.using(using).filter(pk=run_id).first()
    if known is None:
        return []
    changed_since = [item.message_id for item in items if _is_other(messages.get(item.message_id), item)]
    sent = sent_by_others(known, changed_since) if changed_since else {}
    # Without siblings, as nearly always, nothing is asked.
    due = [one for item in items if (one := messages.get(item.message_id)) and one.content is not None] if first else []
    kept_back = kept_back_since(due, known.include, now, using=using) if due else {}
    copy = copies(known)
    for item in items:
        message = messages.get(item.message_id)
        if message is None or not message.open:
            left_out[item.pk] = ItemReason.SENT_BEFORE if item.message_id in sent else ItemReason.RESOLVED
            continue
        changed = ItemReason.SENT_BEFORE if message.pk in sent else ItemReason.CHANGED
        prepared = (kept_back.get(message.pk) or copy(message)) if message.revision == item.revision else changed
        if isinstance(prepared, ItemReason):
            left_out[item.pk] = prepared
        else:
            before = {name: getattr(message, name) for name in RESTORED}
            facts = {"item": item.pk, "record": message.pk, "cycle": message.cycle + 1}
            claims.append(Claim(**facts, copy=prepared, edited=message.version > 1, before=before, at=now))
    move(
        [messages[one.record] for one in claims],
        State.REQUEUEING,
        cycle=F("cycle") + 1,
        unconfirmed=False,
        claimed_until=now + timedelta(seconds=claim_lifetime()),
        # Set before sending: a failure after it must not look older than the requeue.
        requeued_at=now,
        requeued_by=known.by,
    )
    if not _claim_items(run_id, driver, claims, left_out):
        transaction.set_rollback(True, using=using)
        return []
    return claims


def _is_other(message: ParkedMessage | None, item: RequeueItem) -> bool:
    return message is None or message.revision != item.revision or not message.open


def sent_by_others(run: RequeueRun, messages: Collection[int]) -> dict[int, int]:
    """Return those of these messages that another run sent since this one was started, each with that run's number."""
    items = RequeueItem.objects.using(records_alias()).filter(message__in=messages, sent_at__gt=run.created_at)
    return {item.message_id: item.run_id for item in items.exclude(run=run.pk).order_by("pk")}


def _claim_items(run_id: int, driver: str, claims: Sequence[Claim], left_out: Mapping[int, ItemReason]) -> bool:
    """Mark the run's items as claimed; False if this driver no longer owns the run, or another process took an item."""
    using = records_alias()
    if run_of_driver(run_id, driver, RunState.RUNNING) is None:
        return False
    pending = RequeueItem.objects.using(using).filter(run=run_id, state=ItemState.PENDING)
    cycles: dict[int, list[int]] = {}
    for one in claims:
        cycles.setdefault(one.cycle, []).append(one.item)
    taken = sum(
        pending.filter(pk__in=some).update(state=ItemState.CLAIMED, cycle=cycle) for cycle, some in cycles.items()
    )
    if taken != len(claims):
        return False
    skip_items(run_id, left_out)
    return True


def skip_items(run_id: int, codes: Mapping[int, ItemReason], *, state: ItemState = ItemState.PENDING) -> int:
    """Skip these items, each with its reason; return their number. The caller has locked the run's row."""
    using = records_alias()
    grouped: dict[ItemReason, list[int]] = {}
    for item, code in codes.items():
        grouped.setdefault(code, []).append(item)
    rows = RequeueItem.objects.using(using).filter(run=run_id, state=state)
    now = database_clock.now(records_alias())
    count = sum(
        rows.filter(pk__in=some).update(state=ItemState.SKIPPED, skip_code=code, ended_at=now)
        for code, some in grouped.items()
    )
    if count:
        RequeueRun.objects.using(using).filter(pk=run_id).update(skipped=F("skipped") + count)
    return count


def end_expired_claims() -> int:
    """End the expired claims; return their number. Their records are open again, and a copy may have been delivered."""
    using = records_alias()
    now = database_clock.now(using)
    stale = ParkedMessage.objects.using(using).filter(state=State.REQUEUEING, claimed_until__lt=now)
    total = 0
    while ids := list(stale.order_by("pk").values_list("pk", flat=True)[:EXPIRED_AT_ONCE]):
        total += _end_claims(ids)
    return total


@transaction_of(ParkedMessage)
def _end_claims(ids: Sequence[int]) -> int:
    using, now = records_alias(), database_clock.now(records_alias())
    rows = locked_messages(ids, whole=False).values()
    stale = [row for row in rows if row.state == State.REQUEUEING and row.claimed_until and row.claimed_until < now]
    move(stale, State.PARKED, **UNCONFIRMED)
    claimed = RequeueItem.objects.using(using).filter(state=ItemState.CLAIMED, message__in=[row.pk for row in stale])
    for run in sorted(set(claimed.values_list("run", flat=True))):
        locked_run(run)
        ended = claimed.filter(run=run).update(
            state=ItemState.UNCONFIRMED, skip_code=ItemReason.NOT_CONFIRMED, ended_at=now
        )
        RequeueRun.objects.using(using).filter(pk=run).update(unconfirmed=F("unconfirmed") + ended)
    return len(stale)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimResult:
    claim: Claim
    result: PublishResult

    @property
    def kind(self) -> PublishEnd:
        return self.result.kind


@transaction_of(ParkedMessage)
def store_results(run_id: int, results: Sequence[ClaimResult]) -> None:
    rows = locked_messages([one.claim.record for one in results], whole=False)
    kept = [one for one in results if _is_unchanged(rows.get(one.claim.record), one.claim)]
    move([rows[one.claim.record] for one in kept if one.kind is PublishEnd.CONFIRMED], State.REQUEUED, **NOT_WAITING)
    move([rows[one.claim.record] for one in kept if one.kind is PublishEnd.UNKNOWN], State.PARKED, **UNCONFIRMED)
    back = [one for one in kept if one.kind not in (PublishEnd.CONFIRMED, PublishEnd.UNKNOWN)]
    _put_back(back, rows)
    _store_items(run_id, results, {one.claim.item: rows[one.claim.record].revision + 1 for one in back})


def _is_unchanged(row: ParkedMessage | None, claim: Claim) -> bool:
    """True if the record has not changed since the claim. Its consumer may have been faster than the confirm."""
    return row is not None and row.state == State.REQUEUEING and row.cycle == claim.cycle


def _put_back(results: Sequence[ClaimResult], rows: dict[int, ParkedMessage]) -> None:
    """Restore the records of unsent copies to their values before the claim."""
    using, now = records_alias(), database_clock.now(records_alias())
    groups: Counter[tuple[int, str]] = Counter()
    origins: Counter[OriginKey] = Counter()
    for one in results:
        ParkedMessage.objects.using(using).filter(pk=one.claim.record).update(
            cycle=F("cycle") - 1, revision=F("revision") + 1, claimed_until=None, reopened_at=now, **one.claim.before
        )
        row, state = rows[one.claim.record], one.claim.before["state"]
        groups[row.group_id, state] += 1
        origins[OriginKey.of(row)] += state == State.PARKED
    for (group, state), count in sorted(groups.items()):
        ErrorGroup.objects.count_moved(group, State.REQUEUEING, state, count)
    ParkedOrigin.objects.add(origins, using=using)


def _store_items(run_id: int, results: Sequence[ClaimResult], revisions: dict[int, int]) -> None:
    using, now = records_alias(), database_clock.now(records_alias())
    known = locked_run(run_id)
    if known is None:
        return
    claimed = RequeueItem.objects.using(using).filter(run=run_id, state=ItemState.CLAIMED)
    left_at = min((one.claim.at for one in results), default=now)
    by_outcome: dict[PublishEnd, list[int]] = {}
    for one in results:
        by_outcome.setdefault(one.kind, []).append(one.claim.item)
    confirmed = by_outcome.get(PublishEnd.CONFIRMED, [])
    # Items whose outcome arrived before the confirm were counted as sent with it.
    sent = claimed.filter(pk__in=confirmed).update(state=ItemState.SENT, sent_at=left_at, skip_code="")
    RequeueItem.objects.using(using).filter(pk__in=confirmed, sent_at=None).update(sent_at=left_at)
    unconfirmed = claimed.filter(pk__in=by_outcome.get(PublishEnd.UNKNOWN, [])).update(
        state=ItemState.UNCONFIRMED, skip_code=ItemReason.NOT_CONFIRMED, sent_at=left_at, ended_at=now
    )
    edited = sum(one.claim.edited for one in results if one.kind in (PublishEnd.CONFIRMED, PublishEnd.UNKNOWN))
    last = {"sent_at": left_at} if confirmed else {}
    RequeueRun.objects.using(using).filter(pk=run_id).update(
        sent=F("sent") + sent, unconfirmed=F("unconfirmed") + unconfirmed, edited=F("edited") + edited, **last
    )
    codes: dict[int, ItemReason] = {}
    for one in results:
        code, final = _failure_of(one)
        if code is None:
            continue
        item = one.claim.item
        if final or item not in revisions or known.state == RunState.STOPPED:
            codes[item] = code if final or item in revisions else ItemReason.RESOLVED
        else:
            again = {"state": ItemState.PENDING, "cycle": 0, "revision": revisions[item], "skip_code": code}
            claimed.filter(pk=item).update(**again)
    skip_items(run_id, codes, state=ItemState.CLAIMED)


def _failure_of(answer: ClaimResult) -> tuple[ItemReason | None, bool]:
    """Return why a message was not sent, and True if this run must not try it again."""
    if answer.kind is PublishEnd.UNSENT and answer.result.cause is Cause.UNWRITABLE:
        return ItemReason.UNWRITABLE, True
    return FAILURES.get(answer.kind, (None, False))
