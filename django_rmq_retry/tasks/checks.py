"""What is wrong with a RabbitBackend in ``TASKS``: findings of Django's own check of its backends."""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

from django.conf import settings as project
from django.core.checks import CheckMessage, Error, Warning  # noqa: A004  # Django's own names
from django.core.exceptions import ImproperlyConfigured

from django_rmq_retry.conf import settings
from django_rmq_retry.errors import ConfigurationError
from django_rmq_retry.tasks.api import task_backends
from django_rmq_retry.tasks.known import every
from django_rmq_retry.tasks.options import TaskOptions, options_of, queues_of
from django_rmq_retry.tasks.policies import misfit, own_policies


def found(alias: str, params: Mapping[str, Any]) -> Iterator[CheckMessage]:
    """Yield the findings of one backend."""
    try:
        options = options_of(alias, params)
    except (ImproperlyConfigured, ConfigurationError) as wrong:
        yield Error(str(wrong), hint="Correct TASKS in the settings file.", id="rmq_retry.E070")
        return
    try:
        known = settings()
    except ImproperlyConfigured:
        # check_settings reports it.
        return
    yield from _shared(alias, options)
    for path, own in own_policies(alias).items():
        name = every()[path].queue_name
        if why := misfit(own, options.policies.get(name, known.policy)):
            yield Error(
                f"Task {path} has a policy that queue {name!r} cannot have: {why}. The queue's own one is used.",
                hint="Change @policy(…), or give all tasks of the queue one carrier.",
                id="rmq_retry.E072",
            )
    if options.results is None:
        return
    if not known.records:
        yield Error(
            f"TASKS[{alias!r}]['OPTIONS']['results'] needs RECORDS: results are made of the recorded attempts.",
            hint="Set RMQ_RETRY['RECORDS'] to True, or remove 'results'.",
            id="rmq_retry.E073",
        )
    if options.results > timedelta(days=known.operators.attempt_days):
        yield Warning(
            f"Results of TASKS[{alias!r}] are kept for {options.results.days} days, and the errors in them only for "
            f"{known.operators.attempt_days}, as RMQ_RETRY['OPERATORS']['ATTEMPT_DAYS'] says.",
            hint="Keep results for a shorter time, or raise ATTEMPT_DAYS.",
            id="rmq_retry.W070",
        )


def _shared(alias: str, options: TaskOptions) -> Iterator[CheckMessage]:
    """Yield an error for each queue that a backend before this one has, too."""
    for other in getattr(project, "TASKS", {}):
        if other == alias:
            return
        if not hasattr(task_backends[other], "read_options"):
            continue
        for name in set(options.queues) & set(queues_of(project.TASKS[other]) or ()):
            yield Error(
                f"TASKS[{alias!r}] and TASKS[{other!r}] both have the queue {name!r}: each message goes to one of "
                "them.",
                hint="Give each backend queues of its own.",
                id="rmq_retry.E071",
            )
