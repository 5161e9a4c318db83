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


def test_what_is_in_hand_beside_the_poison_shares_its_count_and_is_parked_with_it(scene: Scene) -> None:
    scene.declare()
    scene.publish([POISON], dies=True)
    scene.publish(set(IDS) - {POISON})

    deaths = until_it_is_bounded(scene, prefetch=10)

    # The broker's count is all there is to go by; prefetch 1 spares the innocent, as the test above shows.
    assert deaths == LIMIT
    assert sorted(scene.parked()) == [(one, "stopped its worker") for one in IDS]
    assert scene.did() == {}
