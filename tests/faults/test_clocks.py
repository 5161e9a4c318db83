"""A worker's clock that jumps by days moves no retry: waits run on the broker, and deadlines are monotonic."""

from itertools import pairwise

import pytest

from tests.faults.scene import Scene

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

STEPS = [200, 1000]
LATEST = 5000


def test_a_clock_that_jumps_by_days_makes_no_retry_early_and_none_late(scene: Scene) -> None:
    scene.declare()
    scene.publish(range(10), fails=2)
    scene.publish([10], fails=9)
    worker = scene.worker(breaks=("the_clock_jumps", 0), threads=2)

    scene.finish(range(11), worker)

    assert scene.did() == dict.fromkeys(range(10), 1)
    assert scene.parked() == [(10, "retries_exhausted")]
    for one in range(10):
        began = [entry for entry in scene.diary.entries("began") if entry["id"] == one]
        waits = [later["at"] - earlier["at"] for earlier, later in pairwise(began)]
        assert [entry["attempt"] for entry in began] == [1, 2, 3]
        assert all(step <= wait < step + LATEST for step, wait in zip(STEPS, waits, strict=True))
