"""Faults of the deployment or machine, at the start or during consuming."""

import signal
from pathlib import Path

import pytest

from tests.faults.scene import Scene
from tests.tooling.waiting import wait_until

pytestmark = pytest.mark.slow

FULL = Path("/dev/full")


@pytest.mark.parametrize(
    ("breaks", "sentence"), [("import", "tests.faults.project.gone"), ("settings", "PUBLISH_TIMEOUT")]
)
def test_a_project_that_cannot_be_loaded_ends_before_it_takes_a_message(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, breaks: str, sentence: str
) -> None:
    scene.declare()
    scene.publish(range(3))
    monkeypatch.setenv("FAULTS_BREAK", breaks)

    worker = scene.command()

    assert worker.ended() not in {0, -9}
    assert sentence in worker.said
    assert scene.began() == {}
    assert scene.left() == {"work": 3}


@pytest.mark.skipif(not FULL.exists(), reason="only Linux has a device that is always full")
def test_a_disk_without_room_for_the_log_costs_no_message(scene: Scene) -> None:
    scene.declare()
    scene.publish(range(5), fails=1)
    scene.publish([5], hopeless=True)

    worker = scene.command("--threads", "1", log=FULL)
    wait_until(lambda: set(scene.did()) == set(range(5)), 60, what="all but one are handled")
    wait_until(lambda: scene.parked_ids() == [5], what="one is parked")
    worker.signal(signal.SIGTERM)

    assert worker.ended() == 0
    assert scene.did() == dict.fromkeys(range(5), 1)
    assert scene.left() == {}
