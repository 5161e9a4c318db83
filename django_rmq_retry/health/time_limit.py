"""A query with a time limit: a database that does not answer is given up, and the caller goes on."""

import threading
from collections.abc import Callable
from typing import TypeVar

from django.db import connections

T = TypeVar("T")


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


def alone_sees_its_data(alias: str) -> bool:
    """Return True if no other connection sees the data of this thread's connection."""
    connection = connections[alias]
    return connection.in_atomic_block or bool(getattr(connection, "is_in_memory_db", bool)())
