"""The broker of a test's own process: chosen in the settings, or replaced by an object of the test."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from django_rmq_retry import Message
from django_rmq_retry.publishing import broker_connections


@contextmanager
def using_broker(settings: Any, url: str, **more: Any) -> Iterator[None]:
    """Publish to this broker, on connections that no other test has opened or will use."""
    change_broker(settings, url, **more)
    try:
        yield
    finally:
        broker_connections.close()


def change_broker(settings: Any, url: str, **more: Any) -> None:
    """Publish to this broker from now on; `settings` is the fixture, which restores them."""
    broker_connections.close()
    settings.RMQ_RETRY = {"URL": url, **more}


def replaced_by(stand_in: Any) -> AbstractContextManager[None]:
    """Publish and call through an object of the test."""
    return broker_connections.replaced(stand_in, lambda _exclusive: stand_in)


def is_replaced() -> bool:
    """True while a test's object stands for the broker."""
    return broker_connections.current.replaced


def publish_exactly(message: Message) -> None:
    """Publish a message as it is: no id, no header and no property is added."""
    broker_connections.current.publisher.publish(message)
