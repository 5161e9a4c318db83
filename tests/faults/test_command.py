"""The real command, with faults of all kinds at once."""

import signal

import pytest

from tests.amqp.line_between import between
from tests.faults.scene import Scene
from tests.tooling.waiting import wait_until

pytestmark = pytest.mark.slow


def test_rmq_consume_loses_nothing_through_cut_connections_and_a_crash(scene: Scene) -> None:
    scene.declare()
    with between(scene.vhost.url) as way:
        worker = scene.command("--threads", "2", "--processes", "2", url=way.url)
        scene.publish(range(100, 120))
        wait_until(lambda: len(scene.did()) == 20, 20, what="both processes may work")
        pids = {entry["pid"] for entry in scene.diary.entries("did")}

        scene.publish(range(1, 20), fails=1)
        scene.publish(range(20, 25), hopeless=True)
        way.cut()
        scene.publish([0], dies=True)
        scene.publish(range(25, 40), fails=2)

        scene.finish([*range(40), *range(100, 120)], worker, timeout=60)
    assert set(scene.parked()) >= {(0, "worker_stopped"), *((one, "permanent") for one in range(20, 25))}
    assert {entry["pid"] for entry in scene.diary.entries("did")} - pids


def test_the_command_finishes_its_message_when_asked_to_stop(scene: Scene) -> None:
    scene.declare()
    scene.publish(range(3), holds="gate")
    worker = scene.command("--threads", "1", "--prefetch", "1")
    wait_until(scene.began, 20, what="it has begun")

    worker.signal(signal.SIGTERM)
    wait_until(lambda: "Stopping" in worker.said, what="it has received the signal")
    scene.open("gate")

    assert worker.ended() == 0
    assert scene.did() == {0: 1}
    assert scene.left() == {"work": 2}


@pytest.mark.nightly
def test_max_messages_one_runs_one_handler_and_quarantines_no_message(scene: Scene) -> None:
    scene.declare()
    scene.publish(range(8))
    for _ in range(4):
        assert scene.command("--max-messages", "1", "--threads", "1", "--prefetch", "10").ended() == 0

    assert scene.did() == dict.fromkeys(range(4), 1)
    assert scene.left() == {"work": 4}
