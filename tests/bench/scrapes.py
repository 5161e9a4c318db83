"""The CPU that a scrape of a consumer's metrics takes from its messages."""

import http.client
import json
import secrets
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from threading import Event

from tests.bench import processes, trials
from tests.bench.queues import prepared
from tests.bench.report import Finding, table
from tests.bench.task import Task
from tests.tooling import databases
from tests.tooling.filled import own_database
from tests.tooling.node import Node, free_ports

NAME = "telemetry"
MODULE = "tests.bench.contenders.our_consumer"
MOST = {1: 2.0, 20: 3.0}
"""Milliseconds of CPU of one scrape, by the number of handlers; each has 52 lines of metrics or more."""
SCRAPES, SPAN = 300, 15.0
"""The scrapes within a span, with pauses in which the processor's caches cool down, as they do in use.

The consumer reads its figures every 15 seconds, so the span at rest and the span with scrapes have one reading each.
"""
SETTLING = 1.0


def scrapes(node: Node, *, share: int = 1) -> list[Finding]:
    """Measure and print; return the findings for the limit."""
    number = SCRAPES // share
    print(f"\nscrapes of a consumer that has handled messages and waits for more ({number} scrapes)\n")
    rows: list[Sequence[str]] = [("consumer with", "bytes of metrics", "CPU of one scrape", "limit", "")]
    findings = []
    for handlers, most in MOST.items():
        name = "1 handler" if handlers == 1 else f"{handlers} handlers"
        size, cost = _costs(node, handlers, number)
        finding = Finding(what=f"scrape of a consumer with {name}: {cost:.2f} ms, limit {most:g}", met=cost < most)
        rows.append((name, f"{size:,}", f"{cost:.2f} ms", f"{most:g} ms", "met" if finding.met else "not met"))
        findings.append(finding)
    table(rows)
    return findings


def _costs(node: Node, handlers: int, number: int) -> tuple[int, float]:
    """Return the bytes of the metrics, and the milliseconds of CPU of one scrape, less what the consumer takes idle."""
    with (
        tempfile.TemporaryDirectory(prefix="rmq-bench-") as folder,
        own_database(Path(folder), kind=databases.SQLITE) as own,
    ):
        task = Task(
            url=node.url(),
            queue=f"bench.{secrets.token_hex(4)}",
            messages=2000,
            database=json.dumps(own.settings),
            watched="metrics",
            port=free_ports(1)[0],
            idle_handlers=handlers - 1,
        )
        with prepared(task, bare_loop=False, filled=True), trials.spawned(MODULE, task) as (child, log):
            if not child.wait_for("end"):
                raise RuntimeError(trials.last_words(log))
            Event().wait(SETTLING)
            size = len(_scraped(task.port))
            began = processes.cpu(child.process.pid)
            Event().wait(SPAN)
            idle = processes.cpu(child.process.pid) - began
            began, over = processes.cpu(child.process.pid), time.monotonic() + SPAN
            for left in range(number, 0, -1):
                Event().wait(max(0.0, over - time.monotonic()) / left)
                _scraped(task.port)
            scraped = processes.cpu(child.process.pid) - began
            child.end()
    return size, (scraped - idle) / number


def _scraped(port: int) -> bytes:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        connection.request("GET", "/metrics")
        response = connection.getresponse()
        text = response.read()
    if response.status != http.client.OK or b"rmq_retry_attempts_total" not in text:
        raise RuntimeError(f"/metrics answered {response.status}")
    return text
