"""The tasks of the lane of that name: one of each kind, which share a queue."""

from typing import Any

from asgiref.sync import sync_to_async
from django.db import transaction

from django_rmq_retry.tasks.api import TaskContext
from tests.chaos.ledger import RAN, now
from tests.chaos.project.acting import follow, ledger, wait_and_follow
from tests.chaos.project.models import Effect

try:
    from django.tasks import task
except ImportError:
    from django_tasks import task  # type: ignore[no-redef]  # the same, before Django 6.0


@task(queue_name="chaos.task", takes_context=True)
def work(context: "TaskContext[..., Any]", name: str) -> str:
    follow(name, context.attempt)
    return _take_effect(name, context.attempt)


@task(queue_name="chaos.task", takes_context=True)
async def wait(context: "TaskContext[..., Any]", name: str) -> str:
    await wait_and_follow(name, context.attempt, endless=0)
    return await sync_to_async(_take_effect)(name, context.attempt)


def _take_effect(name: str, attempt: int) -> str:
    with transaction.atomic():
        Effect.objects.create(name=name, attempt=attempt)
    ledger.note(RAN, name, attempt, now())
    return name
