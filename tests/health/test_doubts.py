"""After a flap of the network, in which nobody died, an operator went to the bank with 15 payments, all paid once."""

from datetime import timedelta

import pytest
from django.utils import timezone

from django_rmq_retry.health.doubts import end_doubts
from django_rmq_retry.models import ItemState, RequeueItem, RequeueRun, RunState
from django_rmq_retry.models.runs import EarlyRetry
from tests.admin import made

pytestmark = [pytest.mark.django_db, pytest.mark.database]


def run_of(*, began: float = 180, ended: float | None = 90, **fields: object) -> RequeueRun:
    """A run that began and ended these seconds ago, with three messages that were delivered again.

    Another consumer handled one, one was handled twice, and the death of a consumer parked one.
    """
    now = timezone.now()
    times = {name: now - timedelta(seconds=began) for name in ("created_at", "started_at")}
    finished = None if ended is None else now - timedelta(seconds=ended)
    state = RunState.WAITING if ended is None else RunState.FINISHED
    facts = {"by": "ann", "state": state, "finished_at": finished, "total": 3, "perhaps_twice": 2, "handled_twice": 1}
    return RequeueRun.objects.create(**(times | facts | fields))


def items_of(run: RequeueRun) -> None:
    outcomes = [(ItemState.PROCESSED, 1), (ItemState.PROCESSED, 2), (ItemState.FAILED, 0)]
    for place, (state, handled) in enumerate(outcomes):
        facts = {"place": place, "state": state, "handled": handled, "redelivered": True}
        RequeueItem.objects.create(run=run, message=made.message(), revision=1, **facts)


@pytest.mark.parametrize(
    ("began", "ended", "beats", "left"),
    [
        (180, 90, [1, 1], 1),
        (180, 90, [1, 120], 2),
        (180, 90, [], 2),
        (180, 45, [1], 2),
        (180, None, [1], 2),
        (70 * 60, 90, [1], 2),
    ],
    ids=["all live", "one vanished", "no heartbeats", "too early", "goes on", "too old to know"],
)
def test_the_doubts_of_a_run_end_if_no_consumer_died(
    began: float, ended: float | None, beats: list[float], left: int
) -> None:
    run = run_of(began=began, ended=ended)
    items_of(run)
    for seconds in beats:
        made.consumer(seconds=seconds)
    end_doubts()
    run.refresh_from_db()

    assert (run.perhaps_twice, run.handled_twice) == (left, 1)
    assert run.items.filter(redelivered=True, handled__lte=1).count() == left


def test_one_that_died_before_the_run_began_is_no_doubt_of_it() -> None:
    run = run_of()
    items_of(run)
    made.consumer(seconds=600)
    made.consumer(seconds=1)
    end_doubts()

    assert RequeueRun.objects.get(pk=run.pk).perhaps_twice == 1


def test_one_that_was_seen_to_end_by_a_fault_is_one() -> None:
    run = run_of()
    items_of(run)
    made.consumer(seconds=20, ended_at=timezone.now() - timedelta(seconds=20))
    made.consumer(seconds=1)
    end_doubts()

    assert RequeueRun.objects.get(pk=run.pk).perhaps_twice == 2


def test_retries_that_were_sent_early_lose_their_doubts_too() -> None:
    run = run_of(retries_of="bank.pay", total=1, perhaps_twice=1, handled_twice=0)
    facts = {"sent_at": run.started_at, "state": ItemState.PROCESSED, "handled": 1, "redelivered": True}
    EarlyRetry.objects.create(run=run, identity="PAY-1", **facts)
    made.consumer(seconds=1)
    end_doubts()

    assert RequeueRun.objects.get(pk=run.pk).perhaps_twice == 0
    assert not EarlyRetry.objects.filter(redelivered=True).exists()
