"""A message above the broker's limit, stored before the limit was lowered: no other is affected, and it is not lost."""

from collections.abc import Iterator

import pytest

from tests.faults.scene import Scene
from tests.tooling.node import Node
from tests.tooling.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.contract]

LARGE, SMALL = 0, range(1, 200)
LIMIT = 10_000


def limit(node: Node, size: int) -> None:
    """Lower the limit like an upgrade to RabbitMQ 4: from 128 MiB to 16 MiB."""
    node.ctl("eval", f"application:set_env(rabbit, max_message_size, {size}).")
    node.ctl("eval", f"persistent_term:put(max_message_size, {size}).")


@pytest.fixture
def limited(private_scene: Scene, private_node: Node) -> Iterator[Scene]:
    """Publish a large message that fails at first, among small ones that do."""
    private_scene.declare()
    private_scene.publish([LARGE], fails=1, filling="x" * 2 * LIMIT)
    private_scene.publish(SMALL, fails=1)
    limit(private_node, LIMIT)
    yield private_scene
    limit(private_node, 16 * 2**20)


@pytest.mark.nightly
def test_a_message_too_large_to_be_copied_is_parked_and_disturbs_no_other(limited: Scene) -> None:
    worker = limited.worker(prefetch=50)

    limited.finish([LARGE, *SMALL], worker)

    assert limited.did() == dict.fromkeys(SMALL, 1)
    assert limited.began() == {LARGE: 1} | dict.fromkeys(SMALL, 2)
    assert limited.parked_ids() == [LARGE]
    assert worker.said.count("Raise max_message_size") == 1
    assert "is not stored" not in worker.said


@pytest.mark.nightly
def test_a_message_too_large_to_be_parked_stays_unacked(limited: Scene) -> None:
    worker = limited.worker(prefetch=50, parks=False)

    wait_until(lambda: set(limited.did()) == set(SMALL), 20, what="all others are handled")
    assert limited.did() == dict.fromkeys(SMALL, 1)
    assert limited.began() == {LARGE: 1} | dict.fromkeys(SMALL, 2)
    assert worker.said.count("Raise max_message_size") == 1
    assert worker.stopped() == 0
    assert limited.parked() == []
    assert limited.left() == {"work": 1}
