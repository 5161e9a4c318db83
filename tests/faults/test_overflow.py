"""Messages that the broker drops are refused to their publisher, or parked with a readable reason."""

from collections.abc import Iterator

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry import Delivery, Message
from django_rmq_retry.amqp import Publisher
from django_rmq_retry.errors import MessageNacked
from django_rmq_retry.messages import Properties, Reason
from django_rmq_retry.messages.deaths import reason_of
from tests.amqp.declared import has
from tests.amqp.live import publishing
from tests.amqp.slow_motion import SlowConsumer
from tests.faults.handlers import PARKED, QUEUE, work_queue
from tests.faults.scene import Scene
from tests.tooling.waiting import wait_until

pytestmark = pytest.mark.nightly


@pytest.fixture
def publisher(broker_url: str) -> Iterator[Publisher]:
    with publishing(broker_url) as made:
        yield made


def fill(publisher: Publisher, count: int) -> int:
    """Publish a number of messages, one after the other; return the number of confirms."""
    for number in range(count):
        try:
            publisher.publish(Message(body=b"1", routing_key=QUEUE, properties=Properties(delivery_mode=2)))
        except MessageNacked:
            return number
    return count


def parked(scene: Scene, channel: BlockingChannel) -> Delivery:
    subscription = work_queue(scene.policy, scene.folder, **scene.queue).subscriptions[0]
    _, delivery, _ = SlowConsumer(channel=channel, subscription=subscription).take(PARKED)
    return delivery


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_full_queue_refuses_its_publisher_and_drops_nothing(
    scene: Scene, publisher: Publisher, amqp: BlockingChannel, kind: str
) -> None:
    scene.declare(max_length=3, type=kind)

    stored = fill(publisher, 20)

    # A quorum queue on RabbitMQ 3 applies its limit with a delay.
    assert 3 <= stored <= 5
    has(amqp, QUEUE, stored)
    has(amqp, PARKED, 0)


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_full_queue_that_drops_its_head_parks_the_oldest(scene: Scene, amqp: BlockingChannel, kind: str) -> None:
    scene.declare(max_length=3, overflow="drop-head", type=kind)

    scene.publish(range(5))

    has(amqp, PARKED, 2)
    oldest = parked(scene, amqp)
    assert oldest.id == "0"
    assert reason_of(oldest.headers) is Reason.OVERFLOWN


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_message_not_consumed_in_time_is_parked_as_expired(scene: Scene, amqp: BlockingChannel, kind: str) -> None:
    scene.declare(message_ttl=0.2, type=kind)

    scene.publish([0])

    delivery = parked(scene, amqp)
    assert delivery.id == "0"
    assert reason_of(delivery.headers) is Reason.EXPIRED


def test_a_message_over_the_delivery_limit_is_parked_by_the_broker(scene: Scene, amqp: BlockingChannel) -> None:
    scene.declare(delivery_limit=2)
    scene.publish([0])

    def returned() -> bool:
        method, _, _ = amqp.basic_get(QUEUE)
        if method is not None:
            amqp.basic_reject(method.delivery_tag or 0, requeue=True)
        return method is None

    wait_until(returned, what="the broker gives it up")
    delivery = parked(scene, amqp)
    assert delivery.id == "0"
    assert reason_of(delivery.headers) is Reason.DELIVERY_LIMIT
