"""A project of its own for each test of a command."""

from collections.abc import Iterator
from typing import Any

import pytest

from django_rmq_retry import Delivery, Exchange, Exponential, Queue, RetryThenPark, handler
from django_rmq_retry.testing import isolated_handlers
from tests.commands.running import Exit, run


@pytest.fixture(autouse=True)
def no_handlers() -> Iterator[None]:
    with isolated_handlers():
        yield


@pytest.fixture
def charge() -> None:
    """A project with one handler: work queue, two waiting queues, parked queue, one binding."""
    payments = Exchange("payments", "topic")
    policy = RetryThenPark(attempts=3, backoff=Exponential(10, factor=3))

    @handler(Queue("payments.charge", bindings=[payments.bind("charge.#")]), policy=policy)
    def charge(message: Delivery) -> None:
        """Nothing."""


@pytest.fixture
def project(broker_url: str, settings: Any, charge: None, db: None) -> Any:  # noqa: ARG001 - in this order
    """The project, on a virtual host of its own."""
    settings.RMQ_RETRY = {"URL": broker_url}
    return settings


@pytest.fixture
def declared(request: pytest.FixtureRequest) -> None:
    """Its queues are on the broker."""
    request.getfixturevalue("project")
    assert run("rmq_declare").code == Exit.DONE
