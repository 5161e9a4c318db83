"""The journal that remembers attempts in the database."""

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import OperationalError, transaction
from django.test import override_settings

from django_rmq_retry import Discard
from django_rmq_retry.attempts.buffer import Buffer, insert
from django_rmq_retry.attempts.history import attempts_of
from django_rmq_retry.attempts.rows import AttemptDraft, AttemptRow, RowBuilder
from django_rmq_retry.conf import project_version
from django_rmq_retry.consumer.attempt_state import AttemptState
from django_rmq_retry.consumer.last_acks import LARGEST_KEPT_BODY, AckedMessage, remember
from django_rmq_retry.consumer.recorder import Recorder
from django_rmq_retry.messages import ErrorNote, Reason
from django_rmq_retry.models import Attempt, ErrorGroup, ParkedMessage, State
from django_rmq_retry.parked import outcomes
from django_rmq_retry.policies import DUPLICATE, discard, park, retry
from django_rmq_retry.policies.policy import uncounted_retry
from tests.attempts.attempted import CHARGE, failure, success
from tests.consumer.attempts import finished
from tests.handlers.factories import arrived, delivery, settled
from tests.messages.exceptions import BankDown, caught, post
from tests.parked.arrivals import ticket_header
from tests.parked.made import group, item, parked

