"""Outcomes of retries that runs have sent early, as their attempts tell them; also those that come after the run."""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime

from django.db.models import Count, Min, Q

from django_rmq_retry.attempts.history import NO_FAILURE, WITHHELD
from django_rmq_retry.messages.identity import NAMELESS
from django_rmq_retry.messages.reasons import MAY_HAVE_RUN
from django_rmq_retry.models import Attempt, EarlyRetry, ItemState, ParkedMessage, RequeueRun
from django_rmq_retry.models.runs import RUN_COUNTERS
from django_rmq_retry.parked.database import locked_run, records_alias, transaction_of
from django_rmq_retry.parked.items import count
from django_rmq_retry.parked.may_have_run import handlers_with_once, queues_with_once
from django_rmq_retry.policies.verdict import ACK, Kind
from django_rmq_retry.statements import in_slices, with_one_of

SUCCESSES = (*NO_FAILURE, Kind.DISCARD.value)
NOTED_AT_ONCE = 500
HANDLED_TWICE, PERHAPS_TWICE = Q(handled__gt=1), Q(handled__lte=1, redelivered=True)


def note(identities: Collection[str]) -> None:
    """Note what became of messages that were just attempted, in each run that has sent them early."""
    sent: dict[int, list[str]] = {}
    rows = EarlyRetry.objects.using(records_alias()).order_by()
    for some in with_one_of(rows, "identity", identities):
        for run, identity in some.values_list("run", "identity"):
            sent.setdefault(run, []).append(identity)
    for run in sorted(sent):
        note_in(run, sent[run])


def note_in(run_id: int, identities: Sequence[str]) -> None:
    """Note what became of these messages of a run, by their attempts after it has sent them."""
    for some in in_slices(identities, NOTED_AT_ONCE):
        _note(run_id, some)


@transaction_of(RequeueRun)
def _note(run_id: int, identities: Sequence[str]) -> None:
    # Every process that changes a run's rows holds this lock.
    run = locked_run(run_id)
    if run is None:
        return
    using = records_alias()
    rows = EarlyRetry.objects.using(using).filter(run=run_id)
    known = list(rows.filter(identity__in=identities))
    attempts, parked = _attempts_after(known), _parked_after(known)
    handlers = frozenset(handlers_with_once())
    changed = [row for row in known if _tell(row, attempts.get(row.identity, ()), parked.get(row.identity), handlers)]
    if not changed:
        return
    EarlyRetry.objects.using(using).bulk_update(changed, ["state", "ended_at", "error", "handled", "redelivered"])
    count(run)
    twice = rows.aggregate(surely=Count("pk", filter=HANDLED_TWICE), perhaps=Count("pk", filter=PERHAPS_TWICE))
    run.handled_twice, run.perhaps_twice = twice["surely"], twice["perhaps"]
    run.save(using=using, update_fields=[*RUN_COUNTERS, "handled_twice", "perhaps_twice"])


def _attempts_after(rows: Sequence[EarlyRetry]) -> dict[str, list[Attempt]]:
    """Return the attempts of each retry since it was sent, oldest first; those after a later run are of that run."""
    using, names = records_alias(), [row.identity for row in rows]
    if not rows:
        return {}
    later = EarlyRetry.objects.using(using).filter(identity__in=names, run__gt=rows[0].run_id).order_by()
    ends: dict[str, datetime] = dict(later.values_list("identity").annotate(at=Min("sent_at")))
    since = {row.identity: row.sent_at for row in rows}
    made = Attempt.objects.using(using).filter(identity__in=names, started_at__gte=min(since.values()))
    made = made.exclude(verdict=WITHHELD).order_by("started_at", "pk").defer("chain", "logs", "error_text")
    found: dict[str, list[Attempt]] = {}
    for one in made:
        end = ends.get(one.identity)
        if one.started_at >= since[one.identity] and (end is None or one.started_at < end):
            found.setdefault(one.identity, []).append(one)
    return found


def _parked_after(rows: Sequence[EarlyRetry]) -> dict[str, ParkedMessage]:
    """Return the records of those that were parked since they were sent: one that kills its worker has no attempt."""
    since, safe = {row.identity: row.sent_at for row in rows}, queues_with_once()
    records = ParkedMessage.objects.using(records_alias()).filter(identity__in=since)
    facts = records.only("identity", "parked_at", "queue", "reason", "error", "unacked", "cycle")
    known = {one.identity: one for one in facts if one.parked_at >= since[one.identity] and one.cycle == 1}
    for one in known.values():
        one.unacked = (one.unacked or one.reason in MAY_HAVE_RUN) and one.queue not in safe
    return known


def _tell(row: EarlyRetry, attempts: Iterable[Attempt], parked: ParkedMessage | None, once: Collection[str]) -> bool:
    """Change a row to what its attempts tell, and its record if it was parked since; return True if it was another one.

    Its copy may have been delivered more than once: then it is processed if one of these attempts succeeded. What is
    tried again after a failure counts for the handlings, but changes no outcome.
    """
    before = row.state, row.error, row.handled, row.redelivered
    first, *others = attempts or (None,)
    if first is not None:
        since = [first, *(one for one in others if one.cycle == first.cycle)]
        success = next((one for one in since if one.number == first.number and one.verdict in SUCCESSES), None)
        row.state, row.error = (ItemState.PROCESSED, "") if success else (ItemState.FAILED, first.error)
        row.ended_at = (success or first).ended_at
        done = sum(one.verdict == ACK.name for one in since)
        # Messages without an id share their attempts with messages of equal bodies.
        row.handled = min(done, 1) if row.identity.startswith(NAMELESS) else done
        row.redelivered = any(one.redelivered and one.handler not in once for one in since)
    elif parked is not None:
        row.state, row.error, row.ended_at = ItemState.FAILED, parked.error or parked.reason, parked.parked_at
    if parked is not None:
        row.redelivered = row.redelivered or parked.unacked
    return before != (row.state, row.error, row.handled, row.redelivered)
