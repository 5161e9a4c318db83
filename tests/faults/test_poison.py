"""A message that kills its process each time is bounded: parked unseen, and what became of its neighbours."""

import pytest

from tests.faults.scene import Scene
from tests.tooling.waiting import wait_until

pytestmark = pytest.mark.slow

POISON, IDS = 3, range(8)
LIMIT = 3


def until_it_is_bounded(scene: Scene, prefetch: int) -> int:
    """As a supervisor would: start a worker again for as long as it dies. How often it died."""
    for deaths in range(LIMIT + 3):
        worker = scene.worker(prefetch=prefetch, CRASH_LIMIT=LIMIT)
        wait_until(lambda: not scene.workers[-1].running or not scene.lost(IDS), 30, what="it dies or is done")
        if worker.running:
            scene.finish(IDS, worker)
            return deaths
        assert worker.ended() in {-9, 77}, worker.said
    raise AssertionError("the poison was never parked")


@pytest.mark.parametrize("death", [{"dies": True}, {"exits": 77}])
def test_a_message_that_kills_its_worker_is_parked_and_one_at_a_time_harms_no_other(
    scene: Scene, death: dict[str, object]
) -> None:
    scene.declare()
    scene.publish(range(POISON))
    scene.publish([POISON], **death)
    scene.publish(range(POISON + 1, 8))

    deaths = until_it_is_bounded(scene, prefetch=1)

    assert deaths == LIMIT
    assert scene.parked() == [(POISON, "stopped its worker")]
    assert scene.did() == dict.fromkeys(set(IDS) - {POISON}, 1)


def test_ten_in_hand_are_parked_beside_the_poison_at_most_and_none_of_them_is_lost(scene: Scene) -> None:
    scene.declare()
    scene.publish([POISON], dies=True)
    scene.publish(set(IDS) - {POISON})

    until_it_is_bounded(scene, prefetch=10)

    assert (POISON, "stopped its worker") in scene.parked()
    assert {reason for _, reason in scene.parked()} == {"stopped its worker"}
    assert set(scene.did()) | set(scene.parked_ids()) == set(IDS)
    assert set(scene.did()) & set(scene.parked_ids()) == set()
