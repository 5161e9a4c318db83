"""A query with a time limit: a database that does not answer is given up, and the caller goes on."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import TypeVar

from django.db import connections

from django_rmq_retry.database_connections import GIVEN_UP_SECONDS, MOST_GIVEN_UP, Unanswered, alone_sees_its_data

T = TypeVar("T")
_given_up: dict[tuple[str, str], list[tuple[threading.Thread, float]]] = defaultdict(list)
"""The threads that still wait for an answer, by database and purpose, and when each began."""


def in_time(ask: Callable[[], T], alias: str, timeout: float, *, purpose: str) -> T:
    """Return the result of a query, or raise Unanswered after the timeout.

    While a query for the same purpose hangs, raise it at once: each would leave one more thread and connection. After
    a minute a new one is tried, because a network may have lost the old one's connection without telling anybody.
    """
    if alone_sees_its_data(alias):
        return ask()
    given_up = _given_up[alias, purpose]
    given_up[:] = [(thread, since) for thread, since in given_up if thread.is_alive()]
    now = time.monotonic()
    if given_up and (now - given_up[-1][1] < GIVEN_UP_SECONDS or len(given_up) >= MOST_GIVEN_UP):
        raise Unanswered(alias, now - given_up[0][1], still=True)
    answers: list[T] = []
    broken: list[Exception] = []

    def answer() -> None:
        try:
            answers.append(ask())
        except Exception as error:  # noqa: BLE001 - raised again in the thread that asked
            broken.append(error)
        finally:
            connections.close_all()

    asking = threading.Thread(target=answer, name="rmq-survey", daemon=True)
    asking.start()
    asking.join(timeout)
    if broken:
        raise broken[0]
    if not answers:
        given_up.append((asking, now))
        raise Unanswered(alias, timeout)
    return answers[0]
