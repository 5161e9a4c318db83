"""Django's database connections are cared for around each attempt, on the thread that makes it."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_rmq_retry import database_connections

pytestmark = pytest.mark.django_db
Run = Callable[[Callable[[], None]], None]


@pytest.fixture
def worker() -> Iterator[Run]:
    """Runs something on a thread that has never used a database before."""
    with ThreadPoolExecutor(1) as pool:
        yield lambda call: pool.submit(call).result(5)


def bank(folder: Path, *, max_age: int | None) -> BaseDatabaseWrapper:
    """This thread's connection; in a file, for what is in memory is never closed."""
    connection = connections["default"]
    connection.settings_dict = {
        **connection.settings_dict,
        "NAME": str(folder / "bank.sqlite3"),
        "CONN_MAX_AGE": max_age,
    }
    connection.force_debug_cursor = True
    return connection


def ask(connection: BaseDatabaseWrapper) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")


def begin(connection: BaseDatabaseWrapper) -> None:
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")


def test_a_connection_opened_by_the_first_handler_is_closed_after_it(worker: Run, tmp_path: Path) -> None:
    def attempt() -> None:
        connection = bank(tmp_path, max_age=0)
        with database_connections.FreshConnections():
            ask(connection)
            assert connection.connection is not None

        assert connection.connection is None

    worker(attempt)


def test_an_expired_connection_is_closed_before_the_next_message(worker: Run, tmp_path: Path) -> None:
    def attempts() -> None:
        connection = bank(tmp_path, max_age=None)
        with database_connections.FreshConnections():
            ask(connection)
        assert connection.connection is not None
        connection.close_at = 0
        with database_connections.FreshConnections():
            assert connection.connection is None

    worker(attempts)


def test_a_connection_interrupted_between_attempts_is_not_reused(worker: Run, tmp_path: Path) -> None:
    def attempts() -> None:
        connection = bank(tmp_path, max_age=None)
        ask(connection)
        database_connections.interrupted()
        with database_connections.FreshConnections():
            assert connection.connection is None

    worker(attempts)


def test_the_query_log_is_reset_for_each_message(worker: Run, tmp_path: Path) -> None:
    def attempts() -> None:
        connection = bank(tmp_path, max_age=None)
        for _ in range(3):
            with database_connections.FreshConnections():
                ask(connection)

                assert len(connection.queries_log) == 1
        connection.close()

    worker(attempts)


def test_a_transaction_under_autocommit_false_of_the_settings_is_the_projects_own(worker: Run, tmp_path: Path) -> None:
    def attempt() -> None:
        connection = bank(tmp_path, max_age=None)
        begin(connection)
        connection.settings_dict["AUTOCOMMIT"] = False

        assert database_connections.roll_back_left_open() == []
        connection.close()

    worker(attempt)


def test_a_connection_that_the_project_closed_by_itself_has_nothing_open(worker: Run, tmp_path: Path) -> None:
    def attempt() -> None:
        connection = bank(tmp_path, max_age=None)
        begin(connection)
        connection.connection.close()

        assert database_connections.roll_back_left_open() == []

    worker(attempt)


def test_what_a_deadline_interrupted_is_not_called_a_transaction_of_the_handler(worker: Run, tmp_path: Path) -> None:
    def attempt() -> None:
        connection = bank(tmp_path, max_age=None)
        begin(connection)
        database_connections.interrupted()

        assert database_connections.roll_back_left_open() == []
        with database_connections.FreshConnections():
            assert connection.connection is None

    worker(attempt)
