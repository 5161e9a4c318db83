"""The handlers of the queues of tasks: one for each queue in ``TASKS``."""

from collections.abc import Iterable, Mapping
from typing import Any

from django_rmq_retry.conf import settings
from django_rmq_retry.handlers import registry
from django_rmq_retry.handlers.call import guarded
from django_rmq_retry.handlers.subscription import HandlerOptions, Keys
from django_rmq_retry.messages.message import Delivery
from django_rmq_retry.tasks import known
from django_rmq_retry.tasks.backend import RabbitBackend
from django_rmq_retry.tasks.calls import CALLS
from django_rmq_retry.tasks.options import TaskOptions, handler_name
from django_rmq_retry.tasks.policies import TaskPolicy
from django_rmq_retry.tasks.running import TaskRunner


def registrations(alias: str, backend: object, params: Mapping[str, Any]) -> Iterable[registry.Registration]:
    """Return the handlers of the queues of a backend's class; none if it is no RabbitBackend."""
    if not (isinstance(backend, type) and issubclass(backend, RabbitBackend)):
        return ()
    options = backend(alias, dict(params)).read_options()
    return [_registration(alias, backend, options, name) for name in options.queues]


def _registration(alias: str, sender: type, options: TaskOptions, queue: str) -> registry.Registration:
    name = handler_name(queue)
    timeout = options.timeouts.get(queue)
    runner = TaskRunner(name=name, backend=alias, sender=sender, kept=options.results, timeout=timeout)
    return registry.Registration(
        name=name,
        run=guarded(runner.run, name),
        queue=queue,
        policy=TaskPolicy(alias=alias, queue=options.policies.get(queue, settings().policy)),
        options=HandlerOptions(
            codec=CALLS,
            keys=_keys_with(options.keys.get(queue)),
            timeout=timeout,
            breaker=options.breakers.get(queue),
            judged=runner.judged,
            in_loop=runner.in_loop,
        ),
        asynchronous=_all_async(alias, queue),
        module=__name__,
    )


def _keys_with(own: Keys | None) -> Keys:
    """Return the function for the business keys of a task: first its path and id, then those of the project."""
    if own is None:
        return CALLS.keys

    def keys(message: Delivery) -> list[str]:
        more = own(message)
        return [*CALLS.keys(message), *([more] if isinstance(more, str) else more)]

    return keys


def _all_async(alias: str, queue: str) -> bool:
    """True if all tasks of a queue are async, so that a consumer works on many of them at once."""
    tasks = [one for one in known.every().values() if (one.backend, one.queue_name) == (alias, queue)]
    return bool(tasks) and all(map(known.is_async, tasks))
