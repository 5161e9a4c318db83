"""Inbox entries are deleted after the retention period, but not while an operator may requeue the message."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection
from django.utils import timezone

from django_rmq_retry import Delivery, Queue, handler
from django_rmq_retry.inbox import retention
from django_rmq_retry.inbox.retention import EntryRetention
from django_rmq_retry.models import InboxEntry, State
from django_rmq_retry.models.parked import RESOLVED, UNRESOLVED
from django_rmq_retry.testing import isolated_handlers
from tests.parked.made import group, parked

pytestmark = [pytest.mark.database, pytest.mark.django_db]
DAY = timedelta(days=1)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    with isolated_handlers():
        handling("by id", once=True)
        handling("by function", once=lambda message: message.data["payment"])
        handling("otherwise")
        yield


def handling(name: str, **options: Any) -> None:
    @handler(Queue(f"queue {name}"), name=name, **options)
    def handle(message: Delivery) -> None: ...


def ago(days: float) -> datetime:
    return timezone.now() - days * DAY


def entry(name: str, *, days: float = 121, handler: str = "by id") -> None:
    InboxEntry.objects.create(key=uuid4(), handler=handler, name=name, digest=uuid4(), handled_at=ago(days))


def left() -> list[str]:
    return sorted(InboxEntry.objects.values_list("name", flat=True))


def test_old_entries_are_deleted() -> None:
    entry("old")
    entry("young", days=119)

    assert EntryRetention()() is False
    assert left() == ["young"]


def test_the_settings_define_the_retention(settings: Any) -> None:
    settings.RMQ_RETRY = {**settings.RMQ_RETRY, "INBOX_DAYS": 118}
    entry("young", days=119)
    EntryRetention()()

    assert left() == []


@pytest.mark.parametrize("state", UNRESOLVED)
@pytest.mark.parametrize("by", ["by id", ""])
def test_an_open_parked_message_keeps_its_entry(state: State, by: str) -> None:
    entry("m")
    parked(message_id="m", handler=by, state=state, queue="queue by id")
    EntryRetention()()

    assert left() == ["m"]


@pytest.mark.parametrize("state", RESOLVED)
def test_a_resolved_message_does_not_keep_its_entry(state: State) -> None:
    entry("m")
    parked(message_id="m", handler="by id", state=state)
    EntryRetention()()

    assert left() == []


def test_a_message_of_another_handler_does_not_keep_an_entry() -> None:
    entry("m")
    parked(message_id="m", handler="otherwise")
    EntryRetention()()

    assert left() == []


def test_names_without_a_record_stay_while_an_open_record_may_need_them() -> None:
    entry("payment 7", handler="by function", days=140)
    entry("payment 1", handler="by function", days=160)
    entry("bytes:ab", days=140)
    entry("m", days=140)
    parked(message_id="other", handler="by function", parked_at=ago(30))
    parked(message_id="", handler="by id", parked_at=ago(30))
    EntryRetention()()

    assert left() == ["bytes:ab", "payment 7"]


def test_messages_parked_by_the_broker_keep_their_entries() -> None:
    entry("payment 7", handler="by function", days=140)
    parked(message_id="other", handler="", queue="queue by function", parked_at=ago(30))
    EntryRetention()()

    assert left() == ["payment 7"]


def test_kept_entries_are_skipped_by_later_batches_and_revisited_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retention, "BATCH_ENTRIES", 2)
    monkeypatch.setattr(retention, "TURN_BATCHES", 2)
    one, age = group(), EntryRetention()
    for number in range(5):
        entry(f"kept {number}", days=150 - number)
        parked(message_id=f"kept {number}", handler="by id", group=one)
    for number in range(3):
        entry(f"old {number}", days=130 - number)

    assert (age(), len(left())) == (True, 8)
    assert (age(), left()) == (True, [f"kept {number}" for number in range(5)])
    assert (age(), len(left())) == (False, 5)
    one.messages.update(state=State.DISCARDED)
    assert [age() for _ in range(2)] == [True, False]
    assert left() == []


def test_retention_without_once_handlers_runs_no_query(django_assert_num_queries: Any) -> None:
    with isolated_handlers():
        handling("otherwise")
        with django_assert_num_queries(0):
            assert EntryRetention()() is False


MILLION = """
    INSERT INTO rmq_retry_inboxentry (key, handler, name, digest, handled_at)
    SELECT gen_random_uuid(), 'by id', 'm' || n, gen_random_uuid(), now() - n * interval '15 seconds'
    FROM generate_series(1, 1000000) AS n
"""


@pytest.mark.nightly
@pytest.mark.slow
def test_a_million_entries_are_scanned_by_their_index() -> None:
    if connection.vendor != "postgresql":
        pytest.skip("its planner is asked")
    age = EntryRetention()
    explained: list[str] = []

    def explain(execute: Any, sql: str, params: Any, *rest: Any) -> Any:
        with connection.connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN {sql}", params)
            explained.extend(row[0] for row in cursor.fetchall())
        return execute(sql, params, *rest)

    with connection.cursor() as cursor:
        cursor.execute(MILLION)
        cursor.execute("ANALYZE rmq_retry_inboxentry")
    with connection.execute_wrapper(explain):
        found = age._next("default", ago(120))
        age._reached["default"] = found[-1][:2]
        following = age._next("default", ago(120))

    assert (len(found), len(following), len({*found} & {*following})) == (
        retention.BATCH_ENTRIES,
        retention.BATCH_ENTRIES,
        0,
    )
    assert "rmq_inbox_handled" in "".join(explained)
    assert "Seq Scan" not in "".join(explained)
