"""A database that takes connections and answers nothing: each page says so soon, and loads again."""

import re
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.db import OperationalError, connection, connections
from django.test import Client
from django.utils import timezone

from django_rmq_retry import database_connections
from django_rmq_retry.admin import pages
from django_rmq_retry.health.facts import surveyed
from django_rmq_retry.models import RequeueRun, runs
from tests.admin import made
from tests.admin.looking import Page
from tests.operators.driving import Targets
from tests.operators.made import driver_of, requeue_run
from tests.tooling import databases
from tests.tooling.proxy import Mode, Proxy
from tests.tooling.waiting import wait_until

pytestmark = [pytest.mark.django_db, pytest.mark.database]
ADMIN = "/admin/rmq_retry/"
LIST, RUNS = f"{ADMIN}errorgroup/", f"{ADMIN}requeuerun/"
LIMIT, LATE = 0.5, 4.0


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "DATABASE_ANSWER_SECONDS", LIMIT)


@contextmanager
def through(proxy: Proxy) -> Iterator[None]:
    """Let what connects to the database meanwhile do so through the proxy."""
    known = connections.settings["default"]
    direct = {name: known[name] for name in ("HOST", "PORT")}
    known.update(HOST="127.0.0.1", PORT=str(proxy.port))
    try:
        yield
    finally:
        proxy.set(Mode.PASS)
        known.update(direct)


@pytest.fixture
def proxy(transactional_db: None) -> Iterator[Proxy]:  # noqa: ARG001 - asked for by its name
    """A proxy before the database, which nobody uses yet."""
    kind = databases.KINDS[databases.chosen()]
    parts = urlsplit(kind.url)
    with closing(Proxy(parts.port or databases.PORTS[kind.engine], parts.hostname or "127.0.0.1")) as made_so:
        yield made_so


@pytest.fixture
def line(proxy: Proxy, limited: None) -> Iterator[Proxy]:  # noqa: ARG001 - asked for by its name
    """A proxy between the pages and their database."""
    connection.close()
    with through(proxy):
        yield proxy
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


def test_an_open_page_waits_longer_for_an_answer_than_the_answer_for_its_database() -> None:
    """Else it says that the server does not answer, and never that the database does not."""
    script = Path(pages.__file__).parents[1] / "static" / "django_rmq_retry" / "rmq.js"
    patience = re.search(r"PATIENCE = (\d+);", script.read_text())

    assert patience is not None
    assert int(patience[1]) / 1000 > pages.DATABASE_ANSWER_SECONDS + 1


@pytest.mark.skipif(databases.chosen() == databases.SQLITE, reason="nobody is between a process and its file")
def test_a_database_that_answers_late_is_waited_for_and_its_numbers_are_right(
    line: Proxy, page: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """100 ms a packet: the limit of a page is for its first answer, not for all of them."""
    monkeypatch.setattr(pages, "DATABASE_ANSWER_SECONDS", LATE)
    for _ in range(3):
        made.message()
    page.get(LIST)
    connection.close()
    line.set(Mode.DELAY)
    began = monotonic()
    asked = page.get(f"{ADMIN}livestatus/")
    took = monotonic() - began
    line.set(Mode.PASS)

    assert took > LATE
    assert asked.status_code == 200
    assert "3 messages parked" in Page(asked).text
    assert "does not answer" not in Page(asked).text


@pytest.mark.skipif(databases.chosen() == databases.SQLITE, reason="nobody is between a process and its file")
def test_a_run_whose_process_waits_for_the_database_is_not_shown_as_sending(
    proxy: Proxy, page: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was "Sending, 20 per second, 3 min left" all the time, and afterwards it "had waited for the broker"."""
    monkeypatch.setattr(runs, "SILENT_AFTER", timedelta(seconds=1))
    cause = made.group()
    run = requeue_run([made.message(cause).pk for _ in range(40)], rate=2)
    made.consumer(seconds=-60)
    over = threading.Event()
    with ThreadPoolExecutor(1) as pool, ExitStack() as at_end:
        at_end.callback(over.set)
        at_end.enter_context(through(proxy))
        pool.submit(drive, run, over)
        wait_until(lambda: now(run).sent > 1, what="the first ones are sent")
        proxy.set(Mode.BLACKHOLE)
        wait_until(lambda: now(run).is_silent(timezone.now()), what="nothing is heard of it")
        during, listed = (Page(page.get(address)).text for address in (f"{RUNS}{run.pk}/change/", RUNS))
        proxy.set(Mode.PASS)
        wait_until(lambda: now(run).silences, what="it goes on")
        # On a busy machine nothing is heard of it for another second.
        after = wait_until(partial(sending, page, run), what="it sends")
    [begun, ended], *_shorter = now(run).silences or []

    heard = timezone.localtime(datetime.fromisoformat(begun)).replace(tzinfo=None, microsecond=0)
    # A last heartbeat was on its way: its answer was lost, or it reached the database after the page.
    since = re.search(r"Nothing has been heard of this requeue run since (\S+ \d\d:\d\d:\d\d)", during)
    assert since
    assert abs(datetime.fromisoformat(since[1]) - heard) <= timedelta(seconds=5)
    assert ("‖ Standing still" in during, "‖ Standing still" in listed) == (True, True)
    # The rate that was chosen is told, but none that is measured.
    told = during.replace("left out", "").replace("Rate 2 per second", "")
    assert [words for words in ("Sending", " per second", " left") if words in told] == []
    assert begun < ended
    assert f"Nothing was heard of it {heard:%Y-%m-%d %H:%M:%S}" in after
    assert "No process was at it, or its database did not answer." in after
    assert "Waited for the broker" not in after


def sending(page: Client, run: RequeueRun) -> str:
    """The page of a run while it says that it sends."""
    text = Page(page.get(f"{RUNS}{run.pk}/change/")).text
    return text if "● Sending" in text else ""


def drive(run: RequeueRun, over: threading.Event) -> None:
    """Drive a run as a consumer does, until it is over."""
    one = driver_of(run, targets=Targets())
    try:
        while not over.is_set():
            over.wait(min(one.step() or 0.0, 0.2))
        one.end()
    finally:
        # What is left open keeps the tests' database from being dropped.
        connection.close()


def now(run: RequeueRun) -> RequeueRun:
    return RequeueRun.objects.get(pk=run.pk)


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


@pytest.mark.skipif(databases.chosen() == databases.SQLITE, reason="nobody is between a process and its file")
def test_a_look_every_second_at_a_hanging_database_leaves_one_thread(proxy: Proxy) -> None:
    """As `rmq_status --watch` and alerts look; it was a thread and a connection for each look."""

    def waiting() -> int:
        return [one.name for one in threading.enumerate()].count("rmq-survey")

    with through(proxy):
        before = surveyed(60)
        proxy.set(Mode.BLACKHOLE)
        during = [surveyed(LIMIT) for _ in range(4)]
        left = waiting()
        proxy.set(Mode.PASS)
        wait_until(lambda: not waiting(), what="the query that was given up ends")
        after = surveyed(60)

    assert [bool(known) for known, _trouble in (before, *during, after)] == [True, False, False, False, False, True]
    assert left == 1
    assert [re.sub(r"[\d.]+", "N", trouble) for _known, trouble in during] == [
        "'default' did not answer within N s",
        *["'default' has not answered for N s"] * 3,
    ]
