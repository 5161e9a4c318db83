"""A query with a time limit: a database that does not answer is given up, and the caller goes on."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from django.db import connections

T = TypeVar("T")
MOST_GIVEN_UP, GIVEN_UP_SECONDS = 10, 60.0
"""The most connections that may still wait for an answer that nobody waits for, and how long each of them counts."""
_given_up: list[tuple[threading.Thread, float]] = []


class Unanswered(Exception):
    def __init__(self, alias: str, timeout: float) -> None:
        super().__init__(f"{alias!r} did not answer within {timeout:g} s")


def in_time(ask: Callable[[], T], alias: str, timeout: float) -> T:
    """Return the result of a query, or raise Unanswered after the timeout."""
    if alone_sees_its_data(alias):
        return ask()
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
        raise Unanswered(alias, timeout)
    return answers[0]


def connect_in_time(alias: str, timeout: float) -> None:
    """Connect this thread to a database, or see that it still answers; raise Unanswered after the timeout.

    No driver limits the time of both on its own, so another thread asks. It asks on the connection of this thread,
    which this thread then uses: a page needs no second one.
    """
    if alone_sees_its_data(alias):
        return
    now = time.monotonic()
    _given_up[:] = [(one, since) for one, since in _given_up if one.is_alive() and now - since < GIVEN_UP_SECONDS]
    if len(_given_up) >= MOST_GIVEN_UP:
        # Each page that loads again by itself would leave one more thread and socket.
        raise Unanswered(alias, timeout)
    connection = connections[alias]
    broken: list[Exception] = []
    over = threading.Lock()
    """Whoever takes it first, the answer or the timeout, has decided who uses the connection."""

    def connect() -> None:
        try:
            if connection.connection is not None and not connection.is_usable():
                connection.close()
            connection.ensure_connection()
        except Exception as error:  # noqa: BLE001 - raised again in the thread that asked
            broken.append(error)
        if not over.acquire(blocking=False):
            connection.close()

    connection.inc_thread_sharing()
    asking = threading.Thread(target=connect, name="rmq-connect", daemon=True)
    asking.start()
    asking.join(timeout)
    if over.acquire(blocking=False):
        _given_up.append((asking, now))
        # The other thread may never leave it, so this one makes a new one when it needs one.
        del connections[alias]
        raise Unanswered(alias, timeout)
    connection.dec_thread_sharing()
    if broken:
        raise broken[0]


def alone_sees_its_data(alias: str) -> bool:
    """Return True if no other connection sees the data of this thread's connection."""
    connection = connections[alias]
    return connection.in_atomic_block or bool(getattr(connection, "is_in_memory_db", bool)())
