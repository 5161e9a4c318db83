"""A copy that was handled although its message is parked or discarded: whoever decides, or has decided, is told."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from django_rmq_retry import RetryThenPark
from django_rmq_retry.consumer.recorder import Recorder
from django_rmq_retry.health.facts import HandledAnyway, survey
from django_rmq_retry.health.problems import Limits, in_survey
from django_rmq_retry.health.rules import Code
from django_rmq_retry.messages import Reason
from django_rmq_retry.models import Attempt, ParkedMessage, ParkedOrigin, State
from django_rmq_retry.parked import findings, outcomes
from django_rmq_retry.parked.selection import Selection
from django_rmq_retry.policies import park
from tests.admin.conftest import client_of
from tests.admin.looking import Page
from tests.consumer.attempts import pipeline_of
from tests.handlers.factories import NOW, delivery, subscription
from tests.operators.made import discard_messages
from tests.parked.arrivals import by_us, change, store, the_record

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]

PUBLISHED = NOW // 1000 - 60
"""The time at which the message was published, in seconds of the epoch."""
RETRIED = {"headers": {"rmq-retry-attempts": 2, "rmq-retry-since": NOW}}


@pytest.fixture
def recorder() -> Recorder:
    made = Recorder()
    made.buffer._begin = lambda: None  # type: ignore[method-assign]
    return made


def handles(recorder: Recorder, **told: Any) -> None:
    """Handle a copy of the message m-1, and write what is told of that."""
    attempts(recorder, **told)
    recorder.buffer.flush()


def attempts(recorder: Recorder, **told: Any) -> None:
    arrival = delivery(**{"message_id": "m-1", "timestamp": PUBLISHED, "redelivered": True, **told})
    pipeline_of(subscription(RetryThenPark()), journals=(recorder,)).attempt(arrival)


def parks() -> ParkedMessage:
    store(by_us(timestamp=PUBLISHED))
    return the_record()


@pytest.mark.parametrize("copy", [{}, {"redelivered": False, **RETRIED}], ids=["redelivered", "retry"])
@pytest.mark.parametrize("first", ["parked", "handled"])
def test_a_parked_message_is_left_out_of_a_requeue_whichever_came_first(
    recorder: Recorder, first: str, copy: dict[str, Any]
) -> None:
    """Nothing told of it, and the requeue did it once more."""
    if first == "parked":
        parks()
    handles(recorder, **copy)
    record = the_record() if first == "parked" else parks()

    report = findings.report(Selection.of_ids([record.pk]))
    assert (report.sendable, [one.name for one in report.findings if one.left_out]) == (0, ["succeeded", "unhandled"])
    assert record.state == State.PARKED
    assert list(ParkedOrigin.objects.filter(count__gt=0).values_list("handled", "count")) == [(True, 1)]


@pytest.mark.parametrize("before", ["new", "retries exhausted"])
def test_a_message_whose_handler_succeeded_before_the_consumer_failed_is_left_out(before: str) -> None:
    """It was sent again without a question, and so was its copy: a second payment."""
    if before != "new":
        store(by_us(at=NOW - 1000))
    told = park(Reason.HANDLED, "Its handler succeeded, but the next step failed: ValueError: x", counted=False)
    store(by_us(verdict=told))
    record = the_record()
    report = findings.report(Selection.of_ids([record.pk]))
    included = findings.report(Selection.of_ids([record.pk]), findings.RequeueTerms(include=["succeeded"]))

    assert [(one.sentence, one.left_out) for one in report.findings] == [
        ("1 was handled already: it, or a copy of it, succeeded", True),
        ("1 is in a queue that no handler of this project reads", True),
    ]
    assert included.findings[0].risk == "sending them does it again"
    assert (record.reason, record.succeeded_at) == ("handled", record.parked_at)
    assert list(ParkedOrigin.objects.filter(count__gt=0).values_list("handled", "count")) == [(True, 1)]


def test_a_discarded_message_becomes_a_finding_and_its_page_says_so(
    recorder: Recorder, admin_user: Any, caplog: pytest.LogCaptureFixture
) -> None:
    number = parks().pk
    discard_messages([number], category="handled elsewhere")
    handles(recorder)
    record = the_record()
    known = survey()
    found = [one for one in in_survey(known, Limits()) if one.code is Code.HANDLED_ANYWAY]
    page = Page(client_of(admin_user).get(f"/admin/rmq_retry/parkedmessage/{number}/change/")).text

    assert known.anyway == HandledAnyway(count=1, last=number, at=record.succeeded_at)
    assert [(one.subject, one.count) for one in found] == [(str(number), 1)]
    assert record.state == State.DISCARDED
    assert "A copy of it was handled at" in page
    assert "Handled by its consumer" in page
    assert f"A copy of message #{number} was handled, although the message is discarded." in caplog.text


def test_a_message_that_was_discarded_because_it_was_handled_is_no_finding(recorder: Recorder) -> None:
    number = parks().pk
    handles(recorder)
    discard_messages([number], category="handled elsewhere")

    assert survey().anyway == HandledAnyway()


def test_the_finding_ends_after_a_day(recorder: Recorder) -> None:
    discard_messages([parks().pk])
    handles(recorder)
    days = timedelta(days=2)
    change(the_record(), succeeded_at=timezone.now() - days, resolved_at=timezone.now() - 2 * days)

    assert survey().anyway == HandledAnyway()


@pytest.mark.parametrize(
    "other",
    [{"message_id": "m-2"}, {"body": b'{"another": 1}'}, {"message_id": None}],
    ids=["id", "body", "no id"],
)
def test_another_message_tells_nothing(recorder: Recorder, other: dict[str, Any]) -> None:
    parks()
    handles(recorder, **other)

    assert the_record().succeeded_at is None


def test_an_earlier_message_with_its_id_tells_nothing(recorder: Recorder) -> None:
    """Such as the run of the day before, of a sender that gives all of them one id."""
    handles(recorder, timestamp=PUBLISHED)
    Attempt.objects.update(started_at=datetime.fromtimestamp(PUBLISHED - 3600, tz=UTC))

    assert parks().succeeded_at is None


def test_a_success_that_the_database_does_not_take_at_once_is_noted_later(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError

    parks()
    with monkeypatch.context() as patch:
        patch.setattr(outcomes, "_note_success", fails)
        attempts(recorder)
    before = the_record().succeeded_at
    recorder.buffer.flush()

    assert (before, the_record().succeeded_at is None, Attempt.objects.count()) == (None, False, 1)


def test_a_success_that_can_never_be_noted_costs_no_other(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    store(*(by_us(id=name, timestamp=PUBLISHED) for name in ("m-1", "m-2")))
    first, second = ParkedMessage.objects.order_by("pk")
    note = outcomes._note_success

    def fails(record: ParkedMessage, at: datetime) -> None:
        if record == first:
            raise KeyError
        note(record, at)

    monkeypatch.setattr(outcomes, "_note_success", fails)
    for name in ("m-1", "m-2"):
        attempts(recorder, message_id=name, redelivered=False, headers={"rmq-retry-attempts": 1})
    recorder.buffer.flush()
    with pytest.raises(KeyError):
        recorder.buffer.flush()

    for record in (first, second):
        record.refresh_from_db()
    assert (first.succeeded_at, second.succeeded_at is None) == (None, False)


def test_a_first_success_writes_nothing(recorder: Recorder, django_assert_num_queries: Any) -> None:
    parks()
    with django_assert_num_queries(0):
        handles(recorder, redelivered=False)
