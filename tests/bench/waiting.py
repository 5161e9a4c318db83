"""The cost of many waiting messages in the embedded broker: memory per message, and CPU while idle."""

from collections.abc import Sequence
from dataclasses import replace
from threading import Event

import pika

from tests.bench import processes
from tests.bench.embedding import embedded
from tests.bench.queues import fill
from tests.bench.report import Finding, table
from tests.bench.task import Task

MOST_BYTES, MOST_IDLE = 1500.0, 10.0
RESTING = 5.0
HOURS = 3_600_000
TITLE = "messages waiting in a queue with a TTL, embedded broker"


def waiting(messages: int) -> list[Finding]:
    """Measure and print; return the findings for the limits."""
    print(f"\n{TITLE} (once, {messages} messages)\n")
    rows: list[Sequence[str]] = [("kept in", "bytes per message, without the body", "CPU while they wait")]
    findings = []
    for name, durable in (("memory", False), ("a file", True)):
        size, idle = _costs(messages, durable=durable)
        rows.append((name, f"{size:,.0f}", f"{idle:.2f} ms/s"))
        findings += [
            Finding(what=f"{name}: {size:.0f} bytes per message, limit {MOST_BYTES:g}", met=size <= MOST_BYTES),
            Finding(what=f"{name}: {idle:.2f} ms/s of CPU while waiting, limit {MOST_IDLE:g}", met=idle < MOST_IDLE),
        ]
    table(rows)
    return findings


def _costs(messages: int, *, durable: bool) -> tuple[float, float]:
    """Return bytes per message without its body, and milliseconds of CPU per second while all wait."""
    with embedded(durable=durable) as broker:
        task = replace(Task(messages=messages), url=broker.url, queue="bench.wait")
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            letters = {"x-message-ttl": HOURS, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "bench"}
            connection.channel().queue_declare(task.queue, durable=True, arguments=letters)
            before = processes.resident(broker.pid)
            bodies = fill(task)
            grown = (processes.resident(broker.pid) - before) * 2**20
            Event().wait(1.0)
            began = processes.cpu(broker.pid)
            Event().wait(RESTING)
            idle = (processes.cpu(broker.pid) - began) / RESTING
    return (grown - bodies) / messages, idle
