"""The cost of the outbox, compared with publishing on commit; and the rate of a relay."""

from tests.bench.suites import OURS, PIKA, Contender, Suite
from tests.bench.task import Task
from tests.tooling import databases

NAME = "outbox"
LEAST = 1.3
"""The lowest allowed rate, as a multiple of insert and publish on commit."""
RATE = 3_000
"""The lowest allowed rate of a relay, in rows per second."""


def outboxes() -> tuple[Suite, ...]:
    """Return the suites: PostgreSQL, one process."""
    kind = databases.POSTGRESQL
    return (
        Suite(
            name=NAME,
            title=f"a transaction that inserts a row and publishes, {kind}, quorum queue",
            task=Task(kind="quorum", messages=1000, skip=100),
            filled=False,
            contenders=(
                Contender(name="published on commit", module=OURS + "oncommit", database=kind),
                Contender(
                    name="through the outbox",
                    module=OURS + "outbox",
                    database=kind,
                    at_least=LEAST,
                    then=1.5,
                ),
            ),
        ),
        Suite(
            name=NAME,
            title=f"a relay empties the outbox, {kind}, quorum queue, bodies of 200 bytes",
            task=Task(kind="quorum", messages=8000, skip=1000),
            filled=False,
            contenders=(
                Contender(
                    name="bare pika publishes the same messages, window of 1000", module=PIKA + "publisher", window=1000
                ),
                Contender(name="one relay", module=OURS + "relay", database=kind, rate=RATE, at_least=0.1, then=0.3),
            ),
        ),
    )
