"""One backend in ``TASKS``, read into a value; each mistake is one sentence."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from django_rmq_retry.arguments import LONGEST_WAIT_SECONDS, check_seconds
from django_rmq_retry.conf import refuse_unknown, wrong
from django_rmq_retry.errors import ConfigurationError
from django_rmq_retry.handlers.subscription import Keys
from django_rmq_retry.policies.breaker import Breaker
from django_rmq_retry.policies.policy import Policy
from django_rmq_retry.topology.declarations import check_name

KEYS = ("BACKEND", "OPTIONS", "QUEUES")
OPTIONS = ("breakers", "keys", "policies", "results", "timeouts")
DEFAULT_QUEUE = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """A backend of ``TASKS`` with its defaults."""

    queues: tuple[str, ...] = (DEFAULT_QUEUE,)
    policies: Mapping[str, Policy] = field(default_factory=dict)
    """By queue; any other queue has the policy of RMQ_RETRY."""
    breakers: Mapping[str, Breaker] = field(default_factory=dict)
    keys: Mapping[str, Keys] = field(default_factory=dict)
    """Functions that return business keys, in addition to a task's path and id, by queue."""
    timeouts: Mapping[str, float] = field(default_factory=dict)
    """Seconds after which a run of a task is ended, by queue."""
    results: timedelta | None = None
    """How long results are stored; None if they are not."""


def handler_name(queue: str) -> str:
    """Return the name of the handler that takes the tasks of a queue."""
    return f"tasks.{queue}"


def queues_of(params: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the names in QUEUES; None if they are none."""
    names = params.get("QUEUES", (DEFAULT_QUEUE,))
    listed = isinstance(names, list | tuple | set | frozenset) and names
    return tuple(dict.fromkeys(names)) if listed and all(isinstance(one, str) and one for one in names) else None


def options_of(alias: str, params: Mapping[str, Any]) -> TaskOptions:
    """Return the options of a backend, or raise ImproperlyConfigured with one sentence."""
    where = f"TASKS[{alias!r}]"
    refuse_unknown(where, params, KEYS)
    queues = queues_of(params)
    if queues is None:
        raise wrong(f"{where}['QUEUES']", "a list of queue names such as ['default', 'emails']", repr(params["QUEUES"]))
    for name in queues:
        try:
            check_name("queue", name)
        except ConfigurationError as error:
            raise ImproperlyConfigured(f"{where}['QUEUES']: {error}") from error
    given = params.get("OPTIONS", {})
    if not isinstance(given, dict):
        raise wrong(f"{where}['OPTIONS']", "a dict such as {'results': timedelta(days=7)}", repr(given))
    where = f"{where}['OPTIONS']"
    refuse_unknown(where, given, OPTIONS)
    return TaskOptions(
        queues=queues,
        policies=_by_queue(f"{where}['policies']", given.get("policies", {}), queues, Policy, "RetryThenPark()"),
        breakers=_by_queue(f"{where}['breakers']", given.get("breakers", {}), queues, Breaker, "Breaker(on=MailDown)"),
        keys=_by_queue(f"{where}['keys']", given.get("keys", {}), queues, Callable, "a function"),
        timeouts=_timeouts(f"{where}['timeouts']", given.get("timeouts", {}), queues),
        results=_results(f"{where}['results']", given.get("results")),
    )


def _by_queue(key: str, given: object, queues: tuple[str, ...], kind: Any, example: str) -> dict[str, Any]:
    """Read a dict of values, or dotted paths to them, by queue."""
    values = _queued(key, given, queues, f"'shop.policies.{queues[0]}'")
    return {name: _value(f"{key}[{name!r}]", value, kind, example) for name, value in values.items()}


def _timeouts(key: str, given: object, queues: tuple[str, ...]) -> dict[str, float]:
    seconds = _queued(key, given, queues, "15")
    for name, value in seconds.items():
        check_seconds(f"{key}[{name!r}]", value)
    return seconds


def _queued(key: str, given: object, queues: tuple[str, ...], example: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise wrong(key, f"a dict such as {{{queues[0]!r}: {example}}}", repr(given))
    for name in given:
        if name not in queues:
            raise ImproperlyConfigured(f"{key} names the queue {name!r}, which is not in QUEUES: {', '.join(queues)}.")
    return given


def _value(key: str, given: object, kind: Any, example: str) -> object:
    value = given
    if isinstance(given, str):
        try:
            value = import_string(given)
        except ImportError as error:
            raise ImproperlyConfigured(f"{key} names {given!r}, which cannot be imported: {error}.") from error
    if isinstance(value, kind):
        return value
    raise wrong(key, f"{example} or another {kind.__name__.lower()}, or the dotted path to one", repr(given))


def _results(key: str, given: object) -> timedelta | None:
    if given is None:
        return None
    if isinstance(given, timedelta) and 0 < given.total_seconds() <= LONGEST_WAIT_SECONDS:
        return given
    raise wrong(key, "a timedelta such as timedelta(days=7), or None", repr(given))
