"""Messages of a dead-letter loop that the broker itself gives up: the reason that such a loop is refused."""

from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry import DeadLetter, Exchange, Queue, RetryThenPark
from django_rmq_retry.handlers import Subscription
from tests.amqp.declared import declare, ready
from tests.handlers.factories import topology_of
from tests.tooling.vhosts import Vhost
from tests.tooling.waiting import wait_until

pytestmark = [pytest.mark.contract, pytest.mark.on_both]

ENOUGH = 25
"""Looks one after another that agree: while a message changes queues, one look may miss it."""


def looping(vhost: Vhost, **queue: Any) -> None:
    """A loop whose turn takes a tenth of a second, as a project could write it down."""
    main = Exchange("main", "direct")
    via = DeadLetter(exchange="again", queue="later", after=0.1)
    found = Subscription(
        name="test",
        run=lambda _: None,
        queue=Queue("work", bindings=[main.bind("k")], **queue),
        policy=RetryThenPark(via=via),
        park="parked",
    )
    declare(vhost, topology_of(found))


def published(channel: BlockingChannel, **properties: Any) -> None:
    """A message that is in its queue for certain."""
    channel.confirm_delivery()
    channel.basic_publish("", "work", b"{}", pika.BasicProperties(delivery_mode=2, **properties), mandatory=True)


def returned(channel: BlockingChannel, *, times: int) -> None:
    """Taken and given back by consumers that stop, again and again."""
    for _ in range(times):
        method, _, _ = wait_until(lambda: taken(channel), what="the message to come back")
        channel.basic_reject(method.delivery_tag, requeue=True)


def taken(channel: BlockingChannel) -> Any:
    got = channel.basic_get("work")
    return got if got[0] is not None else None


def left(channel: BlockingChannel, count: int) -> None:
    """Exactly this number can be taken, from any of the queues; none was parked."""
    looks = 0

    def lasting() -> bool:
        nonlocal looks
        found = ready(channel, "work") + ready(channel, "later")
        looks = looks + 1 if found == count else 0
        return looks == ENOUGH

    wait_until(lasting, what=f"{count} messages in the loop")
    assert ready(channel, "parked") == 0


@pytest.mark.parametrize("kind", ["quorum", None])
def test_a_message_that_expires_in_a_loop_is_neither_attempted_nor_parked(
    kind: str | None, vhost: Vhost, amqp: BlockingChannel
) -> None:
    looping(vhost, type=kind)
    published(amqp, expiration="100")

    left(amqp, 0)


def test_a_message_over_its_delivery_limit_in_a_loop_is_lost(vhost: Vhost, amqp: BlockingChannel) -> None:
    looping(vhost, arguments={"x-delivery-limit": 2})
    published(amqp)

    returned(amqp, times=3)

    left(amqp, 0)


def test_rabbitmq_4_applies_a_delivery_limit_of_20_by_default(vhost: Vhost, amqp: BlockingChannel) -> None:
    looping(vhost, arguments={"x-delivery-limit": None})
    published(amqp)

    returned(amqp, times=21)

    left(amqp, 1 if vhost.version.startswith("3.") else 0)


def test_a_message_dropped_for_length_in_a_loop_is_lost(vhost: Vhost, amqp: BlockingChannel) -> None:
    looping(vhost, max_length=2, arguments={"x-overflow": "drop-head"})
    for _ in range(5):
        published(amqp)

    left(amqp, 2)
