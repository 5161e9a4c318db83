"""Tasks of an app, found by the consumer that a test starts."""

import os
import signal

from django_rmq_retry import Fixed, RetryThenPark
from django_rmq_retry.tasks import policy
from tests.shop.notes import note

try:
    from django.tasks import task
except ImportError:
    from django_tasks import task  # type: ignore[no-redef]  # the same, before Django 6.0


class MailDown(Exception):
    """The mail server did not answer."""


@task
def double(number: int) -> int:
    """Kill the worker the first time."""
    note(f"double {number}")
    if os.environ.get("KILLING"):
        os.kill(os.getpid(), signal.SIGKILL)
    return 2 * number


@task
@policy(RetryThenPark(attempts=2, backoff=Fixed(0.1)))
def mail(to: str) -> str:
    """Fail until the mail server is back."""
    note(f"mail {to}")
    if os.environ.get("DOWN"):
        raise MailDown("no answer")
    return f"sent to {to}"
