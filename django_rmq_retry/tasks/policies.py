"""The policy of a queue of tasks, in which each task may have its own."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from django_rmq_retry.errors import ConfigurationError
from django_rmq_retry.messages.message import Delivery
from django_rmq_retry.messages.reasons import Reason
from django_rmq_retry.messages.texts import ErrorNote
from django_rmq_retry.policies.backoff import Backoff
from django_rmq_retry.policies.carriers import NackRequeue, Native
from django_rmq_retry.policies.policy import Failure, Policy
from django_rmq_retry.policies.verdict import Verdict, park
from django_rmq_retry.tasks import known
from django_rmq_retry.tasks.known import NotRunnable, UnknownTask

F = TypeVar("F", bound=Callable[..., Any])

MARK = "rmq_policy"
"""The attribute of a function that has a policy of its own."""


def policy(given: Policy) -> Callable[[F], F]:
    """Give a task its own policy: ``@policy(RetryThenPark(attempts=10))`` below ``@task``."""
    if not isinstance(given, Policy):
        raise ConfigurationError(f"@policy takes a policy such as RetryThenPark(attempts=10), not {given!r:.80}.")

    def mark(function: F) -> F:
        if not inspect.isfunction(function):
            raise ConfigurationError("Write @policy(…) below @task, directly above the function.")
        setattr(function, MARK, given)
        return function

    return mark


def own_policies(alias: str) -> Mapping[str, Policy]:
    """Return the policies of the tasks of one backend that have their own, by the task's path."""
    return {
        path: getattr(task.func, MARK)
        for path, task in known.every().items()
        if task.backend == alias and hasattr(task.func, MARK)
    }


@dataclass(frozen=True)
class TaskPolicy(Policy):
    """Judge by the policy of the task, or by that of the queue. All tasks of a queue have its carrier."""

    alias: str
    queue: Policy

    def __post_init__(self) -> None:
        for name in ("via", "attempts", "ordered", "answers"):
            object.__setattr__(self, name, getattr(self.queue, name))

    @property
    def written(self) -> Policy:
        return self.queue

    @property
    def waits(self) -> tuple[tuple[Backoff, int | None], ...]:
        mine = [one for one in own_policies(self.alias).values() if misfit(one, self.queue) is None]
        return tuple(dict.fromkeys(wait for one in (self.queue, *mine) for wait in one.waits))

    def limit_for(self, delivery: Delivery) -> int | None:
        return self._of(delivery).limit_for(delivery)

    def rule(self, failure: Failure) -> Verdict:
        error = failure.error
        if isinstance(error, NotRunnable):
            reason = Reason.UNHANDLED if isinstance(error, UnknownTask) else Reason.PERMANENT
            return park(reason, str(error), ErrorNote.of(error))
        return self._of(failure.delivery).judge(failure)

    def _of(self, delivery: Delivery) -> Policy:
        task = known.task_of(delivery)
        own: Policy | None = getattr(task.func, MARK, None) if task is not None else None
        return self.queue if own is None or misfit(own, self.queue) else own


def misfit(own: Policy, queue: Policy) -> str | None:
    """Return the reason why a task cannot have this policy in a queue with that one, or None."""
    if own.via != queue.via:
        return f"it retries via {type(own.via).__name__}, and its queue has one carrier, {queue.via!r}"
    if (own.ordered, own.answers) != (queue.ordered, queue.answers):
        return f"{type(own).__name__} and {type(queue).__name__} cannot share a queue"
    if isinstance(own.via, Native | NackRequeue) and own.attempts != queue.attempts:
        return f"with {type(own.via).__name__} the queue counts the attempts, for all its tasks alike"
    return None
