"""The rate at which parked messages are moved from their queue to a database."""

import json
import secrets
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median

import pika

from django_rmq_retry import Delivery, Message, Queue
from django_rmq_retry.messages import ErrorNote, Properties, Reason, encode_properties
from django_rmq_retry.policies import park
from tests.amqp.live import publishing
from tests.bench import trials
from tests.bench.report import Finding, table
from tests.bench.task import Task
from tests.messages.parked_copies import parked_copy
from tests.tooling import databases
from tests.tooling.filled import own_database
from tests.tooling.node import Node

MESSAGES, WARM = 10_000, 1_000
BODY = 1000
RATE, FURTHER = 5_000.0, 10_000.0
KINDS = (databases.POSTGRESQL, databases.MARIADB, databases.SQLITE)
WINDOW = 2000
PATIENCE = 60.0
MODULE = "tests.bench.contenders.our_drainer"


def parking(node: Node, *, rounds: int, share: int = 1) -> list[Finding]:
    """Measure and print; return the finding for the target on PostgreSQL."""
    messages = MESSAGES // share
    print(f"\nparked messages of {BODY} bytes, moved to a database ({rounds} rounds of {messages} messages)\n")
    rows: list[Sequence[str]] = [("database", "messages/s", "CPU µs", "lowest to highest")]
    findings: list[Finding] = []
    for kind in KINDS:
        lack = databases.KINDS[kind].lack() if kind in databases.KINDS else ""
        if lack:
            rows.append((kind, "not measured", lack, ""))
            continue
        results = [_round(node, kind, messages) for _ in range(rounds)]
        rates = [result.rate for result in results if not result.error]
        if not rates:
            rows.append((kind, "failed", results[-1].error, ""))
            findings.append(Finding(what=f"parked messages, moved to {kind}", met=False))
            continue
        rate, cpu = median(rates), median(result.cpu_us for result in results if not result.error)
        rows.append((kind, f"{rate:,.0f}", f"{cpu:.0f}", f"{min(rates):,.0f} to {max(rates):,.0f}"))
        if kind == databases.POSTGRESQL:
            what = f"parked messages, moved to {kind}: {rate:,.0f}/s of {RATE:,.0f}"
            findings.append(Finding(what=what, met=rate >= RATE, further=rate >= FURTHER))
    table(rows)
    return findings


def _round(node: Node, kind: str, messages: int) -> trials.Result:
    with (
        tempfile.TemporaryDirectory(prefix="rmq-bench-") as folder,
        own_database(Path(folder), kind=kind) as own,
    ):
        name = f"bench.{secrets.token_hex(4)}"
        task = Task(url=node.url(), queue=name, messages=messages, skip=WARM, database=json.dumps(own.settings))
        with _filled(task):
            return trials.timed(MODULE, task)


@contextmanager
def _filled(task: Task) -> Iterator[None]:
    """Fill a parked queue with messages like those of our consumer."""
    name = f"{task.queue}.parked"
    with pika.BlockingConnection(pika.URLParameters(task.url)) as connection:
        channel = connection.channel()
        channel.queue_declare(name, durable=True, arguments=Queue(name).plain_arguments())
        try:
            with publishing(task.url) as publisher:
                publisher.publish_many((_copy(task, n) for n in range(task.total)), window=WINDOW, timeout=PATIENCE)
                yield
        finally:
            channel.queue_delete(name)


def _copy(task: Task, number: int) -> Message:
    error = ErrorNote(kind="BankDown", text="timeout after 30 s")
    sent = Properties(content_type="application/json", type="charge", message_id=f"{number:032x}")
    body = json.dumps({"payment": number, "text": ""}).encode()
    failed = Delivery(
        queue=task.queue,
        body=body[:-2] + b"x" * (BODY - len(body)) + body[-2:],
        raw=encode_properties(sent),
        routing_key=task.queue,
    )
    verdict = replace(park(Reason.EXHAUSTED, "after 5 attempts", error), fingerprint="a" * 40, culprit="bank:post")
    return parked_copy(verdict, failed, park=f"{task.queue}.parked")
