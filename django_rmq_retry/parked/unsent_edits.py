"""The parked messages that were edited, and whose edited version was not sent yet."""

from collections import Counter
from datetime import datetime

from django_rmq_retry.models import MessageVersion, RequeueRun, State
from django_rmq_retry.parked.database import records_alias
from django_rmq_retry.parked.items import pending

MOST_VERSIONS_READ = 1000
"""The latest edits that are looked at: open pages ask every few seconds, and nobody edits more in an incident."""


def edited_unsent() -> Counter[int]:
    """Count by error group the parked messages that were edited after they were last sent; one query."""
    versions = MessageVersion.objects.using(records_alias()).order_by("-pk")
    facts = ("message", "at", "message__group", "message__state", "message__requeued_at")
    unsent, seen = Counter[int](), set[int]()
    for message, at, group, state, requeued_at in versions.values_list(*facts)[:MOST_VERSIONS_READ]:
        if message not in seen and state == State.PARKED and _is_later(at, requeued_at):
            unsent[group] += 1
        seen.add(message)
    return unsent


def edited_in(run: RequeueRun) -> int:
    """Count the messages that a run has still to send and that were edited since it chose them: it leaves these out."""
    edits = MessageVersion.objects.using(records_alias()).filter(at__gt=run.created_at)
    return pending(run.pk).filter(message__in=edits.values("message")).count()


def _is_later(edited_at: datetime, requeued_at: datetime | None) -> bool:
    return requeued_at is None or edited_at > requeued_at
