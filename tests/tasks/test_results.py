"""Results: what is recorded of a task, and read again."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import InterfaceError, connection
from django.utils import timezone

from django_rmq_retry import Fixed, RetryThenPark, database_clock, publish
from django_rmq_retry.models import Attempt, State, StoredResult
from django_rmq_retry.parked.retention import delete_expired_results
from django_rmq_retry.tasks import results
from django_rmq_retry.tasks.api import TaskResultDoesNotExist, TaskResultStatus, task_backends
from tests.handlers.factories import delivery
from tests.parked.made import parked
from tests.tasks.conftest import WEEK, Load, RecordingTest

pytestmark = [pytest.mark.django_db, pytest.mark.database]


def read(result: Any) -> Any:
    return task_backends["default"].get_result(result.id)


@pytest.mark.usefixtures("recording")
def test_a_task_that_waits_is_ready(load: Load) -> None:
    work = load(results=WEEK)

    found = read(work.add.enqueue(1, two=2.5))

    assert (found.status, found.args, found.kwargs, found.task) == ("READY", [1], {"two": 2.5}, work.add)
    assert (found.attempts, found.errors, found.started_at, found.finished_at) == (0, [], None, None)
    with pytest.raises(ValueError, match="has not finished yet"):
        found.return_value  # noqa: B018 - it raises


def test_a_task_that_succeeded_has_its_value_times_and_worker(load: Load, recording: RecordingTest) -> None:
    work = load(results=WEEK)
    result = work.add.enqueue(1, two=2)

    recording.drain()
    result.refresh()

    assert (result.status, result.return_value, result.attempts, result.errors) == ("SUCCESSFUL", 3, 1, [])
    assert result.enqueued_at <= result.started_at == result.last_attempted_at <= result.finished_at
    assert len(result.worker_ids) == 1
    assert not Attempt.objects.exists()


def test_a_task_that_waits_for_its_retry_has_its_errors(load: Load, recording: RecordingTest) -> None:
    work = load(results=WEEK, policies={"default": RetryThenPark(attempts=3, backoff=Fixed(60))})
    result = work.fail.enqueue("timeout")

    recording.advance(70)
    recording._history.buffer.flush()
    result.refresh()

    assert (result.status, result.attempts, len(result.errors), result.finished_at) == ("READY", 2, 2, None)


def test_a_task_that_failed_has_the_error_of_each_attempt(load: Load, recording: RecordingTest) -> None:
    work = load(results=WEEK, policies={"default": RetryThenPark(attempts=3, backoff=Fixed(60))})
    result = work.fail.enqueue("timeout")

    recording.drain()
    result.refresh()

    assert (result.status, result.attempts, len(result.errors)) == ("FAILED", 3, 3)
    error = result.errors[0]
    assert error.exception_class is work.MailDown
    assert error.traceback.startswith("Traceback (most recent call last):\n")
    assert error.traceback.endswith("MailDown: timeout\n")
    assert "raise MailDown(text)" in error.traceback
    assert result.started_at <= result.last_attempted_at <= result.finished_at


@pytest.mark.usefixtures("recording")
@pytest.mark.parametrize(
    ("state", "status"),
    [
        (State.PARKED, "FAILED"),
        (State.ON_HOLD, "FAILED"),
        (State.DISCARDED, "FAILED"),
        (State.REQUEUEING, "READY"),
        (State.REQUEUED, "READY"),
        (State.PROCESSED, "SUCCESSFUL"),
    ],
)
def test_a_parked_task_is_where_its_operator_has_put_it(load: Load, state: State, status: str) -> None:
    work = load(results=WEEK)
    result = work.fail.enqueue()
    parked(identity=StoredResult.objects.get().identity, state=state)

    assert read(result).status == status


def test_a_task_that_succeeds_after_a_failure_has_both(load: Load, recording: RecordingTest) -> None:
    work = load(results=WEEK)
    result = work.retry_once.enqueue()

    recording.drain()
    result.refresh()

    assert (result.status, result.return_value, result.attempts) == ("SUCCESSFUL", [2, result.id], 2)
    assert [one.exception_class_path for one in result.errors] == ["django_rmq_retry.policies.verdict.Retry"]
    assert result.started_at < result.last_attempted_at


def test_a_value_without_a_json_form_fails_and_is_not_run_again(load: Load, recording: RecordingTest) -> None:
    work = load(results=WEEK)
    result = work.return_a_set.enqueue()

    recording.drain()
    result.refresh()

    assert (result.status, work.calls) == ("FAILED", ["set"])
    assert "TypeError: Unsupported type" in result.errors[0].traceback


def test_without_results_nothing_is_stored_and_any_value_is_ignored(load: Load, recording: RecordingTest) -> None:
    work = load()
    result = work.return_a_set.enqueue()

    recording.drain()

    assert [one.verdict.name for one in recording.attempts()] == ["ack"]
    assert not StoredResult.objects.exists()
    assert not task_backends["default"].supports_get_result
    with pytest.raises(NotImplementedError):
        read(result)


@pytest.mark.parametrize("options", [{}, {"results": WEEK}])
def test_a_task_that_returns_what_never_ran_has_failed(
    options: dict[str, Any], load: Load, recording: RecordingTest
) -> None:
    """It was acked without results, and called a task that has run with them."""
    work = load(**options, policies={"default": RetryThenPark(attempts=1)})
    work.return_pages.enqueue()

    recording.drain()

    assert recording.parked("tasks.default").reason.startswith("Gave up after 1 attempt: NeverRan: ")
    assert work.calls == []


@pytest.mark.parametrize("timestamp", [1_800_000_000_000, 2**63 - 1, None])
def test_a_time_outside_the_calendar_is_none(timestamp: int | None) -> None:
    """A sender that writes milliseconds means a year of five digits: each attempt failed before its task ran."""
    assert database_clock.published_at(delivery(timestamp=timestamp).properties) is None


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("recording")
def test_a_lost_connection_fails_no_enqueue_whose_task_was_sent(
    load: Load, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its caller would send the task again."""

    def lost(_using: str) -> datetime:
        raise InterfaceError("connection already closed")

    work = load(results=WEEK)
    monkeypatch.setattr(database_clock, "now", lost)

    assert work.add.enqueue(1).status == "READY"
    assert "was sent, and its result cannot be read before it has succeeded: connection already closed" in caplog.text


