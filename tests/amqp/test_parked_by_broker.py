"""Messages that the broker itself parks: unchanged, with the broker's own header and none of this package."""

from typing import Any, Literal

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry import Queue, RetryThenPark
from django_rmq_retry.handlers import Subscription
from django_rmq_retry.messages import Reason
from django_rmq_retry.messages.deaths import reason_of
from tests.amqp.declared import arguments, declare, has, ready
from tests.amqp.slow_motion import SlowConsumer
from tests.handlers.factories import topology_of
from tests.tooling.vhosts import Vhost

pytestmark = [pytest.mark.contract, pytest.mark.on_both]

QueueType = Literal["classic", "quorum"]


def declared(vhost: Vhost, amqp: BlockingChannel, **options: Any) -> SlowConsumer:
    work = Queue("work", **options)
    found = Subscription(name="test", run=lambda _: None, queue=work, policy=RetryThenPark(), park="parked")
    declare(vhost, topology_of(found))
    return SlowConsumer(channel=amqp, subscription=found)


def published(amqp: BlockingChannel, *bodies: bytes, **properties: Any) -> None:
    for body in bodies:
        sent = pika.BasicProperties(delivery_mode=2, headers={"own": "kept"}, **properties)
        amqp.basic_publish("", "work", body, sent)


def is_parked(line: SlowConsumer, body: bytes, reason: Reason) -> None:
    """Check the only parked message: it has the broker's header and its own."""
    has(line.channel, "parked", 1)
    _, parked, properties = line.take("parked")
    assert (parked.body, reason_of(parked.headers)) == (body, reason)
    assert {name for name in properties.headers or {} if not name.startswith("x-")} == {"own"}


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_message_not_consumed_in_time_is_parked_as_expired(
    vhost: Vhost, amqp: BlockingChannel, kind: QueueType
) -> None:
    line = declared(vhost, amqp, type=kind)
    published(amqp, b"1", expiration="50")

    is_parked(line, b"1", Reason.EXPIRED)


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_full_queue_that_drops_its_head_parks_the_oldest(
    vhost: Vhost, amqp: BlockingChannel, kind: QueueType
) -> None:
    line = declared(vhost, amqp, type=kind, max_length=1, overflow="drop-head")
    published(amqp, b"1", b"2")

    is_parked(line, b"1", Reason.OVERFLOWN)


def test_a_message_over_the_delivery_limit_is_parked_by_the_broker(vhost: Vhost, amqp: BlockingChannel) -> None:
    line = declared(vhost, amqp, delivery_limit=0)
    published(amqp, b"1")
    tag, _, _ = line.take("work")
    amqp.basic_reject(tag, requeue=True)

    is_parked(line, b"1", Reason.DELIVERY_LIMIT)


def test_a_full_queue_refuses_its_publisher_and_drops_nothing(vhost: Vhost, amqp: BlockingChannel) -> None:
    declared(vhost, amqp, type="classic", max_length=3)
    amqp.confirm_delivery()
    published(amqp, b"1", b"2", b"3")
    with pytest.raises(pika.exceptions.NackError):
        published(amqp, b"4")

    assert (ready(amqp, "work"), ready(amqp, "parked")) == (3, 0)


def test_a_queue_configured_to_drop_parks_nothing(vhost: Vhost, amqp: BlockingChannel) -> None:
    declared(vhost, amqp, expired="drop", message_ttl=0.05, max_length=1, overflow="drop-head")
    published(amqp, b"1", b"2")
    has(amqp, "work", 0)

    assert ready(amqp, "parked") == 0
    assert not any(name.startswith("x-dead-letter") for name in arguments(vhost)["work"])
