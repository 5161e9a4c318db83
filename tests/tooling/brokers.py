"""The broker of a test's own process: chosen in the settings, or replaced by an object of the test."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from django_rmq_retry import Message
from django_rmq_retry.amqp import Done
from django_rmq_retry.publishing import broker_connections
from django_rmq_retry.testing.stand_in import StandIn, standing_in


@contextmanager
def using_broker(settings: Any, url: str, **more: Any) -> Iterator[None]:
    """Publish to this broker, on connections that no other test has opened or will use."""
    change_broker(settings, url, **more)
    try:
        yield
    finally:
        disconnect()


def change_broker(settings: Any, url: str, **more: Any) -> None:
    """Publish to this broker from now on; `settings` is the fixture, which restores them."""
    disconnect()
    settings.RMQ_RETRY = {"URL": url, **more}


def disconnect() -> None:
    """End this process's connections, as its exit does; the next publish opens new ones."""
    broker_connections.close()


@contextmanager
def really_connected() -> Iterator[None]:
    """Use connections to the broker of the settings inside the block, although a fixture has replaced the broker."""
    real = broker_connections.Connections()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(broker_connections, "connections", real)
        yield
    real.close()


@contextmanager
def broker_away() -> Iterator[None]:
    """Keep what is published inside the block in the outbox: the broker counts as unreachable."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(broker_connections.connections.reach, "away", True)
        patch.setattr(broker_connections.connections.reach, "probe_due", lambda: False)
        yield


@contextmanager
def after_each_publish(then: Callable[[Message], None]) -> Iterator[None]:
    """Call a function with each message once it is handed to the broker, as a consumer might that is quick."""
    publisher = broker_connections.connections.publisher
    send = publisher.send

    def sending(message: Message, done: Done, *, timeout: float | None = None) -> None:
        send(message, done, timeout=timeout)
        then(message)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publisher, "send", sending)
        yield


def on_the_io_thread(call: Callable[[], None]) -> None:
    """Run a function on the I/O thread of this process's connections."""
    broker_connections.connections.io("rmq-io").call(call)


def replaced_by(stand_in: Any) -> AbstractContextManager[object]:
    """Publish and call through an object of the test."""
    return standing_in(stand_in, lambda _exclusive: stand_in)


def is_replaced() -> bool:
    """True while a test's object stands for the broker."""
    return isinstance(broker_connections.connections, StandIn)


def publish_exactly(message: Message) -> None:
    """Publish a message as it is: no id, no header and no property is added."""
    broker_connections.connections.publisher.publish(message)
