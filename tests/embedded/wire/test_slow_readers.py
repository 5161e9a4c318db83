"""Clients that do not read: the broker reads their frames, and sends the rest when they read again."""

from collections import Counter
from typing import Any

import pika
import pytest
from pika import spec

from django_rmq_retry.embedded.engine.consumers import MOST_UNREAD_BYTES
from django_rmq_retry.embedded.wire.client import Broker, Client
from tests.embedded.wire.raw import HEADER, PLAIN, Raw, framed, header, opened, publish, raw_to
from tests.tooling.vhosts import Vhost
from tests.tooling.waiting import wait_until

BODY = b"x" * 100_000
BACKLOG = 300
HEARTBEAT = framed(8, b"", channel=0)


def posted(key: str, body: bytes = BODY, *, mandatory: bool = False) -> bytes:
    return publish(key, mandatory=mandatory) + header(len(body)) + framed(3, body)


@pytest.fixture
def backlog(vhost: Vhost) -> Vhost:
    """30 MB wait in the queue `big`."""
    with pika.BlockingConnection(pika.URLParameters(vhost.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("big")
        channel.queue_declare("sink", arguments={"x-max-length": 10})
        for _ in range(BACKLOG):
            channel.basic_publish("", "big", BODY)
    return vhost


def all_read(raw: Raw, *, until: str, count: int) -> Counter[str]:
    """Read until this number of one method arrived; return the number of each."""
    found: Counter[str] = Counter()
    while found[until] < count:
        kind, _, payload = raw.frame()
        assert kind, f"the connection has ended after {found}"
        if kind == 1:
            found[spec.methods[int.from_bytes(payload[:4])].NAME] += 1
    return found


@pytest.mark.parametrize("no_ack", [False, True])
@pytest.mark.contract
@pytest.mark.on_both(rabbitmq=pytest.mark.nightly)
def test_a_client_with_30_mb_of_unread_deliveries_can_publish(backlog: Vhost, no_ack: bool) -> None:
    with raw_to(backlog) as raw:
        opened(raw, backlog)
        raw.say(spec.Confirm.Select(), spec.Basic.Consume(queue="big", no_ack=no_ack), channel=1)
        for _ in range(BACKLOG):
            raw.send(posted("sink"))
        raw.send(posted("nowhere", b"the last", mandatory=True))
        found = all_read(raw, until="Basic.Return", count=1)
        found += all_read(raw, until="Basic.Deliver", count=BACKLOG - found["Basic.Deliver"])

    assert found["Basic.Deliver"] == BACKLOG


@pytest.mark.contract
@pytest.mark.on_both(rabbitmq=pytest.mark.nightly)
def test_a_client_with_40_mb_of_unread_returns_can_publish(vhost: Vhost) -> None:
    with raw_to(vhost) as raw:
        opened(raw, vhost)
        for _ in range(400):
            raw.send(posted("nowhere", mandatory=True))
        found = all_read(raw, until="Basic.Return", count=400)

    assert found == {"Basic.Return": 400}


@pytest.mark.contract
@pytest.mark.on_both(rabbitmq=pytest.mark.nightly)
def test_a_client_that_only_sends_heartbeats_is_not_closed(backlog: Vhost) -> None:
    def silence_has_ended_the_other() -> bool:
        raw.send(HEARTBEAT)
        try:
            return not silent.sock.recv(65536)
        except TimeoutError:
            return False
        except ConnectionResetError:
            return True

    with raw_to(backlog) as raw, raw_to(backlog) as silent:
        opened(raw, backlog, heartbeat=1)
        raw.say(spec.Basic.Consume(queue="big"), channel=1)
        raw.frame()
        opened(silent, backlog, heartbeat=1)
        silent.sock.settimeout(0.1)
        wait_until(silence_has_ended_the_other)
        found = all_read(raw, until="Basic.Deliver", count=BACKLOG)

    assert found["Basic.Deliver"] == BACKLOG


class Silent:
    """A client without a socket, which reads on request."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.client = Client(broker)
        response: Any = PLAIN
        self.client.receive(HEADER)
        self.say(spec.Connection.StartOk({}, "PLAIN", response, "en_US"), channel=0)
        self.say(spec.Connection.TuneOk(2047, 131072, 0), spec.Connection.Open("/"), channel=0)
        self.say(spec.Channel.Open())

    def say(self, *methods: Any, channel: int = 1) -> None:
        for method in methods:
            self.client.receive(pika.frame.Method(channel, method).marshal())

    def turn(self, *, reads: int = 0) -> int:
        """Run one turn of the loop; return the unread bytes after it."""
        self.broker.write_events()
        del self.client.out[:reads]
        self.client.measure()
        return len(self.client.out)


@pytest.mark.parametrize("size", [500, 100_000])
def test_a_consumer_that_does_not_read_gets_at_most_8_mb(size: int) -> None:
    broker = Broker()
    publisher, consumer = Silent(broker), Silent(broker)
    publisher.say(spec.Queue.Declare(queue="q"))
    publisher.client.receive(posted("q", bytes(size)) * (2 * MOST_UNREAD_BYTES // (size + 100)))
    consumer.say(spec.Basic.Consume(queue="q", no_ack=True))
    unread = [consumer.turn()]
    publisher.client.receive(posted("q", bytes(size)) * 100)
    unread += consumer.turn(), consumer.turn(reads=MOST_UNREAD_BYTES // 4), consumer.turn()
    consumer.turn(reads=MOST_UNREAD_BYTES)
    again = consumer.turn()

    assert MOST_UNREAD_BYTES / 2 < unread[0] == unread[1] < MOST_UNREAD_BYTES + size + 200
    assert unread[2] == unread[3] == unread[0] - MOST_UNREAD_BYTES // 4
    assert MOST_UNREAD_BYTES / 2 < again < MOST_UNREAD_BYTES + size + 200
