"""Which messages of a requeue run lost consumers had begun, and did not end."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from django.db.models import Q

from django_rmq_retry.health.begun import Begun, BegunBy, all_begun, begun_and_lost
from django_rmq_retry.models import Attempt, RequeueItem, RequeueRun
from django_rmq_retry.parked.early_outcomes import PERHAPS_TWICE
from django_rmq_retry.statements import with_one_of


def begun_in(run: RequeueRun) -> BegunBy:
    """Return what consumers had begun since the run has, that are not heard of any more; one query."""
    return begun_and_lost(run.started_at or run.created_at)


def begun_among(run: RequeueRun, which: Q = PERHAPS_TWICE) -> dict[str, Sequence[Begun]]:
    """Return which of those that were perhaps handled twice lost consumers had begun, and not ended: by identity."""
    known = begun_in(run)
    if not known:
        return {}
    rows: Any = run.parts.filter(which)
    if run.retries_of:
        return begun_by_identity(set(rows.values_list("identity", flat=True)), known)
    named = rows.filter(message__message_id__in={name for _queue, name in known}).select_related("message")
    found = list(named.defer("message__body", "message__properties"))
    attempts = attempts_of(found)
    begun = {row.message.identity: begun_of(run, row, known, attempts) for row in found}
    return {identity: some for identity, some in begun.items() if some}


def begun_of(
    run: RequeueRun, row: RequeueItem, known: BegunBy, attempts: Mapping[tuple[str, int], Sequence[Attempt]]
) -> Sequence[Begun]:
    """Return which of these consumers had begun one message of the run, and not ended it."""
    made = attempts.get((row.message.identity, row.cycle), ())
    return all_begun(known, [run.target or row.message.queue], row.message.message_id, made)


def attempts_of(rows: Sequence[RequeueItem]) -> dict[tuple[str, int], list[Attempt]]:
    """Return the attempts of these messages by their identity and cycle, the oldest first."""
    made = Attempt.objects.defer("chain", "logs", "error_text").order_by("started_at", "pk")
    attempts: dict[tuple[str, int], list[Attempt]] = {}
    for some in with_one_of(made, "identity", {row.message.identity for row in rows}):
        for one in some:
            attempts.setdefault((one.identity, one.cycle), []).append(one)
    return attempts


def begun_by_identity(names: Collection[str], known: BegunBy) -> dict[str, Sequence[Begun]]:
    """Return the same of waiting retries that the run has sent."""
    rows = Attempt.objects.filter(message_id__in={name for _queue, name in known}).order_by("started_at", "pk")
    attempts: dict[str, list[Attempt]] = {}
    for some in with_one_of(rows.defer("chain", "logs", "error_text"), "identity", names):
        for one in some:
            attempts.setdefault(one.identity, []).append(one)
    found = {
        identity: all_begun(known, [made[0].queue], made[0].message_id, made) for identity, made in attempts.items()
    }
    return {identity: some for identity, some in found.items() if some}
