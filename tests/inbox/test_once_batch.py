"""A batch of a handler with ``once``: its effects and the entries of all its messages are one commit."""

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import OperationalError, connection, transaction
from django.test.utils import CaptureQueriesContext

from django_rmq_retry import Batch, BatchFailed, Delivery, Fixed, Handler, RetryThenPark, handler
from django_rmq_retry.handlers import registry
from django_rmq_retry.handlers.call import Unready
from django_rmq_retry.models import InboxEntry
from django_rmq_retry.testing import RmqTest
from tests.inbox.vendors import OWN_END

pytestmark = [
    pytest.mark.database,
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("no_handlers"),
]
POLICY = RetryThenPark(attempts=2, backoff=Fixed(10))


def importing(act: Callable[[Sequence[Delivery]], object] = lambda _: None, **options: Any) -> Handler[None]:
    @handler("ledger.import", policy=POLICY, name="import", batch=Batch(10), **{"once": True, **options})
    def rows(messages: list[Delivery]) -> None:
        Group.objects.bulk_create([Group(name=str(message.data)) for message in messages])
        act(messages)

    return rows


def publish(rows: Handler[None], *names: str) -> None:
    for name in names:
        rows.publish(name, message_id=name)


def done() -> list[str]:
    return sorted(Group.objects.values_list("name", flat=True))


def fails_on(*bad: str) -> Callable[[Sequence[Delivery]], object]:
    def act(messages: Sequence[Delivery]) -> None:
        if any(message.data in bad for message in messages):
            raise ValueError("no account")

    return act


def test_a_batch_and_its_entries_take_one_statement_each(rmq: RmqTest) -> None:
    rows = importing()
    publish(rows, *"abcde")
    with CaptureQueriesContext(connection) as queries:
        rmq.drain()

    inserts = [one["sql"] for one in queries if "INSERT INTO" in one["sql"]]
    assert (done(), InboxEntry.objects.count(), len(inserts)) == ([*"abcde"], 5, 2)


def test_duplicates_are_left_out_of_the_batch(rmq: RmqTest) -> None:
    seen: list[list[str]] = []
    rows = importing(lambda messages: seen.append([message.data for message in messages]))
    publish(rows, "a", "b")
    rmq.drain()
    publish(rows, "c", "b", "c", "d")
    rmq.drain()

    assert seen == [["a", "b"], ["c", "d"]]
    assert (done(), rmq.all_parked(rows), rmq.drain()) == (["a", "b", "c", "d"], [], 0)


def test_a_batch_of_duplicates_runs_nothing(rmq: RmqTest) -> None:
    seen: list[int] = []
    rows = importing(lambda messages: seen.append(len(messages)))
    for _ in range(2):
        publish(rows, "a", "b")
        rmq.drain()

    assert (seen, done(), rmq.all_parked(rows)) == ([2], ["a", "b"], [])


def test_a_failing_message_rolls_back_only_itself(rmq: RmqTest) -> None:
    rows = importing(fails_on("c"))
    publish(rows, *"abce")
    rmq.drain()

    assert (done(), InboxEntry.objects.count()) == ([*"abe"], 3)
    assert [one.data for one in rmq.all_parked(rows)] == ["c"]


def test_named_messages_are_left_out_and_the_others_run_again(rmq: RmqTest) -> None:
    calls: list[list[str]] = []

    def act(messages: Sequence[Delivery]) -> None:
        calls.append([message.data for message in messages])
        if failed := {message: ValueError("no account") for message in messages if message.data == "c"}:
            raise BatchFailed(failed)

    rows = importing(act)
    publish(rows, *"abce")
    rmq.drain()

    assert calls == [[*"abce"], [*"abe"], ["c"]]
    assert (done(), InboxEntry.objects.count()) == ([*"abe"], 3)


def test_what_a_batch_of_its_own_transaction_names_loses_no_other_row(rmq: RmqTest) -> None:
    @handler("ledger.import", policy=POLICY, name="import", batch=Batch(10))
    def rows(messages: list[Delivery]) -> None:
        with transaction.atomic():
            Group.objects.bulk_create([Group(name=str(message.data)) for message in messages])
            if failed := {message: ValueError("no account") for message in messages if message.data == "c"}:
                raise BatchFailed(failed)

    publish(rows, *"abce")
    rmq.drain()

    assert done() == [*"abe"]


def test_another_body_under_a_handled_name_is_parked_alone(rmq: RmqTest) -> None:
    rows = importing()
    publish(rows, "a")
    rmq.drain()
    rows.publish("other", message_id="a")
    publish(rows, "b")
    rmq.drain()

    assert done() == ["a", "b"]
    assert [(one.data, "with another body" in one.reason) for one in rmq.all_parked(rows)] == [("other", True)]


def test_a_message_without_a_name_is_parked_alone(rmq: RmqTest) -> None:
    rows = importing(once=lambda message: "" if message.data == "b" else message.data)
    publish(rows, "a", "b", "c")
    rmq.drain()

    assert done() == ["a", "c"]
    assert [(one.data, "must return a text" in one.reason) for one in rmq.all_parked(rows)] == [("b", True)]


def test_a_renamed_handler_leaves_out_what_it_handled_under_its_other_names(rmq: RmqTest) -> None:
    publish(importing(), "a")
    rmq.drain()
    registry.unregister(["import"])
    publish(importing(formerly="oldest"), "a", "b")
    rmq.drain()

    assert (done(), InboxEntry.objects.count()) == (["a", "b"], 2)


def test_a_transaction_left_open_by_a_batch_commits_nothing(rmq: RmqTest) -> None:
    def act(messages: Sequence[Delivery]) -> None:
        if len(messages) > 1:
            transaction.set_rollback(True)

    rows = importing(act)
    publish(rows, "a", "b")
    rmq.drain()

    assert (done(), InboxEntry.objects.count()) == (["a", "b"], 2)


def test_a_message_that_loses_the_connection_fails_alone(rmq: RmqTest) -> None:
    if connection.vendor not in OWN_END:
        pytest.skip("SQLite has no connection to lose")

    def act(messages: Sequence[Delivery]) -> None:
        if any(message.data == "c" for message in messages):
            with connection.cursor() as cursor:
                cursor.execute(OWN_END[connection.vendor])

    rows = importing(act)
    publish(rows, *"abce")
    with suppress(Unready):
        # The kit passes on that the database was lost.
        rmq.drain()

    assert [name for name in done() if name == "c"] == []
    assert set(done()) >= {"a", "b"}


def test_a_batch_that_clashed_is_run_again_with_fresh_data(rmq: RmqTest) -> None:
    tries: list[list[str]] = []

    def act(messages: Sequence[Delivery]) -> None:
        tries.append([message.data["name"] for message in messages])
        for message in messages:
            message.data["name"] = "changed"
        if len(tries) == 1:
            clash = OperationalError("deadlock")
            clash.__cause__ = sqlite3.OperationalError("locked")
            clash.__cause__.sqlite_errorcode = sqlite3.SQLITE_BUSY
            raise clash

    @handler("ledger.import", policy=POLICY, name="import", batch=Batch(10), once=True)
    def rows(messages: list[Delivery]) -> None:
        act(messages)

    for name in ("a", "b"):
        rows.publish({"name": name}, message_id=name)
    rmq.drain()

    assert (tries, InboxEntry.objects.count()) == ([["a", "b"], ["a", "b"]], 2)
