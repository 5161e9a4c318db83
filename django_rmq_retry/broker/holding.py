"""What a queue holds, as far as it can be known: nothing is deleted before this has been asked."""

import time
from collections.abc import Iterable
from dataclasses import dataclass

from django_rmq_retry.broker.asking import Session
from django_rmq_retry.broker.inspecting import Inspector, Row
from django_rmq_retry.broker.refusing import Refusal
from django_rmq_retry.broker.wording import passively
from django_rmq_retry.core.declarations import QueueDeclaration
from django_rmq_retry.core.errors import RmqRetryError

LAG = 11.0
"""Seconds by which the management API may be behind: figures come every five, and are seen with the next ones."""
_STEP = 0.5
_REST, _REST_STEP = 2.0, 0.05
"""A quorum queue counts who takes a single message as a consumer, for a moment longer than it has it."""
_HIDDEN = ("messages_unacknowledged", "messages_dlx", "messages_delayed")


class WouldLose(RmqRetryError):
    """Refused, because messages could be lost by it."""

    def __init__(self, queue: str, reason: str) -> None:
        self.queue = queue
        self.reason = reason
        super().__init__(f"Queue {queue!r} was left as it is: {reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """The messages and consumers of one queue."""

    queue: str
    ready: int
    consumers: int
    hidden: int | None = None
    """Messages in a consumer's hand, delayed, or on their way as dead letters; None where nobody can tell."""

    @property
    def empty(self) -> bool:
        return not self.ready and not self.hidden

    def refuse_use(self) -> None:
        """Unless nobody consumes it and none of its messages is under way."""
        if self.consumers:
            raise WouldLose(self.queue, f"it has {_count(self.consumers, 'consumer')}. Stop them first.")
        if self.hidden:
            raise WouldLose(
                self.queue,
                f"{_count(self.hidden, 'message')} of it are in a consumer's hand or on their way to another queue. "
                "Wait until they are settled.",
            )

    def refuse_messages(self, advice: str) -> None:
        if self.ready:
            raise WouldLose(self.queue, f"it holds {_count(self.ready, 'message')}. {advice}")


def look(session: Session, inspector: Inspector | None, queue: str) -> Holding | None:
    """What it holds now; None if there is no such queue. Other answers are a Refusal."""
    return counted(session, None if inspector is None else inspector.queue(queue), queue)


def counted(session: Session, row: Row | None, queue: str) -> Holding | None:
    """The same, where the management API has been asked already."""
    try:
        told = session.ask(passively(QueueDeclaration(name=queue))).method
    except Refusal as refusal:
        if refusal.missing:
            return None
        # From RabbitMQ 4.3 on looking needs a right on that name.
        if not refusal.forbidden or row is None:
            raise
        return Holding(
            queue=queue, ready=row.get("messages_ready", 0), consumers=row.get("consumers", 0), hidden=_hidden(row)
        )
    return Holding(queue=queue, ready=told.message_count, consumers=told.consumer_count, hidden=_hidden(row))


def look_at_rest(session: Session, inspector: Inspector | None, queue: str) -> Holding | None:
    """As ``look``, a moment later where it has consumers that may be gone by then."""
    deadline = time.monotonic() + _REST
    while True:
        found = look(session, inspector, queue)
        if found is None or not found.consumers or time.monotonic() > deadline:
            return found
        time.sleep(_REST_STEP)


def watch(session: Session, inspector: Inspector | None, queues: Iterable[str]) -> dict[str, Holding]:
    """Those that are there, looked at for as long as the management API may be behind, or until something is found."""
    seen = {queue: look_at_rest(session, inspector, queue) for queue in queues}
    for _ in range(round(LAG / _STEP) if inspector is not None else 0):
        idle = [queue for queue, found in seen.items() if found and not found.consumers and not found.hidden]
        if not idle:
            break
        time.sleep(_STEP)
        seen |= {queue: look(session, inspector, queue) for queue in idle}
    return {queue: found for queue, found in seen.items() if found is not None}


def _hidden(row: Row | None) -> int | None:
    # A queue that was made just now has no figures yet.
    if row is None or row.get("messages") is None:
        return None
    return sum(row.get(name) or 0 for name in _HIDDEN)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
