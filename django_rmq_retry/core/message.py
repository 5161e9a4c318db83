"""What is published, and one arrival of it.

A Delivery is made for every message on the hot path: it keeps the broker's bytes and decodes a property when asked.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from django_rmq_retry.core.headers import Headers
from django_rmq_retry.core.properties import Properties, decode_properties


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """Bytes on their way to an exchange."""

    body: bytes
    properties: Properties = Properties()
    exchange: str = ""
    routing_key: str = ""
    mandatory: bool = True
    order_key: str = ""
    """In the outbox: messages with the same one leave one after the other."""

    @property
    def headers(self) -> Headers:
        return self.properties.headers


class Delivery:
    """One arrival of a message; this is what a handler is called with."""

    __slots__ = (
        "_properties",
        "apart",
        "attempt",
        "begun",
        "body",
        "data",
        "decoded",
        "ended",
        "exchange",
        "key",
        "left",
        "queue",
        "raw",
        "redelivered",
        "routing_key",
        "token",
    )

    def __init__(
        self,
        *,
        queue: str,
        body: bytes,
        raw: bytes = b"\0\0",
        exchange: str = "",
        routing_key: str = "",
        redelivered: bool = False,
        token: Hashable = None,
    ) -> None:
        self.queue = queue
        self.body = body
        self.raw = raw
        self.exchange = exchange
        self.routing_key = routing_key
        self.redelivered = redelivered
        self.token = token
        self.attempt = 1
        self.apart = False
        self.begun = False
        self.data: Any = None
        self.decoded = False
        """Whether the data was read for its key, and no handler has had it yet."""
        self.key: str | None = None
        """Within which its order counts."""
        self.ended: tuple[object, BaseException | None] | None = None
        """The answer and the error of a run that has ended, although what follows from it could not be stored."""
        self.left: tuple[int, Any] | None = None
        """Which of several gates has still to hear of that run, and the verdict of those before it."""
        self._properties: Properties | None = None

    @property
    def properties(self) -> Properties:
        if self._properties is None:
            self._properties = decode_properties(self.raw)
        return self._properties

    @property
    def headers(self) -> Headers:
        return self.properties.headers

    @property
    def id(self) -> str | None:
        return self.properties.message_id

    @property
    def type(self) -> str | None:
        return self.properties.type

    @property
    def correlation_id(self) -> str | None:
        return self.properties.correlation_id

    @property
    def reply_to(self) -> str | None:
        return self.properties.reply_to

    def __repr__(self) -> str:
        return f"<Delivery queue={self.queue!r} attempt={self.attempt} bytes={len(self.body)}>"
