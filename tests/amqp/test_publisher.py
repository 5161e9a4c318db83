"""The results of publishes, on a real broker."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry import Message
from django_rmq_retry.amqp import PublishEnd
from django_rmq_retry.errors import MessageNacked, MessageReturned, MessageUnsent, PublishUnknown
from django_rmq_retry.messages import Headers
from tests.amqp.line_between import between
from tests.amqp.live import io_thread, publisher_on, publishing, to
from tests.tooling.node import Node, free_ports
from tests.tooling.vhosts import Vhost
from tests.tooling.waiting import wait_until

pytestmark = pytest.mark.contract

SLACK = 0.5
"""Seconds by which a publish may outlast its time-out."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    began = time.monotonic()
    yield
    took = time.monotonic() - began

    assert took <= seconds + SLACK


def classic(amqp: BlockingChannel, name: str, **arguments: object) -> None:
    said = {key.replace("_", "-"): value for key, value in arguments.items()}
    amqp.queue_declare(name, durable=True, arguments={"x-queue-type": "classic", **said})


def depth(amqp: BlockingChannel, name: str) -> int:
    return amqp.queue_declare(name, passive=True).method.message_count or 0


def test_a_confirmed_message_is_in_its_queue_with_all_properties(broker_url: str, amqp: BlockingChannel) -> None:
    classic(amqp, "q")
    with publishing(broker_url) as publisher:
        publisher.publish(to("q", b"body", message_id="m", type="t", headers=Headers.of({"a": 1, "b": "ü"})))
    _, properties, body = amqp.basic_get("q", auto_ack=True)

    assert body == b"body"
    assert properties is not None
    assert (properties.message_id, properties.type, properties.delivery_mode) == ("m", "t", 2)
    assert properties.headers == {"a": 1, "b": "ü"}


def test_an_unroutable_message_raises_an_error_with_the_fix(broker_url: str) -> None:
    with publishing(broker_url) as publisher, pytest.raises(MessageReturned, match="rmq_declare") as caught:
        publisher.publish(to("nowhere"))

    assert (caught.value.exchange, caught.value.routing_key) == ("", "nowhere")
    assert "312 NO_ROUTE" in str(caught.value)


@pytest.mark.parametrize(
    "message",
    [
        to("nowhere", headers=Headers.of({"CC": ["absent"]})),
        to("nowhere", headers=Headers.of({"BCC": ["absent"]})),
        to("\udcff\udcfe"),
    ],
    ids=["CC", "BCC, which the broker removes", "a key that is not UTF-8"],
)
def test_an_unusual_message_that_no_queue_takes_is_returned(broker_url: str, message: Message) -> None:
    with publishing(broker_url) as publisher, pytest.raises(MessageReturned):
        publisher.publish(message)


def test_an_optional_message_may_be_dropped(broker_url: str) -> None:
    with publishing(broker_url) as publisher:
        publisher.publish(to("nowhere", mandatory=False))


def test_a_missing_exchange_fails_only_publishes_to_it(broker_url: str, amqp: BlockingChannel) -> None:
    classic(amqp, "q")
    ends: list[tuple[str, PublishEnd]] = []
    with publishing(broker_url) as publisher:
        publisher.publish(to("q"))
        for number in range(20):
            exchange = "missing" if number % 2 else ""
            publisher.send(to("q", exchange=exchange), lambda end, exchange=exchange: ends.append((exchange, end.kind)))  # type: ignore[misc]
        wait_until(lambda: len(ends) == 20, 5)
        with pytest.raises(MessageReturned, match="exchange 'missing' does not exist"):
            publisher.publish(to("q", exchange="missing"))
        publisher.publish(to("q"))

    assert {end for exchange, end in ends if not exchange} == {PublishEnd.CONFIRMED}
    # Of several in flight on one channel the broker may have routed some before the exchange was deleted.
    assert {end for exchange, end in ends if exchange} <= {PublishEnd.UNKNOWN, PublishEnd.RETURNED}
    assert depth(amqp, "q") == 12


