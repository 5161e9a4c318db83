"""A rolling deploy: consumers of the last release and of this version on the same queues take turns at messages."""

import signal
from collections import defaultdict
from pathlib import Path

import pytest

from tests.faults.scene import Scene
from tests.tooling.waiting import wait_until

pytestmark = pytest.mark.slow

PASS_LATER, GIVE_UP, HOPELESS = range(40), range(40, 45), range(45, 50)


def begun(scene: Scene) -> dict[int, list[dict[str, int]]]:
    """The attempts at each message, in their order."""
    by_id = defaultdict(list)
    for entry in scene.diary.entries("began"):
        by_id[entry["id"]].append(entry)
    return by_id


def test_messages_pass_between_both_versions_with_their_attempts(scene: Scene, released: Path) -> None:
    scene.declare()
    old, new = scene.worker(prefetch=1, root=released), scene.worker(prefetch=1)
    scene.publish([1000, 1001], holds="gate")
    wait_until(lambda: len({entry["pid"] for entry in scene.diary.entries("began")}) == 2, 60, what="both have one")
    scene.publish(PASS_LATER, fails=2)
    scene.publish(GIVE_UP, fails=9)
    scene.publish(HOPELESS, hopeless=True)
    scene.open("gate")

    scene.finish([*PASS_LATER, *GIVE_UP, *HOPELESS, 1000, 1001], old, new)

    attempts = {one: tuple(entry["attempt"] for entry in entries) for one, entries in begun(scene).items()}
    tried_thrice = (*PASS_LATER, *GIVE_UP)
    assert {one: attempts[one] for one in tried_thrice} == dict.fromkeys(tried_thrice, (1, 2, 3))
    assert scene.did() == dict.fromkeys((*PASS_LATER, 1000, 1001), 1)
    reasons = dict.fromkeys(GIVE_UP, "retries_exhausted") | dict.fromkeys(HOPELESS, "permanent")
    assert dict(scene.parked()) == reasons
    both = [one for one, entries in begun(scene).items() if {entry["pid"] for entry in entries} == {old.pid, new.pid}]
    assert both


def test_a_released_consumer_takes_over_what_the_present_one_left(scene: Scene, released: Path) -> None:
    scene.declare()
    scene.publish(range(5), fails=2)
    new = scene.worker()
    wait_until(lambda: len(begun(scene)) == 5, 60, what="the first attempts are over")
    new.signal(signal.SIGTERM)
    assert new.ended() == 0

    scene.finish(range(5), scene.worker(root=released))

    assert scene.did() == dict.fromkeys(range(5), 1)
    assert {entry["attempt"] for entry in scene.diary.entries("did")} == {3}
    assert {entry["pid"] for entry in scene.diary.entries("did")} == {scene.workers[1].pid}
