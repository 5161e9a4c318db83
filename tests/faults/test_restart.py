"""The broker goes down and comes back under load: every confirmed message is handled or parked."""

from collections.abc import Callable

import pytest

from tests.faults.load import accounted, goes_on, under_load
from tests.faults.scene import Scene
from tests.tooling.node import Node
from tests.tooling.waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "down",
    [pytest.param(Node.stop, id="gracefully", marks=pytest.mark.nightly), pytest.param(Node.kill, id="by kill -9")],
)
def test_every_confirmed_message_is_handled_or_parked_after_a_restart(
    private_scene: Scene, private_node: Node, down: Callable[[Node], None]
) -> None:
    scene = private_scene
    scene.declare()
    private_node.flush()
    scene.worker(threads=2)
    scene.worker(prefetch=50)
    with under_load(scene.vhost.url) as loads:
        wait_until(lambda: len(scene.did()) > 50, 30, what="the load is handled")
        down(private_node)
        private_node.start()
        goes_on(loads)

    accounted(scene, loads)
    assert sum(load.errors for load in loads) > 0
