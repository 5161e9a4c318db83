"""The handler of a queue of tasks: it calls the task that a message names, and tells how the attempt ended."""

import json
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from django_rmq_retry import database_clock
from django_rmq_retry.attempts.rows import chain_of
from django_rmq_retry.handlers.call import never_ran
from django_rmq_retry.handlers.contracts import FinishedAttempt, Kept
from django_rmq_retry.handlers.handler import limited
from django_rmq_retry.handlers.loop import handler_loop
from django_rmq_retry.messages.message import Delivery
from django_rmq_retry.messages.tracebacks import projects_own, trace
from django_rmq_retry.policies.verdict import ACK, Kind
from django_rmq_retry.tasks import known, results
from django_rmq_retry.tasks.api import (
    AnyResult,
    AnyTask,
    TaskContext,
    TaskResult,
    normalize_json,
    task_finished,
    task_started,
)
from django_rmq_retry.tasks.api import TaskResultStatus as Status
from django_rmq_retry.tasks.known import NotRunnable


class CurrentResult(TaskResult):  # type: ignore[type-arg]  # generic in the stubs only
    """The result of a task while it runs: its attempts before this one are a number, and have no workers."""

    __slots__ = ("made",)
    made: int

    @property
    def attempts(self) -> int:
        return self.made


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRunner:
    """Runs the tasks of one queue of a backend."""

    name: str
    """The name of the handler."""
    backend: str
    sender: type
    """The class of the backend, which sends the signals."""
    kept: timedelta | None
    """How long results are stored; None if they are not."""
    timeout: float | None = None

    def run(self, message: Delivery) -> object:
        task = known.named(message.data["task"])
        known.check_arguments(task, message.data["args"], message.data["kwargs"])
        result = self._result(message, task, Status.RUNNING)
        task_started.send_robust(sender=self.sender, task_result=result)
        context = (TaskContext(task_result=result),) if task.takes_context else ()
        value = self._called(task, partial(task.func, *context, *result.args, **result.kwargs), message)
        if never_ran(value):
            # It is an error of any handler.
            return value
        if self.kept is None:
            return None
        try:
            value = normalize_json(value)
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise NotRunnable(f"Task {task.module_path} has run, and what it returned has no JSON form.") from error
        return value

    def in_loop(self, message: Delivery) -> bool:
        """Tell whether the task of a message is async: a queue takes tasks of both kinds."""
        task = known.task_of(message)
        return task is not None and known.is_async(task)

    def _called(self, task: AnyTask, call: partial[Any], message: Delivery) -> Any:
        """Call the task; an async one in the event loop of the process, like an async handler."""
        if known.is_async(task):
            return handler_loop().run(limited(lambda _message: call(), self.name, self.timeout), message, self.name)
        return call()

    def judged(self, attempt: FinishedAttempt) -> Kept | None:
        """Tell how a task ended, unless another attempt follows; return the row of a result to store."""
        task = known.task_of(attempt.delivery)
        if task is None:
            return None
        if attempt.verdict is ACK:
            result = self._result(attempt.delivery, task, Status.SUCCESSFUL, attempt)
            object.__setattr__(result, "_return_value", attempt.answer)
            task_finished.send_robust(sender=self.sender, task_result=result)
            if self.kept is not None and results.can_store(attempt.delivery.id):
                return results.kept_row(attempt, task, backend=self.backend, kept=self.kept)
        elif attempt.verdict.kind in (Kind.PARK, Kind.DISCARD) and attempt.error is not None:
            self._tell_failure(attempt, attempt.error, task)
        return None

    def _tell_failure(self, attempt: FinishedAttempt, error: BaseException, task: AnyTask) -> None:
        result = self._result(attempt.delivery, task, Status.FAILED, attempt)
        result.errors.append(results.task_error(json.loads(chain_of(trace(error, projects_own)))))
        before = error.__traceback__
        try:
            # Django's own receiver logs the exception that is being handled.
            raise error  # noqa: TRY301 - as said
        except BaseException:  # noqa: BLE001 - whatever the task has raised
            task_finished.send_robust(sender=self.sender, task_result=result)
        finally:
            error.__traceback__ = before

    def _result(
        self, message: Delivery, task: AnyTask, status: Status, attempt: FinishedAttempt | None = None
    ) -> AnyResult:
        ended = database_clock.epoch(results.results_alias())
        began = database_clock.stored(ended - (attempt.seconds if attempt else 0.0))
        result = CurrentResult(
            task=task,
            id=message.id or "",
            status=status,
            enqueued_at=database_clock.published_at(message.properties),
            started_at=began,
            finished_at=database_clock.stored(ended) if attempt else None,
            last_attempted_at=began,
            args=message.data["args"],
            kwargs=message.data["kwargs"],
            backend=self.backend,
            errors=[],
            worker_ids=[results.worker_id()],
        )
        object.__setattr__(result, "made", message.attempt)
        return result
