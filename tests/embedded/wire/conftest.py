"""One embedded broker, and a plain channel to it."""

from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry.embedded.wire.server import BrokerServer
from tests.embedded.served import MakeServer
from tests.embedded.wire.folders import end, running


@pytest.fixture
def server(make_server: MakeServer) -> BrokerServer:
    return make_server()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A place for one broker that runs as its own process; removed after the test."""
    folder = tmp_path / "broker"
    yield folder
    if running(folder):
        end(folder)


@pytest.fixture
def channel(server: BrokerServer) -> Iterator[BlockingChannel]:
    connection = pika.BlockingConnection(pika.URLParameters(server.url))
    yield connection.channel()
    if connection.is_open:
        connection.close()
