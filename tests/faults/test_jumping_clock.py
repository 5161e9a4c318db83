"""A worker's clock that jumps by days moves no retry: waits run on the broker, and deadlines are monotonic."""

from itertools import pairwise

import pytest

from tests.faults.scene import Scene

pytestmark = pytest.mark.slow

STEPS = [200, 1000]
LATEST = 5000


def assert_on_time(scene: Scene, message: int, steps: list[int]) -> None:
    began = [entry for entry in scene.diary.entries("began") if entry["id"] == message]
    waits = [later["at"] - earlier["at"] for earlier, later in pairwise(began)]
    assert [entry["attempt"] for entry in began] == list(range(1, len(steps) + 2))
    assert all(step <= wait < step + LATEST for step, wait in zip(steps, waits, strict=True)), waits


@pytest.mark.nightly
def test_a_clock_that_jumps_before_a_retry_makes_it_neither_early_nor_late(scene: Scene) -> None:
    scene.declare()
    scene.publish([0], fails=1)

    scene.finish([0], scene.worker(breaks=("the_clock_jumps", 0)))

    assert_on_time(scene, 0, STEPS[:1])


@pytest.mark.nightly
def test_a_clock_that_jumps_by_days_makes_no_retry_early_and_none_late(scene: Scene) -> None:
    scene.declare()
    scene.publish(range(10), fails=2)
    scene.publish([10], fails=9)
    worker = scene.worker(breaks=("the_clock_jumps", 0), threads=2)

    scene.finish(range(11), worker)

    assert scene.did() == dict.fromkeys(range(10), 1)
    assert scene.parked() == [(10, "retries_exhausted")]
    for message in range(10):
        assert_on_time(scene, message, STEPS)
