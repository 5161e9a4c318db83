"""Connections of a process that publish through what a test gives."""

from collections.abc import Callable
from typing import Any

from django_rmq_retry.amqp import Caller
from django_rmq_retry.publishing.broker_connections import Connections


class Given(Connections):
    """Unlike a stand-in, as far as the outbox knows it is a real broker."""

    def __init__(self, publisher: Any, caller: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self.__dict__["publisher"] = publisher
        self._given = caller

    def caller(self, **options: Any) -> Caller:
        given: Caller = super().caller(**options) if self._given is None else self._given(**options)
        return given
