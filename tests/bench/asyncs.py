"""Async handlers that run side by side: beside FastStream, and the memory of a thousand that wait."""

import secrets
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec

from tests.bench import processes, trials
from tests.bench.queues import prepared
from tests.bench.report import Finding, table
from tests.bench.suites import OURS, Contender, Suite
from tests.bench.task import Task
from tests.tooling.node import Node

NAME = "async"
MODULE = OURS + "consumer"
FASTSTREAM = Contender(name="FastStream", module="tests.bench.contenders.faststream_consumer")
WAITING, WAIT_SECONDS, AT_ONCE = 1000, 0.05, 200
MOST_RESIDENT = 120.0


def asyncs() -> tuple[Suite, ...]:
    """Return the suites; without FastStream, `pip install 'faststream[rabbit]'`, there is nothing to compare with."""
    if find_spec("faststream") is None:
        return ()
    waits = Task(messages=9000, skip=1000, prefetch=AT_ONCE, side_by_side=AT_ONCE, waits=WAIT_SECONDS)
    return (
        _suite(f"handlers that wait {WAIT_SECONDS * 1000:g} ms", waits, at_least=1.0, then=1.2),
        _suite("handlers that do nothing", replace(waits, waits=0.0), at_least=2.0, then=3.0),
    )


def _suite(title: str, task: Task, *, at_least: float, then: float) -> Suite:
    return Suite(
        name=NAME,
        title=f"async {title}, {task.side_by_side} at once, {task.kind} queue",
        task=task,
        contenders=(FASTSTREAM, Contender(name="ours", module=MODULE, at_least=at_least, then=then)),
    )


def side_by_side(node: Node) -> list[Finding]:
    """Measure the memory of one process with 1,000 handlers that wait at the same time, and print it."""
    task = Task(
        url=node.url(),
        queue=f"bench.{secrets.token_hex(4)}",
        messages=WAITING,
        side_by_side=WAITING,
        waits=trials.PATIENCE,
        begins=True,
    )
    print(f"\n{WAITING} async handlers that wait at once in one process (once)\n")
    with prepared(task, bare_loop=False, filled=True), trials.spawned(MODULE, task) as (child, log):
        if not child.wait_for("end"):
            print(trials.last_words(log))
            return [Finding(what=f"{WAITING} async handlers at once: failed", met=False)]
        memory = processes.resident(child.process.pid)
    rows: Sequence[Sequence[str]] = [
        ("contender", "memory", "limit"),
        ("ours", f"{memory:.0f} MB", f"{MOST_RESIDENT:g} MB"),
    ]
    table(rows)
    what = f"{WAITING} async handlers at once: {memory:.0f} MB of {MOST_RESIDENT:g}"
    return [Finding(what=what, met=memory < MOST_RESIDENT)]
