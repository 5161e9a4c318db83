"""Queries of a database that hangs: they are given up, and few threads are left waiting."""

import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from django_rmq_retry.database_connections import Unanswered
from django_rmq_retry.health import time_limit
from django_rmq_retry.health.time_limit import in_time

HANGS = 0.05


class Hanging:
    """A query that gets its answer once it is over."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.threads: list[threading.Thread] = []

    def __call__(self) -> str:
        self.threads.append(threading.current_thread())
        self.over.wait(30)
        return "late"

    def end(self) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join()


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hanging]:
    monkeypatch.setattr(time_limit, "alone_sees_its_data", lambda _alias: False)
    made = Hanging()
    yield made
    made.end()


def asks(query: Hanging, *, purpose: str = "survey", seconds: float = HANGS) -> str:
    with suppress(Unanswered):
        return in_time(query, "default", seconds, purpose=purpose)
    return ""


def test_a_hanging_database_has_one_waiting_thread_for_each_purpose(hanging: Hanging) -> None:
    for _ in range(5):
        asks(hanging)
        asks(hanging, purpose="metrics")

    assert len(hanging.threads) == 2


def test_while_a_query_hangs_the_next_one_is_refused_at_once_and_says_for_how_long(hanging: Hanging) -> None:
    with pytest.raises(Unanswered, match=r"^'default' did not answer within 0\.05 s$"):
        in_time(hanging, "default", HANGS, purpose="survey")
    with pytest.raises(Unanswered, match=r"^'default' has not answered for \d+ s$"):
        # This limit would be the test's end.
        in_time(hanging, "default", 3600, purpose="survey")


def test_a_database_that_answers_again_is_asked_again(hanging: Hanging) -> None:
    asks(hanging)
    hanging.end()

    assert asks(hanging, seconds=30) == "late"


def test_a_connection_that_never_ends_does_not_hide_that_the_database_is_back(
    hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network may have forgotten the connection: nobody is told, and another one works."""
    asks(hanging)
    monkeypatch.setattr(time_limit, "GIVEN_UP_SECONDS", 0.0)

    assert in_time(lambda: "now", "default", 30, purpose="survey") == "now"


def test_however_long_a_database_hangs_its_threads_are_few(hanging: Hanging, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_limit, "GIVEN_UP_SECONDS", 0.0)
    monkeypatch.setattr(time_limit, "MOST_GIVEN_UP", 3)
    for _ in range(6):
        asks(hanging, seconds=0.01)

    assert len(hanging.threads) == 3
