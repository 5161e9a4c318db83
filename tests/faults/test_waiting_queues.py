"""The broker goes down while its waiting queues empty into their work queue: the waiting messages arrive."""

import json
from collections.abc import Callable

import pytest

from django_rmq_retry import Message
from django_rmq_retry.messages import Properties
from tests.amqp.declared import ready
from tests.amqp.live import publishing
from tests.faults.handlers import QUEUE
from tests.faults.scene import Scene
from tests.tooling.node import Node
from tests.tooling.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

RUNG = f"{QUEUE}.retry.1s"
WAITING = 6000
SOME = 300


def fill(url: str, ids: range) -> None:
    """Publish messages to the waiting queue, each confirmed."""
    with publishing(url) as publisher:
        publisher.publish_many(waiting(one) for one in ids)


def waiting(one: int) -> Message:
    properties = Properties(delivery_mode=2, message_id=str(one))
    return Message(body=json.dumps({"id": one}).encode(), routing_key=RUNG, properties=properties)


def arrived(scene: Scene) -> set[int]:
    """Return all received ids; some may occur twice."""
    found: set[int] = set()

    def over() -> bool:
        with scene.channel() as channel:
            for method, _, body in channel.consume(QUEUE, auto_ack=True, inactivity_timeout=1):
                if method is None or body is None:
                    break
                found.add(json.loads(body)["id"])
            channel.cancel()
        return len(found) == WAITING

    wait_until(over, 30, what="all have arrived")
    return found


@pytest.mark.parametrize("down", [Node.stop, Node.kill], ids=["gracefully", "by kill -9"])
def test_a_broker_crash_while_waiting_queues_empty_loses_nothing(
    private_scene: Scene, private_node: Node, down: Callable[[Node], None]
) -> None:
    scene = private_scene
    scene.declare()
    private_node.flush()
    fill(scene.vhost.url, range(WAITING // 2))

    with scene.channel() as channel:
        wait_until(lambda: ready(channel, QUEUE) > SOME, 20, what="some have left their waiting queue", step=0.01)
    # These messages expire while the broker is down or boots, when their work queue may not be available yet.
    fill(scene.vhost.url, range(WAITING // 2, WAITING))
    down(private_node)
    private_node.start()

    assert arrived(scene) == set(range(WAITING))
