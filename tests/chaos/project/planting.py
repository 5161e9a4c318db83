"""Planted bugs that no option of a handler can cause."""

from functools import partial

from django.utils import timezone

from django_rmq_retry import database_clock
from django_rmq_retry.breakers.table import BreakerTable
from django_rmq_retry.publishing.publish import dispatch
from django_rmq_retry.tasks import backend, discovery, queues, results


def deafen() -> None:
    """Make consumers ignore pauses and breakers of other processes."""
    BreakerTable.read = lambda *_: {}  # type: ignore[method-assign]


def misdate() -> None:
    """Make database times use the clock of the host that writes or deletes."""
    for name in ("now", "trusted", "reckoned"):
        setattr(database_clock, name, lambda _using: timezone.now())


def ack_tasks_first() -> None:
    """Make the broker drop a task as it sends it."""
    queues.HandlerOptions = partial(queues.HandlerOptions, ack="auto")  # type: ignore[attr-defined, assignment]
    discovery.register()


def ignore_transactions() -> None:
    """Send a task at once, also in a transaction."""
    backend.dispatch = partial(dispatch, immediate=True)  # type: ignore[attr-defined]


def forget_results() -> None:
    """Store no result of a task that has succeeded."""
    results.store = lambda _rows: None  # type: ignore[assignment]
