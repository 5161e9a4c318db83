"""A handler that starts a process does not affect the connections of its parent."""

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.amqp.declared import has
from tests.faults.forks import CHILDS_QUEUE
from tests.faults.scene import Scene
from tests.tooling.marks import nightly_but

pytestmark = pytest.mark.slow

PUBLISHING = {"publishing", "multi"}


@pytest.mark.parametrize("way", nightly_but(["publishing"], ["bare", "publishing", "multi", "sub"]))
def test_a_fork_in_a_handler_leaves_its_parents_connections_whole(
    scene: Scene, amqp: BlockingChannel, way: str
) -> None:
    scene.declare()
    amqp.queue_declare(CHILDS_QUEUE, durable=True)
    scene.publish(range(10), forks=way)
    scene.publish(range(10, 20), fails=1)
    worker = scene.worker(threads=2)

    scene.finish(range(20), worker)

    assert scene.did() == dict.fromkeys(range(20), 1)
    assert worker.said.count("Connected to") == 1
    has(amqp, CHILDS_QUEUE, 10 if way in PUBLISHING else 0)
