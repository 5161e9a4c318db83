"""Messages that the broker itself parks: unchanged, with the broker's own header and none of this package."""

from collections.abc import Mapping
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry import Queue, RetryThenPark
from django_rmq_retry.handlers import Subscription
from tests.amqp.declared import arguments, declare, has, ready
from tests.amqp.slow_motion import SlowConsumer
from tests.handlers.factories import topology_of
from tests.tooling.vhosts import Vhost

pytestmark = [pytest.mark.contract, pytest.mark.on_both]


def declared(vhost: Vhost, amqp: BlockingChannel, **options: Any) -> SlowConsumer:
    work = Queue("work", **options)
    found = Subscription(name="test", run=lambda _: None, queue=work, policy=RetryThenPark(), park="parked")
    declare(vhost, topology_of(found))
    return SlowConsumer(channel=amqp, subscription=found)


def published(amqp: BlockingChannel, **properties: Any) -> None:
    sent = pika.BasicProperties(delivery_mode=2, headers={"own": "kept"}, **properties)
    amqp.basic_publish("", "work", b"{}", sent)


def noted(line: SlowConsumer) -> tuple[list[str], Any]:
    """The headers that only a parked message has, and the broker's reason for parking it."""
    has(line.channel, "parked", 1)
    _, _, parked = line.take("parked")
    headers: Mapping[str, Any] = parked.headers or {}
    [death] = headers["x-death"]
    assert headers["own"] == "kept"
    return [name for name in headers if name.startswith("rmq-retry-")], death["reason"]


def test_an_expired_message_is_parked_with_x_death_only(vhost: Vhost, amqp: BlockingChannel) -> None:
    line = declared(vhost, amqp)
    published(amqp, expiration="50")

    assert noted(line) == ([], "expired")


def test_a_message_dropped_for_length_is_parked_with_x_death_only(vhost: Vhost, amqp: BlockingChannel) -> None:
    line = declared(vhost, amqp, max_length=1, overflow="drop-head")
    published(amqp)
    published(amqp)

    assert noted(line) == ([], "maxlen")


def test_a_message_over_its_delivery_limit_is_parked_with_x_death_only(vhost: Vhost, amqp: BlockingChannel) -> None:
    line = declared(vhost, amqp, delivery_limit=0)
    published(amqp)
    tag, _, _ = line.take("work")
    amqp.basic_reject(tag, requeue=True)

    assert noted(line) == ([], "delivery_limit")


def test_a_queue_configured_to_drop_parks_nothing(vhost: Vhost, amqp: BlockingChannel) -> None:
    declared(vhost, amqp, expired="drop", message_ttl=0.05, max_length=1, overflow="drop-head")
    published(amqp)
    published(amqp)
    has(amqp, "work", 0)

    assert ready(amqp, "parked") == 0
    assert not any(name.startswith("x-dead-letter") for name in arguments(vhost)["work"])