def test_a_publish_succeeds_after_its_exchange_is_declared(broker_url: str, amqp: BlockingChannel) -> None:
    classic(amqp, "q")
    with publishing(broker_url) as publisher:
        with pytest.raises(MessageReturned, match="exchange 'late' does not exist"):
            publisher.publish(to("k", exchange="late"))
        amqp.exchange_declare("late", "fanout")
        amqp.queue_bind("q", "late")
        publisher.publish(to("k", exchange="late"))

    assert depth(amqp, "q") == 1


def test_a_publish_to_a_full_queue_is_nacked(broker_url: str, amqp: BlockingChannel) -> None:
    classic(amqp, "q", x_max_length=1, x_overflow="reject-publish")
    with publishing(broker_url) as publisher:
        publisher.publish(to("q"))
        with pytest.raises(MessageNacked, match="full"):
            publisher.publish(to("q"))

    assert depth(amqp, "q") == 1


def test_a_connection_cut_before_the_confirm_leaves_the_end_unknown(broker_url: str, amqp: BlockingChannel) -> None:
    classic(amqp, "q")
    with between(broker_url) as line, publishing(line.url) as publisher, ThreadPoolExecutor() as pool:
        publisher.publish(to("q"))
        line.silence()
        waits = pool.submit(publisher.publish, to("q", message_id="lost"))
        wait_until(lambda: depth(amqp, "q") == 2, 5, what="the broker has it")
        line.cut()
        with pytest.raises(PublishUnknown, match="same message id"):
            waits.result(5)
        line.speak()
        publisher.publish(to("q"))

    assert depth(amqp, "q") == 3


def test_a_publish_waits_for_a_silent_broker_no_longer_than_its_timeout(broker_url: str, amqp: BlockingChannel) -> None:
    classic(amqp, "q")
    with between(broker_url) as line, publishing(line.url) as publisher:
        publisher.publish(to("q"))
        line.silence()
        with within(0.4), pytest.raises(PublishUnknown, match="no confirm in time"):
            publisher.publish(to("q"), timeout=0.4)
        line.speak()
        publisher.publish(to("q"))


def test_a_publish_waits_for_a_handshake_no_longer_than_its_timeout(broker_url: str) -> None:
    with between(broker_url) as line:
        line.silence()
        with publishing(line.url) as publisher, within(0.4), pytest.raises(MessageUnsent):
            publisher.publish(to("q"), timeout=0.4)


def test_without_a_broker_nothing_is_sent_and_the_deadline_holds() -> None:
    (port,) = free_ports(1)
    with publishing(f"amqp://guest:guest@127.0.0.1:{port}") as publisher:
        with within(0.6), pytest.raises(MessageUnsent, match="refused"):
            publisher.publish(to("q"), timeout=0.6)
        with within(0.3), pytest.raises(MessageUnsent):
            publisher.publish_many([to("q")] * 10, timeout=0.3)


def test_wrong_credentials_are_reported_at_once_and_without_the_password(broker_url: str) -> None:
    wrong = broker_url.replace("guest:guest", "guest:not-the-pass")
    with publishing(wrong) as publisher, within(1), pytest.raises(MessageUnsent) as caught:
        publisher.publish(to("q"), timeout=8)

    assert "refused the user name or password" in str(caught.value)
    assert "not-the-pass" not in repr(caught.value)


def properties_of(listed: dict[str, Any]) -> dict[str, Any]:
    """What a client says of itself; the broker lists a connection before it lists these."""
    found: dict[str, Any] = listed.get("client_properties", {})
    return found


def test_many_threads_share_one_connection(broker_url: str, vhost: Vhost, amqp: BlockingChannel) -> None:
    classic(amqp, "q")
    with publishing(broker_url) as publisher, ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: publisher.publish(to("q", str(number).encode())), range(800)))
        ours = wait_until(lambda: [one for one in map(properties_of, vhost.connections()) if "connection_name" in one])

    assert depth(amqp, "q") == 800
    assert len(ours) == 1


@pytest.mark.parametrize("window", [1, 7, 1000])
def test_a_batch_never_has_more_than_its_window_in_flight(broker_url: str, amqp: BlockingChannel, window: int) -> None:
    classic(amqp, "q")
    in_flight = []

    def messages() -> Iterator[Message]:
        for taken in range(300):
            # A confirmed message is in the queue.
            in_flight.append(taken - depth(amqp, "q"))
            yield to("q")

    with publishing(broker_url) as publisher:
        assert publisher.publish_many(messages(), window=window) == 300
        assert publisher.publish_many([], window=window) == 0

    assert depth(amqp, "q") == 300
    assert max(in_flight) <= window


