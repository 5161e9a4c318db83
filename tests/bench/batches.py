"""Rows per second of a handler that takes batches, beside the same handler of single messages."""

from importlib.util import find_spec

from tests.bench.suites import OURS, Contender, Suite
from tests.bench.task import Task
from tests.tooling import databases

NAME = "batches"
MODULE = OURS + "consumer"
RATE, RATE_ONCE = 10_000, 6_000
"""The lowest rates in rows per second: in a plain transaction for each batch, and with ``once=True``."""
SIZE = 100
THREADS = 8


def batches() -> tuple[Suite, ...]:
    """Return the suite: PostgreSQL, one process, one row for each message."""
    kind = databases.POSTGRESQL
    one_by_one = Contender(
        name=f"one by one, {THREADS} workers", module=MODULE, database=kind, threads=THREADS, does="row plain"
    )
    return (
        Suite(
            name=NAME,
            title=f"a handler that inserts one row for each message, {kind}, quorum queue, batches of {SIZE}",
            task=Task(kind="quorum", messages=10_000, skip=1_000),
            contenders=(
                one_by_one,
                *_peers(),
                _batch("a batch, 1 worker", "row plain", threads=1, rate=RATE),
                _batch("a batch, 4 workers", "row plain", threads=4, rate=RATE),
                _batch("a batch with once=True, 1 worker", "row once", threads=1, rate=RATE_ONCE),
                _batch("a batch with once=True, 4 workers", "row once", threads=4, rate=RATE_ONCE),
            ),
        ),
    )


def _peers() -> list[Contender]:
    """Return the other frameworks that are installed. None of them gives a task several messages of RabbitMQ."""
    known = (
        ("Celery", "celery", True, 0.2),
        ("Dramatiq", "dramatiq", True, 0.5),
        ("FastStream", "faststream", False, 0.5),
    )
    return [
        Contender(
            name=f"{name}, one by one, {THREADS} threads",
            module=f"tests.bench.contenders.{module}_consumer",
            database=databases.POSTGRESQL,
            threads=THREADS,
            does="row",
            own_messages=own,
            share=share,
        )
        for name, module, own, share in known
        if find_spec(module) is not None
    ]


def _batch(name: str, does: str, *, threads: int, rate: float) -> Contender:
    kind = databases.POSTGRESQL
    return Contender(
        name=name,
        module=MODULE,
        database=kind,
        threads=threads,
        does=f"{does} batch",
        rate=rate,
        at_least=2.0,
        then=3.0,
    )
