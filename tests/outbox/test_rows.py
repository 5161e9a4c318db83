"""Inside a transaction a message is a row; after the commit it is sent, and the row is deleted."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_rmq_retry import Message, Raw, publish, publish_many
from django_rmq_retry.errors import ConfigurationError, MessageUnsent
from django_rmq_retry.messages import Properties
from django_rmq_retry.models import OutboxMessage
from django_rmq_retry.publishing import outbox, outbox_rows
from django_rmq_retry.publishing.options import PublishOptions
from django_rmq_retry.publishing.publish import message_of
from tests.outbox.made import Post, kept

pytestmark = [pytest.mark.database, pytest.mark.django_db(transaction=True)]


@contextmanager
def begun() -> Iterator[None]:
    """A transaction with a first statement, which is the one that begins it in the database."""
    with transaction.atomic():
        OutboxMessage.objects.exists()
        yield


def test_a_publish_in_a_transaction_is_a_row_until_the_commit_sends_it(post: Post) -> None:
    with transaction.atomic():
        name = publish(1, routing_key="q")
        row = OutboxMessage.objects.get()
        assert (row.message_id, row.routing_key, post.sent) == (name, "q", [])

    assert [message.properties.message_id for message in post.sent] == [name]
    assert kept() == []


def test_a_rollback_deletes_the_row(post: Post) -> None:
    with transaction.atomic():
        publish(1, routing_key="q")
        transaction.set_rollback(True)

    assert (post.sent, kept()) == ([], [])


def test_a_rolled_back_savepoint_deletes_only_its_own_rows(post: Post) -> None:
    with transaction.atomic():
        publish(1, routing_key="outer")
        with transaction.atomic():
            publish(1, routing_key="inner")
            transaction.set_rollback(True)
        with transaction.atomic():
            publish(1, routing_key="other")
        publish(1, routing_key="last")

    assert (post.keys, kept()) == (["outer", "other", "last"], [])


def test_a_row_is_sent_byte_for_byte_as_published(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox.AfterCommit, "__call__", lambda _self: None)
    headers = {"text": "é\0", "whole": 2**40, "list": [1, {"a": b"\xff"}], "nothing": None}
    message = message_of(
        bytes(range(256)),
        exchange="an exchange",
        routing_key="a.key",
        codec=Raw(),
        options=PublishOptions(headers=headers, priority=7, type="t", correlation_id="c", expiration=60.0),
    )
    with transaction.atomic():
        publish_many([message, Message(body=b"", properties=Properties(), routing_key="q", mandatory=False)])

    rows = OutboxMessage.objects.order_by("pk").values_list(*outbox_rows.READ)
    found = [outbox_rows.row_from_table(row).message for row in rows]
    assert found[0] == message
    assert found[0].properties.headers.raw == message.properties.headers.raw
    assert (found[1].body, found[1].properties, found[1].mandatory) == (b"", Properties(), False)


@pytest.mark.parametrize("watched", [False, True])
def test_a_message_published_alone_is_kept_byte_for_byte(monkeypatch: pytest.MonkeyPatch, *, watched: bool) -> None:
    """The driver quotes its values only if somebody watches the statements."""
    monkeypatch.setattr(outbox.AfterCommit, "__call__", lambda _self: None)
    key = "'é' \"\\\" %s $1"
    message = message_of(bytes(range(256)), exchange=key, routing_key=key, codec=Raw())
    before = timezone.now()
    with CaptureQueriesContext(connection) if watched else nullcontext(), begun():
        outbox.writer.keep([replace(message, mandatory=False, order_key=key)], using="default")

    row = OutboxMessage.objects.get()
    found = outbox_rows.row_from_table([getattr(row, name) for name in outbox_rows.READ]).message
    assert found == replace(message, mandatory=False, order_key=key)
    assert (row.size, row.attempts, row.alone, row.error, row.failed_at) == (256, 0, False, "", None)
    assert abs(row.created_at - before) < timedelta(seconds=60)
    assert row.due_at - row.created_at == timedelta(seconds=outbox_rows.lease())


def test_whoever_watches_the_statements_of_a_transaction_sees_the_insert(post: Post) -> None:
    seen: list[str] = []

    def watch(execute: Any, sql: str, *others: Any) -> Any:
        seen.append(sql)
        return execute(sql, *others)

    with transaction.atomic():
        publish(1, routing_key="before")
        with CaptureQueriesContext(connection) as queries:
            publish(1, routing_key="counted")
        with connection.execute_wrapper(watch):
            publish(1, routing_key="wrapped")

    into = f"INSERT INTO {connection.ops.quote_name(outbox_rows.TABLE)} "
    assert [sql[: len(into)] for sql in (queries[0]["sql"], *seen)] == [into, into]
    assert post.keys == ["before", "counted", "wrapped"]


def test_an_insert_that_fails_raises_in_the_publish(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    with transaction.atomic():
        publish(1, routing_key="so that the table is known")
    with monkeypatch.context() as patched:
        patched.setattr(outbox_rows, "TABLE", "no_such_table")
        with pytest.raises(DatabaseError, match="no_such_table"), begun():
            publish(1, routing_key="q")
    with transaction.atomic():
        publish(1, routing_key="next")

    assert (post.keys[1:], kept()) == (["next"], [])


def test_a_name_that_the_database_cannot_keep_is_not_cut(post: Post) -> None:
    if connection.vendor != "postgresql":
        pytest.skip("only PostgreSQL has no NUL in its texts")
    with pytest.raises(DatabaseError, match=r"NUL|0x00"), begun():
        publish(1, routing_key="q\0.of another")

    assert (post.keys, kept()) == ([], [])


def test_rows_of_one_transaction_are_sent_together_and_deleted_by_one_query(post: Post) -> None:
    with transaction.atomic():
        publish(1, routing_key="so that the table is known")
    with CaptureQueriesContext(connection) as queries, transaction.atomic():
        for number in range(5):
            publish(number, routing_key=f"q{number}")
        assert len(connection.run_on_commit) == 1

    assert (post.keys[1:], kept()) == (["q0", "q1", "q2", "q3", "q4"], [])
    assert len([query for query in queries if "DELETE" in query["sql"]]) == 1


@pytest.mark.parametrize("reserved", [outbox_rows.RESERVED_IDS, outbox_rows.RESERVED_IDS + " AND false"])
def test_many_messages_of_a_transaction_keep_their_order_and_bytes(
    post: Post, monkeypatch: pytest.MonkeyPatch, reserved: str
) -> None:
    """The second case is that of a PostgreSQL user who may not use the sequence."""
    monkeypatch.setattr(outbox_rows, "RESERVED_IDS", reserved)
    body, keys = b"\\x\t\n\0\xff", [f"q{number}" for number in range(200)]
    with transaction.atomic():
        publish_many([message_of(body, routing_key=key, codec=Raw()) for key in keys])
        rows = OutboxMessage.objects.order_by("pk").values_list(*outbox_rows.READ)
        found = [outbox_rows.row_from_table(row).message for row in rows]
        assert [(one.routing_key, one.body) for one in found] == [(key, body) for key in keys]

    assert (post.keys, kept()) == (keys, [])


def test_without_the_outbox_a_message_is_sent_on_commit(post: Post) -> None:
    with transaction.atomic():
        publish(1, routing_key="q", outbox=False)
        publish_many([message_of(1, routing_key="many")], outbox=False)
        assert kept() == []

    assert post.keys == ["q", "many"]


@pytest.mark.parametrize("databases", [False, ["own"]])
def test_a_database_excluded_by_the_setting_has_no_outbox(post: Post, settings: Any, databases: Any) -> None:
    settings.RMQ_RETRY = {**settings.RMQ_RETRY, "OUTBOX": databases}
    with transaction.atomic():
        publish(1, routing_key="q")
        assert kept() == []

    assert post.keys == ["q"]


def test_a_database_excluded_by_the_routers_has_no_outbox(post: Post, settings: Any) -> None:
    settings.DATABASE_ROUTERS = ["tests.outbox.routers.Refuse"]
    with transaction.atomic():
        publish(1, routing_key="q")
        assert kept() == []

    assert post.keys == ["q"]


def test_keep_writes_a_row_in_the_open_transaction(post: Post) -> None:
    with transaction.atomic():
        outbox.writer.keep([replace(message_of(1, routing_key="q"), order_key="account:7")], using="default")
        row = OutboxMessage.objects.get()
        assert (row.order_key, row.size, post.sent) == ("account:7", 1, [])

    assert (post.keys, kept()) == (["q"], [])


def test_a_row_that_cannot_be_written_fails_in_the_transaction(post: Post) -> None:
    with transaction.atomic():
        with pytest.raises(MessageUnsent, match="takes 300 bytes"):
            publish_many([message_of(1, routing_key="q"), message_of(1, routing_key="k" * 300)])
        publish(1, routing_key="good")

    assert post.keys == ["good"]


def test_a_transaction_marked_for_rollback_writes_no_row(post: Post) -> None:
    with transaction.atomic():
        transaction.set_rollback(True)
        publish(1, routing_key="q")

    assert (post.keys, kept()) == ([], [])


def test_order_by_needs_an_outbox(post: Post) -> None:
    message = message_of(1, routing_key="q", options=PublishOptions(order_key="k"))
    with pytest.raises(ConfigurationError, match="takes effect in an outbox only"):
        publish_many([message])
    with pytest.raises(ConfigurationError, match="takes effect in an outbox only"), transaction.atomic():
        publish(1, routing_key="q", order_key="k", immediate=True)
    with pytest.raises(ConfigurationError, match="takes effect in an outbox only"), transaction.atomic():
        publish(1, routing_key="q", order_key="k", outbox=False)

    assert post.sent == []


@pytest.mark.parametrize("nested", [False, True])
def test_a_manual_savepoint_also_deletes_its_rows(post: Post, *, nested: bool) -> None:
    with transaction.atomic():
        publish(1, routing_key="before")
        made = connection.savepoint()
        publish(1, routing_key="taken back")
        connection.savepoint_rollback(str(made))
        with transaction.atomic() if nested else nullcontext():
            publish(1, routing_key="after")

    assert (post.keys, kept()) == (["before", "after"], [])


def test_a_row_claimed_by_a_relay_is_not_sent_by_its_writer(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    """Like on a database without row locks: a slow callback has used up the lease, and a relay has its own."""
    monkeypatch.setattr(outbox_rows, "SPARE_SECONDS", 0.0)
    theirs = timezone.now() + timedelta(seconds=60)
    with transaction.atomic():
        transaction.on_commit(lambda: OutboxMessage.objects.update(due_at=theirs) and None)
        publish(1, routing_key="q")

    assert (post.keys, OutboxMessage.objects.get().due_at) == ([], theirs)


def test_a_partly_renewed_lease_leaves_all_rows_to_the_relays(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease of the first row ended during a long transaction; the second row was written just before the commit."""
    monkeypatch.setattr(outbox_rows, "SPARE_SECONDS", 0.0)
    leases = iter([0.0, 60.0, 60.0])
    monkeypatch.setattr(outbox, "lease", lambda: next(leases))
    with transaction.atomic():
        publish(1, routing_key="first")
        publish(1, routing_key="second")

    assert (post.keys, kept()) == ([], ["first", "second"])
    assert not OutboxMessage.objects.filter(due_at__gt=timezone.now() + timedelta(seconds=5)).exists()


def test_the_lease_of_a_row_begins_before_a_slow_write(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[float] = []

    def slow(*arguments: Any) -> list[int]:
        written.append(time.monotonic())
        return inserted(*arguments)

    inserted = outbox_rows._insert_values
    monkeypatch.setattr(outbox_rows, "_insert_values", slow)
    with transaction.atomic():
        rows = outbox_rows.insert([message_of(1, routing_key="q")], using="default", lease=60.0)
        transaction.set_rollback(True)

    assert rows[0].until <= written[0] + outbox_rows.SPARE_SECONDS
    assert post.sent == []


def test_rows_written_without_the_model_equal_rows_of_the_model() -> None:
    fields = {field.column: field for field in OutboxMessage._meta.fields}
    others = [fields[name] for name in fields.keys() - outbox_rows.COLUMNS - {"id", "failed_at"}]

    assert OutboxMessage._meta.db_table == outbox_rows.TABLE
    assert fields.keys() >= set(outbox_rows.COLUMNS)
    assert all(field.has_default() and field.db_default == field.default for field in others)
