"""Signals: a worker finishes its messages, exits at once on a second signal, and survives SIGSTOP."""

import signal

import pytest

from tests.faults.scene import Scene, Worker
from tests.tooling.marks import nightly_but
from tests.tooling.waiting import wait_until

pytestmark = pytest.mark.slow


def in_a_handler(scene: Scene, worker: Worker, count: int = 1) -> None:
    wait_until(lambda: len(scene.diary.ids("began")) >= count, 60, what=f"a handler has begun; {worker.said}")


def given_back(scene: Scene, count: int) -> None:
    wait_until(lambda: scene.left() == {"work": count}, what="the messages it has not begun are back")


@pytest.mark.on_both
def test_a_worker_asked_to_stop_finishes_its_message_and_gives_the_rest_back(scene: Scene) -> None:
    scene.declare()
    scene.publish(range(5), holds="gate")
    worker = scene.worker()
    in_a_handler(scene, worker)

    worker.signal(signal.SIGTERM)
    given_back(scene, 4)
    scene.open("gate")

    assert worker.ended() == 0
    assert scene.did() == {0: 1}
    assert scene.left() == {"work": 4}


@pytest.mark.on_both
def test_a_second_signal_ends_a_worker_and_its_message_is_redelivered(scene: Scene) -> None:
    scene.declare()
    scene.publish([0], holds="gate")
    worker = scene.worker()
    in_a_handler(scene, worker)

    worker.signal(signal.SIGTERM)
    wait_until(lambda: "Stopping" in worker.said, what="the first signal was received")
    worker.signal(signal.SIGTERM)

    assert worker.ended(timeout=2) == 130
    wait_until(lambda: scene.left() == {"work": 1}, what="the message is back")
    scene.open("gate")
    scene.finish([0], scene.worker())
    assert scene.did() == {0: 1}


def test_a_message_whose_handler_outlasts_the_shutdown_is_requeued(scene: Scene) -> None:
    scene.declare()
    scene.publish([0], holds="gate")
    worker = scene.worker(shutdown=0.5)
    in_a_handler(scene, worker)

    assert worker.stopped() == 1
    wait_until(lambda: scene.left() == {"work": 1}, what="the message is back")


@pytest.mark.parametrize("policy", nightly_but(["ladder"], ["ladder", "line"]))
def test_a_worker_that_stalled_longer_than_its_heartbeat_continues(scene: Scene, policy: str) -> None:
    scene.declare(policy)
    scene.publish([0], holds="gate")
    frozen = scene.worker(HEARTBEAT=1)
    in_a_handler(scene, frozen)

    frozen.signal(signal.SIGSTOP)
    other = scene.worker()
    in_a_handler(scene, other, count=2)
    scene.open("gate")
    wait_until(lambda: scene.did()[0] == 1, what="the message was handled elsewhere")
    frozen.signal(signal.SIGCONT)
    wait_until(lambda: scene.did()[0] == 2, what="the one that stood still ends its handler too")
    assert other.stopped() == 0
    scene.publish([1])

    scene.finish([0, 1], frozen)
    assert scene.did() == {0: 2, 1: 1}
    assert frozen.said.count("subscribing again") == 0
    assert frozen.said.count("Connected to") == 2


@pytest.mark.parametrize("prefetch", nightly_but([10], [1, 10]))
def test_a_message_requeued_by_a_stop_keeps_its_attempts(scene: Scene, prefetch: int) -> None:
    scene.declare()
    scene.publish([0], holds="first", fails=2)
    for _ in range(3):
        worker = scene.worker(prefetch=prefetch, shutdown=0.2)
        begun = len(scene.diary.ids("began"))
        in_a_handler(scene, worker, begun + 1)
        assert worker.stopped() == 1
    scene.open("first")

    scene.finish([0], scene.worker())

    assert [entry["attempt"] for entry in scene.diary.entries("began")] == [1, 1, 1, 1, 2, 3]
    assert scene.did() == {0: 1}


@pytest.mark.nightly
def test_unstarted_messages_survive_repeated_stops(scene: Scene) -> None:
    scene.declare("loop")
    stops, behind = range(6), range(6, 9)
    for stop in stops:
        scene.publish([stop], holds=f"gate-{stop}")
    scene.publish(behind)
    for stop in stops:
        worker = scene.worker()
        in_a_handler(scene, worker, stop + 1)
        worker.signal(signal.SIGTERM)
        given_back(scene, 8 - stop)
        scene.open(f"gate-{stop}")
        assert worker.ended() == 0

    scene.finish([*stops, *behind], scene.worker())

    assert scene.did() == dict.fromkeys([*stops, *behind], 1)
    assert scene.parked() == []


@pytest.mark.nightly
def test_nack_requeue_counts_a_stop_as_an_attempt(scene: Scene) -> None:
    scene.declare("requeue")
    scene.publish([0], holds="gate")
    scene.publish([1, 2], fails=1)
    worker = scene.worker(shutdown=0.2)
    in_a_handler(scene, worker)
    assert worker.stopped() == 1
    scene.open("gate")

    scene.finish(range(3), scene.worker())

    assert scene.began() == {0: 2, 1: 1, 2: 1}
    assert [entry["attempt"] for entry in scene.diary.entries("began")] == [1, 2, 2, 2]
    assert scene.did() == {0: 1, 1: 1, 2: 1}
