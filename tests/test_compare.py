"""The comparison states of other packages what they do: by their own sources, where they are installed."""

import inspect
import re
from importlib import import_module
from typing import Any

import pytest

from tests.tooling.pages import page
from tests.tooling.services import Unavailable, go_without

COMPARED = page("compare.md").read_text()
README = page("README.md").read_text()


def peer(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        go_without(Unavailable(None, f"{module} is not installed. Run `pip install --group clients`."))


def default(function: object, parameter: str) -> object:
    assert callable(function)
    return inspect.signature(function).parameters[parameter].default


def stated(text: str, package: str, row: str) -> str:
    """Return the cell of the first table with a column for that package."""
    [heading, *_] = re.findall(r"^\| *\|.+", text, re.MULTILINE)
    column = [cell.strip() for cell in heading.split("|")].index(package)
    [found] = re.findall(rf"^\| {re.escape(row)} \|.+", text, re.MULTILINE)
    return str(found.split("|")[column]).strip()


def test_celery_acknowledges_before_the_task_and_retries_three_times() -> None:
    task = peer("celery.app.task").Task
    acks_late = peer("celery.app.defaults").NAMESPACES["task"]["acks_late"].default

    assert stated(COMPARED, "Celery", "Acknowledged").startswith("before the task") is not acks_late
    assert stated(COMPARED, "Celery", "Default attempts") == f"1; on request {task.max_retries} retries"
    # So a task is acked even with acks_late, if its pool's process is killed.
    assert (stated(README, "Celery on RabbitMQ", "A worker is killed") == "running tasks are lost") is not bool(
        task.reject_on_worker_lost
    )


def test_celery_publishes_unconfirmed_and_keeps_a_retry_in_a_worker() -> None:
    exchange = peer("celery.app.defaults").NAMESPACES["task"]["default_exchange_type"].default

    assert f"its default, a {exchange} exchange" in COMPARED
    assert stated(COMPARED, "Celery", "Publishing confirmed") == "`confirm_publish`"
    assert not default(peer("amqp").Connection.__init__, "confirm_publish")


@pytest.mark.parametrize("text", [COMPARED, README], ids=["page", "README"])
def test_dramatiq_deletes_what_failed_after_seven_days(text: str) -> None:
    days = peer("dramatiq.brokers.rabbitmq").DEAD_MESSAGE_TTL / (24 * 60 * 60 * 1000)

    assert f"deleted after {days:.0f} days" in stated(text, "Dramatiq", "After the last attempt")


def test_dramatiq_retries_twenty_times_and_publishes_unconfirmed() -> None:
    retries = default(peer("dramatiq.middleware").Retries.__init__, "max_retries")
    confirms = default(peer("dramatiq.brokers.rabbitmq").RabbitmqBroker.__init__, "confirm_delivery")

    assert stated(COMPARED, "Dramatiq", "Default attempts") == f"1 and {retries} retries"
    assert stated(COMPARED, "Dramatiq", "Publishing confirmed") == "`confirm_delivery`"
    assert confirms is False
