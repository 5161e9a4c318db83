"""The quorum queues of a virtual host that dead-letter at least once: the broker runs a process for each."""

from collections.abc import Iterable, Iterator, Mapping

from django_rmq_retry.health.rules import Code, Problem
from django_rmq_retry.topology.declarations import Server, Topology

QueueFacts = Mapping[str, object]

MANY_PROCESSES = 100
"""The number from which a rolling update may strand some of them (rabbitmq-server#16652)."""
NATIVE = (4, 3)


def dead_letter_processes(server: Server, topology: Topology, rows: Iterable[QueueFacts] | None) -> Iterator[Problem]:
    """Warn of many such queues: those of the management API, or else the ones that this project declares."""
    whose = "of this virtual host"
    if rows is None:
        whose = "of this project"
        rows = [
            {"type": one.arguments.get("x-queue-type"), "arguments": one.arguments} for one in topology.queues.values()
        ]
    count = sum(map(_careful, rows))
    if count >= MANY_PROCESSES:
        upgrade = "" if server.at_least(NATIVE) else "upgrade to RabbitMQ 4.3 and "
        yield Problem(code=Code.MANY_DEAD_LETTER_PROCESSES, count=count, values={"whose": whose, "upgrade": upgrade})


def _careful(row: QueueFacts) -> bool:
    """Return True if the queue is a quorum queue and dead-letters at least once, by its argument or a policy."""
    arguments, policy = row.get("arguments"), row.get("effective_policy_definition")
    strategies = (
        arguments.get("x-dead-letter-strategy") if isinstance(arguments, Mapping) else None,
        policy.get("dead-letter-strategy") if isinstance(policy, Mapping) else None,
    )
    return row.get("type") == "quorum" and next(filter(None, strategies), None) == "at-least-once"
