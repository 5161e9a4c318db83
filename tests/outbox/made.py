"""What the tests of the outbox are made of."""

import threading
from collections.abc import Iterable

from django_rmq_retry.amqp.contracts import CONFIRMED, Done, PublishResult
from django_rmq_retry.messages.message import Message
from django_rmq_retry.messages.properties import Properties
from django_rmq_retry.models import OutboxMessage
from django_rmq_retry.publishing.outbox_rows import insert
from django_rmq_retry.publishing.relay import Relay


class Post:
    """A publisher that keeps what it is given, and answers as it is told: at once, or when a test says so."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.ends: dict[str, PublishResult] = {}
        """By routing key; what is not named is confirmed."""
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
        """Say what was held back."""
        held, self.held = self.held, []
        for message, done in held:
            done(self.end_of(message))

    def close(self) -> None:
        self.held.clear()

    @property
    def keys(self) -> list[str]:
        return [message.routing_key for message in self.sent]


def kept(using: str = "default") -> list[str]:
    """The routing keys of what lies in the outbox, in their order."""
    return list(OutboxMessage.objects.using(using).order_by("pk").values_list("routing_key", flat=True))


def left(*keys: str, using: str = "own", order_key: str = "", body: bytes = b"1", exchange: str = "") -> None:
    """Rows that a commit has left behind, one for each routing key."""
    properties = [Properties(message_id=f"id of {key}") for key in keys]
    messages = [
        Message(body=body, properties=one, exchange=exchange, routing_key=key, order_key=order_key)
        for key, one in zip(keys, properties, strict=True)
    ]
    insert(messages, using=using, lease=0.0)


def relay(using: str = "own") -> Relay:
    return Relay(using, ended=threading.Event())


def emptied(one: Relay) -> None:
    """Until it finds nothing more to do."""
    while not one.turn().nothing:
        pass
