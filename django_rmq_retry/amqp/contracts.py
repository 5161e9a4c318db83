"""Protocols and values through which the other packages see a broker."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from django_rmq_retry.errors import (
    MessageNacked,
    MessageReturned,
    MessageTooLarge,
    MessageUnsent,
    PublishError,
    PublishUnknown,
)
from django_rmq_retry.messages.message import Delivery, Message, Settlement
from django_rmq_retry.topology.declarations import Server, Topology


class PublishEnd(Enum):
    """The end of a publish. The values are for logs."""

    CONFIRMED = "confirmed"
    RETURNED = "returned: no queue takes it"
    NACKED = "refused by a queue"
    UNKNOWN = "unknown: the broker did not say"
    UNSENT = "not sent"
    TOO_LARGE = "not sent: too large for the broker"


class Scope(Enum):
    """The scope of the evidence that a failed publish gives."""

    MESSAGE = "message"
    """This message alone."""
    CHANNEL = "channel"
    """One of the messages that were unconfirmed on its channel: the broker does not name which one."""
    BROKER = "broker"
    """The connection; nothing is known about the message."""


class Cause(Enum):
    NO_EXCHANGE = "no exchange"
    NO_ROUTE = "no route"
    QUEUE_FULL = "queue full"
    ACCESS_EXCHANGE = "no write access to the exchange"
    ACCESS_TOPIC = "no write access to the topic"
    UNWRITABLE = "unwritable"
    BODY_LIMIT = "body limit"
    CONNECTION_LOST = "connection lost"
    TIMEOUT = "timeout"
    NO_CHANNEL = "no free channel"
    IO_STOPPED = "I/O thread stopped"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishResult:
    kind: PublishEnd
    scope: Scope = Scope.MESSAGE
    cause: Cause | None = None
    """None if the broker confirmed the publish."""
    code: int = 0
    """AMQP's reply code, or 0 if the broker sent none."""
    text: str = ""
    """A description for operators. No code reads it."""
    confirmed: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "confirmed", self.kind is PublishEnd.CONFIRMED)

    @property
    def shown(self) -> str:
        return self.text or self.kind.value

    def error(self, message: Message) -> PublishError:
        advice = ADVICE.get(self.cause, "") if self.kind in (PublishEnd.UNSENT, PublishEnd.UNKNOWN) else ""
        return ERRORS[self.kind](message.exchange, message.routing_key, said=self.text, advice=advice)


Done = Callable[[PublishResult], None]
CONFIRMED = PublishResult(kind=PublishEnd.CONFIRMED)


def unwritable(text: str) -> PublishResult:
    """Return the result of a message that cannot be written as frames."""
    return PublishResult(kind=PublishEnd.UNSENT, cause=Cause.UNWRITABLE, text=f"it cannot be written: {text}")


def unsent(cause: Cause, text: str) -> PublishResult:
    """Return the result of a message that was not sent for a reason unrelated to the message."""
    return PublishResult(kind=PublishEnd.UNSENT, scope=Scope.BROKER, cause=cause, text=text)


def unanswered(cause: Cause, text: str, *, code: int = 0) -> PublishResult:
    """Return the result of a message that was sent and may or may not be stored."""
    return PublishResult(kind=PublishEnd.UNKNOWN, scope=Scope.BROKER, cause=cause, code=code, text=text)