def test_many_results_are_stored_by_one_statement(
    load: Load, recording: RecordingTest, django_assert_num_queries: Any
) -> None:
    work = load(results=WEEK)
    results = [work.add.enqueue(number) for number in range(50)]
    super(RecordingTest, recording).drain()

    locks = connection.vendor == "sqlite"
    with django_assert_num_queries(4 + locks):
        recording._history.buffer.flush()

    assert [read(one).return_value for one in results] == list(range(50))


def test_a_result_that_a_consumer_stored_first_stays(load: Load, recording: RecordingTest) -> None:
    work = load(results=WEEK)
    result = work.add.enqueue(1)
    StoredResult.objects.all().delete()

    recording.drain()

    assert (read(result).return_value, read(result).args) == (1, [1])


def test_a_task_that_ran_twice_has_one_row(load: Load, recording: RecordingTest) -> None:
    work = load(results=WEEK)
    recording.fail_next("tasks.default", "duplicate delivery")
    result = work.add.enqueue(1)

    recording.drain()

    assert (StoredResult.objects.count(), read(result).return_value) == (1, 1)


@pytest.mark.usefixtures("recording")
def test_results_expire_and_are_deleted(load: Load) -> None:
    work = load(results=WEEK)
    result = work.add.enqueue(1)
    row = StoredResult.objects.get()
    assert abs(row.expires_at - row.enqueued_at - WEEK) < timedelta(minutes=1)
    # The database's clock is estimated: under load it may be behind by a moment.
    StoredResult.objects.update(expires_at=row.enqueued_at - timedelta(minutes=1))

    with pytest.raises(TaskResultDoesNotExist):
        read(result)
    assert delete_expired_results(row.enqueued_at + timedelta(seconds=1)) == 1
    assert not StoredResult.objects.exists()


