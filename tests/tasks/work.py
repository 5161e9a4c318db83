"""Tasks, loaded again by each test that has a RabbitBackend."""

import asyncio
from typing import Any

from django_rmq_retry import Fixed, Retry, RetryThenPark
from django_rmq_retry.tasks import policy

try:
    from django.tasks import task
except ImportError:
    from django_tasks import task  # type: ignore[no-redef]  # the same, before Django 6.0

calls: list[Any] = []
"""What the tasks have done."""


class MailDown(Exception):
    """The mail server did not answer."""


@task
def send(*args: Any, **kwargs: Any) -> None:
    calls.append((args, kwargs))


@task
def add(one: int, two: int = 0) -> int:
    return one + two


@task
async def fetch(page: str) -> str:
    calls.append(page)
    return f"<{page}>"


@task
async def loop_of() -> None:
    calls.append(asyncio.get_running_loop())


@task
def fail(text: str = "no answer") -> None:
    calls.append("fail")
    raise MailDown(text)


@task
@policy(RetryThenPark(attempts=2, backoff=Fixed(7)))
def fail_twice() -> None:
    calls.append("fail_twice")
    raise MailDown("no answer")


@task(takes_context=True)
def retry_once(context: Any) -> list[Any]:
    calls.append(context.attempt)
    if context.attempt == 1:
        raise Retry(after=11)
    return [context.attempt, context.task_result.id]


@task
def return_a_set() -> set[int]:
    calls.append("set")
    return {1}


@task
def return_pages() -> object:
    async def pages() -> Any:
        calls.append("page")
        yield 1

    return pages()


@task
def turn() -> None:
    calls.append("turn")
    while True:
        pass


@task
async def wait_forever() -> None:
    calls.append("wait_forever")
    try:
        await asyncio.Event().wait()
    finally:
        calls.append("ended")


@task(queue_name="emails")
def mail(to: str) -> None:
    calls.append(to)


def plain(*_args: Any) -> None:
    """No task: no message may call it."""
    calls.append("plain")


class Holder:
    """No task either."""

    nested = plain
