"""Handlers that raise SystemExit and the like, or never return: the worker survives and other messages run."""

import signal
from functools import partial

import pytest

from tests.faults.scene import Scene
from tests.tooling.marks import nightly_but
from tests.tooling.waiting import wait_until

pytestmark = pytest.mark.slow


def handled(scene: Scene, ids: range) -> bool:
    return set(ids) <= set(scene.did())


@pytest.mark.parametrize("raises", nightly_but(["interrupt"], ["interrupt", "recursion", "memory"]))
def test_an_interrupt_recursion_or_memory_error_fails_only_its_attempt(scene: Scene, raises: str) -> None:
    scene.declare()
    scene.publish([0], raises=raises)
    scene.publish(range(1, 5))
    worker = scene.worker()

    scene.finish(range(5), worker)

    assert scene.did() == dict.fromkeys(range(5), 1)
    assert [(entry["attempt"], entry["pid"]) for entry in scene.diary.entries("began") if entry["id"] == 0] == [
        (1, worker.pid),
        (2, worker.pid),
    ]


def test_keyboard_interrupt_stops_a_worker_only_when_an_operator_sends_it(scene: Scene) -> None:
    scene.declare()
    scene.publish([0], raises="interrupt")
    worker = scene.worker()
    wait_until(lambda: scene.did() == {0: 1}, 60, what="its second attempt has succeeded")
    assert "Stopping" not in worker.said

    worker.signal(signal.SIGINT)

    assert worker.ended() == 0
    assert "Stopping" in worker.said


def test_a_handler_that_never_returns_blocks_only_its_own_thread(scene: Scene) -> None:
    scene.declare()
    scene.publish([0], holds="never")
    worker = scene.worker(threads=2, shutdown=0.3, HEARTBEAT=1)
    wait_until(lambda: scene.began()[0] == 1, 60, what="it has begun")
    for others in (range(1, 11), range(11, 21), range(21, 31)):
        scene.publish(others)
        wait_until(partial(handled, scene, others), 60, what="the others are handled")

    assert worker.stopped() == 1
    assert scene.did() == dict.fromkeys(range(1, 31), 1)
    assert worker.said.count("Connected to") == 1
    wait_until(lambda: scene.left() == {"work": 1}, what="its message is back")
