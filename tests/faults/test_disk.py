"""A disk alarm acts like a memory alarm; repeated restarts of the broker act like one restart."""

from collections.abc import Iterator
from functools import partial

import pytest

from django_rmq_retry import Message
from django_rmq_retry.amqp import Publisher
from django_rmq_retry.errors import PublishError
from tests.faults.handlers import QUEUE
from tests.faults.scene import Scene, Worker
from tests.tooling.node import Node
from tests.tooling.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

RESTARTS = 3


@pytest.fixture
def full(private_node: Node) -> Iterator[Node]:
    """A broker with a disk alarm, until the test ends it."""
    yield private_node
    private_node.ctl("set_disk_free_limit", "50MB")


def stored(publisher: Publisher, one: int) -> bool:
    try:
        publisher.publish(Message(body=b'{"id": %d}' % one, routing_key=QUEUE))
    except PublishError:
        return False
    return True


def connected(worker: Worker, times: int) -> bool:
    return worker.said.count("Connected to") >= times


def test_a_full_disk_of_the_broker_stops_publishing_and_nothing_else(
    private_scene: Scene, full: Node, publisher: Publisher
) -> None:
    private_scene.declare()
    assert stored(publisher, 0)
    private_scene.publish(range(1, 10), holds="gate")
    private_scene.publish([10], fails=1)
    # An alarm longer than this may double a retry; the commands that raise and clear it are slow.
    worker = private_scene.worker(prefetch=20, PUBLISH_TIMEOUT=120)
    wait_until(lambda: private_scene.began()[1] == 1, 60, what="it works")

    full.ctl("set_disk_free_limit", "100000GB")
    wait_until(lambda: not stored(publisher, 11), 60, what="the alarm takes effect")
    private_scene.open("gate")
    wait_until(lambda: set(range(10)) <= set(private_scene.did()), 60, what="what succeeds is handled")
    during = [stored(publisher, one) for one in range(12, 14)]
    full.ctl("set_disk_free_limit", "50MB")

    assert during == [False, False]
    wait_until(lambda: stored(publisher, 14), 60, what="publishing works again")
    private_scene.finish([*range(11), 14], worker)
    assert private_scene.did()[10] == 1


@pytest.mark.long
def test_a_storm_of_restarts_uses_no_attempts_and_loses_nothing(private_scene: Scene, private_node: Node) -> None:
    scene = private_scene
    scene.declare()
    private_node.flush()
    scene.publish(range(5), holds="gate", fails=2)
    worker = scene.worker(threads=5)
    wait_until(lambda: len(scene.began()) == 5, 60, what="all are unacked")
    for storm in range(RESTARTS):
        private_node.ctl("eval", "rabbit:stop(), rabbit:start().")
        wait_until(partial(connected, worker, storm + 2), 30, what="it is back")
    scene.open("gate")

    scene.finish(range(5), worker, timeout=60)

    assert set(scene.did()) == set(range(5))
    assert scene.parked() == []
    assert {entry["attempt"] for entry in scene.diary.entries("began")} == {1, 2, 3}
