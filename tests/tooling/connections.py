"""Connections of a process that publish through what a test gives."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from django_rmq_retry.amqp import Caller
from django_rmq_retry.publishing import broker_connections


class Given(broker_connections.Connections):
    """Unlike a stand-in, as far as the outbox knows it is a real broker."""

    def __init__(
        self, publisher: Any, caller: Callable[..., Any] | None = None, reach: broker_connections.Reach | None = None
    ) -> None:
        super().__init__(reach)
        self.publisher = publisher
        self._given = caller

    def caller(self, **options: Any) -> Caller:
        given: Caller = super().caller(**options) if self._given is None else self._given(**options)
        return given


@contextmanager
def publishing_by(publisher: Any, caller: Callable[..., Any] | None = None) -> Iterator[None]:
    """Publish and call through the objects of a test inside the block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(broker_connections, "connections", Given(publisher, caller))
        yield
