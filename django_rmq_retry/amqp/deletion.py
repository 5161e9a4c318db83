"""Deletes queues and exchanges that nobody needs any longer: no message is lost, unless it is asked for."""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from django_rmq_retry.amqp.declarer import Declarer
from django_rmq_retry.amqp.inspection import Holding, WouldLose, look, look_at_rest, returning, watch
from django_rmq_retry.amqp.refusals import Refusal
from django_rmq_retry.amqp.session import Question, unbinding
from django_rmq_retry.topology.declarations import BindingDeclaration, QueueDeclaration, Role, Topology

_RUNG = re.compile(r"(?P<work>.+)\.(?:retry\.[0-9]+(?:ms|s|m|h|d)|quarantine)", re.DOTALL)


@dataclass(slots=True, kw_only=True)
class Deleted:
    deleted: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)

    @contextmanager
    def refusing(self, name: str) -> Iterator[None]:
        """Record the refusal of this name instead of raising it."""
        try:
            yield
        except WouldLose as refusal:
            self.refused[name] = refusal.reason
        except Refusal as refusal:
            self.refused[name] = refusal.sentence()


def delete_queues(
    declarer: Declarer, queues: Iterable[str], *, feeders: Sequence[QueueDeclaration] = (), force: bool = False
) -> Deleted:
    """Delete queues that are empty, not consumed and expect no retries; with ``force``, all, with their messages."""
    session, inspector, deleted, free = declarer.session, declarer.inspector, Deleted(), []
    for queue in queues:
        with deleted.refusing(queue):
            holding = look(session, inspector, queue) if force else look_at_rest(session, inspector, queue)
            if holding is None:
                deleted.missing.append(queue)
            elif force:
                session.ask(_deleting(queue))
                deleted.deleted.append(queue)
            else:
                _refuse(holding, "Let them be handled or move them, or delete them too with --force.")
                _refuse_awaited(declarer, queue, feeders)
                free.append(queue)
    # The management API lags: it shows a message that was just delivered only later.
    for queue, later in watch(session, inspector, free).items():
        with deleted.refusing(queue):
            later.refuse_use()
            delete_empty(declarer, queue)
            deleted.deleted.append(queue)
    return deleted


def delete_exchanges(
    declarer: Declarer, exchanges: Iterable[str], bindings: Iterable[BindingDeclaration] = ()
) -> Deleted:
    """Remove these bindings, then delete the exchanges that have no other bindings."""
    deleted = Deleted()
    for one in bindings:
        with suppress(Refusal):
            declarer.session.ask(unbinding(one))
    for name in exchanges:
        with deleted.refusing(name):
            declarer.session.ask(_deleting_exchange(name))
            deleted.deleted.append(name)
    return deleted


def delete_empty(declarer: Declarer, queue: str) -> None:
    """Delete a queue that was just found empty, after checking it once more."""
    holding = look_at_rest(declarer.session, declarer.inspector, queue)
    if holding is None:
        return
    _refuse(holding, "They were published to it meanwhile: stop its publishers, and run it again.")
    # Quorum queues do not support a conditional delete: the broker closes the connection instead.
    declarer.session.ask(_deleting(queue))


def stale(topology: Topology, there: Iterable[str]) -> list[str]:
    """Return the existing queues that this project once derived from its work queues and no longer uses."""
    # Owners of a foreign queue may have queues of their own with such names.
    work = {queue.name for queue in topology.queues.values() if queue.role is Role.WORK and not queue.existing}
    found = []
    for name in sorted(there):
        rung = _RUNG.fullmatch(name)
        if rung and rung["work"] in work and name not in topology.queues:
            found.append(name)
    return found


def feeds(feeder: QueueDeclaration, queue: str) -> bool:
    """True if the feeder dead-letters directly to the queue by its name."""
    target = (feeder.arguments.get("x-dead-letter-exchange"), feeder.arguments.get("x-dead-letter-routing-key"))
    return target == ("", queue)


def _refuse(holding: Holding, advice: str) -> None:
    holding.refuse_use()
    holding.refuse_messages(advice)


def _refuse_awaited(declarer: Declarer, queue: str, feeders: Iterable[QueueDeclaration]) -> None:
    """Raise WouldLose if a retry that waits elsewhere comes back to the queue."""
    for feeder in feeders:
        if feeder.role is Role.WAITING and feeds(feeder, queue):
            waiting = look(declarer.session, declarer.inspector, feeder.name)
            if waiting is not None and not waiting.empty:
                raise WouldLose(queue, f"{returning(waiting.ready, feeder.name)}. Wait until none is left there.")


def _deleting(queue: str) -> Question:
    return lambda channel, done: channel.queue_delete(queue, callback=done)


def _deleting_exchange(name: str) -> Question:
    return lambda channel, done: channel.exchange_delete(name, if_unused=True, callback=done)
