"""Starts runs that send retries before they are due, and leaves out of them what becomes due while they stand."""

from typing import Any

from django.db.models import F, Q, QuerySet
from django.utils.translation import gettext as _

from django_rmq_retry import database_clock
from django_rmq_retry.messages.texts import COLUMN_BYTES, short, short_reason
from django_rmq_retry.models import Action, ItemState, RequeueRun, RunState
from django_rmq_retry.models.runs import RUN_COUNTERS, SENDING
from django_rmq_retry.parked.audit import log_action
from django_rmq_retry.parked.database import locked_run, records_alias, transaction_of
from django_rmq_retry.parked.early_choice import RetryFilter
from django_rmq_retry.parked.early_retries import LeftOutRetries, still_to_send, ways_back
from django_rmq_retry.parked.items import count as count_rows
from django_rmq_retry.parked.key_lists import list_filter, mark_kept, store
from django_rmq_retry.parked.operators import Actor, NothingChosen, Refused, lacks_reason
from django_rmq_retry.parked.requeue_options import DEFAULT_OPTIONS, RequeueOptions
from django_rmq_retry.parked.selection import EXCEPT
from django_rmq_retry.parked.under_way import UnderWay

MOST_NAMED = 50
"""The most keys without a waiting retry that a run names."""
STANDING = Q(state=RunState.PAUSED) | (Q(state=RunState.RUNNING) & ~Q(wait=""))
"""Runs that send nothing now."""


def start(
    queue: str,
    actor: Actor,
    options: RequeueOptions = DEFAULT_OPTIONS,
    *,
    count: int,
    delayed: int | None = None,
    wanted: RetryFilter | None = None,
    left: LeftOutRetries | None = None,
    reason: str = "",
) -> RequeueRun:
    """Start a run that sends the waiting retries of a work queue; any driver sends them, nothing is sent yet.

    ``delayed`` is the number of the messages that wait beside them because they were published so, ``left`` what the
    preview left out; the run names both.
    Of the options it takes the rate, the guard and the canary: where and in which order the retries go is decided by
    their waiting queues.
    """
    options.check()
    ways_back(queue)
    other = _sending(queue).first()
    if other is not None:
        text = _("%(run)s by %(name)s sends retries of %(queue)s already. Stop it first, or wait for its end.")
        raise Refused(text % {"run": other, "name": other.by, "queue": queue})
    if not count:
        raise NothingChosen(_("No retry waits for queue %(queue)s.") % {"queue": queue})
    if lacks_reason(count, reason):
        raise Refused(lacks_reason(count, reason))
    wanted = wanted or RetryFilter()
    now = database_clock.now(records_alias())
    left = left or LeftOutRetries()
    excluded = {EXCEPT: list_filter(store(wanted.without, actor))} if wanted.without else {}
    run = RequeueRun(
        created_at=now,
        started_at=now,
        by_user_id=actor.user_id,
        by=actor.name,
        source=actor.source,
        reason=short_reason(reason),
        retries_of=queue,
        selection={
            "filter": {"queue": queue, **wanted.facts(), **excluded},
            "as_of": now.isoformat(),
            "count": count,
            "delayed": delayed,
            **({"missing": list(left.missing[:MOST_NAMED])} if left.missing else {}),
        },
        description=short(queue, COLUMN_BYTES),
        excluded=left.total,
        rate=float(options.rate),
        stop_at=options.guard,
        canary=options.canary,
        total=count,
    )
    return _insert_run(run, actor, wanted)


@transaction_of(RequeueRun)
def _insert_run(run: RequeueRun, actor: Actor, wanted: RetryFilter) -> RequeueRun:
    run.pk = None
    run.save(using=records_alias(), force_insert=True)
    mark_kept(run.selection["filter"])
    options: dict[str, Any] = {"rate": run.rate, "stop_at": run.stop_at, "canary": run.canary, **wanted.facts()}
    if wanted.without:
        # The page of the action shows the list of a selection.
        options["selection"] = {name: run.selection[name] for name in ("filter", "as_of", "count")}
    facts = {"retries_of": run.retries_of, **{name: value for name, value in options.items() if value}}
    log_action(
        actor,
        Action.REQUEUE,
        reason=run.reason,
        run=run.pk,
        count=run.total,
        subject=run.retries_of,
        group=wanted.group[0] if len(wanted.group) == 1 else None,
        facts=facts,
    )
    return run


def under_way(queue: str, wanted: RetryFilter) -> list[UnderWay]:
    """Return the runs that are to send some of these waiting retries, each with their number."""
    counted = [UnderWay(run, min(still_to_send(run, wanted), run.unsent)) for run in _sending(queue).order_by("pk")]
    return [one for one in counted if one.unsent]


def leave_out_due() -> None:
    """Leave out of the runs that stand what became due meanwhile: RabbitMQ has delivered it, and no run can send it.

    A paused run that has nothing left to send goes on to its end. One that sends looks into the waiting queues itself.
    """
    started = RequeueRun.objects.using(records_alias()).filter(STANDING).exclude(retries_of="")
    standing = started.filter(total__gt=F("sent") + F("skipped") + F("unconfirmed"))
    for pk in list(standing.values_list("pk", flat=True)):
        _leave_out_due(pk)


@transaction_of(RequeueRun)
def _leave_out_due(run_id: int) -> None:
    run, using = locked_run(run_id), records_alias()
    if run is None or not RequeueRun.objects.using(using).filter(STANDING, pk=run_id).exists():
        return
    left, changes = still_to_send(run), dict[str, Any]()
    if not left and run.state == RunState.PAUSED:
        # None of those that a driver was about to send waits any more: it sent them, or they became due.
        run.parts.using(using).filter(state=ItemState.CLAIMED).update(state=ItemState.SENT)
        now = database_clock.now(using)
        run.state = RunState.WAITING
        changes = {"state": run.state, "note": "", "beat_at": now, **run.waits("", now)}
    else:
        run.skipped = max(run.total - run.parts.using(using).count() - left, 0)
    count_rows(run)
    changes |= {name: getattr(run, name) for name in RUN_COUNTERS}
    RequeueRun.objects.using(using).filter(pk=run_id).update(**changes)


def _sending(queue: str) -> QuerySet[RequeueRun]:
    return RequeueRun.objects.using(records_alias()).filter(retries_of=queue, state__in=SENDING)
