"""No message is acked if its effects were silently rolled back: each case is detected before the commit."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import DatabaseError, OperationalError, connection, connections, transaction

from django_rmq_retry import Delivery, Queue, RetryThenPark
from django_rmq_retry.errors import EffectsLost
from django_rmq_retry.handlers import Subscription
from django_rmq_retry.handlers.call import OnceState
from django_rmq_retry.inbox.once import once
from django_rmq_retry.models import InboxEntry
from django_rmq_retry.testing import isolated_handlers
from tests.handlers.factories import delivery

pytestmark = [pytest.mark.database, pytest.mark.django_db(transaction=True)]
MARIADB, POSTGRESQL, SQLITE = "mysql", "postgresql", "sqlite"


def run(does: Callable[[Delivery], object]) -> object:
    policy = RetryThenPark(attempts=1)
    subscription = Subscription(name="h", run=does, queue=Queue("q"), policy=policy, park="q.parked", once=True)
    return once(subscription, delivery(message_id="m"), OnceState())


def only_on(vendor: str) -> None:
    if connection.vendor != vendor:
        pytest.skip(f"only {vendor} does this")


def not_in_memory() -> None:
    if connection.vendor == SQLITE:
        pytest.skip("Django never closes a database in memory")


def lost(does: Callable[[Delivery], object]) -> str:
    """Return the error of a handler that ends without one; none of its effects may remain."""
    with pytest.raises(EffectsLost) as found:
        run(does)

    assert (Group.objects.count(), InboxEntry.objects.count()) == (0, 0)
    return found.value.what


def test_a_transaction_marked_for_rollback_is_not_a_success() -> None:
    def marks(_message: Delivery) -> None:
        Group.objects.create(name="a")
        transaction.set_rollback(True)

    assert "marked for rollback" in lost(marks)


def test_an_error_caught_in_an_atomic_block_without_savepoint_is_not_a_success() -> None:
    def swallows(_message: Delivery) -> None:
        Group.objects.create(name="a")
        with suppress(ValueError), transaction.atomic(savepoint=False):
            raise ValueError

    assert "marked for rollback" in lost(swallows)


def test_a_connection_closed_by_the_handler_is_not_a_success() -> None:
    not_in_memory()

    def closes(_message: Delivery) -> None:
        Group.objects.create(name="a")
        connection.close()

    assert "the connection was closed" in lost(closes)


def test_a_database_error_swallowed_on_a_raw_cursor_is_not_a_success() -> None:
    only_on(POSTGRESQL)

    def swallows(_message: Delivery) -> None:
        Group.objects.create(name="a")
        with suppress(DatabaseError), connection.cursor() as cursor:
            cursor.execute("SELECT * FROM there_is_no_such_table")

    assert "PostgreSQL turns this COMMIT into a ROLLBACK" in lost(swallows)


def test_a_manual_rollback_is_not_a_success() -> None:
    def ends(_message: Delivery) -> None:
        Group.objects.create(name="a")
        with connection.cursor() as cursor:
            cursor.execute("ROLLBACK")

    said = lost(ends)

    assert "ended" in said or "rolled back in the handler" in said


def test_a_deadlock_swallowed_on_mariadb_is_not_a_success(django_db_blocker: Any) -> None:
    only_on(MARIADB)
    Group.objects.create(name="one")
    Group.objects.create(name="two")
    locked, go_on = threading.Event(), threading.Event()

    def other() -> None:
        with django_db_blocker.unblock(), closing(connections["default"]), transaction.atomic():
            # It has changed more rows, so MariaDB rolls back the transaction of the handler.
            Group.objects.bulk_create([Group(name=f"more {number}") for number in range(200)])
            Group.objects.filter(name="two").update(name="two b")
            locked.set()
            go_on.wait(20)
            Group.objects.filter(name="one").update(name="one b")

    def swallows(_message: Delivery) -> None:
        Group.objects.filter(name="one").update(name="one a")
        locked.wait(20)
        go_on.set()
        with suppress(OperationalError), connection.cursor() as cursor:
            cursor.execute("UPDATE auth_group SET name = 'two a' WHERE name = 'two'")
        Group.objects.create(name="after the deadlock")

    thread = threading.Thread(target=other)
    thread.start()
    with pytest.raises(EffectsLost, match="rolled back in the handler, such as by a deadlock"):
        run(swallows)
    thread.join(20)

    assert not Group.objects.filter(name__in=("one a", "after the deadlock")).exists()
    assert InboxEntry.objects.count() == 0


def test_a_block_that_is_never_left_is_not_a_success() -> None:
    block = transaction.atomic()

    def enters(_message: Delivery) -> None:
        block.__enter__()
        Group.objects.create(name="a")

    with pytest.raises(EffectsLost, match=r"it left an atomic\(\) block that was entered and never left"):
        run(enters)
    block.__exit__(EffectsLost, None, None)

    assert (Group.objects.count(), InboxEntry.objects.count()) == (0, 0)


def test_an_error_caught_outside_its_own_savepoint_is_a_success() -> None:
    def catches(_message: Delivery) -> None:
        Group.objects.create(name="a")
        with suppress(DatabaseError), transaction.atomic():
            Group.objects.create(name="a")

    run(catches)

    assert (Group.objects.count(), InboxEntry.objects.count()) == (1, 1)


def test_a_connection_without_autocommit_is_reopened(caplog: pytest.LogCaptureFixture) -> None:
    not_in_memory()
    connection.set_autocommit(False)
    run(lambda _message: Group.objects.create(name="a"))
    other = connections.create_connection("default")
    with closing(other), other.cursor() as cursor:
        cursor.execute("SELECT name FROM auth_group")
        committed = cursor.fetchall()

    assert [name for (name,) in committed] == ["a"]
    assert "autocommit" in caplog.text


def test_the_error_states_the_cause_and_the_fix() -> None:
    with pytest.raises(EffectsLost) as found:
        run(lambda _message: transaction.set_rollback(True))

    assert str(found.value) == (
        "Handler h ended without an error, but its changes cannot be committed in 'default': the transaction is marked "
        "for rollback, by set_rollback() or by an error that was caught. Let the error leave the handler, or catch it "
        "outside an atomic() block around the statement that failed."
    )
    assert (found.value.handler, found.value.database) == ("h", "default")


@pytest.fixture(autouse=True)
def no_handlers() -> Iterator[None]:
    with isolated_handlers():
        yield