pytestmark = [pytest.mark.database, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def rows() -> list[AttemptRow]:
    return []


@pytest.fixture
def recorder(rows: list[AttemptRow]) -> Recorder:
    """A recorder whose rows only the test takes."""
    builder = RowBuilder()

    def write(drafts: Sequence[AttemptDraft], *, plain: bool = False) -> None:
        assert not plain
        rows.extend(builder.row(draft) for draft in drafts)

    made = Recorder(Buffer(write))
    made.buffer._begin = lambda: None  # type: ignore[method-assign]
    return made


def test_a_failure_and_the_success_after_it_are_recorded(recorder: Recorder, rows: list[AttemptRow]) -> None:
    recorder.note(failure())
    recorder.note(success(delivery(message_id="m-1", attempt=2)))
    recorder.buffer.flush()

    assert [(row.number, row.verdict) for row in rows] == [(1, "retry"), (2, "ack")]


def test_a_success_after_an_attempt_that_did_not_count_is_recorded(recorder: Recorder, rows: list[AttemptRow]) -> None:
    """A search said "may still be handled: attempt 1 failed" of a payment that was made once its breaker had closed."""
    failed = uncounted_retry(retry(30, ErrorNote.of(BankDown("the bank is down"))), CHARGE.policy)
    copy = settled(failed, delivery(message_id="m-1"), CHARGE).copy
    assert copy is not None
    recorder.note(success(arrived(copy, queue="payments")))
    recorder.buffer.flush()

    assert [(row.number, row.verdict) for row in rows] == [(1, "ack")]
    assert copy.headers["rmq-retry-summary"] == "#1 BankDown: the bank is down"


def test_a_success_at_the_first_attempt_is_not_recorded(recorder: Recorder) -> None:
    recorder.note(success())
    recorder.note(success(delivery(headers={"rmq-retry-exchange": "payments"})))

    assert (len(recorder.buffer), recorder.notes_acks) == (0, False)


@pytest.mark.parametrize("size", [2, LARGEST_KEPT_BODY + 1], ids=["small", "large"])
def test_what_was_handled_before_its_ack_was_lost_is_recorded_as_the_same_message(
    recorder: Recorder, rows: list[AttemptRow], size: int
) -> None:
    line, again = SimpleNamespace(last_acks=deque()), delivery(message_id="m-1", body=b"1" * size, redelivered=True)
    arrival = replace(again, redelivered=False, token=(line, 1))
    remember(AttemptState(arrival, arrival, began=1.0, number=2), CHARGE, now=3.0)
    messages = [AckedMessage(*one) for one in line.last_acks]
    recorder.acks_lost(messages)
    recorder.note(success(again))
    recorder.buffer.flush()
    # What comes again is written at once, before its ack.
    second, first = rows

    assert first.identity == second.identity
    assert (first.verdict, first.number, first.seconds, first.redelivered) == ("ack", 2, 2.0, False)
    assert len(messages[0].arrival.body) <= LARGEST_KEPT_BODY


def test_lost_acks_that_cannot_be_recorded_do_not_end_the_consumer(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recorder.buffer, "add", lambda _draft: post())
    recorder.acks_lost([AckedMessage(3.0, delivery(message_id="m-1"), CHARGE, 1.0, 1, "")])

    assert "could not be recorded" in caplog.text


def test_what_was_handled_without_an_id_is_not_recorded(recorder: Recorder) -> None:
    """Equal bodies share their attempts: two payments would count as one that was handled twice."""
    recorder.acks_lost([AckedMessage(3.0, delivery(), CHARGE, 1.0, 1, "")])

    assert len(recorder.buffer) == 0


def test_what_another_consumer_had_before_is_recorded_before_its_ack(
    recorder: Recorder, rows: list[AttemptRow]
) -> None:
    """A refund was paid three times by workers that died a second later, and with each of them its history."""
    recorder.note(success(delivery(message_id="m-1", redelivered=True)))
    assert [(row.message_id, row.redelivered) for row in rows] == [("m-1", True)]

    recorder.note(failure(delivery(message_id="m-2", redelivered=True)))
    recorder.note(success(delivery(message_id="m-3", attempt=2)))
    assert (len(rows), len(recorder.buffer)) == (1, 2)


def test_without_a_database_what_another_consumer_had_waits_in_the_buffer(
    recorder: Recorder, rows: list[AttemptRow], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_args: object, **_options: object) -> None:
        raise OperationalError("gone")

    with monkeypatch.context() as patch:
        patch.setattr(recorder.buffer, "_write", refuse)
        recorder.note(success(delivery(message_id="m-1", redelivered=True)))
    recorder.buffer.away = True
    recorder.note(success(delivery(message_id="m-2", redelivered=True)))
    assert (rows, len(recorder.buffer)) == ([], 2)

    recorder.buffer.flush()
    assert [row.message_id for row in rows] == ["m-1", "m-2"]


def test_in_a_transaction_that_a_handler_left_open_nothing_is_written(
    recorder: Recorder, rows: list[AttemptRow]
) -> None:
    with transaction.atomic():
        recorder.note(success(delivery(message_id="m-1", redelivered=True)))

    assert (rows, len(recorder.buffer)) == ([], 1)


def test_a_delivery_without_an_attempt_is_not_recorded(recorder: Recorder) -> None:
    unhandled = park(Reason.UNHANDLED, "No handler")
    recorder.note(failure(verdict=unhandled, subscription=None))
    recorder.note(success(delivery(attempt=1)))
    apart = success(delivery(redelivered=True))
    recorder.note(type(apart)(**{**fields(apart), "verdict": retry(0.0, detail="tried alone next", counted=False)}))

    assert len(recorder.buffer) == 0


def fields(attempt: Any) -> dict[str, Any]:
    return {name: getattr(attempt, name) for name in ("delivery", "verdict", "subscription", "seconds", "error")}


def test_a_failing_recorder_loses_no_message(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise SystemExit(2)

    monkeypatch.setattr(recorder.buffer, "add", fail)
    with caplog.at_level(logging.ERROR, "django_rmq_retry"):
        recorder.note(failure())

    assert caplog.messages == ["An attempt could not be recorded"]


def told() -> str:
    return "a1b2c3"


def broken() -> str:
    raise OSError("no git")


@pytest.mark.parametrize(
    ("version", "noted"), [("v7", "v7"), (told, "a1b2c3"), (broken, ""), ("x" * 200, "x" * 97 + "…")]
)
def test_the_version_of_the_project_is_recorded(version: Any, noted: str) -> None:
    with override_settings(RMQ_RETRY={"VERSION": version}):
        assert project_version() == noted


def requeued(**told: Any) -> tuple[ParkedMessage, Any]:
    """A record in a requeue, and the copy that its consumer gets."""
    record = parked(state=State.REQUEUED, cycle=2, group=group(requeued=1), **told)
    return record, delivery(message_id="m-1", headers=ticket_header(record.pk, 2))


@pytest.mark.parametrize(("facts", "doubts"), [({"stale": True}, 0), ({"redelivered": True}, 1)])
def test_a_run_doubts_what_a_consumer_had_before_and_not_what_was_cut_off_after_its_work(
    recorder: Recorder, facts: dict[str, Any], doubts: int
) -> None:
    """Of a copy whose connection was lost after its work the next consumer drops the second delivery: no doubt."""
    record, arrival = requeued()
    run = item(record).run
    if facts.pop("redelivered", False):
        arrival = replace(arrival, redelivered=True)
    recorder.note(replace(success(arrival), **facts))
    run.refresh_from_db()

    assert (run.processed, run.perhaps_twice) == (1, doubts)


def test_only_a_handler_that_did_its_work_again_has_handled_a_message_twice(
    recorder: Recorder, rows: list[AttemptRow]
) -> None:
    record, arrival = requeued()
    run = item(record).run
    superseded = failure(arrival, error=Discard("paid already"), verdict=discard("paid already"))
    seen = []

    for attempt in (success(arrival), finished(DUPLICATE, arrival, handler=CHARGE), superseded, success(arrival)):
        recorder.note(attempt)
        run.refresh_from_db()
        seen.append(run.handled_twice)
    recorder.buffer.flush()

    assert seen == [0, 0, 0, 1]
    assert [row.verdict for row in rows] == ["ack", "duplicate", "discard", "ack"]


def test_a_requeued_attempt_ends_when_its_outcome_is_recorded(recorder: Recorder, rows: list[AttemptRow]) -> None:
    record, arrival = requeued()
    recorder.note(success(arrival))
    recorder.buffer.flush()
    ended = rows[0].started_at + timedelta(seconds=rows[0].seconds)
    noted = ParkedMessage.objects.get(pk=record.pk).succeeded_at

    # Writing the outcome down takes milliseconds, which are no part of the attempt.
    assert noted is not None
    assert abs(ended - noted) < timedelta(microseconds=10)


def test_the_success_of_a_requeued_copy_closes_its_record_at_once(recorder: Recorder, rows: list[AttemptRow]) -> None:
    record, copy = requeued()

    recorder.note(success(copy))

    record.refresh_from_db()
    assert (record.state, len(recorder.buffer)) == (State.PROCESSED, 1)

    recorder.buffer.flush()
    assert [(row.cycle, row.number, row.verdict) for row in rows] == [(2, 1, "ack")]


@pytest.mark.parametrize("other", [{"message_id": "m-2"}, {"message_id": "m-1", "body": b"[]"}, {"queue": "refunds"}])
def test_headers_copied_into_another_message_close_no_record(recorder: Recorder, other: dict[str, Any]) -> None:
    record, copy = requeued()
    another = delivery(**{"message_id": "m-1", **other}, headers=copy.headers)

    recorder.note(success(another))
    recorder.note(failure(another, error=Discard("not needed"), verdict=discard("not needed")))
    recorder.note(failure(another, verdict=discard("One attempt", ErrorNote.of(BankDown("no")))))

    record.refresh_from_db()
    assert record.state == State.REQUEUED


def test_a_requeued_copy_discarded_by_its_handler_is_resolved(recorder: Recorder) -> None:
    record, copy = requeued()

    recorder.note(failure(copy, error=Discard("paid by hand"), verdict=discard("paid by hand")))

    record.refresh_from_db()
    assert record.state == State.PROCESSED


def test_a_requeued_copy_discarded_by_its_policy_is_open_again(recorder: Recorder) -> None:
    record, copy = requeued()
    error = caught(post)

    recorder.note(failure(copy, error=error, verdict=discard("One attempt", ErrorNote.of(error))))

    record.refresh_from_db()
    assert (record.state, record.error) == (State.PARKED, "BankDown")


def test_a_requeued_copy_that_is_retried_or_parked_changes_no_record(recorder: Recorder) -> None:
    record, copy = requeued()

    recorder.note(failure(copy))
    recorder.note(failure(copy, verdict=park(Reason.EXHAUSTED, "Gave up", ErrorNote.of(BankDown("no")))))

    record.refresh_from_db()
    assert (record.state, len(recorder.buffer)) == (State.REQUEUED, 2)


def test_an_outcome_refused_by_the_database_is_retried(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    record, copy = requeued()
    errors = iter([OperationalError("gone"), None])
    tell = outcomes.succeeded

    def flaky(*args: Any, **told: Any) -> None:
        error = next(errors)
        if error:
            raise error
        tell(*args, **told)

    monkeypatch.setattr(outcomes, "succeeded", flaky)
    recorder.note(success(copy))
    record.refresh_from_db()
    assert (record.state, len(recorder.buffer)) == (State.REQUEUED, 2)

    recorder.buffer.flush()
    record.refresh_from_db()
    assert record.state == State.PROCESSED


def test_no_worker_queries_a_database_known_to_be_unavailable(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, copy = requeued()
    asked: list[object] = []
    monkeypatch.setattr(outcomes, "succeeded", lambda *args: asked.append(args))
    recorder.buffer.away = True

    recorder.note(success(copy))

    assert (asked, len(recorder.buffer)) == ([], 2)


def test_an_outcome_is_not_written_into_a_transaction_left_open_by_a_handler(recorder: Recorder) -> None:
    record, copy = requeued()

    with transaction.atomic():
        recorder.note(success(copy))
        transaction.set_rollback(True)
    recorder.buffer.flush()

    record.refresh_from_db()
    assert record.state == State.PROCESSED


@pytest.fixture
def real() -> Recorder:
    """One that writes to the database, in the test's own thread."""
    made = Recorder()
    made.buffer._begin = lambda: None  # type: ignore[method-assign]
    return made


def test_a_record_finds_all_attempts_after_its_requeue(real: Recorder) -> None:
    record, copy = requeued()

    real.note(failure(copy))
    real.note(failure(delivery(message_id="other")))
    real.note(success(copy))
    real.buffer.flush()

    assert Attempt.objects.count() == 3
    assert [(one.cycle, one.verdict) for one in attempts_of(record)] == [(2, "ack"), (2, "retry")]
    assert ErrorGroup.objects.get().processed == 1


@pytest.mark.parametrize("written", [False, True], ids=["not written yet", "written"])
@pytest.mark.parametrize("sent_before", [False, True], ids=["first sent", "requeued"])
def test_an_attempt_whose_message_was_not_parked_says_so(real: Recorder, sent_before: bool, written: bool) -> None:
    copy = requeued()[1] if sent_before else delivery(message_id="m-1")
    # Its next delivery has the same number, and may be attempted by the same thread.
    interrupted, parked_then = (failure(replace(copy), verdict=park(Reason.EXHAUSTED, "Gave up")) for _ in range(2))
    for attempt in (interrupted, parked_then):
        real.note(attempt)
    if written:
        real.buffer.flush()
    real.unparked(interrupted.delivery)
    real.buffer.flush()

    assert list(Attempt.objects.order_by("pk").values_list("number", "interrupted")) == [(1, True), (1, False)]
    assert len(real.buffer) == 0


def test_a_correction_waits_until_the_database_is_back(real: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = failure(verdict=park(Reason.EXHAUSTED, "Gave up"))
    real.note(attempt)
    real.unparked(attempt.delivery)
    with monkeypatch.context() as away:
        away.setattr(insert, "_table", "no_such_table")
        real.buffer._step(0.0)
    before = len(real.buffer)
    real.buffer.flush()

    assert (before, Attempt.objects.get().interrupted) == (2, True)


def test_without_tables_attempts_stay_buffered(
    real: Recorder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as unmigrated, caplog.at_level(logging.WARNING, "django_rmq_retry"):
        unmigrated.setattr(insert, "_table", "no_such_table")
        real.note(failure())
        wait = real.buffer._step(0.0)

    assert (wait, real.buffer.away, len(caplog.messages)) == (1.0, True, 1)
    assert "no_such_table" in caplog.messages[0]

    real.buffer.flush()

    assert Attempt.objects.count() == 1
