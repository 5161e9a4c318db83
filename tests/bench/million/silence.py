"""Stands for the broker: a page must not be measured by how long another server takes to answer."""

from collections.abc import Iterable

from django_rmq_retry.amqp.contracts import Done
from django_rmq_retry.messages.message import Delivery, Message


class Silence:
    """Nothing is sent by it."""

    def publish(self, message: Message, *, timeout: float | None = None) -> None:
        raise NotImplementedError

    def send(self, message: Message, done: Done, *, timeout: float | None = None) -> None:
        raise NotImplementedError

    def publish_many(self, messages: Iterable[Message], *, window: int = 0, timeout: float | None = None) -> int:
        raise NotImplementedError

    def call(self, message: Message, *, timeout: float) -> Delivery:
        raise NotImplementedError

    def close(self) -> None:
        """Nothing is open."""
