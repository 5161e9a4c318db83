"""The cost of ``once``: the same handler with ``once`` and in a plain ``atomic()``."""

from tests.bench.suites import OURS, Contender, Suite
from tests.bench.task import Task
from tests.tooling import databases

NAME = "once"
MODULE = OURS + "consumer"
MOST = 1.4
"""The highest allowed time, as a multiple of a plain ``atomic()``."""
WORKS = {"row": "a handler that inserts one row", "balance": "a handler that updates one row of many"}
MANY = 8
"""The workers of a second run of the first handler."""


def onces() -> tuple[Suite, ...]:
    """Return the suites: PostgreSQL, one process, no other records."""
    each = [_suite(work, title, threads=1) for work, title in WORKS.items()]
    return (*each, _suite("row", WORKS["row"], threads=MANY))


def _suite(work: str, title: str, *, threads: int) -> Suite:
    kind = databases.POSTGRESQL
    return Suite(
        name=NAME,
        title=f"{title}, {kind}, quorum queue, {threads} worker{'s' if threads > 1 else ''}",
        task=Task(kind="quorum", messages=3000, skip=300),
        contenders=(
            Contender(name="in a plain atomic()", module=MODULE, database=kind, threads=threads, does=f"{work} plain"),
            Contender(
                name="once=True",
                module=MODULE,
                database=kind,
                threads=threads,
                does=f"{work} once",
                at_least=round(1 / MOST, 2),
                then=0.83,
            ),
            Contender(
                name="in a plain atomic(), one connection per message",
                module=MODULE,
                database=kind,
                threads=threads,
                kept=False,
                does=f"{work} plain",
            ),
        ),
    )
