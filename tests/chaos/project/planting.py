"""Planted bugs that no option of a handler can cause."""

from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Any

from django.utils import timezone

from django_rmq_retry import BatchFailed, database_clock
from django_rmq_retry.breakers.table import BreakerTable
from django_rmq_retry.consumer.batch_attempt import BatchPipeline, Group
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


def count_whole_batches() -> None:
    """Count the failure of a call for each of its messages, in the lane batch."""

    def counted(_left: list[Group], group: Group, error: BaseException | None) -> list[Group]:
        for state in group:
            state.outcome = None, error
        return []

    _divide_otherwise("chaos.batch", counted)


def ack_what_was_rolled_back() -> None:
    """Take the messages that a BatchFailed does not name as done, in the lane batchonce, which rolls them back."""

    def acked(left: list[Group], _group: Group, error: BaseException | None) -> list[Group]:
        if not isinstance(error, BatchFailed):
            return left
        for state in chain(*left):
            state.outcome = None, None
        return []

    _divide_otherwise("chaos.batchonce", acked)


def _divide_otherwise(queue: str, how: Callable[[list[Group], Group, BaseException | None], list[Group]]) -> None:
    divide: Any = BatchPipeline._divide

    def divided(pipeline: BatchPipeline, group: Group, *call: Any) -> list[Group]:
        left: list[Group] = divide(pipeline, group, *call)
        return how(left, group, call[-1]) if group[0].delivery.queue == queue else left

    BatchPipeline._divide = divided  # type: ignore[method-assign, assignment]
