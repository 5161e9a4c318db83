"""A message that kills its process each time is parked without an attempt, and others are not affected."""

import pytest

from django_rmq_retry.handlers.verdicts import STOPS_FACTOR, SUSPICIOUS_RETURNS
from tests.faults.scene import Scene
from tests.tooling.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

POISON, IDS = 3, range(8)
LIMIT = 3


def bounded(scene: Scene) -> bool:
    return not scene.lost(IDS) and not scene.left()


def until_it_is_bounded(scene: Scene, prefetch: int, limit: int = LIMIT) -> int:
    """Restart a worker like a supervisor until it survives; return the number of deaths."""
    for deaths in range(4 * (SUSPICIOUS_RETURNS + limit)):
        worker = scene.worker(prefetch=prefetch, CRASH_LIMIT=limit)
        wait_until(lambda: not scene.workers[-1].running or bounded(scene), 60, what="it dies or is done")
        if worker.running and worker.stopped() == 0 and bounded(scene):
            return deaths
        assert worker.ended() in {-9, 0, 77}, worker.said
    raise AssertionError("the poison was never parked")


@pytest.mark.parametrize("death", [{"dies": True}, {"exits": 77}])
def test_with_prefetch_one_a_worker_killing_message_alone_is_parked(scene: Scene, death: dict[str, object]) -> None:
    scene.declare()
    scene.publish(range(POISON))
    scene.publish([POISON], **death)
    scene.publish(range(POISON + 1, 8))

    deaths = until_it_is_bounded(scene, prefetch=1)

    assert (deaths, scene.parked()) == (SUSPICIOUS_RETURNS + LIMIT, [(POISON, "worker_stopped")])
    assert set(scene.did()) == set(IDS) - {POISON}


@pytest.mark.parametrize("place", [0, POISON])
def test_messages_unacked_beside_a_worker_killing_one_are_handled(scene: Scene, place: int) -> None:
    scene.declare()
    scene.publish(range(place))
    scene.publish([place], dies=True)
    scene.publish(range(place + 1, 8))

    deaths = until_it_is_bounded(scene, prefetch=10)

    # Earlier messages may run more than once, because the worker died before their acks reached the broker.
    assert (deaths, scene.parked()) == (SUSPICIOUS_RETURNS + LIMIT, [(place, "worker_stopped")])
    assert set(scene.did()) == set(IDS) - {place}


def test_without_quarantine_a_worker_killing_message_is_parked_too(scene: Scene) -> None:
    scene.declare("loop")
    scene.publish([POISON], dies=True)
    scene.publish(one for one in IDS if one != POISON)

    deaths = until_it_is_bounded(scene, prefetch=1, limit=1)

    assert deaths in {1, STOPS_FACTOR}
    assert scene.parked() == [(POISON, "worker_stopped")]
    assert set(scene.did()) == set(IDS) - {POISON}


def test_messages_in_two_quarantines_are_not_attempted_at_the_same_time(scene: Scene) -> None:
    scene.before = "other"
    scene.declare()
    scene.publish([POISON], "other.quarantine", dies=True)
    scene.publish([0], "work.quarantine", lasts=1)

    for _ in range(LIMIT + 2):
        worker = scene.worker(threads=2, CRASH_LIMIT=LIMIT)
        wait_until(lambda: not scene.workers[-1].running or not scene.lost([0, POISON]), 60, what="it dies or is done")
        if worker.running:
            break

    assert (worker.stopped(), scene.parked()) == (0, [(POISON, "worker_stopped")])
    assert (scene.began()[0], scene.did()[0], scene.left()) == (1, 1, {})
