"""A database that takes connections and answers nothing: each page says so soon, and loads again."""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.db import OperationalError, connection, connections
from django.test import Client

from django_rmq_retry import database_connections
from django_rmq_retry.admin import pages
from tests.admin.looking import Page
from tests.tooling import databases
from tests.tooling.proxy import Mode, Proxy

pytestmark = [pytest.mark.django_db, pytest.mark.database]
ADMIN = "/admin/rmq_retry/"
LIST = f"{ADMIN}errorgroup/"
LIMIT = 0.5


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "DATABASE_ANSWER_SECONDS", LIMIT)


@pytest.fixture
def line(transactional_db: None, limited: None) -> Iterator[Proxy]:  # noqa: ARG001 - asked for by their names
    """A proxy between the pages and their database."""
    kind = databases.KINDS[databases.chosen()]
    parts = urlsplit(kind.url)
    known = connections.settings["default"]
    direct = {name: known[name] for name in ("HOST", "PORT")}
    with closing(Proxy(parts.port or databases.PORTS[kind.engine], parts.hostname or "127.0.0.1")) as proxy:
        connection.close()
        known.update(HOST="127.0.0.1", PORT=str(proxy.port))
        try:
            yield proxy
        finally:
            proxy.set(Mode.PASS)
            known.update(direct)
            connection.close()


@pytest.mark.skipif(databases.chosen() == databases.SQLITE, reason="nobody is between a process and its file")
@pytest.mark.parametrize("connected", [True, False])
def test_a_page_of_a_hanging_database_ends_and_loads_again(line: Proxy, page: Client, *, connected: bool) -> None:
    assert page.get(LIST).status_code == 200
    if not connected:
        connection.close()
    line.set(Mode.BLACKHOLE)
    began = monotonic()
    asked, acted = page.get(LIST), page.post(LIST, {})
    took = monotonic() - began
    line.set(Mode.PASS)
    back = page.get(LIST)

    assert (asked.status_code, acted.status_code, back.status_code) == (503, 503, 200)
    assert took < 10 * LIMIT
    assert "The database does not answer" in Page(asked).text
    # A reload would lose what was typed into a form.
    assert (asked.get("Refresh"), acted.get("Refresh")) == ("5", None)


@pytest.mark.skipif(databases.chosen() != databases.SQLITE, reason="only its whole file can be locked")
@pytest.mark.parametrize("address", [LIST, f"{ADMIN}livestatus/"])
def test_a_file_that_another_process_keeps_locked_is_a_database_that_does_not_answer(
    page: Client, address: str
) -> None:
    def locked(execute: Any, sql: str, *query: Any) -> Any:
        if "rmq_retry_" not in sql:
            return execute(sql, *query)
        cause = sqlite3.OperationalError("database is locked")
        cause.sqlite_errorcode = sqlite3.SQLITE_BUSY
        raise OperationalError from cause

    with connection.execute_wrapper(locked):
        asked = page.get(address)

    assert (asked.status_code, asked.get("Refresh")) == (503, "5")
    assert "tables are missing" not in Page(asked).text


def test_the_page_of_a_database_that_is_away_says_where_and_when(page: Client, settings: Any) -> None:
    settings.RMQ_RETRY = {**settings.RMQ_RETRY, "OPERATORS": {"ENVIRONMENT": "PRODUCTION"}}

    def lost(*_query: Any) -> None:
        raise OperationalError from OSError("connection refused")

    with connection.execute_wrapper(lost):
        asked, acted = (Page(answer).text for answer in (page.get(LIST), page.post(LIST, {})))

    assert "PRODUCTION" in asked
    assert "Tried at 20" in asked
    assert ("loads again by itself" in asked, "loads again by itself" in acted) == (True, False)


def test_many_pages_of_a_hanging_database_leave_few_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()

    class Hanging:
        connection = None

        def ensure_connection(self) -> None:
            over.wait()

        def inc_thread_sharing(self) -> None:
            """Nothing is shared."""

        close = inc_thread_sharing

    class Aliases(dict[str, Any]):
        def __missing__(self, alias: str) -> Hanging:
            self[alias] = Hanging()
            hanging: Hanging = self[alias]
            return hanging

    before = threading.active_count()
    monkeypatch.setattr(database_connections, "connections", Aliases())
    monkeypatch.setattr(database_connections, "alone_sees_its_data", lambda _alias: False)
    monkeypatch.setattr(database_connections, "MOST_GIVEN_UP", 3)
    try:
        for _ in range(8):
            with pytest.raises(database_connections.Unanswered):
                database_connections.connect_in_time("hanging", 0.01)
        assert threading.active_count() - before <= 3
    finally:
        over.set()
