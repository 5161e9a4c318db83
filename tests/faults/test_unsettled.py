"""Messages whose headers prevent settling: each is parked, and later messages do not wait."""

import json
import os
import signal

import pytest

from django_rmq_retry.amqp.frames import RawProperties
from django_rmq_retry.messages import Headers, Properties, encode_properties
from django_rmq_retry.messages.properties import encode_entry
from tests.faults.handlers import QUEUE
from tests.faults.scene import Scene
from tests.messages.hostile_headers import VALUES
from tests.tooling.marks import nightly_but
from tests.tooling.waiting import wait_until

pytestmark = pytest.mark.slow

PREFETCH = 10
HOSTILE, GOOD = range(PREFETCH), range(PREFETCH, PREFETCH + 5)


def publish_hostile(scene: Scene, *, unreadable: bool = False) -> None:
    """Return as many messages as the prefetch; each fails, or is undecodable."""
    name = b"rmq-retry-summary"
    table = encode_entry("rmq-retry-queue", QUEUE) + bytes((len(name),)) + name + VALUES["not UTF-8"]
    with scene.channel() as channel:
        for one in HOSTILE:
            properties = Properties(delivery_mode=2, message_id=str(one), headers=Headers(table))
            # NaN is no JSON, so handlers cannot decode it, although Python reads it here.
            body = json.dumps({"id": one, "n": float("nan")} if unreadable else {"id": one, "fails": 99}).encode()
            channel.basic_publish("", QUEUE, body, RawProperties(encode_properties(properties)), mandatory=True)


@pytest.mark.parametrize(
    "policy",
    nightly_but(["ladder", "requeue"], ["ladder", "line", "ack_first", "loop", "requeue", "wait_queue", "republish"]),
)
def test_a_summary_that_is_not_utf_8_stops_no_queue(scene: Scene, policy: str) -> None:
    scene.declare(policy)
    # A StopTheLine queue waits for the failing message without a limit.
    publish_hostile(scene, unreadable=policy == "line")
    scene.publish(GOOD)
    worker = scene.worker(prefetch=PREFETCH)

    scene.finish([*HOSTILE, *GOOD], worker, timeout=60)

    assert sorted(scene.did()) == list(GOOD)
    assert scene.parked_ids() == list(HOSTILE)
    assert worker.said.count("The attempt failed outside its handler") == 0


def test_killed_workers_leave_no_such_message_behind(scene: Scene) -> None:
    scene.declare()
    publish_hostile(scene)
    for _ in range(5):
        worker = scene.worker(prefetch=PREFETCH)
        wait_until(lambda: "retry act" in scene.workers[-1].said or not scene.left(), 30, what="it has begun")
        os.kill(worker.pid, signal.SIGKILL)
        worker.ended()
    scene.publish(GOOD)
    last = scene.worker(prefetch=PREFETCH)

    scene.finish([*HOSTILE, *GOOD], last, timeout=60)

    # A kill between a copy and its ack leaves two copies.
    assert set(scene.parked_ids()) == set(HOSTILE)
    assert sorted(scene.did()) == list(GOOD)
