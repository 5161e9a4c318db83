"""A record is closed automatically only if another copy of its message was certainly handled."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from django_rmq_retry import Delivery, Queue, handler, publish
from django_rmq_retry.inbox import retention
from django_rmq_retry.inbox.retention import Twins
from django_rmq_retry.models import InboxEntry, ParkedMessage, State
from django_rmq_retry.testing import RmqTest, isolated_handlers
from tests.parked.made import NOON, group, parked

pytestmark = [pytest.mark.database, pytest.mark.django_db]


@pytest.fixture(autouse=True)
def handlers(rmq: RmqTest) -> Iterator[None]:  # noqa: ARG001 - messages travel in it
    with isolated_handlers():
        handling("charge", once=True)
        handling("by function", once=lambda message: message.id)
        handling("otherwise")
        yield


def handling(name: str, **options: Any) -> None:
    @handler(Queue(f"queue {name}"), name=name, **options)
    def handle(message: Delivery) -> None: ...


def handled(rmq: RmqTest, *ids: str, by: str = "charge") -> None:
    for one in ids:
        publish("a", routing_key=f"queue {by}", message_id=one)
    rmq.drain()


def twin(**options: Any) -> ParkedMessage:
    known = {"message_id": "m", "handler": "charge", "queue": "queue charge", "body": b'"a"'}
    return parked(**{**known, **options})


def state(record: ParkedMessage) -> str:
    record.refresh_from_db()
    return record.state


def test_a_record_is_closed_if_another_copy_was_handled(rmq: RmqTest) -> None:
    one = group(parked=1)
    record = twin(group=one, unconfirmed=True)
    assert Twins()() is False
    assert state(record) == State.PARKED

    handled(rmq, "m")
    assert Twins()() is False
    assert state(record) == State.PROCESSED
    assert (record.succeeded_at, record.unconfirmed) == (InboxEntry.objects.get().handled_at, False)
    assert record.resolved_at is not None
    one.refresh_from_db()
    assert (one.parked, one.processed) == (0, 1)


@pytest.mark.parametrize(
    "options",
    [
        {"body": b'"b"'},
        {"message_id": "n"},
        {"message_id": ""},
        {"handler": "otherwise", "queue": "queue otherwise"},
        {"handler": ""},
        {"queue": "elsewhere"},
        {"version": 2},
        {"state": State.ON_HOLD},
        {"state": State.REQUEUED},
        {"state": State.DISCARDED},
    ],
    ids=str,
)
def test_an_uncertain_match_leaves_the_record_unchanged(rmq: RmqTest, options: dict[str, Any]) -> None:
    handled(rmq, "m")
    record = twin(**options)
    before = record.state
    Twins()()

    assert (state(record), record.succeeded_at) == (before, None)


def test_a_name_made_by_a_function_is_not_a_message_id(rmq: RmqTest) -> None:
    handled(rmq, "m", by="by function")
    record = twin(handler="by function", queue="queue by function")
    Twins()()

    assert state(record) == State.PARKED


def test_the_search_resumes_at_its_place_and_restarts_at_the_end(rmq: RmqTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "BATCH_ENTRIES", 2)
    monkeypatch.setattr(retention, "TWINS_TURN_BATCHES", 2)
    one = group()
    records = [twin(message_id=f"m{n}", group=one, parked_at=NOON + timedelta(n // 2)) for n in range(7)]
    handled(rmq, "m0", "m5")
    walk = Twins()

    assert (walk(), [state(record) for record in records].count(State.PROCESSED)) == (True, 1)
    assert (walk(), [state(record) for record in records].count(State.PROCESSED)) == (False, 2)
    handled(rmq, "m1")
    walk()
    assert [state(record) for record in records].count(State.PROCESSED) == 3


def test_the_search_without_once_handlers_runs_no_query(django_assert_num_queries: Any) -> None:
    with isolated_handlers():
        handling("by function", once=lambda message: message.id)
        handling("otherwise")
        with django_assert_num_queries(0):
            assert Twins()() is False
