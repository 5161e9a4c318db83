"""The cost of ``once``: the same handler with ``once`` and in a plain ``atomic()``."""

from tests.bench.suites import OURS, Contender, Suite
from tests.bench.task import Task
from tests.tooling import databases

NAME = "once"
MODULE = OURS + "consumer"
MOST = 1.4
"""The highest allowed time, as a multiple of a plain ``atomic()``."""
MOST_CPU = 1.5
"""The highest allowed CPU time, as a multiple of the same handler without ``once``."""
WORKS = {"row": "a handler that inserts one row", "balance": "a handler that updates one row of many"}
MANY = 8
"""The workers of further runs of the first handler."""


def onces() -> tuple[Suite, ...]:
    """Return the suites: PostgreSQL, and MariaDB where it is found, one process, no other records."""
    second = [] if databases.KINDS[databases.MARIADB].lack() else [databases.MARIADB]
    return (
        *(_suite(work, databases.POSTGRESQL, threads=1) for work in WORKS),
        _suite("row", databases.POSTGRESQL, threads=MANY),
        *(_suite("row", kind, threads=threads) for kind in second for threads in (1, MANY)),
    )


def _suite(work: str, kind: str, *, threads: int) -> Suite:
    def contender(name: str, does: str, *, at_least: float | None = None, kept: bool = True) -> Contender:
        return Contender(
            name=name,
            module=MODULE,
            database=kind,
            threads=threads,
            kept=kept,
            does=f"{work} {does}",
            at_least=at_least,
            then=None if at_least is None else 0.83,
            most_cpu=None if at_least is None else MOST_CPU,
        )

    least = round(1 / MOST, 2)
    each = contender("in a plain atomic(), one connection per message", "plain", kept=False)
    return Suite(
        name=NAME,
        title=f"{WORKS[work]}, {kind}, quorum queue, {threads} worker{'s' if threads > 1 else ''}",
        task=Task(kind="quorum", messages=3000, skip=300),
        contenders=(
            contender("in a plain atomic()", "plain"),
            contender("once=True", "once", at_least=least),
            contender("once=True, in an atomic() of its own", "once in atomic", at_least=least),
            *([each] if kind == databases.POSTGRESQL and threads == 1 else []),
        ),
    )
