"""Deletes queues and exchanges: queues that are empty and that nobody consumes, unless it is forced."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from django_rmq_retry.broker.asking import Question
from django_rmq_retry.broker.declaring import Declarer
from django_rmq_retry.broker.holding import Holding, WouldLose, look, look_at_rest, watch
from django_rmq_retry.broker.refusing import Refusal
from django_rmq_retry.core.declarations import Role, Topology

UNSEEN = (
    "A message that a consumer still has in hand, or that is on its way as a dead letter, would be lost; only the "
    'management API (RMQ_RETRY["MANAGEMENT_URL"]) could see it. Are all consumers stopped?'
)
_RUNG = re.compile(r"(?P<work>.+)\.(?:retry\.[0-9]+(?:ms|s|m|h|d)|suspects)", re.DOTALL)


@dataclass(slots=True, kw_only=True)
class Deleted:
    """What became of each name that was to be deleted."""

    deleted: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)


def delete_queues(declarer: Declarer, queues: Iterable[str], *, force: bool = False) -> Deleted:
    """Delete what is empty and not consumed; forced, everything, with its messages."""
    found = Deleted()
    free = [queue for queue in queues if force or _is_free(declarer, queue, found)]
    # The management API is behind: a message that was taken a moment ago is seen only later.
    later = {} if force else watch(declarer.session, declarer.inspector, free)
    for queue in free:
        try:
            if force:
                _delete_forced(declarer, queue, found)
            elif queue in later:
                later[queue].refuse_use()
                delete_empty(declarer, queue)
                found.deleted.append(queue)
        except WouldLose as refusal:
            found.refused[queue] = refusal.reason
        except Refusal as refusal:
            found.refused[queue] = refusal.sentence()
    return found


def delete_exchanges(declarer: Declarer, exchanges: Iterable[str]) -> Deleted:
    """Delete exchanges that nothing is bound to."""
    found = Deleted()
    for name in exchanges:
        try:
            declarer.session.ask(_dropping(name))
            found.deleted.append(name)
        except Refusal as refusal:
            found.refused[name] = refusal.sentence()
    return found


def delete_empty(declarer: Declarer, queue: str) -> None:
    """Delete a queue that has just been seen to be empty, and is looked at once more."""
    holding = look_at_rest(declarer.session, declarer.inspector, queue)
    if holding is None:
        return
    _refuse(holding, "Something was published to it meanwhile. Run it again.")
    # Quorum queues know no conditional delete: they close the connection instead.
    declarer.session.ask(lambda channel, done: channel.queue_delete(queue, callback=done))


def stale(topology: Topology, there: Iterable[str]) -> list[str]:
    """Of the queues that are there, those that this project once derived from its work queues."""
    work = {queue.name for queue in topology.queues.values() if queue.role is Role.WORK}
    found = []
    for name in sorted(there):
        rung = _RUNG.fullmatch(name)
        if rung and rung["work"] in work and name not in topology.queues:
            found.append(name)
    return found


def _dropping(exchange: str) -> Question:
    return lambda channel, done: channel.exchange_delete(exchange, if_unused=True, callback=done)


def _is_free(declarer: Declarer, queue: str, found: Deleted) -> bool:
    try:
        holding = look_at_rest(declarer.session, declarer.inspector, queue)
        if holding is None:
            found.missing.append(queue)
            return False
        _refuse(holding, "Let them be handled or move them, or delete them too with --force.")
    except WouldLose as refusal:
        found.refused[queue] = refusal.reason
        return False
    except Refusal as refusal:
        found.refused[queue] = refusal.sentence()
        return False
    return True


def _refuse(holding: Holding, advice: str) -> None:
    holding.refuse_use()
    holding.refuse_messages(advice)


def _delete_forced(declarer: Declarer, queue: str, found: Deleted) -> None:
    there = look(declarer.session, declarer.inspector, queue)
    declarer.session.ask(lambda channel, done: channel.queue_delete(queue, callback=done))
    (found.missing if there is None else found.deleted).append(queue)
