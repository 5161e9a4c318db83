"""Kill -9 inside a batch: no message is lost, and the one that kills its worker is found alone."""

import pytest

from django_rmq_retry.handlers.verdicts import SUSPICIOUS_RETURNS
from tests.faults.handlers import BATCH
from tests.faults.scene import Scene
from tests.faults.test_kill import IDS, VICTIM, killed_then_finished
from tests.faults.test_poison import LIMIT, POISON, until_it_is_bounded
from tests.tooling.marks import nightly_but

pytestmark = pytest.mark.slow

PREFETCH = 10
TYPES = ("quorum", "classic")


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize(
    "way", nightly_but(["before_the_handler"], ["before_the_handler", "after_the_handler", "before_the_ack"])
)
def test_a_kill_inside_a_batch_loses_no_message(scene: Scene, way: str, kind: str) -> None:
    scene.declare(BATCH, type=kind)
    scene.publish(IDS)

    killed_then_finished(scene, way, PREFETCH)

    assert scene.lost(IDS) == set()
    assert set(scene.did()) == set(IDS)
    # Only what the killed worker had may run twice.
    assert sum(scene.did().values()) - len(IDS) <= PREFETCH


@pytest.mark.nightly
@pytest.mark.parametrize("way", ["before_the_copy", "after_the_copys_confirm"])
def test_a_kill_while_a_batch_is_settled_loses_no_message(scene: Scene, way: str) -> None:
    scene.declare(BATCH)
    scene.publish(set(IDS) - {VICTIM})
    scene.publish([VICTIM], fails=1)

    killed_then_finished(scene, way, PREFETCH)

    assert (scene.lost(IDS), scene.parked()) == (set(), [])
    assert {entry["attempt"] for entry in scene.diary.entries("did") if entry["id"] == VICTIM} == {2}


@pytest.mark.nightly
@pytest.mark.parametrize("place", [0, POISON])
def test_a_message_that_kills_its_worker_inside_a_batch_is_parked_alone(scene: Scene, place: int) -> None:
    ids = range(12)
    scene.declare(BATCH)
    scene.publish(range(place))
    scene.publish([place], dies=True)
    scene.publish(range(place + 1, 12))

    deaths = until_it_is_bounded(scene, prefetch=PREFETCH)

    assert (deaths, scene.parked()) == (SUSPICIOUS_RETURNS + LIMIT, [(place, "worker_stopped")])
    assert set(scene.did()) == set(ids) - {place}


@pytest.mark.nightly
def test_on_a_classic_queue_the_messages_beside_a_killing_one_are_handled(scene: Scene) -> None:
    scene.declare(BATCH, type="classic")
    scene.publish(range(POISON))
    scene.publish([POISON], dies=True)

    for _ in range(2):
        assert scene.worker(prefetch=PREFETCH).ended() == -9

    assert set(scene.did()) == set(range(POISON))
    assert scene.began()[POISON] == 2
