"""Deletes queues: empty ones that nobody consumes, unless it is forced."""

import re
from collections.abc import Callable, Iterable

from django_rmq_retry.broker.declaring import Declarer
from django_rmq_retry.broker.holding import look, look_at_rest, look_long
from django_rmq_retry.core.declarations import Role, Topology

Confirm = Callable[[str], None]
"""Asks a person; returns only if the answer is yes."""
_RUNG = re.compile(r"(?P<work>.+)\.retry\.[0-9]+(?:ms|s|m|h|d)", re.DOTALL)


def delete_empty(declarer: Declarer, queue: str) -> None:
    """Delete a queue that has just been seen to be empty, and is looked at once more."""
    holding = look_at_rest(declarer.session, declarer.inspector, queue)
    if holding is None:
        return
    holding.refuse_consumers()
    holding.refuse_messages("Something was published to it meanwhile. Run it again.")
    # Quorum queues know no conditional delete: they close the connection instead.
    declarer.session.ask(lambda channel, done: channel.queue_delete(queue, callback=done))


def delete(declarer: Declarer, queue: str, confirm: Confirm, *, force: bool = False) -> bool:
    """Delete a queue; whether there was one. Forced, its messages go with it."""
    if force:
        there = look(declarer.session, declarer.inspector, queue)
        declarer.session.ask(lambda channel, done: channel.queue_delete(queue, callback=done))
        return there is not None
    holding = look_long(declarer.session, declarer.inspector, queue)
    if holding is None:
        return False
    holding.refuse_consumers()
    holding.refuse_hidden()
    holding.refuse_messages("Let them be handled or move them, or delete them too with --force.")
    if holding.hidden is None:
        confirm(unseen(queue))
    delete_empty(declarer, queue)
    return True


def unseen(queue: str) -> str:
    """What a person must know where the broker does not tell us."""
    return (
        f"Messages of {queue!r} that a consumer still has in hand, or that are on their way as dead letters, would be "
        'lost; only the management API (RMQ_RETRY["MANAGEMENT_URL"]) could see them. Are all its consumers stopped?'
    )


def stale(topology: Topology, there: Iterable[str]) -> list[str]:
    """Of the queues that are there, those that were once waiting queues of this project's ladders."""
    work = {queue.name for queue in topology.queues.values() if queue.role is Role.WORK}
    found = []
    for name in sorted(there):
        rung = _RUNG.fullmatch(name)
        if rung and rung["work"] in work and name not in topology.queues:
            found.append(name)
    return found
