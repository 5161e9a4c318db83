"""The scenes of the fault tests."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from django_rmq_retry.amqp import Publisher
from tests.amqp.live import publishing
from tests.faults.scene import Scene
from tests.tooling.vhosts import Vhost

MakeScene = Callable[[Vhost], Scene]
DEADLINE = 1.0
"""The timeout of the publisher, in seconds."""


@pytest.fixture
def make_scene(tmp_path: Path) -> Iterator[MakeScene]:
    """Return a function that makes a scene on a given virtual host."""
    with ExitStack() as scenes:

        def make(vhost: Vhost) -> Scene:
            scene = Scene(vhost=vhost, folder=tmp_path)
            scenes.callback(scene.close)
            return scene

        yield make


@pytest.fixture
def scene(make_scene: MakeScene, vhost: Vhost) -> Scene:
    """A scene on the shared broker, which no test may damage."""
    return make_scene(vhost)


@pytest.fixture
def private_scene(make_scene: MakeScene, private_broker: Vhost) -> Scene:
    """A scene on the private node of this test worker."""
    return make_scene(private_broker)


@pytest.fixture
def publisher(private_scene: Scene) -> Iterator[Publisher]:
    """A publisher for the scene, with the timeout ``DEADLINE``."""
    with publishing(private_scene.vhost.url, publish_timeout=DEADLINE) as made:
        yield made