@pytest.mark.usefixtures("recording")
@pytest.mark.parametrize("years", [-8, 8])
def test_a_host_whose_clock_is_wrong_stores_results_for_as_long(
    years: int, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    def by_the_database(_using: str) -> datetime:
        return timezone.now() + years * timedelta(days=365)

    monkeypatch.setattr(database_clock, "now", by_the_database)
    work = load(results=WEEK)

    read(work.add.enqueue(1))
    read(work.add.using(run_after=timezone.now() + 3 * WEEK).enqueue(1))

    lasts = [round((one - by_the_database("")) / WEEK) for one in expiries()]
    assert lasts == [1, 4]


def expiries() -> list[datetime]:
    return sorted(StoredResult.objects.values_list("expires_at", flat=True))


@pytest.mark.parametrize("name", ["", "none", "\0", "x" * 1000, 7])
def test_an_id_of_nothing_has_no_result(load: Load, name: Any) -> None:
    load(results=WEEK)

    with pytest.raises(TaskResultDoesNotExist):
        task_backends["default"].get_result(name)


@pytest.mark.usefixtures("recording")
def test_the_result_of_a_task_that_is_gone_does_not_exist(load: Load) -> None:
    work = load(results=WEEK)
    result = work.add.enqueue(1)
    StoredResult.objects.update(task="shop.tasks.gone")

    with pytest.raises(TaskResultDoesNotExist, match=r"'shop\.tasks\.gone' is not defined"):
        read(result)


def test_results_work_without_time_zones(load: Load, recording: RecordingTest) -> None:
    work = load(results=WEEK, settings={"USE_TZ": False})
    result = work.add.enqueue(1)

    recording.drain()

    assert read(result).status == TaskResultStatus.SUCCESSFUL


@pytest.mark.parametrize("name", ["\0", "a\0b", "\u00e4" * 120, None])
def test_an_id_of_a_foreign_sender_costs_no_other_task_its_result(
    load: Load, recording: RecordingTest, name: str | None
) -> None:
    work = load(results=WEEK)
    call = {"task": "tests.tasks.work.add", "args": [1], "kwargs": {}}
    publish(call, routing_key="default", message_id=name)
    result = work.add.enqueue(2)

    recording.drain()

    assert [one.verdict.name for one in recording.attempts()] == ["ack", "ack"]
    assert read(result).return_value == 2


def test_another_message_with_its_id_cannot_forge_a_result(load: Load, recording: RecordingTest) -> None:
    work = load(results=WEEK)
    result = work.add.enqueue(1)
    forged = {"task": "tests.tasks.work.add", "args": [1000], "kwargs": {}}
    publish(forged, routing_key="default", message_id=result.id)

    recording.drain()

    assert (read(result).return_value, read(result).args) == (1, [1])


@pytest.mark.usefixtures("recording")
@pytest.mark.parametrize(("requeued", "status"), [(True, "SUCCESSFUL"), (False, "READY")])
def test_only_a_requeued_copy_may_have_been_edited(load: Load, *, requeued: bool, status: str) -> None:
    work = load(results=WEEK)
    result = work.add.enqueue(1)
    now = timezone.now()
    edited = StoredResult.objects.get()
    edited.identity, edited.body = "message:other", b'{"task":"tests.tasks.work.add","args":[2],"kwargs":{}}'
    edited.started_at, edited.finished_at, edited.answer, edited.requeued = now, now, "2", requeued

    results.store([edited])

    assert (read(result).status, read(result).args) == (status, [1])
