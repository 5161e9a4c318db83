"""Messages that the broker itself parks: unchanged, with the broker's own header and none of this package."""

from collections.abc import Mapping
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry import Queue, RetryThenPark
from django_rmq_retry.handlers import Subscription
from tests.amqp.declared import arguments, declare, has, ready
from tests.amqp.slow_motion import AtHand
from tests.core.made import topology_of
from tests.tooling.vhosts import Vhost

pytestmark = [pytest.mark.contract, pytest.mark.on_both]


def declared(vhost: Vhost, amqp: BlockingChannel, **options: Any) -> AtHand:
    work = Queue("work", **options)
    found = Subscription(name="test", run=lambda _: None, queue=work, policy=RetryThenPark(), park="parked")
    declare(vhost, topology_of(found))
    return AtHand(channel=amqp, subscription=found)


def published(amqp: BlockingChannel, **properties: Any) -> None:
    sent = pika.BasicProperties(delivery_mode=2, headers={"own": "kept"}, **properties)
    amqp.basic_publish("", "work", b"{}", sent)


def noted(line: AtHand) -> tuple[list[str], Any]:
    """The headers that only a parked message has, and the broker's reason for parking it."""
    has(line.channel, "parked", 1)
    _, _, parked = line.take("parked")
    headers: Mapping[str, Any] = parked.headers or {}
    [death] = headers["x-death"]
    assert headers["own"] == "kept"
    return [name for name in headers if name.startswith("rmq-retry-")], death["reason"]


def test_what_expired_carries_only_x_death(vhost: Vhost, amqp: BlockingChannel) -> None:
    line = declared(vhost, amqp)
    published(amqp, expiration="50")

    assert noted(line) == ([], "expired")


def test_what_was_pushed_out_carries_only_x_death(vhost: Vhost, amqp: BlockingChannel) -> None:
    line = declared(vhost, amqp, max_length=1, overflow="drop-head")
    published(amqp)
    published(amqp)

    assert noted(line) == ([], "maxlen")


def test_what_came_to_its_delivery_limit_carries_only_x_death(vhost: Vhost, amqp: BlockingChannel) -> None:
    line = declared(vhost, amqp, delivery_limit=0)
    published(amqp)
    tag, _, _ = line.take("work")
    amqp.basic_reject(tag, requeue=True)

    assert noted(line) == ([], "delivery_limit")


def test_what_is_dropped_on_purpose_is_parked_nowhere(vhost: Vhost, amqp: BlockingChannel) -> None:
    declared(vhost, amqp, expired="drop", message_ttl=0.05, max_length=1, overflow="drop-head")
    published(amqp)
    published(amqp)
    has(amqp, "work", 0)

    assert ready(amqp, "parked") == 0
    assert not any(name.startswith("x-dead-letter") for name in arguments(vhost)["work"])
