"""Helpers of the outbox tests."""

import threading
from collections.abc import Callable, Iterable
from datetime import timedelta

from django.utils import timezone

from django_rmq_retry import Message
from django_rmq_retry.amqp import CONFIRMED, Done, PublishResult
from django_rmq_retry.messages import Properties
from django_rmq_retry.models import OutboxMessage
from django_rmq_retry.publishing.outbox_rows import insert
from django_rmq_retry.publishing.relay import Relay
from tests.tooling.waiting import wait_until

ROWS = OutboxMessage.objects.using("own")


class Post:
    """A publisher that keeps its messages and returns given results, at once or when the test releases them."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.ends: dict[str, PublishResult] = {}
        """Results by routing key; all other messages are confirmed."""
        self.silent = False
        self.held: list[tuple[Message, Done]] = []
        self._lock = threading.Lock()

    def publish(self, message: Message, *, timeout: float | None = None) -> None:
        self.sent.append(message)

    def publish_many(self, messages: Iterable[Message], *, window: int = 1000, timeout: float | None = None) -> int:
        self.sent += messages
        return len(self.sent)

    def send(self, message: Message, done: Done, *, timeout: float | None = None) -> None:
        with self._lock:
            self.sent.append(message)
            if self.silent:
                self.held.append((message, done))
                return
        done(self.end_of(message))

    def end_of(self, message: Message) -> PublishResult:
        return self.ends.get(message.routing_key, CONFIRMED)

    def answer(self) -> None:
        """Return the delayed results."""
        held, self.held = self.held, []
        for message, done in held:
            done(self.end_of(message))

    def close(self) -> None:
        self.held.clear()

    @property
    def keys(self) -> list[str]:
        return [message.routing_key for message in self.sent]


def kept(using: str = "default") -> list[str]:
    """Return the routing keys of the outbox rows, in their order."""
    return list(OutboxMessage.objects.using(using).order_by("pk").values_list("routing_key", flat=True))


def left(*keys: str, using: str = "own", order_key: str = "", body: bytes = b"1", exchange: str = "") -> None:
    """Insert rows that a commit did not send, one for each routing key."""
    properties = [Properties(message_id=f"id of {key}") for key in keys]
    messages = [
        Message(body=body, properties=one, exchange=exchange, routing_key=key, order_key=order_key)
        for key, one in zip(keys, properties, strict=True)
    ]
    insert_unsent(messages, using=using)


def insert_unsent(messages: Iterable[Message], *, using: str = "own") -> None:
    """Insert rows for these messages as a process leaves them that ended after its commit."""
    insert(list(messages), using=using, lease=0.0)


def written_late(gone: Callable[[], bool]) -> None:
    """Wait until late results are written and the thread that wrote them has closed its connections."""
    wait_until(gone, what="late results are written")
    wait_until(lambda: all(thread.name != "rmq-sender" for thread in threading.enumerate()), what="it has ended")


def relay(using: str = "own") -> Relay:
    return Relay(using, ended=threading.Event())


def emptied(one: Relay) -> None:
    """Run the relay until no row is left to send."""
    while not one.turn().nothing:
        pass


def due_again() -> None:
    """Make all rows due, like after the waits."""
    ROWS.update(due_at=timezone.now() - timedelta(seconds=1))