def test_a_batch_stops_at_its_first_failure_and_reports_it_when_all_have_ended(
    broker_url: str, amqp: BlockingChannel
) -> None:
    classic(amqp, "q")
    messages = iter([*[to("q")] * 5, to("nowhere"), *[to("q")] * 5000])
    with publishing(broker_url) as publisher, pytest.raises(MessageReturned):
        publisher.publish_many(messages, window=3)

    assert 5 <= depth(amqp, "q") <= 12


def test_a_batch_whose_generator_fails_waits_for_messages_in_flight(broker_url: str, amqp: BlockingChannel) -> None:
    classic(amqp, "q")

    def messages() -> Iterator[Message]:
        yield from [to("q")] * 5
        raise KeyError("the next payment")

    with publishing(broker_url) as publisher:
        with pytest.raises(KeyError) as broken:
            publisher.publish_many(messages(), window=3)

        assert depth(amqp, "q") == 5
    assert broken.value.__notes__ == ["5 messages of this batch were confirmed."]


def test_a_window_of_zero_is_refused(broker_url: str) -> None:
    with publishing(broker_url) as publisher, within(0), pytest.raises(ValueError, match="window"):
        publisher.publish_many([to("q")], window=0)


def test_a_publisher_that_was_closed_opens_again_when_it_is_used(broker_url: str, amqp: BlockingChannel) -> None:
    classic(amqp, "q")
    with publishing(broker_url) as publisher:
        for _ in range(3):
            publisher.publish(to("q"), timeout=3)
            publisher.close()

    assert depth(amqp, "q") == 3


def test_a_message_that_cannot_be_encoded_ends_as_unsent() -> None:
    ends: list[tuple[PublishEnd, str]] = []
    with publishing("amqp://127.0.0.1:1") as publisher:
        publisher.send(to("q", content_type="x" * 256), lambda end: ends.append((end.kind, end.text)))

    [(kind, text)] = ends
    assert kind is PublishEnd.UNSENT
    assert "Property content_type cannot be" in text


def test_closing_a_publisher_ends_every_publish_in_flight(broker_url: str, amqp: BlockingChannel) -> None:
    classic(amqp, "q")
    ends: list[PublishEnd] = []
    with publishing(broker_url, publish_timeout=1) as publisher:
        publisher.publish(to("q"))
        for number in range(40):
            publisher.send(
                to("q", exchange=f"new-{number % 4}" if number % 2 else ""), lambda end: ends.append(end.kind)
            )
        publisher.close()
        wait_until(lambda: len(ends) == 40, 5)


def test_a_waiting_publish_raises_when_the_io_thread_ends(broker_url: str, amqp: BlockingChannel) -> None:
    classic(amqp, "q")
    with between(broker_url) as line, io_thread() as io, ThreadPoolExecutor() as pool:
        publisher = publisher_on(io, line.url)
        publisher.publish(to("q"))
        line.silence()
        waits = pool.submit(publisher.publish, to("q"))
        wait_until(lambda: depth(amqp, "q") == 2, 5)
        io.stop(timeout=5)

        with pytest.raises(PublishUnknown, match="the I/O thread ended"):
            waits.result(2)
        with within(0), pytest.raises(MessageUnsent, match="the I/O thread has ended"):
            publisher.publish(to("q"))
        with within(0), pytest.raises(MessageUnsent):
            publisher.publish_many([to("q")] * 3)


@pytest.mark.slow
@pytest.mark.nightly
def test_after_a_restart_of_the_broker_publishing_continues(private_broker: Vhost, private_node: Node) -> None:
    with publishing(private_broker.url) as publisher:
        publisher.publish(to("nowhere", mandatory=False))
        private_node.stop()
        with within(0.3), pytest.raises(MessageUnsent):
            publisher.publish(to("nowhere"), timeout=0.3)
        private_node.start()
        publisher.publish(to("nowhere", mandatory=False), timeout=20)
