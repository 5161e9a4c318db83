"""A published message, one delivery of it, and its settlement. Each message needs a Delivery, so speed counts."""

from collections import deque
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, Protocol

from django_rmq_retry.messages.properties import HEADERS, Headers, Properties, decode_properties

if TYPE_CHECKING:
    # With a default, so that Delivery without a type is complete for strict type checkers.
    from typing_extensions import TypeVar

    Data = TypeVar("Data", default=Any)
else:
    from typing import TypeVar

    Data = TypeVar("Data")


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message to publish: body, properties, and the exchange and routing key to send it to."""

    body: bytes
    properties: Properties = Properties()
    exchange: str = ""
    routing_key: str = ""
    mandatory: bool = True
    order_key: str = ""
    """The outbox's ordering key: the relay sends messages with the same ordering key one after the other."""

    @property
    def headers(self) -> Headers:
        return self.properties.headers


class DeliveringLine(Protocol):
    """The subscription over which a delivery came."""

    last_acks: deque[tuple[Any, ...]]
    """What the consumer remembers of the messages that were acknowledged last."""

    @property
    def stale(self) -> bool:
        """True if it has closed, and the broker delivers the messages again that were not settled."""


@dataclass(slots=True, kw_only=True, eq=False, repr=False, weakref_slot=True)
class _Fields:
    """The fields of a Delivery, still mutable while it is created."""

    queue: str
    body: bytes
    raw: bytes = b"\0\0"
    """The encoded properties."""
    exchange: str = ""
    routing_key: str = ""
    redelivered: bool = False
    quarantined: bool = False
    """True if it arrived from the quarantine queue, which holds messages that may have killed their worker."""
    token: tuple[Any, Any] = field(default_factory=lambda: (None, object()))
    """The identity of the arrival, shared by all its Delivery objects: its line, and its tag there.

    A plain tuple: each message needs one, and by timeit a named one takes 0.4 µs longer to create.
    """
    attempt: int = 1
    data: Any = None
    key: str | None = None
    """The ordering key."""
    decoded: Properties | None = None
    """The decoded properties, cached on first access."""
    state: Any = None
    """The value of the project's lifespan, in async handlers."""


_new = object.__new__


class _Freezing(type):
    """The metaclass that creates a Delivery with the constructor of `_Fields` and then changes its class to freeze it.

    By timeit, a frozen dataclass takes twice as long to create. Each message needs two of them, by ``arrived`` and
    ``for_attempt``, which set the fields without any constructor: a third of the time of this one.
    """

    def __call__(cls, **fields: Any) -> Any:
        delivery: Any = _Fields(**fields)
        delivery.__class__ = cls
        return delivery


class Delivery(_Fields, Generic[Data], metaclass=_Freezing):
    """One arrival of a message; handlers are called with it. Immutable, and compared by identity.

    ``Delivery[Payment]`` as the annotation of a handler's parameter names the type of ``data``.
    """

    __slots__ = ()

    if TYPE_CHECKING:
        data: Data

    def __setattr__(self, name: str, value: object) -> None:
        raise FrozenInstanceError(f"A Delivery is immutable: {name} cannot be set.")

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"A Delivery is immutable: {name} cannot be deleted.")

    @staticmethod
    def arrived(
        *,
        queue: str,
        body: bytes,
        raw: bytes,
        exchange: str,
        routing_key: str,
        redelivered: bool,
        token: tuple[Any, Any],
    ) -> "Delivery":
        """Return what the constructor returns, in a quarter of the time."""
        delivery: Any = _new(_Fields)
        delivery.queue, delivery.body, delivery.raw = queue, body, raw
        delivery.exchange, delivery.routing_key, delivery.redelivered = exchange, routing_key, redelivered
        delivery.quarantined, delivery.token = False, token
        delivery.attempt, delivery.data, delivery.key, delivery.decoded, delivery.state = 1, None, None, None, None
        delivery.__class__ = Delivery
        frozen: Delivery = delivery
        return frozen

    def for_attempt(self, *, attempt: int, data: object, key: str | None = None, state: object = None) -> "Delivery":
        """Return a copy of the delivery with the attempt, data and ordering key that the handler needs."""
        delivery: Any = _new(_Fields)
        delivery.queue, delivery.body, delivery.raw = self.queue, self.body, self.raw
        delivery.exchange, delivery.routing_key, delivery.redelivered = (
            self.exchange,
            self.routing_key,
            self.redelivered,
        )
        delivery.quarantined, delivery.token, delivery.decoded = self.quarantined, self.token, self.decoded
        delivery.attempt, delivery.data, delivery.key, delivery.state = attempt, data, key, state
        delivery.__class__ = Delivery
        frozen: Delivery = delivery
        return frozen

    @property
    def properties(self) -> Properties:
        properties = self.decoded
        if properties is None:
            properties = decode_properties(self.raw)
            # A cache, not part of the immutable value.
            object.__setattr__(self, "decoded", properties)
        return properties

    @property
    def is_first_without_headers(self) -> bool:
        """True if it is a first delivery without headers, read from the first byte of the undecoded properties."""
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
    def line(self) -> DeliveringLine | None:
        """The line of the delivery, a new one for each connection; None if no source created the delivery."""
        line: DeliveringLine | None = self.token[0]
        return line

    @property
    def is_stale(self) -> bool:
        """True if its line has closed and the broker delivers the message again: begun now, it would run twice."""
        return self.line is not None and self.line.stale

    def __repr__(self) -> str:
        return f"<Delivery queue={self.queue!r} attempt={self.attempt} bytes={len(self.body)}>"


def message_id(delivery: Delivery) -> str | None:
    """Return the message's own id, by which an operator can find it, or None if its properties cannot be read."""
    try:
        return delivery.id
    except Exception:  # noqa: BLE001 - even a malformed message is logged, parked and recorded
        return None


class Instruction(Enum):
    """The settlement method sent to the broker for a delivery."""

    ACK = "ack"
    REJECT = "nack, not to be requeued"
    REQUEUE = "nack, to be requeued"
    COUNTED_REQUEUE = "reject, to be requeued"
    """Quorum queues count it on every version. From RabbitMQ 4.3 they do not count a nack with requeue."""
    KEEP = "nothing: it stays unacked and is attempted again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """The way to end a delivery. Its copy is confirmed before the delivery is settled, unless ``ack_first``."""

    instruction: Instruction
    copy: Message | None = None
    answer: Message | None = None
    """The answer to the caller, sent once without a retry: an answer that cannot be delivered never delays settling."""
    ack_first: bool = False
    hold: float = 0.0
    """Seconds to keep the message unacked before publishing and settling."""
    lost: Callable[[], None] | None = None
    """Called on the I/O thread if the line closes before the copy is confirmed: the message is delivered again."""


DONE = Settlement(instruction=Instruction.ACK)
