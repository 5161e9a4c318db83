"""A body above the broker's limit is reported to its sender, and disturbs no other; on a real node and without."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry.amqp.move import Move, MoveStopped, for_good
from django_rmq_retry.errors import MessageTooLarge
from tests.amqp.answering import answering, ask, echo, question
from tests.amqp.declared import session_on
from tests.amqp.live import calling, publishing, to
from tests.commands.running import Exit, run
from tests.embedded.served import served
from tests.tooling.brokers import using_broker
from tests.tooling.waiting import longer

LIMIT = 10_000
LARGE = b"x" * 2 * LIMIT
pytestmark = pytest.mark.contract


class Broker:
    """One whose limit can be lowered, as an upgrade does."""

    def __init__(self, url: str, limit: Callable[[int], None]) -> None:
        self.url = url
        self.limit = limit


@pytest.fixture(params=["embedded", pytest.param("rabbitmq", marks=[pytest.mark.slow, pytest.mark.nightly])])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    if request.param == "rabbitmq":
        node = request.getfixturevalue("private_node")

        def set_limit(size: int) -> None:
            node.ctl("eval", f"application:set_env(rabbit, max_message_size, {size}).")
            node.ctl("eval", f"persistent_term:put(max_message_size, {size}).")

        yield Broker(request.getfixturevalue("private_broker").url, set_limit)
        set_limit(16 * 2**20)
        return
    with served() as server:
        vhost = server.broker.vhost

        def lower(size: int) -> None:
            vhost.behaviour = replace(vhost.behaviour, max_message=size)

        yield Broker(server.url, lower)


@contextmanager
def channel(url: str) -> Iterator[BlockingChannel]:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    try:
        yield connection.channel()
    finally:
        connection.close()


def test_a_call_too_large_raises_and_all_other_calls_are_answered(broker: Broker) -> None:
    asked = threading.Event()
    told = threading.Event()

    def late(channel: BlockingChannel, properties: pika.BasicProperties, body: bytes) -> None:
        asked.set()
        told.wait(longer(10))
        echo(channel, properties, body)

    broker.limit(LIMIT)
    with answering(broker.url, late), calling(broker.url) as caller, ThreadPoolExecutor() as pool:
        waits = pool.submit(ask, caller, b"small", timeout=10)
        assert asked.wait(longer(5))
        with pytest.raises(MessageTooLarge, match="20000 bytes are above the broker's 10000"):
            caller.call(question(LARGE, correlation_id="large"), timeout=5)
        with pytest.raises(MessageTooLarge):
            caller.call(question(LARGE, correlation_id="again"), timeout=5)
        told.set()

        assert waits.result(10) == b"re: small"


def test_a_large_call_within_the_limit_is_answered(broker: Broker) -> None:
    with answering(broker.url), calling(broker.url) as caller:
        answer = caller.call(question(LARGE, correlation_id="large"), timeout=5)

    assert answer.body == b"re: " + LARGE


def test_a_move_stops_at_a_message_too_large_and_duplicates_nothing(broker: Broker) -> None:
    bodies = [b"1", b"2", LARGE, b"4"]
    with channel(broker.url) as at:
        at.confirm_delivery()
        for queue in ("from", "to"):
            at.queue_declare(queue)
        for body in bodies:
            at.basic_publish("", "from", body)
        broker.limit(LIMIT)
        stopped = pytest.raises(MoveStopped, match=r"raise max_message_size there\. No message was lost")
        with session_on(broker.url) as session, stopped:
            Move(session, "from", "to", change=for_good("from")).run()
        broker.limit(16 * 2**20)
        with session_on(broker.url) as session:
            assert Move(session, "from", "to", change=for_good("from")).run() == 2

        moved = [at.basic_get("to", auto_ack=True)[2] for _ in range(5)]
    assert moved == [*bodies, None]


def test_a_publish_too_large_raises_an_error_with_the_fix(broker: Broker) -> None:
    broker.limit(LIMIT)
    with publishing(broker.url) as publisher, pytest.raises(MessageTooLarge, match="send a smaller body, or raise"):
        publisher.publish(to("q", LARGE))


def test_rmq_publish_does_not_report_a_body_too_large_as_a_broker_outage(
    broker: Broker, settings: Any, tmp_path: Path
) -> None:
    broker.limit(LIMIT)
    (tmp_path / "body").write_bytes(LARGE)
    with using_broker(settings, broker.url):
        told = run("rmq_publish", "--queue", "payments.charge", "--raw", str(tmp_path / "body"))

    assert (told.code, told.out) == (Exit.DRIFT, ""), told.err
    assert "20000 bytes are above the broker's 10000" in told.err
    assert "when the broker is back" not in told.err
