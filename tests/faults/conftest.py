"""The stages of the fault tests."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from django_rmq_retry.amqp.address import Access
from django_rmq_retry.amqp.connection import IoThread
from django_rmq_retry.amqp.publisher import PikaPublisher
from tests.faults.scene import Scene
from tests.tooling.vhosts import Vhost

MakeScene = Callable[[Vhost], Scene]
DEADLINE = 1.0
"""Of the publisher, in seconds."""


@pytest.fixture
def make_scene(tmp_path: Path) -> Iterator[MakeScene]:
    """A stage on a virtual host of the test's own choice."""
    with ExitStack() as scenes:

        def make(vhost: Vhost) -> Scene:
            scene = Scene(vhost=vhost, folder=tmp_path)
            scenes.callback(scene.close)
            return scene

        yield make


@pytest.fixture
def scene(make_scene: MakeScene, vhost: Vhost) -> Scene:
    """A stage on the shared broker, which must not be harmed."""
    return make_scene(vhost)


@pytest.fixture
def private_scene(make_scene: MakeScene, private_broker: Vhost) -> Scene:
    """A stage on a node of this worker's own."""
    return make_scene(private_broker)


@pytest.fixture
def publisher(private_scene: Scene) -> Iterator[PikaPublisher]:
    """Somebody who publishes there, and waits no longer than the deadline."""
    io = IoThread("test-publish")
    io.start()
    made = PikaPublisher(io, Access.parse(private_scene.vhost.url, publish_timeout=DEADLINE))
    yield made
    made.close()
    io.stop(timeout=5)
