"""The functions that ``@task`` has made tasks of a RabbitBackend: no other function is ever found by a message."""

import difflib
import inspect
from functools import lru_cache
from typing import Any

from django_rmq_retry.handlers.call import signature_of
from django_rmq_retry.messages.message import Delivery
from django_rmq_retry.messages.texts import short
from django_rmq_retry.tasks.api import AnyTask

LONGEST_PATH_BYTES = 255
"""The longest path: AMQP has no longer type of a message."""
_tasks: dict[str, AnyTask] = {}


class NotRunnable(Exception):
    """Raised in place of a task that cannot be called, and never could be: the message is parked at once."""


class UnknownTask(NotRunnable):
    """Raised for the path of no task."""


def add(task: AnyTask) -> None:
    """Remember a task by its path. What ``using()`` returns is a variant, and the task stays the one that is found."""
    known = _tasks.get(task.module_path)
    if known is None or known.func is not task.func:
        _tasks[task.module_path] = task


def every() -> dict[str, AnyTask]:
    return dict(_tasks)


def task_of(message: Delivery) -> AnyTask | None:
    """Return the task that a message names; None if there is none, or if the message could not be decoded."""
    return _tasks.get(message.data["task"]) if isinstance(message.data, dict) else None


def find(path: str) -> AnyTask | None:
    return _tasks.get(path)


def is_async(task: AnyTask) -> bool:
    """True for a task that runs in the event loop of the process."""
    return inspect.iscoroutinefunction(task.func)


def named(path: str) -> AnyTask:
    """Return the task with this path; raise UnknownTask, with the nearest one, if there is none."""
    task = _tasks.get(path)
    if task is not None:
        return task
    shown = short(path, LONGEST_PATH_BYTES)
    last = shown.rpartition(".")[2]
    same = [one for one in _tasks if one.rpartition(".")[2] == last]
    near = (same or difflib.get_close_matches(shown, list(_tasks), n=1))[:1]
    hint = (
        f"Did it become {near[0]!r}? Edit the task of the message and requeue it"
        if near
        else "Define it with @task in tasks.py of an installed app, restart the consumer and requeue the message"
    )
    raise UnknownTask(f"There is no task {shown!r}. {hint}.")


def check_arguments(task: AnyTask, args: list[Any], kwargs: dict[str, Any]) -> None:
    """Raise NotRunnable for arguments that the function does not take: no attempt could succeed."""
    context = [None] if task.takes_context else []
    try:
        _signature(task.func).bind(*context, *args, **kwargs)
    except TypeError as error:
        raise NotRunnable(f"Task {task.module_path} does not take the arguments of the message: {error}.") from None


_signature = lru_cache(maxsize=1000)(signature_of)
