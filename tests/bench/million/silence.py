"""A stand-in for the broker, so that page times do not include its response time."""

from collections.abc import Iterable

from django_rmq_retry import Delivery, Message
from django_rmq_retry.amqp import Done


class Silence:
    """A publisher that sends nothing."""

    def publish(self, message: Message, *, timeout: float | None = None) -> None:
        raise NotImplementedError

    def send(self, message: Message, done: Done, *, timeout: float | None = None) -> None:
        raise NotImplementedError

    def publish_many(self, messages: Iterable[Message], *, window: int = 0, timeout: float | None = None) -> int:
        raise NotImplementedError

    def call(self, message: Message, *, timeout: float) -> Delivery:
        raise NotImplementedError

    def close(self) -> None:
        """Connections that are never opened."""
