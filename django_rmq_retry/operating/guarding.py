"""What stops a run by itself: too many that fail again, or a first message that does not hold."""

from datetime import timedelta

from django.utils import timezone

from django_rmq_retry.models import Item, ItemState, RequeueRun
from django_rmq_retry.operating import words
from django_rmq_retry.operating.locking import database

ENOUGH = 5
"""Outcomes from which a share means something."""
CANARY = timedelta(seconds=60)


def tripped(run: RequeueRun) -> bool:
    """Whether more messages failed again than the run allows."""
    ended = run.failed + run.processed
    return run.stop_at is not None and ended >= ENOUGH and run.failed * 100 > run.stop_at * ended


def canary(run: RequeueRun) -> tuple[str, bool]:
    """Why the rest has to wait for the first message, and whether that is for a person to end; nothing if it held."""
    if run.processed:
        return "", False
    rows = Item.objects.using(database()).filter(run=run).exclude(state__in=(ItemState.PENDING, ItemState.SKIPPED))
    states = set(rows.values_list("state", flat=True)[:ENOUGH])
    if ItemState.FAILED in states:
        return words.CANARY_FAILED, True
    if ItemState.UNCONFIRMED in states:
        return words.NOT_CONFIRMED, True
    if not states:
        return "", False
    sent_at = rows.filter(state=ItemState.SENT).values_list("sent_at", flat=True).first()
    if sent_at is not None and sent_at < timezone.now() - CANARY:
        return words.CANARY_SILENT, True
    return words.CANARY_WAITS, False
