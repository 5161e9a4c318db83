"""A project with one work queue, on a virtual host of its own."""

from collections.abc import Iterator
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry import handler
from django_rmq_retry.handlers import registry
from django_rmq_retry.messages.message import Delivery
from django_rmq_retry.publishing import broker_connections
from tests.operating.made import QUEUE


@pytest.fixture(autouse=True)
def project() -> Iterator[None]:
    """Its handler takes what comes from payments by charge.#."""
    with registry.isolated():

        @handler(QUEUE, routing_key="charge.#")
        def charge(message: Delivery) -> None:
            """Nothing."""

        yield


@pytest.fixture
def wired(broker_url: str, settings: Any, amqp: BlockingChannel) -> Iterator[BlockingChannel]:
    """The broker has its queue; a publish may take a moment on a busy machine."""
    broker_connections.close()
    settings.RMQ_RETRY = {"URL": broker_url, "PUBLISH_TIMEOUT": 20}
    amqp.queue_declare(QUEUE)
    yield amqp
    broker_connections.close()


@pytest.fixture
def away(settings: Any) -> Iterator[None]:
    """Nobody listens where the broker should be."""
    broker_connections.close()
    settings.RMQ_RETRY = {"URL": "amqp://guest:guest@127.0.0.1:1/", "PUBLISH_TIMEOUT": 0.2, "CONNECT_TIMEOUT": 1}
    yield
    broker_connections.close()
