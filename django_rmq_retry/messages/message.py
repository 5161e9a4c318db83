"""A published message, one delivery of it, and the settlement that ends a delivery.

A Delivery is made for every message on the hot path: it keeps the broker's bytes and decodes a property when asked.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from django_rmq_retry.messages.headers import Headers
from django_rmq_retry.messages.properties import Properties, decode_properties


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
        "losses",
        "mishaps",
        "queue",
        "raw",
        "redelivered",
        "routing_key",
        "settled",
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
        self.mishaps = 0
        """How often something in it has kept its attempt from being made or settled."""
        self.data: Any = None
        self.decoded = False
        """Whether the data was read for its key, and no handler has had it yet."""
        self.key: str | None = None
        """Within which its order counts."""
        self.ended: tuple[object, BaseException | None] | None = None
        """The answer and the error of a run that has ended, until its settlement is returned."""
        self.settled: Any = None
        """The settlement of such a run, once it is known."""
        self.left: tuple[int, Any] | None = None
        """Which of several gates has still to hear of that run, and the verdict of those before it."""
        self.losses = 0
        """How many runs in a row have lost a database that was there again at once."""
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


class Tell(Enum):
    """What the broker is told of a delivery."""

    ACK = "ack"
    REJECT = "nack, not to be requeued"
    REQUEUE = "nack, to be requeued"
    COUNTED_REQUEUE = "reject, to be requeued"
    """Counted by quorum queues on every version, which a nack is not from 4.3 on."""
    AGAIN = "nothing: it stays in hand and is attempted again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """The copies are confirmed before the broker is told, unless ack_first; until then the message is still ours."""

    tell: Tell
    copy: Message | None = None
    answer: Message | None = None
    """Sent once, as well as it goes: an answer that nobody takes never holds the message up."""
    ack_first: bool = False
    hold: float = 0.0
    """Seconds to keep the message in hand before any of this."""


DONE = Settlement(tell=Tell.ACK)
