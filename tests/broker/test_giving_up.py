"""What the broker itself gives up of a queue in a dead-letter loop: why none of it is let in there."""

from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry.core.carriers import DeadLetter
from django_rmq_retry.core.layout import layout
from django_rmq_retry.core.policy import RetryThenPark
from django_rmq_retry.core.subscription import Subscription, intakes
from django_rmq_retry.core.topology import Exchange, Queue
from tests.broker.declared import declare, ready
from tests.tooling.vhosts import Vhost
from tests.tooling.waiting import wait_until

pytestmark = [pytest.mark.contract, pytest.mark.on_both]

ENOUGH = 25
"""Looks one after another that find nothing: while a message changes queues, one look may miss it."""


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
    declare(vhost, layout(intakes([found])))


def published(channel: BlockingChannel, **properties: Any) -> None:
    """A message that is in its queue for certain."""
    channel.confirm_delivery()
    channel.basic_publish("", "work", b"{}", pika.BasicProperties(delivery_mode=2, **properties), mandatory=True)


def nowhere(channel: BlockingChannel) -> None:
    """Nobody can take it from any queue, and nobody will."""
    looks = 0

    def missing() -> bool:
        nonlocal looks
        found = sum(ready(channel, queue) for queue in ("work", "later", "parked"))
        looks = 0 if found else looks + 1
        return looks == ENOUGH

    wait_until(missing, what="the message to be in no queue")


@pytest.mark.parametrize("kind", ["quorum", None])
def test_what_expires_there_is_neither_attempted_nor_parked(
    kind: str | None, vhost: Vhost, amqp: BlockingChannel
) -> None:
    looping(vhost, type=kind)
    published(amqp, expiration="100")

    nowhere(amqp)
