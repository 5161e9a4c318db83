"""The contents of queues: counts, bindings, and messages read without removing them."""

import time
from collections.abc import Iterable
from dataclasses import dataclass

from pika import BlockingConnection

from django_rmq_retry.amqp.address import Access
from django_rmq_retry.amqp.connection import parameters
from django_rmq_retry.amqp.frames import name_text
from django_rmq_retry.amqp.management_api import Inspector
from django_rmq_retry.amqp.refusals import Refusal
from django_rmq_retry.amqp.rows import Row
from django_rmq_retry.amqp.session import Session, passively
from django_rmq_retry.amqp.sizes import UNROUTABLE
from django_rmq_retry.arguments import plural
from django_rmq_retry.errors import RmqRetryError
from django_rmq_retry.messages.message import Delivery
from django_rmq_retry.topology.declarations import QueueDeclaration

LAG_SECONDS = 11.0
"""Seconds by which the management API may lag: it collects figures every 5 s and shows them with the next ones."""
_LOOK_SECONDS = 0.5
_REST_SECONDS, _REST_LOOK_SECONDS = 2.0, 0.05
"""Seconds to wait for a quorum queue to drop a basic.get client, which it counts as a consumer for a moment longer."""
_HIDDEN = ("messages_unacknowledged", "messages_dlx", "messages_delayed")


class WouldLose(RmqRetryError):
    """Refuses an operation that could lose messages."""

    def __init__(self, queue: str, reason: str) -> None:
        self.queue = queue
        self.reason = reason
        super().__init__(f"Queue {queue!r} was left as it is: {reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    queue: str
    ready: int
    consumers: int
    hidden: int | None = None
    """The number of messages that are unacked, delayed or in flight as dead letters; None if it is unknown."""

    @property
    def empty(self) -> bool:
        return not self.ready and not self.hidden

    def refuse_use(self) -> None:
        """Raise WouldLose if the queue has consumers or messages in flight."""
        if self.consumers:
            raise WouldLose(self.queue, f"it has {plural(self.consumers, 'consumer')}. Stop them first.")
        if self.hidden:
            raise WouldLose(
                self.queue,
                f"{plural(self.hidden, 'message')} of it are in a consumer's hand or on their way to another queue. "
                "Wait until they are settled.",
            )

    def refuse_messages(self, advice: str) -> None:
        if self.ready:
            raise WouldLose(self.queue, f"it holds {plural(self.ready, 'message')}. {advice}")


def look(session: Session, inspector: Inspector | None, queue: str) -> Holding | None:
    """Return the queue's messages and consumers; None if it does not exist. Other refusals are raised."""
    return counted(session, None if inspector is None else inspector.queue(queue), queue)


def counted(session: Session, row: Row | None, queue: str) -> Holding | None:
    """Return the same as ``look`` for a row that the management API has already returned."""
    try:
        answer = session.ask(passively(QueueDeclaration(name=queue))).method
    except Refusal as refusal:
        if refusal.missing:
            return None
        # From RabbitMQ 4.3 on, a passive declaration needs a permission on that name.
        if not refusal.forbidden or row is None:
            raise
        return Holding(
            queue=queue, ready=row.get("messages_ready", 0), consumers=row.get("consumers", 0), hidden=_hidden(row)
        )
    return Holding(queue=queue, ready=answer.message_count, consumers=answer.consumer_count, hidden=_hidden(row))


def look_at_rest(session: Session, inspector: Inspector | None, queue: str) -> Holding | None:
    """Return the same as ``look``, but first wait a moment for consumers that may be leaving."""
    deadline = time.monotonic() + _REST_SECONDS
    while True:
        holding = look(session, inspector, queue)
        if holding is None or not holding.consumers or time.monotonic() > deadline:
            return holding
        time.sleep(_REST_LOOK_SECONDS)


def refused_read(session: Session, queue: str) -> Refusal | None:
    """Return the refusal if the user may not consume this queue. A priority that is no number keeps it unconsumed."""
    try:
        session.ask(
            lambda channel, done: channel.basic_consume(
                queue, lambda *_: None, callback=done, arguments={"x-priority": "none"}
            )
        )
    except Refusal as refusal:
        return refusal if refusal.forbidden else None
    session.channel().close()
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishTest:
    """The broker's answer to a message for no queue."""

    refusal: Refusal | None = None
    blocked: str = ""
    """The reason why the broker blocks connections that publish."""


def try_publish(session: Session) -> PublishTest:
    """Publish a message that no queue takes to the default exchange. If it is blocked, the session answers no more."""
    blocked: list[str] = []
    answers: list[object] = []
    session.connection.add_on_connection_blocked_callback(
        lambda _connection, frame: blocked.append(name_text(frame.method.reason or "") or "unknown")
    )
    channel = session.channel()
    channel.basic_publish("", UNROUTABLE, b"")
    channel.basic_qos(prefetch_count=1, callback=answers.append)
    try:
        session.wait(lambda: answers or blocked, channel)
    except Refusal as refusal:
        return PublishTest(refusal=refusal)
    return PublishTest(blocked=next(iter(blocked), ""))


def watch(session: Session, inspector: Inspector | None, queues: Iterable[str]) -> dict[str, Holding]:
    """Return the queues that exist, checked until the management API's lag has passed or none of them is idle."""
    seen = {queue: look_at_rest(session, inspector, queue) for queue in queues}
    for _ in range(round(LAG_SECONDS / _LOOK_SECONDS) if inspector is not None else 0):
        idle = [queue for queue, found in seen.items() if found and not found.consumers and not found.hidden]
        if not idle:
            break
        time.sleep(_LOOK_SECONDS)
        seen |= {queue: look(session, inspector, queue) for queue in idle}
    return {queue: found for queue, found in seen.items() if found is not None}


def _hidden(row: Row | None) -> int | None:
    # A queue that was just created has no figures yet.
    if row is None or row.get("messages") is None:
        return None
    return sum(row.get(name) or 0 for name in _HIDDEN)


def returning(number: int, queue: str) -> str:
    """Return ``1 message in 'a.retry.1m' comes back to it``."""
    return f"{plural(number, 'message')} in {queue!r} {'comes' if number == 1 else 'come'} back to it"


def peek(access: Access, queue: str) -> list[Delivery]:
    """Return the messages of a queue in their order; each counts as redelivered from now on."""
    deliveries: list[Delivery] = []
    connection = BlockingConnection(parameters(access, access.current().hosts[0], purpose="peek"))
    try:
        channel = connection.channel()
        while True:
            method, properties, body = channel.basic_get(queue)
            if method is None or properties is None:
                return deliveries
            deliveries.append(
                Delivery(
                    queue=queue,
                    body=body or b"",
                    raw=b"".join(properties.encode()),
                    exchange=name_text(method.exchange or ""),
                    routing_key=name_text(method.routing_key or ""),
                    redelivered=method.redelivered,
                )
            )
    finally:
        connection.close()
