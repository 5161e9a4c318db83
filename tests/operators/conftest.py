"""A project with one work queue, on a virtual host of its own."""

from collections.abc import Iterator
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry import Delivery, handler
from django_rmq_retry.parked.operators import Actor
from django_rmq_retry.testing import isolated_handlers
from tests.admin.made import person
from tests.operators.made import QUEUE
from tests.operators.second_person import MAY, actor_of, needing_second_person
from tests.tooling.brokers import using_broker


@pytest.fixture(autouse=True)
def project() -> Iterator[None]:
    """Its handler takes what comes from payments by charge.#."""
    with isolated_handlers():

        @handler(QUEUE, routing_key="charge.#")
        def charge(message: Delivery) -> None:
            """Nothing."""

        yield


@pytest.fixture
def wired(broker_url: str, settings: Any, amqp: BlockingChannel) -> Iterator[BlockingChannel]:
    """The broker has its queue; a publish may take a moment on a busy machine."""
    amqp.queue_declare(QUEUE)
    with using_broker(settings, broker_url, PUBLISH_TIMEOUT=20):
        yield amqp


@pytest.fixture
def away(settings: Any) -> Iterator[None]:
    """The URL of a broker at whose port no process listens."""
    with using_broker(settings, "amqp://guest:guest@127.0.0.1:1/", PUBLISH_TIMEOUT=0.2, CONNECT_TIMEOUT=1):
        yield


@pytest.fixture
def four_eyes(settings: Any) -> None:
    """Each act needs a second person."""
    needing_second_person(settings)


@pytest.fixture
def ann() -> Actor:
    """Who asks."""
    return actor_of(person("ann", *MAY))


@pytest.fixture
def bob() -> Actor:
    """The second person."""
    return actor_of(person("bob", *MAY))
