"""What the broker gives up by itself is refused to its publisher or parked, with a reason that can be read."""

from collections.abc import Iterator

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from django_rmq_retry.amqp.address import Access
from django_rmq_retry.amqp.connection import IoThread
from django_rmq_retry.amqp.publisher import PikaPublisher
from django_rmq_retry.errors import MessageNacked
from django_rmq_retry.messages.deaths import Reason, reason_of
from django_rmq_retry.messages.message import Delivery, Message
from django_rmq_retry.messages.properties import Properties
from tests.broker.at_hand import AtHand
from tests.broker.declared import has
from tests.faults.acting import PARKED, QUEUE, intake
from tests.faults.scene import Scene
from tests.tooling.waiting import wait_until


@pytest.fixture
def publisher(broker_url: str) -> Iterator[PikaPublisher]:
    io = IoThread("test-publish")
    io.start()
    made = PikaPublisher(io, Access.parse(broker_url))
    yield made
    made.close()
    io.stop(timeout=5)


def fill(publisher: PikaPublisher, count: int) -> int:
    """How many of so many messages, one after the other, were confirmed."""
    for number in range(count):
        try:
            publisher.publish(Message(body=b"1", routing_key=QUEUE, properties=Properties(delivery_mode=2)))
        except MessageNacked:
            return number
    return count


def parked(scene: Scene, channel: BlockingChannel) -> Delivery:
    subscription = intake(scene.policy, scene.folder, **scene.queue).subscriptions[0]
    _, delivery, _ = AtHand(channel=channel, subscription=subscription).take(PARKED)
    return delivery


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_full_queue_refuses_its_publisher_and_drops_nothing(
    scene: Scene, publisher: PikaPublisher, amqp: BlockingChannel, kind: str
) -> None:
    scene.declare(max_length=3, type=kind)

    stored = fill(publisher, 20)

    # A quorum queue on RabbitMQ 3 notices a little late.
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
def test_a_message_that_nobody_took_in_time_is_parked_as_expired(
    scene: Scene, amqp: BlockingChannel, kind: str
) -> None:
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
