"""The record's side of sending: a message is claimed before its copy leaves.

Whatever is killed afterwards, a claim stays that nobody takes for unsent: it runs out and counts as not confirmed.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from django_rmq_retry.conf import settings
from django_rmq_retry.core.message import Message
from django_rmq_retry.models import Item, ItemState, ParkedMessage, RequeueRun, RunState, State
from django_rmq_retry.operating import words
from django_rmq_retry.operating.locking import database, locked_messages, locked_run, steadily
from django_rmq_retry.records.counting import moved

CLAIM = 60.0
"""Seconds for which whoever claimed a message is believed to be sending it."""
SWEPT_AT_ONCE = 500

Prepare = Callable[[RequeueRun, ParkedMessage], Message | str]
"""The copy to send, or why there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A message that this process, and nobody else, may send now."""

    item: int
    record: int
    cycle: int
    copy: Message
    before: Mapping[str, Any]
    """What its record goes back to where nothing was sent."""


def lasts() -> float:
    """Seconds of a claim: longer than any publish may take."""
    return max(CLAIM, 3 * settings().publish_timeout)


def claim(run: int, driver: str, items: Sequence[Item], prepare: Prepare) -> list[Claim]:
    """Take items for sending; those whose record is not as it was chosen are left out, and say why.

    Nothing is taken where the run was paused or another driver has it.
    """
    return steadily(lambda: _claim(run, driver, items, prepare))


def _claim(run: int, driver: str, items: Sequence[Item], prepare: Prepare) -> list[Claim]:
    using, now = database(), timezone.now()
    claims, left_out = [], {}
    with transaction.atomic(using=using):
        messages = locked_messages([item.message_id for item in items])
        known = RequeueRun.objects.using(using).filter(pk=run).first()
        if known is None:
            return []
        for item in items:
            message = messages.get(item.message_id)
            made = words.RESOLVED if message is None else _objection(message, item) or prepare(known, message)
            if isinstance(made, Message) and message is not None:
                claims.append(_claimed(item, message, made))
            else:
                left_out[item.pk] = str(made)
        _take(claims, known.by, now)
        groups = Counter((messages[one.record].group_id, messages[one.record].state) for one in claims)
        for (group, state), count in sorted(groups.items()):
            moved(group, state, State.REQUEUEING, count)
        if not _takes(run, driver, claims, left_out):
            transaction.set_rollback(True, using=using)
            return []
    return claims


def _objection(message: ParkedMessage, item: Item) -> str:
    if not message.open:
        return words.RESOLVED
    return "" if message.revision == item.revision else words.CHANGED


def _claimed(item: Item, message: ParkedMessage, copy: Message) -> Claim:
    kept = ("state", "unconfirmed", "requeued_at", "requeued_by")
    before = {name: getattr(message, name) for name in kept}
    return Claim(item=item.pk, record=message.pk, cycle=message.cycle + 1, copy=copy, before=before)


def _take(claims: Iterable[Claim], by: str, now: datetime) -> None:
    rows = ParkedMessage.objects.using(database()).filter(pk__in=[one.record for one in claims])
    rows.update(
        state=State.REQUEUEING,
        cycle=F("cycle") + 1,
        revision=F("revision") + 1,
        unconfirmed=False,
        claimed_until=now + timedelta(seconds=lasts()),
        # Before it leaves: what fails afterwards must not look older than its requeue.
        requeued_at=now,
        requeued_by=by,
    )


def _takes(run: int, driver: str, claims: Sequence[Claim], left_out: Mapping[int, str]) -> bool:
    """The run's side; False where the run is not this driver's any more, or an item was taken by somebody else."""
    using = database()
    known = locked_run(run)
    if known is None or known.state != RunState.RUNNING or known.driver != driver:
        return False
    pending = Item.objects.using(using).filter(run=run, state=ItemState.PENDING)
    cycles: dict[int, list[int]] = {}
    for one in claims:
        cycles.setdefault(one.cycle, []).append(one.item)
    taken = sum(
        pending.filter(pk__in=some).update(state=ItemState.CLAIMED, cycle=cycle) for cycle, some in cycles.items()
    )
    if taken != len(claims):
        return False
    leave_out(run, left_out)
    return True


def leave_out(run: int, whys: Mapping[int, str], *, state: ItemState = ItemState.PENDING) -> int:
    """Items that are not sent, each with why; the run's row is locked already."""
    using = database()
    grouped: dict[str, list[int]] = {}
    for item, why in whys.items():
        grouped.setdefault(why, []).append(item)
    rows = Item.objects.using(using).filter(run=run, state=state)
    now = timezone.now()
    count = sum(
        rows.filter(pk__in=some).update(state=ItemState.SKIPPED, why=why, ended_at=now) for why, some in grouped.items()
    )
    if count:
        RequeueRun.objects.using(using).filter(pk=run).update(skipped=F("skipped") + count)
    return count


def sweep() -> int:
    """End the claims whose holder has not been heard of: they are open again, and may have been delivered."""
    using = database()
    stale = ParkedMessage.objects.using(using).filter(state=State.REQUEUEING, claimed_until__lt=timezone.now())
    total = 0
    while ids := list(stale.order_by("pk").values_list("pk", flat=True)[:SWEPT_AT_ONCE]):
        total += steadily(lambda ids=ids: _swept(ids))  # type: ignore[misc]  # mypy does not infer its default
    return total


def _swept(ids: Sequence[int]) -> int:
    using, now = database(), timezone.now()
    with transaction.atomic(using=using):
        rows = locked_messages(ids, whole=False).values()
        stale = [row for row in rows if row.state == State.REQUEUEING and row.claimed_until and row.claimed_until < now]
        doubtful(stale)
        claimed = Item.objects.using(using).filter(state=ItemState.CLAIMED, message__in=[row.pk for row in stale])
        for run in sorted(set(claimed.values_list("run", flat=True))):
            locked_run(run)
            ended = claimed.filter(run=run).update(state=ItemState.UNCONFIRMED, why=words.NOT_CONFIRMED, ended_at=now)
            RequeueRun.objects.using(using).filter(pk=run).update(unconfirmed=F("unconfirmed") + ended)
    return len(stale)


def doubtful(rows: Sequence[ParkedMessage]) -> None:
    """Records, locked, of which a copy may have been delivered: open again, and never sent again without a person."""
    changed = ParkedMessage.objects.using(database()).filter(pk__in=[row.pk for row in rows])
    changed.update(
        state=State.PARKED,
        unconfirmed=True,
        claimed_until=None,
        held_until=None,
        hold_reason="",
        revision=F("revision") + 1,
    )
    for group, count in sorted(Counter(row.group_id for row in rows).items()):
        moved(group, State.REQUEUEING, State.PARKED, count)
