"""After a flap of the network, in which nobody died, an operator went to the bank with 15 payments, all paid once."""

from datetime import timedelta

import pytest
from django.utils import timezone

from django_rmq_retry.health.doubts import end_doubts
from django_rmq_retry.health.held import MOST_SPANS
from django_rmq_retry.models import ItemState, ParkedMessage, RequeueItem, RequeueRun, RunState
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


def items_of(run: RequeueRun, *, sent: float = 170, ended: float = 90, queue: str = "payments.main") -> None:
    now = timezone.now()
    times = {"sent_at": now - timedelta(seconds=sent), "ended_at": now - timedelta(seconds=ended)}
    outcomes = [(ItemState.PROCESSED, 1), (ItemState.PROCESSED, 2), (ItemState.FAILED, 0)]
    for place, (state, handled) in enumerate(outcomes):
        facts = {"place": place, "state": state, "handled": handled, "redelivered": True} | times
        RequeueItem.objects.create(run=run, message=made.message(queue=queue), revision=1, **facts)


def left_of(run: RequeueRun) -> int:
    end_doubts()
    run.refresh_from_db()

    assert run.items.filter(redelivered=True, handled__lte=1).count() == run.perhaps_twice
    assert run.handled_twice == 1
    return run.perhaps_twice


@pytest.mark.parametrize(
    ("sent", "ended", "beats", "left"),
    [
        (170, 90, [1, 1], 1),
        (170, 90, [1, 120], 2),
        (170, 90, [], 2),
        (170, 45, [1], 2),
        (65 * 60, 90, [1], 2),
        (170, 90, [1, 60], 1),
    ],
    ids=["all live", "one vanished", "no heartbeats", "too early", "too old to know", "one died later"],
)
@pytest.mark.parametrize("over", [True, False], ids=["over", "goes on"])
def test_the_doubts_of_a_run_end_if_no_consumer_died(
    sent: float, ended: float, beats: list[float], left: int, *, over: bool
) -> None:
    run = run_of(began=70 * 60, ended=45 if over else None)
    items_of(run, sent=sent, ended=ended)
    for seconds in beats:
        made.consumer(seconds=seconds)

    assert left_of(run) == left


def test_one_that_died_later_raises_no_doubt_about_what_a_breaker_had_given_back() -> None:
    """It was paid once, ten minutes before a consumer died: an operator went to the bank with 19 payments."""
    run = run_of(began=900, ended=None)
    items_of(run, sent=880, ended=700)
    made.consumer(seconds=100, ended_at=timezone.now() - timedelta(seconds=95))
    made.consumer(seconds=1)

    assert left_of(run) == 1


@pytest.mark.parametrize(
    ("let_go", "seen", "left"),
    [
        ({"payments.main": []}, 5, 1),
        ({"payments.main": ["9f3c-other"]}, 5, 1),
        ({"payments.main": ["9f3c-other", "{begun}"]}, 5, 2),
        ({}, 5, 2),
        ({"mails": []}, 5, 2),
        ({"payments.main": []}, 70, 2),
        ({"payments.main": []}, None, 2),
    ],
    ids=[
        *("stopped", "begun another", "begun it", "reads it", "another is stopped"),
        *("seen to be gone later", "its end is not known"),
    ],
)
def test_one_that_died_while_the_queue_was_stopped_had_none_but_what_it_had_begun(
    let_go: dict[str, list[str]], seen: float | None, left: int
) -> None:
    run = run_of()
    items_of(run)
    begun = run.items.get(state=ItemState.PROCESSED, handled=1).message.message_id
    let_go = {queue: [name.format(begun=begun) for name in names] for queue, names in let_go.items()}
    beat = timezone.now() - timedelta(seconds=165)
    facts = {"let_go": let_go, "ended_at": seen and beat + timedelta(seconds=seen)}
    made.consumer(seconds=165, **facts)
    made.consumer(seconds=1)

    assert left_of(run) == left


@pytest.mark.parametrize("changed", [{"version": 2}, {"message_id": ""}], ids=["edited", "without an id"])
def test_one_that_had_begun_another_is_a_doubt_of_what_has_no_sure_id(changed: dict[str, object]) -> None:
    """An edit may give the copy another id than the parked message has."""
    run = run_of()
    items_of(run)
    ParkedMessage.objects.filter(pk__in=run.items.values("message")).update(**changed)
    beat = timezone.now() - timedelta(seconds=165)
    made.consumer(seconds=165, let_go={"payments.main": ["9f3c-other"]}, ended_at=beat + timedelta(seconds=5))
    made.consumer(seconds=1)

    assert left_of(run) == 2


@pytest.mark.parametrize(("beat", "left"), [(185, 1), (175, 2)], ids=["before the run began", "since"])
def test_one_that_was_heard_of_last_before_the_run_began_is_no_doubt_of_what_it_had_begun(
    beat: float, left: int
) -> None:
    """Its end was noted only as the run went on."""
    run = run_of()
    items_of(run)
    begun = run.items.get(state=ItemState.PROCESSED, handled=1).message.message_id
    ended = timezone.now() - timedelta(seconds=150)
    made.consumer(seconds=beat, let_go={"payments.main": [begun]}, ended_at=ended)
    made.consumer(seconds=1)

    assert left_of(run) == left


def test_many_that_died_while_the_queue_was_stopped_are_told_apart_no_more() -> None:
    run = run_of()
    items_of(run)
    beat = timezone.now() - timedelta(seconds=165)
    facts = {"let_go": {"payments.main": ["9f3c-other"]}, "ended_at": beat + timedelta(seconds=5)}
    made.consumers(MOST_SPANS + 1, seconds=165, **facts)

    assert left_of(run) == 2


def test_one_that_read_another_queue_is_no_doubt_of_it() -> None:
    run = run_of()
    items_of(run)
    made.consumer(seconds=120, queues=["mails"])
    made.consumer(seconds=1)

    assert left_of(run) == 1


@pytest.mark.parametrize(("since", "left"), [(130, 2), (30, 1)], ids=["since before", "begun later"])
def test_one_that_has_such_a_message_in_a_handler_yet_is_waited_for(since: float, left: int) -> None:
    """A network cut gave it to another consumer while this one was at the bank: it may yet pay, or die in it."""
    run = run_of()
    items_of(run)
    begun = (timezone.now() - timedelta(seconds=since)).isoformat()
    one = run.items.get(state=ItemState.PROCESSED, handled=1).message
    made.consumer(seconds=1, in_flight=[{"queue": "payments.main", "message_id": one.message_id, "since": begun}])

    assert left_of(run) == left


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
    made.consumer(seconds=100, ended_at=timezone.now() - timedelta(seconds=100))
    made.consumer(seconds=1)
    end_doubts()

    assert RequeueRun.objects.get(pk=run.pk).perhaps_twice == 2


def test_retries_that_were_sent_early_lose_their_doubts_too() -> None:
    run = run_of(retries_of="bank.pay", total=1, perhaps_twice=1, handled_twice=0)
    times = {"sent_at": run.started_at, "ended_at": timezone.now() - timedelta(seconds=90)}
    facts = {"state": ItemState.PROCESSED, "handled": 1, "redelivered": True} | times
    EarlyRetry.objects.create(run=run, identity="PAY-1", **facts)
    made.consumer(seconds=1)
    end_doubts()

    assert RequeueRun.objects.get(pk=run.pk).perhaps_twice == 0
    assert not EarlyRetry.objects.filter(redelivered=True).exists()
