"""One embedded broker, and a plain channel to it."""

from collections.abc import Iterator

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry.embedded.wire.serving import Server
from tests.embedded.served import MakeServer


@pytest.fixture
def server(make_server: MakeServer) -> Server:
    return make_server()


@pytest.fixture
def channel(server: Server) -> Iterator[BlockingChannel]:
    connection = pika.BlockingConnection(pika.URLParameters(server.url))
    yield connection.channel()
    if connection.is_open:
        connection.close()
