"""Bodies of many megabytes."""

import os
from hashlib import sha256
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker

from django_rmq_retry.embedded.wire.server import BrokerServer
from tests.embedded.served import served

MEGABYTE = 2**20


def sent(server: BrokerServer, body: bytes) -> None:
    with pika.BlockingConnection(pika.URLParameters(server.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("q", durable=True)
        channel.basic_publish("", "q", body, pika.BasicProperties(delivery_mode=2))


def taken(server: BrokerServer) -> bytes:
    with pika.BlockingConnection(pika.URLParameters(server.url)) as connection:
        got: Any = connection.channel().basic_get("q", auto_ack=True)
    return bytes(got[2])


@pytest.mark.parametrize("megabytes", [5, 16])
def test_bodies_of_many_megabytes_arrive_as_they_were_sent(server: BrokerServer, megabytes: int) -> None:
    body = os.urandom(megabytes * MEGABYTE)
    sent(server, body)
    found = taken(server)

    assert len(found) == len(body)
    assert sha256(found).digest() == sha256(body).digest()


def test_a_body_above_the_versions_limit_is_refused_like_on_rabbitmq(server: BrokerServer) -> None:
    with pytest.raises(ChannelClosedByBroker) as caught:
        sent(server, bytes(50 * MEGABYTE))

    assert (caught.value.reply_code, caught.value.reply_text) == (
        406,
        "PRECONDITION_FAILED - message size 52428800 is larger than configured max size 16777216",
    )


def test_a_large_body_survives_a_restart_of_the_broker(tmp_path: Path) -> None:
    file = tmp_path / "broker.sqlite3"
    body = os.urandom(5 * MEGABYTE)
    with served(file=file) as server:
        sent(server, body)
    with served(file=file) as server:
        found = taken(server)

    assert sha256(found).digest() == sha256(body).digest()
