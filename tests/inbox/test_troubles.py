"""Database errors count no attempt: the handler is run again at once, or the message stays unacked."""

import threading
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
from django.contrib.auth.models import Group
from django.db import DatabaseError, DataError, OperationalError, connection, connections, transaction

from django_rmq_retry import Delivery, Park, Queue, RetryThenPark
from django_rmq_retry.database_errors import too_large
from django_rmq_retry.handlers import Subscription
from django_rmq_retry.handlers.call import HandlerSkipped, OnceState, Unready
from django_rmq_retry.inbox import once as running
from django_rmq_retry.inbox.once import once
from django_rmq_retry.models import InboxEntry
from django_rmq_retry.policies import DUPLICATE
from tests.handlers.factories import delivery
from tests.inbox.vendors import MARIADB, POSTGRESQL, SQLITE, end_own, not_on
from tests.tooling.waiting import wait_until

pytestmark = [pytest.mark.database, pytest.mark.django_db(transaction=True)]
Keep = Callable[[bool], None]
KILLS = {
    POSTGRESQL: ("SELECT pg_backend_pid()", "SELECT pg_terminate_backend({})"),
    MARIADB: ("SELECT connection_id()", "KILL {}"),
}


STATES: defaultdict[Hashable, OnceState] = defaultdict(OnceState)
"""The state of each message that an attempt keeps."""


def run(
    does: Callable[[Delivery], object], *, using: str = "", name: str = "m", message: Delivery | None = None
) -> object:
    policy = RetryThenPark(attempts=1)
    options: dict[str, Any] = {"queue": Queue("q"), "policy": policy, "park": "q.parked", "once": True, "using": using}
    found = message or delivery(message_id=name)
    return once(Subscription(name="h", run=does, **options), found, STATES[found.token])


def committed() -> list[str]:
    return sorted(Group.objects.values_list("name", flat=True))


@contextmanager
def other() -> Iterator[Any]:
    """Another connection to the same database."""
    made = connections.create_connection("default")
    try:
        yield made
    finally:
        made.close()


def kill_own() -> None:
    """Terminate the connection, like an operator or a fail-over."""
    ask, kill = KILLS[connection.vendor]
    with connection.cursor() as cursor:
        cursor.execute(ask)
        number = cursor.fetchone()[0]
    with other() as another, another.cursor() as cursor:
        cursor.execute(kill.format(number))


def test_a_deadlock_reruns_the_handler_at_once(django_db_blocker: Any) -> None:
    not_on(SQLITE)
    # By primary key: by name each would lock the index and then the row, and could deadlock between the two.
    one, two = Group.objects.create(name="one").pk, Group.objects.create(name="two").pk
    locked, waits, runs = threading.Event(), threading.Event(), []

    def opponent() -> None:
        with django_db_blocker.unblock():
            with transaction.atomic():
                Group.objects.bulk_create([Group(name=f"more {number}") for number in range(200)])
                list(Group.objects.select_for_update().filter(pk=two))
                locked.set()
                waits.wait(20)
                list(Group.objects.select_for_update().filter(pk=one))
            connection.close()

    def transfers(_message: Delivery) -> None:
        runs.append(1)
        Group.objects.filter(pk=one).update(name="one")
        locked.wait(20)
        waits.set()
        Group.objects.filter(pk=two).update(name="two")
        Group.objects.create(name="done")

    if connection.vendor == POSTGRESQL:
        # The transaction that detects the deadlock first is rolled back.
        with connection.cursor() as cursor:
            cursor.execute("SET deadlock_timeout = '50ms'")
    thread = threading.Thread(target=opponent)
    thread.start()
    run(transfers)
    thread.join(20)
    connection.close()

    # A busy server may wake the other transaction too late; then the second run conflicts with it again.
    assert 2 <= len(runs) <= 1 + running.MOST_REPEATS
    assert (Group.objects.filter(name="done").count(), InboxEntry.objects.count()) == (1, 1)


