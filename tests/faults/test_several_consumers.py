"""Several consumers: two with one name, one without CPU time, one disconnected by the network."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from tests.faults.scene import Scene
from tests.tooling.proxy import Mode, proxy_to
from tests.tooling.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

BUSY = "while True: pass"


def consumers(scene: Scene) -> list[dict[str, Any]]:
    path = f"consumers/{quote(scene.vhost.name, safe='')}"
    return [row for row in scene.vhost.management.call("GET", path) if row["queue"]["name"] == "work"]


def test_two_consumers_of_one_configuration_do_not_get_in_each_others_way(scene: Scene) -> None:
    scene.declare()
    workers = [scene.worker(prefetch=1), scene.worker(prefetch=1)]
    wait_until(lambda: len(consumers(scene)) == 2, 60, what="both have subscribed", step=0.2)
    tags = {row["consumer_tag"] for row in consumers(scene)}
    scene.publish(range(2), holds="gate")
    wait_until(lambda: len(scene.began()) == 2, 60, what="each has one unacked")
    scene.open("gate")

    scene.finish(range(2), *workers)

    assert len(tags) == 2
    assert {entry["pid"] for entry in scene.diary.entries("did")} == {worker.pid for worker in workers}


@contextmanager
def crowd(processor: int, count: int) -> Iterator[None]:
    """Run a number of processes that compete for one processor."""
    with ExitStack() as stack:
        for _ in range(count):
            busy = subprocess.Popen([sys.executable, "-c", BUSY])
            stack.callback(busy.wait)
            stack.callback(busy.kill)
            os.sched_setaffinity(busy.pid, {processor})
        yield


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="only Linux gives a process its processors")
def test_a_consumer_starved_of_cpu_keeps_its_connections(scene: Scene) -> None:
    scene.declare()
    scene.publish([1000], fails=1)
    worker = scene.worker(HEARTBEAT=2, threads=2)
    wait_until(lambda: scene.did()[1000] == 1, 60, what="both connections have worked")
    processor = min(os.sched_getaffinity(0))
    for thread in Path(f"/proc/{worker.pid}/task").iterdir():
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread.name), {processor})
            os.setpriority(os.PRIO_PROCESS, int(thread.name), 10)

    with crowd(processor, 2):
        scene.publish([0], holds="gate")
        scene.publish(range(1, 200), fails=1)
        # With heartbeats every second, a consumer whose I/O thread did not run for 4 s would be disconnected.
        wait_until(lambda: len(scene.did()) >= 200, 60, what="all but one are handled")
    scene.open("gate")
    scene.finish([*range(200), 1000], worker)

    assert worker.said.count("Connected to") == 1
    assert set(scene.did().values()) == {1}


def test_another_consumer_handles_the_message_of_one_cut_off(scene: Scene) -> None:
    scene.declare()
    parts = urlsplit(scene.vhost.url)
    with proxy_to(parts.port or 5672) as proxy:
        url = scene.vhost.url.replace(f"{parts.hostname}:{parts.port}", f"127.0.0.1:{proxy.port}")
        cut_off = scene.worker(url=url, HEARTBEAT=1)
        scene.publish([0], holds="gate")
        wait_until(lambda: scene.began()[0] == 1, 60, what="the first has it unacked")
        proxy.set(Mode.BLACKHOLE)
        other = scene.worker()
        wait_until(lambda: scene.began()[0] == 2, 30, what="the broker has given it to the second")
        scene.open("gate")
        wait_until(lambda: scene.did()[0] == 2, what="both have come to their end")
        proxy.set(Mode.PASS)
        scene.publish(range(1, 11))

        scene.finish(range(11), other, cut_off)

    assert scene.did() == {0: 2} | dict.fromkeys(range(1, 11), 1)
    assert cut_off.said.count("Connected to") == 2
