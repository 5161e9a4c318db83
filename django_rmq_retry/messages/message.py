"""A published message, one delivery of it, and the settlement that ends a delivery.

A Delivery is made for every message on the hot path: it keeps the broker's bytes and decodes a property when asked.
"""

from collections.abc import Hashable
from dataclasses import FrozenInstanceError, dataclass, field
from enum import Enum
from typing import Any

from django_rmq_retry.messages.headers import Headers
from django_rmq_retry.messages.properties import HEADERS, Properties, decode_properties


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


@dataclass(slots=True, kw_only=True, eq=False, repr=False, weakref_slot=True)
class _Fields:
    """The fields of a Delivery while it is made."""

    queue: str
    body: bytes
    raw: bytes = b"\0\0"
    """The encoded properties."""
    exchange: str = ""
    routing_key: str = ""
    redelivered: bool = False
    quarantined: bool = False
    """Whether it arrived in the queue where messages that may have killed their worker are tried alone."""
    token: Hashable = field(default_factory=object)
    """Identifies the arrival, whichever Delivery describes it; a source puts the channel first."""
    attempt: int = 1
    data: Any = None
    key: str | None = None
    """The ordering key."""
    decoded: Properties | None = None
    """The decoded properties, once they were asked for."""


class _Freezing(type):
    """Makes an instance by the fields' own constructor and freezes it.

    The constructor of a frozen dataclass takes four times as long, and each message needs two.
    """

    def __call__(cls, **fields: Any) -> Any:
        made: Any = _Fields(**fields)
        made.__class__ = cls
        return made


class Delivery(_Fields, metaclass=_Freezing):
    """One arrival of a message; handlers are called with it. Immutable, and compared by identity."""

    __slots__ = ()

    def __setattr__(self, name: str, value: object) -> None:
        raise FrozenInstanceError(f"A Delivery is immutable: {name} cannot be set.")

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"A Delivery is immutable: {name} cannot be deleted.")

    def ready(self, *, attempt: int, data: object, key: str | None = None) -> "Delivery":
        """The same arrival as a handler gets it."""
        # Written out: dataclasses.replace() takes three times as long, for every message.
        made: Any = _Fields(
            queue=self.queue,
            body=self.body,
            raw=self.raw,
            exchange=self.exchange,
            routing_key=self.routing_key,
            redelivered=self.redelivered,
            quarantined=self.quarantined,
            token=self.token,
            attempt=attempt,
            data=data,
            key=key,
            decoded=self.decoded,
        )
        made.__class__ = Delivery
        frozen: Delivery = made
        return frozen

    @property
    def properties(self) -> Properties:
        found = self.decoded
        if found is None:
            found = decode_properties(self.raw)
            # A cache, no part of the value.
            object.__setattr__(self, "decoded", found)
        return found

    @property
    def plain(self) -> bool:
        """Whether it is a first arrival without headers; told from the first byte of the undecoded properties."""
        return not self.redelivered and (not self.raw or self.raw[0] & HEADERS == 0)

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

    @property
    def channel(self) -> Any:
        """The channel it arrived by, another one after each connection; None where no source made it."""
        return self.token[0] if isinstance(self.token, tuple) else None

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
