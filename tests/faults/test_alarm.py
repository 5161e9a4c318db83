"""A memory alarm or a frozen broker: publishers fail in time, acks continue, and no message is lost."""

import time

import pytest

from django_rmq_retry import Message
from django_rmq_retry.amqp import Publisher
from django_rmq_retry.errors import MessageUnsent, PublishError, PublishUnknown
from tests.faults.conftest import DEADLINE
from tests.faults.handlers import PARKED, QUEUE
from tests.faults.scene import Scene
from tests.tooling.node import Node
from tests.tooling.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.nightly]


def ended(publisher: Publisher, one: int) -> type[PublishError] | None:
    began = time.monotonic()
    try:
        publisher.publish(Message(body=b'{"id": %d}' % one, routing_key=QUEUE))
    except PublishError as error:
        return type(error)
    finally:
        assert time.monotonic() - began < DEADLINE + 1
    return None


def test_a_publish_fails_in_time_during_an_alarm_and_succeeds_after_it(
    private_scene: Scene, private_node: Node, publisher: Publisher
) -> None:
    private_scene.declare()
    assert ended(publisher, 0) is None

    private_node.raise_alarm()
    # The alarm reaches each connection some time after the command: a message sent before would be confirmed.
    states = ("list_connections", "-q", "state", "--no-table-headers")
    wait_until(lambda: "blocking" in private_node.ctl(*states), what="the connection is about to be blocked")
    during = [ended(publisher, one) for one in range(1, 4)]
    private_node.clear_alarm()

    # The first message reaches the broker, which then blocks the connection; the others are never sent.
    assert during == [PublishUnknown, MessageUnsent, MessageUnsent]
    assert wait_until(lambda: ended(publisher, 4) is None, what="publishing works again")
    private_scene.finish([0, 1, 4], private_scene.worker())
    assert set(private_scene.did()) == {0, 1, 4}


def counts(node: Node, scene: Scene) -> dict[str, int]:
    """Return ready and unacked messages by queue; the management API would be seconds late."""
    rows = node.ctl("list_queues", "-q", "-p", scene.vhost.name, "name", "messages", "--no-table-headers")
    return {name: int(count) for name, count in (row.split() for row in rows.splitlines() if row)}


def test_acks_continue_during_an_alarm_and_retries_leave_after_it(private_scene: Scene, private_node: Node) -> None:
    private_scene.declare()
    private_scene.publish([100], fails=1)
    # An alarm longer than this may double a retry, see below; the commands that raise and clear it are slow.
    worker = private_scene.worker(prefetch=5, PUBLISH_TIMEOUT=120)
    wait_until(lambda: private_scene.did()[100] == 1, 20, what="both connections have worked")
    private_scene.publish([0], holds="gate")
    private_scene.publish(range(1, 3), fails=1)
    private_scene.publish([3], hopeless=True)
    private_scene.publish(range(4, 20))

    private_node.raise_alarm()
    private_scene.open("gate")
    wait_until(lambda: set(private_scene.did()) >= {0, *range(4, 20)}, 20, what="what succeeds is handled")
    wait_until(lambda: counts(private_node, private_scene)[QUEUE] == 3, what="all but three have left their queue")
    assert counts(private_node, private_scene)[PARKED] == 0
    private_node.clear_alarm()

    private_scene.finish([*range(20), 100], worker)
    assert set(private_scene.parked_ids()) == {3}
    assert private_scene.did()[1] >= 1


def test_a_long_alarm_duplicates_a_retry_at_most_once(private_scene: Scene, private_node: Node) -> None:
    private_scene.declare()
    private_scene.publish([100], fails=1)
    worker = private_scene.worker(prefetch=5, BLOCKED_TIMEOUT=1, PUBLISH_TIMEOUT=3)
    wait_until(lambda: private_scene.did()[100] == 1, 20, what="both connections have worked")

    private_scene.publish(range(5), holds="gate", fails=1)
    private_node.raise_alarm()
    private_scene.open("gate")
    wait_until(lambda: worker.said.count("is not stored") >= 10, 60, what="it has tried again and again")
    private_node.clear_alarm()

    # A copy that failed repeatedly is published again after seconds; until then its message is unacked.
    wait_until(lambda: not any(counts(private_node, private_scene).values()), 60, what="no message is unacked")
    private_scene.finish([*range(5), 100], worker)
    assert max(private_scene.did().values()) <= 2


def test_a_broker_that_stalls_is_noticed_within_the_deadline(
    private_scene: Scene, private_node: Node, publisher: Publisher
) -> None:
    private_scene.declare()
    assert ended(publisher, 0) is None
    worker = private_scene.worker()
    wait_until(lambda: private_scene.did()[0] == 1, 20, what="the consumer works")

    private_node.pause()
    during = [ended(publisher, one) for one in range(1, 3)]
    private_node.resume()

    assert during == [PublishUnknown, PublishUnknown]
    assert wait_until(lambda: ended(publisher, 3) is None, what="publishing works again")
    private_scene.finish([0, 3], worker)
