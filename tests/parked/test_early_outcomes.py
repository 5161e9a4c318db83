"""What becomes of retries that a run has sent early: what two consumers had is counted, also after the run."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from django_rmq_retry import Delivery, handler
from django_rmq_retry.consumer.recorder import Recorder
from django_rmq_retry.health.facts import survey
from django_rmq_retry.health.problems import Limits, in_survey
from django_rmq_retry.health.rules import Code
from django_rmq_retry.messages.identity import attempt_identity
from django_rmq_retry.models import Attempt, EarlyRetry, ItemState, RequeueRun, RunState
from django_rmq_retry.parked import early_outcomes
from django_rmq_retry.policies.verdict import ACK
from django_rmq_retry.testing import isolated_handlers
from tests.admin import made
from tests.consumer.attempts import PLAIN, finished
from tests.handlers.factories import delivery, subscription

pytestmark = [pytest.mark.django_db, pytest.mark.database]
QUEUE = "payments.main"
SENT = timezone.now() - timedelta(minutes=5)


@pytest.fixture(autouse=True)
def no_handlers() -> Any:
    with isolated_handlers():
        yield


def run_of(*names: str, state: str = RunState.FINISHED, at: datetime = SENT, **fields: Any) -> RequeueRun:
    """A run that has sent these messages, each with one failed attempt."""
    counts = {"total": len(names), "sent": len(names)}
    ended = None if state in (RunState.RUNNING, RunState.WAITING) else at + timedelta(minutes=1)
    times = {"created_at": at, "started_at": at, "finished_at": ended}
    run = RequeueRun.objects.create(by="ann", retries_of=QUEUE, state=state, **times, **counts, **fields)
    for name in names:
        identity = attempt_identity(QUEUE, name, b"{}")
        EarlyRetry.objects.create(run=run, identity=identity, shown=name, state=ItemState.SENT, sent_at=at)
    return run


def attempt(name: str, after: float, verdict: str = ACK.name, *, number: int = 2, **fields: Any) -> Attempt:
    """An attempt that began so many seconds after the run had sent its message."""
    facts = {"queue": QUEUE, "handler": "transfer", "host": "worker-4", "pid": 12, "seconds": 0.5, "thread": "t"}
    identity = attempt_identity(QUEUE, name, b"{}")
    begun = {"started_at": SENT + timedelta(seconds=after), "number": number, "verdict": verdict}
    return Attempt.objects.create(**{**facts, **begun, "identity": identity, "message_id": name, **fields})


def noted(run: RequeueRun) -> tuple[int, int, int, int]:
    """Note the outcomes; return what the run counts: processed, failed again, handled twice, perhaps twice."""
    early_outcomes.note(list(EarlyRetry.objects.values_list("identity", flat=True)))
    run.refresh_from_db()
    return run.processed, run.failed, run.handled_twice, run.perhaps_twice


def test_what_a_killed_worker_had_is_counted_as_perhaps_handled_twice() -> None:
    """Eight of 25 payments were made twice, and the run was green: "Finished, 25 processed"."""
    run = run_of("PAY-1", "PAY-2", "PAY-3")
    attempt("PAY-1", 1, redelivered=True)
    attempt("PAY-2", 1)

    assert noted(run) == (2, 0, 0, 1)
    assert list(run.retries.filter(early_outcomes.PERHAPS_TWICE).values_list("shown", flat=True)) == ["PAY-1"]


def test_what_two_workers_have_handled_is_no_doubt_any_more() -> None:
    run = run_of("PAY-1")
    attempt("PAY-1", 1, redelivered=True)
    before = noted(run)
    attempt("PAY-1", 2, redelivered=True)

    assert (before, noted(run), noted(run)) == ((1, 0, 0, 1), (1, 0, 1, 0), (1, 0, 1, 0))


def test_a_doubt_stays_if_the_message_fails_first_and_is_handled_by_its_next_attempt() -> None:
    run = run_of("PAY-1")
    attempt("PAY-1", 1, "retry", redelivered=True, error="GatewayTimeout")
    failed = noted(run)
    attempt("PAY-1", 60, number=3, redelivered=True)

    assert (failed, noted(run)) == ((0, 1, 0, 1), (0, 1, 0, 1))
    assert EarlyRetry.objects.get().error == "GatewayTimeout"


def test_a_copy_that_fails_in_one_consumer_and_is_handled_in_another_is_processed() -> None:
    run = run_of("PAY-1")
    attempt("PAY-1", 1, "retry", redelivered=True)
    attempt("PAY-1", 2, redelivered=True)

    assert noted(run) == (1, 0, 0, 1)


def test_what_a_later_run_has_sent_is_counted_there() -> None:
    run = run_of("PAY-1")
    later = run_of("PAY-1", at=SENT + timedelta(seconds=30))
    attempt("PAY-1", 1, "retry")
    attempt("PAY-1", 31, number=3, redelivered=True)

    assert (noted(run), noted(later)) == ((0, 1, 0, 0), (1, 0, 0, 1))


@pytest.mark.parametrize(("reason", "doubts"), [("worker_stopped", 1), ("permanent", 0)])
def test_a_retry_that_is_parked_without_an_attempt_has_failed_again(reason: str, doubts: int) -> None:
    """The one that killed its workers was paid eight times, and its outcome "did not come"."""
    run = run_of("PAY-1")
    known = EarlyRetry.objects.get().identity
    made.message(identity=known, error="", reason=reason, parked_at=SENT + timedelta(seconds=5))

    assert noted(run) == (0, 1, 0, doubts)
    assert EarlyRetry.objects.get().error == reason


def test_messages_without_an_id_and_with_equal_bodies_are_no_second_handling() -> None:
    run = run_of("")
    for after in (1, 2):
        attempt("", after)

    assert noted(run) == (1, 0, 0, 0)


def test_a_handler_that_does_its_work_once_leaves_no_doubt() -> None:
    @handler(QUEUE, once=True, name="transfer")
    def transfer(payment: Delivery) -> None:
        """Nothing."""

    run = run_of("PAY-1")
    attempt("PAY-1", 1, redelivered=True)

    assert noted(run) == (1, 0, 0, 0)


@pytest.mark.parametrize("state", [RunState.RUNNING, RunState.WAITING, RunState.STOPPED, RunState.FINISHED])
def test_a_consumer_counts_what_it_has_handled_in_each_run_that_sent_it(state: RunState) -> None:
    """No driver looked after the run, so what was still to come of a stopped one stayed unknown."""
    run = run_of("PAY-1", state=state, at=timezone.now() - timedelta(seconds=30))
    recorder = Recorder()
    recorder.buffer._begin = lambda: None  # type: ignore[method-assign]
    for _ in range(2):
        arrival = delivery(queue=QUEUE, body=b"{}", message_id="PAY-1", attempt=2, redelivered=True)
        recorder.note(finished(ACK, arrival, handler=subscription(PLAIN, queue=QUEUE)))
        recorder.buffer.flush()
    run.refresh_from_db()

    assert (run.processed, run.handled_twice, run.perhaps_twice, run.state) == (1, 1, 0, state)


def test_live_status_names_a_run_of_retries_with_doubts() -> None:
    run = run_of("PAY-1", at=timezone.now() - timedelta(minutes=10))
    Attempt.objects.create(
        identity=EarlyRetry.objects.get().identity, queue=QUEUE, message_id="PAY-1", number=2, verdict=ACK.name,
        started_at=timezone.now() - timedelta(minutes=4), seconds=1, host="h", pid=1, thread="t", redelivered=True,
    )  # fmt: skip
    made.consumer(seconds=300)
    counted = noted(run)
    found = [one for one in in_survey(survey(), Limits()) if one.code is Code.RUN_PERHAPS_TWICE]

    assert counted == (1, 0, 0, 1)
    assert [one.text for one in found] == [f"Requeue run {run.pk}: 1 message was perhaps handled twice: PAY-1."]


def test_what_a_run_of_retries_counts_is_no_second_finding() -> None:
    run = run_of("PAY-1", at=timezone.now() - timedelta(minutes=10))
    row = EarlyRetry.objects.get()
    Attempt.objects.create(
        identity=row.identity, queue=QUEUE, message_id="PAY-1", number=2, verdict=ACK.name, redelivered=True,
        started_at=timezone.now() - timedelta(minutes=4), seconds=1, host="h", pid=1, thread="t",
    )  # fmt: skip
    made.consumer(seconds=300)
    noted(run)
    found = [one.code for one in in_survey(survey(), Limits())]

    assert (Code.RUN_PERHAPS_TWICE in found, Code.PERHAPS_TWICE in found) == (True, False)
