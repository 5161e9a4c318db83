"""The suites: contenders, references and targets."""

import os
from dataclasses import dataclass, replace
from typing import Literal

from tests.bench.task import Task
from tests.tooling import databases

OURS = "tests.bench.contenders.our_"
PIKA = "tests.bench.contenders.pika_"
Broker = Literal["rabbitmq", "memory", "file"]
_BROKERS: dict[str, Broker] = {"in memory": "memory", "with its file": "file"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A program and its targets: its rate, as a multiple of the rate of the suite's first contender."""

    name: str
    module: str
    threads: int = 1
    window: int = 0
    bare_loop: bool = False
    own_messages: bool = False
    """True if its module makes the messages in a format of its own."""
    share: float = 1.0
    """The part of the suite's messages that it gets, if all of them would take minutes."""
    broker: Broker = "rabbitmq"
    database: str = ""
    """The kind of private database for recorded attempts; without one, nothing is recorded."""
    kept: bool = True
    """True if database connections are kept between messages."""
    does: str = ""
    """The work of its handler in that database."""
    watched: str = ""
    """The telemetry that is on: "metrics" or "traces"."""
    rate: float | None = None
    """The lowest rate in messages per second, if an absolute number is promised."""
    at_least: float | None = None
    then: float | None = None
    most_cpu: float | None = None
    """The highest allowed CPU time, as a multiple of that of the suite's first contender."""

    def task(self, task: Task, *, url: str, queue: str, database: str = "") -> Task:
        """Return the task of its suite, as it is passed to this contender."""
        return replace(
            task,
            messages=int(task.messages * self.share),
            skip=int(task.skip * self.share),
            url=url,
            queue=queue,
            messages_by=self.module if self.own_messages else "",
            database=database,
            threads=self.threads,
            window=self.window,
            kept=self.kept,
            does=self.does,
            watched=self.watched,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """Contenders with the same task; the first is the reference."""

    name: str
    title: str
    task: Task
    contenders: tuple[Contender, ...]
    filled: bool = True
    turns: int = 0
    """The turns that the contenders take in each round; if 0, they run one after another.

    A multiple of twice their number, so that each order comes as often as any other.
    """


def _consume(task: Task) -> Suite:
    return Suite(
        name="consume",
        title=f"consume, {task.kind} queue, prefetch {task.prefetch}",
        task=task,
        contenders=(
            Contender(name="bare pika, an ack per message", module=PIKA + "consumer"),
            Contender(name="ours, 1 worker", module=OURS + "consumer", at_least=1.0, then=1.3),
            Contender(name="ours, 8 workers", module=OURS + "consumer", threads=8, at_least=0.9, then=1.2),
        ),
    )


def _retry(task: Task) -> Suite:
    return Suite(
        name="retry",
        title=f"retry after 0.1 s, every message fails once, {task.kind} queue",
        task=task,
        contenders=(
            Contender(name="bare pika, reject and dead-letter", module=PIKA + "retry", bare_loop=True),
            Contender(name="ours, ladder, 1 worker", module=OURS + "consumer", at_least=0.6, then=0.8),
            Contender(name="ours, ladder, 8 workers", module=OURS + "consumer", threads=8, at_least=0.6, then=0.8),
        ),
    )


def remembering() -> str:
    """Return the database of RMQ_TEST_DATABASE, else PostgreSQL if it is installed, like in production."""
    usual = databases.POSTGRESQL
    return os.environ.get("RMQ_TEST_DATABASE") or (databases.SQLITE if databases.KINDS[usual].lack() else usual)


def _history(title: str, task: Task, *, threads: int, at_least: float, then: float) -> Suite:
    """Return our contenders, with and without a database for recorded attempts."""
    kind = remembering()
    workers = "1 worker" if threads == 1 else f"{threads} workers"
    module = OURS + "consumer"
    return Suite(
        name="history",
        title=f"{title}, {task.kind} queue, {workers}",
        task=task,
        contenders=(
            Contender(name="without records", module=module, threads=threads),
            Contender(
                name=f"with records, {kind}",
                module=module,
                threads=threads,
                database=kind,
                at_least=at_least,
                then=then,
            ),
        ),
    )


def _embedded(title: str, module: str, task: Task) -> Suite:
    """Return contenders with one client, bare pika, and different brokers."""
    window = 1000
    return Suite(
        name="embedded",
        title=f"{title}, classic queue, by broker",
        task=task,
        filled=module.endswith("consumer"),
        contenders=(
            Contender(name="RabbitMQ", module=module, window=window),
            *(
                Contender(
                    name=f"embedded, {name}",
                    module=module,
                    window=window,
                    broker=broker,
                    rate=8000,
                    at_least=0.25,
                    then=0.5,
                )
                for name, broker in _BROKERS.items()
            ),
        ),
    )


def _telemetry(threads: int) -> Suite:
    """Return our consumer without and with what watches it."""
    workers = "1 worker" if threads == 1 else f"{threads} workers"
    module, task = OURS + "consumer", Task(messages=1000, skip=8000)
    return Suite(
        name="telemetry",
        title=f"consume, watched, {task.kind} queue, {workers}",
        task=task,
        turns=18,
        contenders=(
            Contender(name="without", module=module, threads=threads),
            Contender(
                name="with --http, metrics", module=module, threads=threads, watched="metrics", at_least=0.97, then=1.0
            ),
            Contender(
                name="with traces, 1 % sampled",
                module=module,
                threads=threads,
                watched="traces",
                at_least=0.9,
                then=0.95,
            ),
        ),
    )


SUCCEEDING, FAILING = Task(messages=20000, skip=2000), Task(messages=16000, flaky=True)
SUITES = (
    _consume(Task(kind="classic", messages=20000, skip=2000)),
    _consume(Task(kind="quorum", messages=20000, skip=2000)),
    Suite(
        name="publish",
        title="publish with confirms, 1000 outstanding, classic queue",
        task=Task(messages=20000, skip=2000),
        filled=False,
        contenders=(
            Contender(name="bare pika, window of 1000", module=PIKA + "publisher", window=1000),
            Contender(name="ours, publish_many", module=OURS + "publisher", window=1000, at_least=0.8, then=1.0),
        ),
    ),
    Suite(
        name="publish",
        title="publish one by one, each confirmed, classic queue",
        task=Task(messages=4000, skip=400),
        filled=False,
        contenders=(
            Contender(name="ours, 1 thread", module=OURS + "publisher"),
            Contender(name="ours, 8 threads", module=OURS + "publisher", threads=8, at_least=3.0, then=6.0),
        ),
    ),
    _retry(Task(kind="classic", messages=8000, flaky=True)),
    _retry(Task(kind="quorum", messages=8000, flaky=True)),
    *(_history("every message succeeds at once", SUCCEEDING, threads=n, at_least=0.95, then=0.99) for n in (1, 8)),
    *(_history("every message fails once", FAILING, threads=n, at_least=0.75, then=0.9) for n in (1, 8)),
    *(_telemetry(threads) for threads in (1, 8)),
    _embedded("consume, prefetch 100, an ack per message", PIKA + "consumer", Task(messages=20000, skip=2000)),
    _embedded("publish with confirms, 1000 outstanding", PIKA + "publisher", Task(messages=20000, skip=2000)),
)

AT_REST = Suite(
    name="idle",
    title="at rest after one message, quorum queue",
    task=Task(kind="quorum", prefetch=10),
    contenders=(
        Contender(name="bare pika", module=PIKA + "consumer"),
        Contender(name="ours, 4 workers", module=OURS + "consumer", threads=4),
    ),
)

NAMES = (
    "consume",
    "publish",
    "retry",
    "history",
    "park",
    "embedded",
    "once",
    "batches",
    "order",
    "outbox",
    "telemetry",
    "types",
    "tasks",
    "async",
    "idle",
)