ADVICE: Mapping[Cause | None, str] = {
    Cause.ACCESS_EXCHANGE: (
        "Give the user the write right on the exchange with `rabbitmqctl set_permissions`, then publish it again."
    ),
    Cause.ACCESS_TOPIC: (
        "Give the user the write right on the topic with `rabbitmqctl set_topic_permissions`, then publish it again."
    ),
    Cause.UNWRITABLE: "Nothing was stored, and the same message never can be: correct it.",
}
"""The advice for causes that a later try alone does not repair."""
ERRORS: Mapping[PublishEnd, type[PublishError]] = {
    PublishEnd.RETURNED: MessageReturned,
    PublishEnd.NACKED: MessageNacked,
    PublishEnd.UNKNOWN: PublishUnknown,
    PublishEnd.UNSENT: MessageUnsent,
    PublishEnd.TOO_LARGE: MessageTooLarge,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A queue to consume and how: the prefetch, and how far the order of its messages matters."""

    queue: str
    prefetch: int
    ordered: bool = False
    parks: bool = False
    """True if the queue dead-letters rejected messages to the parked queue."""
    keyed: bool = False
    """True if order matters among messages with the same ordering key; several messages may be unacked at once."""
    quarantine: bool = False
    """True for a quarantine queue, whose messages may kill the process: one such queue is consumed at a time."""
    auto_ack: bool = False
    """True if the broker counts a message as acknowledged once it is sent (auto-ack): no message can be requeued."""
    temporary: Topology | None = None
    """The queue and its bindings, if each connection declares its own; ``queue`` is then its name in this project."""
    untimed: bool = False
    """True for a quorum queue in order whose unacked messages the broker may not take back by its consumer timeout.

    RabbitMQ 4.3 then cancels only the subscription, and gives the ready messages to the next consumer before the ones
    that it takes back. Older versions ignore the request: they close the channel, which keeps the order.
    """
    longest_hold: float = 600.0
    """Seconds that an unacked message may wait: it is returned before the broker's consumer timeout (1800 s)."""

    @property
    def in_order(self) -> bool:
        """True if unacked messages are returned only by closing the channel, which keeps their place in the queue."""
        return self.ordered or self.keyed

    @property
    def comes_again(self) -> bool:
        """True if the broker delivers unsettled messages again; False if it forgets them, maybe with their queue."""
        queues = self.temporary.queues.values() if self.temporary is not None else ()
        return self.in_order or not (self.auto_ack or any(one.exclusive or one.auto_delete for one in queues))


class Receiver(Protocol):
    """The object that receives deliveries; each method is called on the I/O thread and must return immediately."""

    def arrived(self, delivery: Delivery) -> None: ...

    def connected(self, server: Server) -> None: ...

    def lost(self, reason: str, retry_in: float) -> None: ...

    def failed(self, error: BaseException) -> None:
        """Nothing more will arrive: the broker refused something that a retry cannot fix."""

    def closed(self) -> None:
        """``stop`` has ended: every settlement was sent to the broker, and the connections are closed."""


class Source(Protocol):
    """A consuming connection. Its methods may be called from any thread."""

    @property
    def alive(self) -> bool:
        """True while the connection consumes or tries to; the consumer checks it at each tick."""
        ...

    @property
    def ready(self) -> bool:
        """True if each queue that is not paused is consumed."""
        ...

    @property
    def copies(self) -> int:
        """The number of copies that are sent and not confirmed yet."""
        ...

    def report_emptiness(self, callback: Callable[[bool], None]) -> None:
        """Call back on the I/O thread with True if every queue is empty and no message is unacked."""

    def start(self, lines: Sequence[Line], receiver: Receiver) -> None: ...

    def settle(self, delivery: Delivery, settlement: Settlement) -> None: ...

    def give_back(self, deliveries: Iterable[Delivery]) -> None:
        """Return to their queue the deliveries that were not attempted."""

    def pause(self, queue: str) -> None:
        """Stop consuming this queue; unacked deliveries can still be settled. Allowed before ``start``, too."""

    def resume(self, queue: str, *, prefetch: int | None = None) -> None:
        """Consume this queue again with this prefetch at most; None means the prefetch of its line."""

    def untouched(self, queue: str) -> object:
        """Return a mark that each delivery of a queue changes; None if one is unacked, or if it is not consumed."""

    def when_answered(self, queue: str, callback: Callable[[bool], None]) -> None:
        """Call back on the I/O thread once the broker has answered on the channel of a consumed queue, with True."""

    def knows(self, delivery: Delivery) -> bool:
        """Return True if a delivery came on a line that ``unsettled`` counts, and not on one that was lost."""
        ...

    def unsettled(self, queue: str) -> int | None:
        """Return how many messages of a paused queue were unacked here when the broker last had all acks sent before.

        It has taken none since. None if that is not known.
        """
        ...

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Call a function on the I/O thread after this many seconds."""

    def quiesce(self) -> None:
        """Stop all deliveries; unacked ones can still be settled."""

    def stop(self) -> None:
        """Send the settlements that were passed in, then close."""

    def take_lost(self) -> "Sequence[LostLine]":
        """Return the lines that were lost since the last call."""
        ...

    def take_unclosed(self) -> "Sequence[LostLine]":
        """Return, at the end, those lines and the ones that the broker has not confirmed to be closed."""
        ...


class LostLine(Protocol):
    """A line that was not closed in good order: the broker delivers again what it knows no ack of."""

    @property
    def queue(self) -> str: ...

    def unsure(self) -> Sequence[tuple[Any, ...]]:
        """Return those of its last acks that the broker may not have received."""
        ...


class Publisher(Protocol):
    """A publishing connection with confirms, shared by all threads of a process."""

    def publish(self, message: Message, *, timeout: float | None = None) -> None:
        """Return when the broker has confirmed the message, else raise the PublishError for its end."""

    def publish_many(self, messages: Iterable[Message], *, window: int = 1000, timeout: float | None = None) -> int:
        """Publish with at most ``window`` confirms outstanding; return the number of confirmed messages."""

    def send(self, message: Message, done: Done, *, timeout: float | None = None) -> None:
        """Queue a message for sending and return; ``done`` is called once, on the I/O thread, with the result."""

    def close(self) -> None: ...


class Caller(Protocol):
    """A client for RPC calls over the broker, shared by all threads of a process."""

    def call(self, message: Message, *, timeout: float) -> Delivery:
        """Return the answer to a message. Its correlation id must be unique: answers are matched by it."""
        ...

    def close(self) -> None: ...