def test_a_serialization_failure_reruns_the_handler_at_once() -> None:
    not_on(SQLITE)
    not_on(MARIADB)
    Group.objects.create(name="balance")
    runs: list[int] = []

    def reads_and_writes(_message: Delivery) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT name FROM auth_group")
        runs.append(1)
        if len(runs) == 1:
            with other() as another, another.cursor() as cursor:
                cursor.execute("UPDATE auth_group SET name = 'changed'")
        Group.objects.update(name="mine")

    with connection.cursor() as cursor:
        cursor.execute("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    run(reads_and_writes)
    connection.close()

    assert (len(runs), committed()) == (2, ["mine"])


def test_a_rolled_back_attempt_restores_the_message_data() -> None:
    seen: list[object] = []

    def changes(message: Delivery) -> None:
        message.data["amount"] *= 100
        seen.append(message.data["amount"])
        if len(seen) < 3:
            raise clash()

    policy = RetryThenPark(attempts=1)
    subscription = Subscription(name="h", run=changes, queue=Queue("q"), policy=policy, park="q.parked", once=True)
    message = replace(delivery(message_id="m", body=b'{"amount": 5}'), data={"amount": 5})
    once(subscription, message, OnceState())

    assert seen == [500, 500, 500]


def test_after_four_failed_reruns_the_policy_decides() -> None:
    runs: list[int] = []

    def clashes(_message: Delivery) -> None:
        runs.append(1)
        raise clash()

    with pytest.raises(OperationalError):
        run(clashes)

    assert (len(runs), InboxEntry.objects.count()) == (1 + running.MOST_REPEATS, 0)


def clash() -> OperationalError:
    """Return the error as each database reports it."""
    causes: dict[str, Exception] = {MARIADB: Exception(1213, "Deadlock found"), SQLITE: Exception("database is locked")}
    cause = causes.get(connection.vendor, Exception("deadlock detected"))
    cause.sqlstate, cause.sqlite_errorcode = (  # type: ignore[attr-defined]  # as drivers add them
        "40P01" if connection.vendor == POSTGRESQL else None,
        5 if connection.vendor == SQLITE else None,
    )
    error = OperationalError("made up")
    error.__cause__ = cause
    return error


@pytest.fixture
def keeping(monkeypatch: pytest.MonkeyPatch) -> Iterator[Keep]:
    """A connection kept between messages, with or without health checks."""

    def keep(checks: bool) -> None:
        connection.close()
        for key, value in {"CONN_MAX_AGE": None, "CONN_HEALTH_CHECKS": checks}.items():
            monkeypatch.setitem(connection.settings_dict, key, value)
        connection.ensure_connection()

    yield keep
    monkeypatch.undo()
    connection.close()


@pytest.mark.parametrize("checks", [True, False], ids=["with health checks", "without"])
def test_a_connection_lost_between_two_messages_is_replaced_at_once(checks: bool, keeping: Keep) -> None:
    not_on(SQLITE)
    keeping(checks)
    run(lambda _: Group.objects.create(name="one"), name="m1")
    kill_own()
    connection.close_if_unusable_or_obsolete()

    run(lambda _: Group.objects.create(name="two"), name="m2")

    assert committed() == ["one", "two"]


def test_the_first_query_of_an_attempt_detects_a_lost_connection(
    keeping: Keep, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeping(True)
    run(lambda _: None, name="m1")
    monkeypatch.setattr(connections["default"], "is_usable", lambda: pytest.fail("asked before each message"))
    connection.close_if_unusable_or_obsolete()

    run(lambda _: Group.objects.create(name="two"), name="m2")

    assert committed() == ["two"]


def test_a_database_lost_between_two_messages_keeps_the_message_unacked(
    keeping: Keep, monkeypatch: pytest.MonkeyPatch
) -> None:
    not_on(SQLITE)
    keeping(True)
    run(lambda _: None, name="m1")
    kill_own()
    away = Mock(side_effect=OperationalError("the database does not answer"))
    monkeypatch.setattr(connections["default"], "get_new_connection", away)

    with pytest.raises(Unready, match="cannot be used: OperationalError: the database does not answer"):
        run(lambda _: pytest.fail("ran"), name="m2")


def test_a_connection_killed_in_the_handler_keeps_the_message_unacked() -> None:
    not_on(SQLITE)

    def is_cut_off(_message: Delivery) -> None:
        Group.objects.create(name="a")
        kill_own()
        Group.objects.create(name="b")

    with pytest.raises(Unready, match="Database 'default' was lost while handler h ran"):
        run(is_cut_off)
    run(lambda _: Group.objects.create(name="c"))

    assert (committed(), InboxEntry.objects.count()) == (["c"], 1)


def test_a_lost_connection_hidden_by_a_handler_error_keeps_the_message_unacked() -> None:
    not_on(SQLITE)

    def translates(_message: Delivery) -> None:
        kill_own()
        try:
            Group.objects.create(name="b")
        except Exception as error:
            raise ValueError("the books are closed") from error

    with pytest.raises(Unready):
        run(translates)
    connection.close()


def test_a_verdict_raised_by_the_handler_after_a_lost_connection_counts() -> None:
    not_on(SQLITE)

    def parks(_message: Delivery) -> None:
        kill_own()
        try:
            Group.objects.create(name="b")
        except OperationalError as error:
            raise Park("no more of this") from error

    with pytest.raises(Park):
        run(parks)
    connection.close()


def sit_idle_and_write(_message: Delivery) -> None:
    """Let PostgreSQL close the connection of an idle transaction."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        number = cursor.fetchone()[0]
        cursor.execute("SET idle_in_transaction_session_timeout = '20ms'")

    def ended() -> bool:
        with other() as another, another.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", [number])
            return not cursor.fetchone()[0]

    wait_until(ended, what="the connection is ended")
    Group.objects.create(name="too late")


def write_and_lose_it(_message: Delivery) -> None:
    """Lose the connection after the last statement, so that the commit detects it."""
    Group.objects.create(name="a")
    kill_own()


@pytest.mark.parametrize("loses", [end_own, sit_idle_and_write, write_and_lose_it], ids=lambda one: one.__name__)
def test_a_message_that_keeps_losing_its_connection_is_a_failed_attempt(
    loses: Callable[[Delivery], None], caplog: pytest.LogCaptureFixture
) -> None:
    not_on(SQLITE)
    if loses is sit_idle_and_write:
        not_on(MARIADB)
    message = delivery(message_id="m")

    for _time in range(2):
        with pytest.raises(Unready):
            run(loses, message=message)
    with pytest.raises(DatabaseError):
        run(loses, message=message)
    connection.close()

    assert (committed(), InboxEntry.objects.count()) == ([], 0)
    said = "Handler h has lost its connection to database 'default' 3 times with the same message"
    assert [one.getMessage().startswith(said) for one in caplog.records if one.levelname == "WARNING"] == [True]


def test_each_attempt_tolerates_two_lost_connections() -> None:
    not_on(SQLITE)
    message, runs = delivery(message_id="m"), []

    def counts_and_ends(one: Delivery) -> None:
        runs.append(1)
        end_own(one)

    def attempt() -> None:
        try:
            run(counts_and_ends, message=message)
        except Unready:
            runs.append(0)

    for _counted in range(2):
        attempt()
        attempt()
        with pytest.raises(OperationalError):
            attempt()
    connection.close()

    assert runs == [1, 0, 1, 0, 1, 1, 0, 1, 0, 1]


def test_a_database_unavailable_after_each_loss_costs_no_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    not_on(SQLITE)
    message, away = delivery(message_id="m"), Mock(side_effect=OperationalError("the database does not answer"))

    for _time in range(6):
        with monkeypatch.context() as patched:

            def loses(one: Delivery, patched: pytest.MonkeyPatch = patched) -> None:
                patched.setattr(connections["default"], "get_new_connection", away)
                end_own(one)

            with pytest.raises(Unready, match="was lost while handler h ran"):
                run(loses, message=message)
    run(lambda _: Group.objects.create(name="done"), message=message)

    assert (committed(), InboxEntry.objects.count()) == (["done"], 1)


def test_a_lost_commit_answer_costs_no_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    not_on(SQLITE)
    message = delivery(message_id="m")
    for _time in range(2):
        with pytest.raises(Unready):
            run(end_own, message=message)
    commit = connections["default"].commit

    def commits_unheard() -> None:
        commit()
        kill_own()
        raise OperationalError("the answer never came")

    monkeypatch.setattr(connections["default"], "commit", commits_unheard)
    with pytest.raises(Unready, match="may have committed"):
        run(lambda _: Group.objects.create(name="done"), message=message)
    monkeypatch.undo()
    with pytest.raises(HandlerSkipped) as found:
        run(lambda _: pytest.fail("it must not run"), message=message)

    assert (found.value.verdict, committed()) == (DUPLICATE, ["done"])


@pytest.mark.parametrize(("code", "outcome"), [(1153, True), (2006, False)], ids=["it says so", "it only hangs up"])
def test_mariadb_packet_limits_are_recognized(code: int, outcome: bool) -> None:
    error = OperationalError(code, "Got a packet bigger than 'max_allowed_packet' bytes")
    error.__cause__ = Exception(*error.args)

    assert too_large(error) is outcome
    assert not too_large(OperationalError("without a cause"))


def test_an_error_of_another_database_is_a_handler_failure() -> None:
    def fails(_message: Delivery) -> None:
        raise OperationalError("the rates database is down")

    with pytest.raises(OperationalError, match="rates"):
        run(fails)


def test_a_missing_table_costs_no_attempt() -> None:
    with connection.schema_editor() as editor:
        editor.delete_model(InboxEntry)
    try:
        with pytest.raises(Unready, match=r"Database 'default' cannot be used: .*rmq_retry_inboxentry"):
            run(lambda _: pytest.fail("it must not run"))
    finally:
        with connection.schema_editor() as editor:
            editor.create_model(InboxEntry)


def test_a_name_that_the_database_cannot_store_is_judged_by_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "insert", Mock(side_effect=DataError("has no equivalent in encoding LATIN1")))

    with pytest.raises(DataError):
        run(lambda _: None)


def test_an_unknown_database_costs_no_attempt() -> None:
    with pytest.raises(Unready, match=r"Handler h has using='nowhere': The connection 'nowhere' doesn't exist"):
        run(lambda _: None, using="nowhere")


def test_a_database_without_autocommit_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    not_on(SQLITE)
    connection.set_autocommit(False)
    monkeypatch.setitem(connection.settings_dict, "AUTOCOMMIT", False)
    with pytest.raises(Unready, match="AUTOCOMMIT False, so nothing would be committed"):
        run(lambda _: pytest.fail("it must not run"))
    connection.set_autocommit(True)


def test_a_failing_on_commit_callback_is_logged_and_the_message_is_done(caplog: pytest.LogCaptureFixture) -> None:
    def leaves(_message: Delivery) -> str:
        Group.objects.create(name="a")
        transaction.on_commit(lambda: 1 / 0)
        return "answer"

    assert run(leaves) == "answer"
    with pytest.raises(HandlerSkipped) as found:
        run(leaves)

    assert (found.value.verdict, committed()) == (DUPLICATE, ["a"])
    assert "Handler h has committed, but a callback of its on_commit() failed: ZeroDivisionError" in caplog.text


def test_twins_delivered_at_the_same_moment_are_handled_once(django_db_blocker: Any) -> None:
    not_on(SQLITE)
    inside, go_on, ends = threading.Event(), threading.Event(), []

    def first(_message: Delivery) -> None:
        Group.objects.create(name="a")
        inside.set()
        go_on.wait(20)

    def in_a_thread(does: Callable[[Delivery], object]) -> threading.Thread:
        def work() -> None:
            with django_db_blocker.unblock():
                try:
                    ends.append(run(does))
                except HandlerSkipped as instead:
                    ends.append(instead.verdict)
                connection.close()

        thread = threading.Thread(target=work)
        thread.start()
        return thread

    one = in_a_thread(first)
    inside.wait(20)
    two = in_a_thread(lambda _: Group.objects.create(name="b"))
    waits_for_it(two)
    go_on.set()
    one.join(20)
    two.join(20)

    assert (len(ends), ends.count(DUPLICATE), committed()) == (2, 1, ["a"])


def waits_for_it(thread: threading.Thread) -> None:
    """Wait until the database reports that a transaction waits for another."""
    asked = {
        POSTGRESQL: "SELECT count(*) FROM pg_locks WHERE NOT granted",
        MARIADB: "SELECT count(*) FROM information_schema.innodb_lock_waits",
    }[connection.vendor]

    def waits() -> bool:
        with other() as another, another.cursor() as cursor:
            cursor.execute(asked)
            return bool(cursor.fetchone()[0])

    # MariaDB answers repeated queries within 0.1 s from a cache.
    wait_until(waits, what="the second one waits for the first", step=0.2)
    assert thread.is_alive()
