"""The stopped queues in which messages of requeue runs wait: paused by an operator, or with an open breaker."""

from collections.abc import Iterable, Sequence

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_rmq_retry.breakers import table
from django_rmq_retry.breakers.queue_state import QueueState
from django_rmq_retry.models import ItemState, RequeueRun, RunState, RunWait
from django_rmq_retry.parked.database import records_alias
from django_rmq_retry.topology.declarations import work_queue
from django_rmq_retry.wording import number

MOST_WAITING_READ = 1000
"""The most messages without an outcome whose queues are looked at."""


def waiting_in(run: RequeueRun, state: ItemState = ItemState.SENT) -> list[str]:
    """Return the queues in which messages of a run wait for an outcome, or in another state, sorted."""
    if one := run.retries_of or run.target:
        return [one]
    waiting = run.items.using(records_alias()).filter(state=state).order_by("place")
    return sorted(set(waiting.values_list("message__queue", flat=True)[:MOST_WAITING_READ]))


def stands(run: RequeueRun) -> bool:
    """Return True if a run waits, so that a stopped queue may be the reason; one that sends does not."""
    return run.state == RunState.WAITING or (run.state == RunState.RUNNING and bool(run.wait))


def held_up(runs: Iterable[RequeueRun], stopped: Sequence[QueueState] | None = None) -> dict[int, list[QueueState]]:
    """Return the stopped queues in which what these runs have sent waits, or that hold them back, by the run's number.

    Which queues are stopped is one query, unless it is known; mostly none is, and then no message is read.
    """
    waiting = [(run, states) for run in runs if (states := _waiting(run))]
    if stopped is None:
        stopped = table.all_stopped(table.now()) if waiting else []
    found = dict[int, list[QueueState]]()
    for run, states in waiting if stopped else ():
        queues = {work_queue(queue) for state in states for queue in waiting_in(run, state)}
        if mine := [one for one in stopped if one.queue in queues]:
            found[run.pk] = sorted(mine, key=lambda one: one.queue)
    return found


def in_few_words(stopped: Sequence[QueueState]) -> str:
    """Return what a run waits for, such as "payments.card is paused"; empty if no queue is stopped."""
    if len(stopped) > 1:
        text = ngettext("%(counter)s queue is stopped", "%(counter)s queues are stopped", len(stopped))
        return text % {"counter": number(len(stopped))}
    now = table.now()
    return "".join(
        (_("%(queue)s is paused") if one.is_paused(now) else _("the breaker of %(queue)s is open"))
        % {"queue": one.queue}
        for one in stopped
    )


def _waiting(run: RequeueRun) -> list[ItemState]:
    states = [ItemState.SENT] if run.tally[ItemState.SENT] else []
    deep = run.state == RunState.RUNNING and run.wait in (RunWait.QUEUE_DEEP, RunWait.QUEUE_FULL)
    return [*states, ItemState.PENDING] if deep else states
