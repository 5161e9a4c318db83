"""Around each attempt: what a handler's own transactions have committed, has been committed when it ends."""

import logging
from collections.abc import Callable
from typing import Any

from django.db import connections

log = logging.getLogger("django_rmq_retry")


class Around:
    """Inside a TestCase no commit ever comes; what a handler left for its commit is done as the attempt ends.

    Connections are not closed as in production: the test goes on with them.
    """

    def __init__(self) -> None:
        self._waiting = {one.alias: len(one.run_on_commit) for one in connections.all(initialized_only=True)}

    def __enter__(self) -> None: ...

    def __exit__(self, *_error: object) -> None:
        for connection in connections.all(initialized_only=True):
            known = self._waiting.get(connection.alias, 0)
            while len(connection.run_on_commit) > known:
                left: list[Any] = connection.run_on_commit[known:]
                del connection.run_on_commit[known:]
                for _savepoints, callback, robust in left:
                    _run(callback, robust=robust)


def _run(callback: Callable[[], object], *, robust: bool) -> None:
    try:
        callback()
    except Exception:
        if not robust:
            raise
        log.exception("A callback after the commit failed")
