"""What order per key costs keys that are not blocked: the same handler with ``order_by`` and without."""

from tests.bench.suites import OURS, Contender, Suite
from tests.bench.task import Task
from tests.tooling import databases

NAME = "order"
MODULE = OURS + "consumer"
MOST = 1.1
"""So many times as long as without, at most."""


def orders() -> tuple[Suite, ...]:
    """On PostgreSQL, one process, one worker, a thousand keys; nothing fails."""
    kind = databases.POSTGRESQL
    suite = Suite(
        name=NAME,
        title=f"a handler that inserts one row, {kind}, quorum queue, 1 worker",
        task=Task(kind="quorum", messages=3000, skip=300),
        contenders=(
            Contender(name="in no order", module=MODULE, database=kind, does="row plain"),
            Contender(
                name="order_by", module=MODULE, database=kind, does="row keyed", at_least=round(1 / MOST, 2), then=0.95
            ),
        ),
    )
    return (suite,)
