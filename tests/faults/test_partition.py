"""A partition of a cluster under load: an isolated node stops serving, and no confirmed message is lost."""

from collections.abc import Iterator, Sequence

import pytest

from tests.faults.conftest import MakeScene
from tests.faults.load import accounted, goes_on, under_load
from tests.tooling.cluster import SIZE, cluster, cut_off, rejoin, running, whole
from tests.tooling.node import Node
from tests.tooling.services import Services, Unavailable, go_without
from tests.tooling.vhosts import vhost_on
from tests.tooling.waiting import wait_until

pytestmark = pytest.mark.long


@pytest.fixture
def nodes(services: Services) -> Iterator[Sequence[Node]]:
    """A cluster of three nodes."""
    try:
        with cluster(services) as nodes:
            yield nodes
    except Unavailable as lack:
        go_without(lack)


def test_confirmed_messages_are_handled_or_parked_through_a_partition(
    nodes: Sequence[Node], make_scene: MakeScene, services: Services
) -> None:
    lonely, *others = nodes
    one, name = others[0], services.unique()
    urls = [node.url(name) for node in nodes]
    with vhost_on(one.management, name=name, url=one.url(name), version=one.version) as vhost:
        scene = make_scene(vhost)
        scene.declare(type="quorum")
        scene.worker(threads=2, URL=urls)
        scene.worker(prefetch=50, URL=urls[:1])
        with under_load(urls) as loads:
            wait_until(lambda: len(scene.did()) > 200, 60, what="the load is handled")
            cut_off(lonely, others)
            wait_until(lambda: running(one) == SIZE - 1, 30, what="the others miss it")
            goes_on(loads)
            rejoin(lonely, others)
            wait_until(lambda: running(one) == SIZE and whole(one), 60, what="it is back, with all its replicas")
            goes_on(loads)

        accounted(scene, loads, within=180)
