"""The record's side of sending, afterwards: what the broker said becomes the state of records, items and run."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from django_rmq_retry.broker.base import Outcome
from django_rmq_retry.models import Item, ItemState, ParkedMessage, RequeueRun, RunState, State
from django_rmq_retry.operating import words
from django_rmq_retry.operating.claiming import Claim, doubtful, leave_out
from django_rmq_retry.operating.locking import database, locked_messages, locked_run, steadily
from django_rmq_retry.records.counting import moved


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of a claim; fit says whether the message itself can be sent at all."""

    claim: Claim
    outcome: Outcome
    fit: bool = True


def settle(run: int, answers: Sequence[Answer]) -> None:
    """Write down how the publishes of a slice ended."""
    steadily(lambda: _settle(run, answers))


def _settle(run: int, answers: Sequence[Answer]) -> None:
    using = database()
    with transaction.atomic(using=using):
        rows = locked_messages([one.claim.record for one in answers], whole=False)
        mine = [one for one in answers if _still(rows.get(one.claim.record), one.claim)]
        sent = [one.claim.record for one in mine if one.outcome is Outcome.CONFIRMED]
        ParkedMessage.objects.using(using).filter(pk__in=sent).update(
            state=State.REQUEUED, claimed_until=None, held_until=None, hold_reason="", revision=F("revision") + 1
        )
        doubtful([rows[one.claim.record] for one in mine if one.outcome is Outcome.UNKNOWN])
        back = [one for one in mine if one.outcome not in (Outcome.CONFIRMED, Outcome.UNKNOWN)]
        _put_back(back, rows)
        _settle_items(run, answers, {one.claim.item: rows[one.claim.record].revision + 1 for one in back})


def _still(row: ParkedMessage | None, claim: Claim) -> bool:
    """Whether nobody has said anything of the record since: its consumer may have been quicker."""
    return row is not None and row.state == State.REQUEUEING and row.cycle == claim.cycle


def _put_back(answers: Sequence[Answer], rows: dict[int, ParkedMessage]) -> None:
    """Nothing of these was sent: their records are as they were before the claim."""
    using = database()
    groups: Counter[tuple[int, str]] = Counter()
    for one in answers:
        ParkedMessage.objects.using(using).filter(pk=one.claim.record).update(
            cycle=F("cycle") - 1, revision=F("revision") + 1, claimed_until=None, **one.claim.before
        )
        groups[rows[one.claim.record].group_id, one.claim.before["state"]] += 1
    for (group, state), count in sorted(groups.items()):
        moved(group, State.REQUEUEING, state, count)


def _settle_items(run: int, answers: Sequence[Answer], revisions: dict[int, int]) -> None:
    using, now = database(), timezone.now()
    known = locked_run(run)
    if known is None:
        return
    claimed = Item.objects.using(using).filter(run=run, state=ItemState.CLAIMED)
    by_outcome: dict[Outcome, list[int]] = {}
    for one in answers:
        by_outcome.setdefault(one.outcome, []).append(one.claim.item)
    confirmed = by_outcome.get(Outcome.CONFIRMED, [])
    claimed.filter(pk__in=confirmed).update(state=ItemState.SENT, sent_at=now, why="")
    # Those whose outcome came before the confirm were sent as well.
    Item.objects.using(using).filter(pk__in=confirmed, sent_at=None).update(sent_at=now)
    unconfirmed = claimed.filter(pk__in=by_outcome.get(Outcome.UNKNOWN, [])).update(
        state=ItemState.UNCONFIRMED, why=words.NOT_CONFIRMED, sent_at=now, ended_at=now
    )
    RequeueRun.objects.using(using).filter(pk=run).update(
        sent=F("sent") + len(confirmed), unconfirmed=F("unconfirmed") + unconfirmed
    )
    whys = {}
    for one in answers:
        why, final = _ending(one)
        if not why:
            continue
        item = one.claim.item
        if final or item not in revisions or known.state == RunState.STOPPED:
            whys[item] = why if final or item in revisions else words.RESOLVED
        else:
            again = {"state": ItemState.PENDING, "cycle": 0, "revision": revisions[item], "why": why}
            claimed.filter(pk=item).update(**again)
    leave_out(run, whys, state=ItemState.CLAIMED)


def _ending(answer: Answer) -> tuple[str, bool]:
    """Why a message was not sent, and whether that is the end of it in this run."""
    if answer.outcome is Outcome.RETURNED:
        return words.UNROUTABLE, True
    if answer.outcome is Outcome.NACKED:
        return words.QUEUE_FULL, False
    if answer.outcome is Outcome.TOO_LARGE:
        return words.UNWRITABLE, True
    if answer.outcome is Outcome.UNSENT:
        return (words.NOT_SENT, False) if answer.fit else (words.UNWRITABLE, True)
    return "", False
