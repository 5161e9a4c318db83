"""What is to be done now and then by whoever has a thread and a database at hand."""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

SOON = 5.0
"""Seconds until the next part of a chore that is not done."""

log = logging.getLogger("django_rmq_retry")


@dataclass(slots=True, kw_only=True)
class Chore:
    """One of them; every process does it, so it must not mind being done twice."""

    name: str
    every: float
    run: Callable[[], bool]
    """Does a part of it; tells whether there is more to do."""
    due: float = 0.0
    failing: bool = False


def do_due(chores: Sequence[Chore], around: Callable[[], AbstractContextManager[object]]) -> None:
    """Do what is due; what fails is tried again at its next time."""
    for chore in chores:
        now = time.monotonic()
        if now < chore.due:
            continue
        chore.due = now + chore.every
        try:
            with around():
                more = chore.run()
        except Exception:
            # Once: a database that is away for hours says the same each time.
            if not chore.failing:
                log.exception("%s failed; tried again every %g s", chore.name, chore.every)
            chore.failing = True
        else:
            chore.failing = False
            if more:
                chore.due = now + min(SOON, chore.every)
