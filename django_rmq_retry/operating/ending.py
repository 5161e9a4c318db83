"""The end of a run: when everything is sent it waits for outcomes, and then its numbers are counted once more.

One that is stopped lets go of what it has not sent, part by part.
"""

from datetime import timedelta

from django.db import transaction
from django.db.models import Count, Max
from django.utils import timezone

from django_rmq_retry.models import Item, ItemState, RequeueRun, RunState
from django_rmq_retry.operating import words
from django_rmq_retry.operating.locking import database, locked_run, steadily

OUTCOMES = timedelta(hours=1)
"""So long a run waits for outcomes after its last message was sent."""
PART = 2000
"""Items of one transaction."""


def advance(run: int, driver: str) -> str:
    """Move a run on that has nothing to send: to waiting, to its end, or back where something came back; its state."""
    return steadily(lambda: _advance(run, driver))


def _advance(run: int, driver: str) -> str:
    using, now = database(), timezone.now()
    with transaction.atomic(using=using):
        known = locked_run(run)
        if known is None or known.driver != driver or known.state not in (RunState.RUNNING, RunState.WAITING):
            return "" if known is None else known.state
        items = Item.objects.using(using).filter(run=run)
        if items.filter(state=ItemState.PENDING).exists():
            known.state = RunState.RUNNING
        elif items.filter(state=ItemState.CLAIMED).exists():
            known.state = RunState.WAITING
        else:
            waiting = items.filter(state=ItemState.SENT).aggregate(count=Count("pk"), last=Max("sent_at"))
            overdue = waiting["last"] is not None and waiting["last"] < now - OUTCOMES
            over = not waiting["count"] or overdue
            known.state = RunState.FINISHED if over else RunState.WAITING
            known.why = words.SILENT if overdue else ""
        if known.state == RunState.FINISHED:
            known.finished_at, known.leased_until = now, None
            count(known)
        known.save(using=using, update_fields=[*COUNTED, "state", "why", "finished_at", "leased_until"])
        return known.state


def release(run: int) -> bool:
    """Leave out the next items that a stopped run has not sent; whether there may be more of them."""
    return steadily(lambda: _release(run))


def _release(run: int) -> bool:
    using, now = database(), timezone.now()
    with transaction.atomic(using=using):
        known = locked_run(run)
        if known is None or known.state != RunState.STOPPED or known.finished_at is not None:
            return False
        pending = Item.objects.using(using).filter(run=run, state=ItemState.PENDING)
        mark = pending.order_by("place").values_list("place", flat=True)[PART - 1 : PART].first()
        part = pending if mark is None else pending.filter(place__lte=mark)
        known.skipped += part.update(state=ItemState.SKIPPED, why=words.STOPPED, ended_at=now)
        if mark is None:
            known.finished_at = now
        known.save(using=using, update_fields=["skipped", "finished_at"])
    return mark is not None


def recount(run: int) -> None:
    """Count the items of a run anew."""
    using = database()

    def act() -> None:
        with transaction.atomic(using=using):
            known = locked_run(run)
            if known is not None:
                count(known)
                known.save(using=using, update_fields=COUNTED)

    steadily(act)


COUNTED = ("sent", "processed", "failed", "skipped", "unconfirmed")


def count(run: RequeueRun) -> None:
    items = Item.objects.using(database()).filter(run=run)
    found = dict(items.order_by().values_list("state").annotate(count=Count("pk")))
    run.processed = found.get(ItemState.PROCESSED, 0)
    run.failed = found.get(ItemState.FAILED, 0)
    run.skipped = found.get(ItemState.SKIPPED, 0)
    run.unconfirmed = found.get(ItemState.UNCONFIRMED, 0)
    run.sent = found.get(ItemState.SENT, 0) + run.processed + run.failed
