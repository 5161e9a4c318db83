"""RabbitMQ's own delayed retry: each wait is longer, and the message is parked, if the broker supports it."""

import pytest

from tests.amqp.declared import declaring
from tests.faults.handlers import work_queue
from tests.faults.scene import Scene
from tests.handlers.factories import topology_of

FIRST_WITH_IT = (4, 3)


def version(scene: Scene) -> tuple[int, ...]:
    return tuple(int(part) for part in scene.vhost.version.split(".")[:2])


@pytest.mark.contract
@pytest.mark.slow
def test_native_retries_wait_longer_each_time_and_end_in_the_parked_queue(scene: Scene) -> None:
    if version(scene) < FIRST_WITH_IT:
        pytest.skip(f"RabbitMQ {scene.vhost.version} has no native delayed retry")
    scene.declare("native")
    scene.publish([0], fails=99)
    scene.publish([1], fails=2)

    scene.finish([0, 1], scene.worker())

    assert [entry["attempt"] for entry in scene.diary.entries("began") if entry["id"] == 0] == [1, 2, 3]
    assert scene.parked() == [(0, "retries_exhausted")]
    assert scene.did() == {1: 1}
    first, second, third = (entry["at"] for entry in scene.diary.entries("began") if entry["id"] == 0)
    assert 300 <= second - first < 600 <= third - second < 1500


@pytest.mark.contract
def test_native_is_refused_on_a_broker_without_delayed_retry(scene: Scene) -> None:
    if version(scene) >= FIRST_WITH_IT:
        pytest.skip(f"RabbitMQ {scene.vhost.version} can")
    with declaring(scene.vhost) as declarer:
        plan = declarer.plan(topology_of(*work_queue("native", scene.folder).subscriptions))

    assert not plan.possible
    assert any("4.3" in item.problem for item in plan.items if item.problem)


@pytest.mark.contract
@pytest.mark.slow
@pytest.mark.parametrize("way", ["before_it_is_given_back", "after_it_is_given_back"])
def test_a_kill_while_settling_a_native_retry_duplicates_nothing(scene: Scene, way: str) -> None:
    if version(scene) < FIRST_WITH_IT:
        pytest.skip(f"RabbitMQ {scene.vhost.version} has no native delayed retry")
    scene.declare("native")
    scene.publish(range(5), fails=1)

    assert scene.worker(prefetch=1, breaks=(way, 2)).ended() == -9
    scene.finish(range(5), scene.worker(prefetch=1))

    assert scene.lost(range(5)) == set()
    assert scene.did()[2] == 1
