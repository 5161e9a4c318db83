"""``RabbitBackend``: tasks of Django as messages of RabbitMQ."""

import inspect
import uuid
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.utils import timezone

from django_rmq_retry.conf import settings
from django_rmq_retry.errors import ConfigurationError, UnencodableData
from django_rmq_retry.handlers import registry
from django_rmq_retry.handlers.handler import Handler
from django_rmq_retry.messages.message import Message
from django_rmq_retry.publishing.publish import dispatch
from django_rmq_retry.tasks import checks, known, results
from django_rmq_retry.tasks.api import (
    TASK_MAX_PRIORITY,
    TASK_MIN_PRIORITY,
    AnyResult,
    AnyTask,
    BaseTaskBackend,
    InvalidTask,
    TaskResult,
    TaskResultStatus,
    task_enqueued,
)
from django_rmq_retry.tasks.calls import CALLS
from django_rmq_retry.tasks.known import LONGEST_PATH_BYTES
from django_rmq_retry.tasks.options import DEFAULT_QUEUE, TaskOptions, handler_name, options_of, queues_of
from django_rmq_retry.topology.declarations import Queue


class RabbitBackend(BaseTaskBackend):
    """Publishes tasks to RabbitMQ, where ``rmq_consume`` takes them: ``TASKS = {"default": {"BACKEND": …}}``."""

    supports_async_task = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        # A mistake in the settings is a finding of the checks, and must not end the import of a task's module.
        names = queues_of(params) or (DEFAULT_QUEUE,)
        super().__init__(alias, {**params, "QUEUES": names})
        self._params = params
        self._options: TaskOptions | None = None
        self._handlers = {name: Handler[Any](_never, handler_name(name)) for name in names}
        self._levels: dict[str, int] = {}
        self._version: object = None

    def read_options(self) -> TaskOptions:
        """Return the options in TASKS; ImproperlyConfigured if they are wrong."""
        if self._options is None:
            self._options = options_of(self.alias, self._params)
        return self._options

    @property
    def supports_defer(self) -> bool:  # type: ignore[override]  # a constant of other backends
        """True if the retries of each queue wait in a way in which a new message can wait, too."""
        try:
            options = self.read_options()
        except (ImproperlyConfigured, ConfigurationError):
            # The checks report it, and each use of the backend.
            return True
        policies = [options.policies.get(name, settings().policy) for name in self.queues]
        return all(policy.via.waits for policy in policies)

    @property
    def supports_get_result(self) -> bool:  # type: ignore[override]  # as above
        """True if results are stored: OPTIONS has ``results``."""
        return self.read_options().results is not None

    @property
    def supports_priority(self) -> bool:  # type: ignore[override]  # as above
        """True if any queue has priorities; ``validate_task`` looks at the queue of the task."""
        return any(self._levels_of(name) for name in self.queues)

    def validate_task(self, task: AnyTask) -> None:
        """Raise InvalidTask for a task that could never be sent, or never be run; remember any other one.

        Django calls this as ``@task`` makes a task, so that consumers find it by its path.
        """
        if task.priority and not self.supports_priority:
            raise InvalidTask(_without_priorities(task.queue_name))
        super().validate_task(task)
        if inspect.isgeneratorfunction(task.func) or inspect.isasyncgenfunction(task.func):
            raise InvalidTask(f"Task {task.module_path} contains 'yield', so calling it would run nothing. Use return.")
        if len(task.module_path.encode()) > LONGEST_PATH_BYTES:
            raise InvalidTask(f"The path of a task takes at most {LONGEST_PATH_BYTES} bytes, not {task.module_path!r}.")
        if task.priority and not self._levels_of(task.queue_name):
            raise InvalidTask(_without_priorities(task.queue_name))
        known.add(task)

    def enqueue(self, task: AnyTask, args: Any, kwargs: Any) -> AnyResult:  # type: ignore[override]  # for any task
        """Publish a task; in a transaction it is sent if, and only if, that commits."""
        self.validate_task(task)
        options = self.read_options()
        result = TaskResult(
            task=task,
            id=uuid.uuid4().hex,
            status=TaskResultStatus.READY,
            enqueued_at=timezone.now(),
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=args,
            kwargs=kwargs,
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        message = self._message(result)

        def send() -> None:
            dispatch(message, handler=handler_name(task.queue_name))

        if options.results is None:
            send()
        else:
            results.send_and_store(result, message, kept=options.results, send=send)
        task_enqueued.send(sender=type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> AnyResult:
        """Return what is recorded of a task."""
        if not self.supports_get_result:
            return super().get_result(result_id)
        return results.read(result_id, backend=self.alias)

    def _message(self, result: AnyResult) -> Message:
        task = result.task
        data = {"task": task.module_path, "args": result.args, "kwargs": result.kwargs}
        options: dict[str, Any] = {"type": task.module_path, "message_id": result.id}
        if levels := self._levels_of(task.queue_name):
            options["priority"] = _level(task.priority, levels)
        if task.run_after is not None:
            later = task.run_after
            options["at"] = later if timezone.is_aware(later) else timezone.make_aware(later)
        message = self._handlers[task.queue_name].message(data, **options)
        if problem := settings().limits.problem(message.body, CALLS):
            raise UnencodableData(problem, advice="Store the data, and pass a key to them.")
        return message

    def _levels_of(self, queue: str) -> int:
        """Return the highest priority of a queue, computed again only after a change of handlers or settings."""
        if self._version is not registry.version:
            self._version, self._levels = registry.version, {}
        if queue not in self._levels:
            self._levels[queue] = _levels(registry.queue_named(queue))
        return self._levels[queue]

    def check(self, **kwargs: Any) -> list[Any]:
        """Return what is wrong with this backend in TASKS."""
        return [*super().check(**kwargs), *checks.found(self.alias, self._params)]


def _never(_message: object) -> None:
    """Stand for the function of the handler, which is called by a consumer only."""


def _levels(queue: Queue) -> int:
    """Return the highest priority of a queue; 0 if it has none."""
    most: Any = queue.max_priority or queue.arguments.get("x-max-priority")
    return most if type(most) is int else 0


def _level(priority: int, levels: int) -> int:
    """Return the priority from -100 to 100 as one of those that the queue has."""
    return round((priority - TASK_MIN_PRIORITY) / (TASK_MAX_PRIORITY - TASK_MIN_PRIORITY) * levels)


def _without_priorities(queue: str) -> str:
    return (
        f"Queue {queue!r} has no priorities. Define Queue({queue!r}, type='classic', max_priority=10) in "
        "RMQ_RETRY['TOPOLOGY'], or omit priority."
    )
