"""Starts runs that send retries before they are due."""

from django.utils.translation import gettext as _

from django_rmq_retry import database_clock
from django_rmq_retry.messages.texts import COLUMN_BYTES, short
from django_rmq_retry.models import Action, RequeueRun
from django_rmq_retry.models.runs import SENDING
from django_rmq_retry.parked.audit import log_action
from django_rmq_retry.parked.database import records_alias, transaction_of
from django_rmq_retry.parked.early_retries import RetryFilter, ways_back
from django_rmq_retry.parked.operators import Actor, NothingChosen, Refused, lacks_reason
from django_rmq_retry.parked.requeue_options import DEFAULT_OPTIONS, RequeueOptions


def start(
    queue: str,
    actor: Actor,
    options: RequeueOptions = DEFAULT_OPTIONS,
    *,
    count: int,
    delayed: int | None = None,
    wanted: RetryFilter | None = None,
    reason: str = "",
) -> RequeueRun:
    """Start a run that sends the waiting retries of a work queue; any driver sends them, nothing is sent yet.

    ``delayed`` is the number of the messages that wait beside them because they were published so; the run names it.
    Of the options it takes the rate, the guard and the canary: where and in which order the retries go is decided by
    their waiting queues.
    """
    options.check()
    ways_back(queue)
    other = RequeueRun.objects.using(records_alias()).filter(retries_of=queue, state__in=SENDING).first()
    if other is not None:
        text = _("%(run)s by %(name)s sends retries of %(queue)s already. Stop it first, or wait for its end.")
        raise Refused(text % {"run": other, "name": other.by, "queue": queue})
    if not count:
        raise NothingChosen(_("No retry waits for queue %(queue)s.") % {"queue": queue})
    if lacks_reason(count, reason):
        raise Refused(lacks_reason(count, reason))
    wanted = wanted or RetryFilter()
    now = database_clock.now(records_alias())
    run = RequeueRun(
        created_at=now,
        started_at=now,
        by_user_id=actor.user_id,
        by=actor.name,
        source=actor.source,
        reason=short(reason, COLUMN_BYTES),
        retries_of=queue,
        selection={
            "filter": {"queue": queue, **wanted.facts()},
            "as_of": now.isoformat(),
            "count": count,
            "delayed": delayed,
        },
        description=short(queue, COLUMN_BYTES),
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
    options = {"rate": run.rate, "stop_at": run.stop_at, "canary": run.canary, **wanted.facts()}
    facts = {"retries_of": run.retries_of, **{name: value for name, value in options.items() if value}}
    log_action(
        actor, Action.REQUEUE, reason=run.reason, run=run.pk, count=run.total, subject=run.retries_of, facts=facts
    )
    return run
