"""Backends for Django's own tests of task backends.

Those tests know two kinds of backends: one that only stores a task, and one that runs it inside ``enqueue``. Both are a
RabbitBackend here, with results; the second one runs a whole consumer for the one message that it has sent.
"""

import atexit
import io
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pika
from django.core.management import call_command
from django.db import connection

from django_rmq_retry import RetryThenPark
from django_rmq_retry.handlers import registry
from django_rmq_retry.models import StoredResult
from django_rmq_retry.tasks import RabbitBackend
from django_rmq_retry.tasks.options import TaskOptions
from tests.consumer.assembly import consumer_of
from tests.foreign.django_settings import URL

ONCE = RetryThenPark(attempts=1)
"""Django's backend that runs tasks retries none."""


class Storing(RabbitBackend):
    """In place of DummyBackend: nobody consumes."""

    def read_options(self) -> TaskOptions:
        options = super().read_options()
        return replace(options, results=timedelta(hours=1), policies=dict.fromkeys(options.queues, ONCE))

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        _declare()
        return super().enqueue(task, args, kwargs)

    @property
    def results(self) -> list[Any]:
        """The results of all tasks, as Django's tests look at them."""
        return [self.get_result(pk) for pk in StoredResult.objects.values_list("pk", flat=True)]

    def clear(self) -> None:
        StoredResult.objects.all().delete()


class Running(Storing):
    """In place of ImmediateBackend: a consumer takes the message before ``enqueue`` returns."""

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        self.validate_task(task)
        _declare()
        _on_broker("queue_purge", [task.queue_name])
        result = super().enqueue(task, args, kwargs)
        if not connection.in_atomic_block:
            _consume_one()
            result.refresh()
        return result


def _on_broker(what: str, names: Iterable[str]) -> None:
    with closing(pika.BlockingConnection(pika.URLParameters(URL))) as opened:
        for name in names:
            getattr(opened.channel(), what)(name)


def _declare() -> None:
    """Declare the queues of today's settings in place of those before."""
    names = list(registry.topology().queues)
    if _declared == names:
        return
    _on_broker("queue_delete", {*_declared, *names})
    told = io.StringIO()
    try:
        call_command("rmq_declare", stdout=told, stderr=told)
    except SystemExit:
        raise AssertionError(told.getvalue()) from None
    _declared[:] = names


_declared: list[str] = []


@atexit.register
def _delete() -> None:
    _on_broker("queue_delete", _declared)


def _consume_one() -> None:

    consumer_of(registry.work_queues(), messages=1).run()
