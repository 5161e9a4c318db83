"""A query with a time limit: a database that does not answer is given up, and the caller goes on."""

import threading
from collections.abc import Callable
from typing import TypeVar

from django.db import connections

from django_rmq_retry.database_connections import Unanswered, alone_sees_its_data

T = TypeVar("T")


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
