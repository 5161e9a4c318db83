"""The cost of ``order_by`` for keys that are not blocked: the same handler with and without it."""

from tests.bench.suites import OURS, Contender, Suite
from tests.bench.task import Task
from tests.tooling import databases

NAME = "order"
MODULE = OURS + "consumer"
MOST = 1.1
"""The highest allowed time, as a multiple of the time without ``order_by``."""


def orders() -> tuple[Suite, ...]:
    """Return the suites: PostgreSQL, one process, one worker, a thousand keys, no failures."""
    kind = databases.POSTGRESQL
    suite = Suite(
        name=NAME,
        title=f"a handler that inserts one row, {kind}, quorum queue, 1 worker",
        task=Task(kind="quorum", messages=3000, skip=300),
        contenders=(
            Contender(name="without order_by", module=MODULE, database=kind, does="row plain"),
            Contender(
                name="order_by", module=MODULE, database=kind, does="row keyed", at_least=round(1 / MOST, 2), then=0.95
            ),
        ),
    )
    return (suite,)
