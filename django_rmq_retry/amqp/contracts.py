"""Protocols and values through which the other packages see a broker."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from django_rmq_retry.errors import (
    MessageNacked,
    MessageReturned,
    MessageTooLarge,
    MessageUnsent,
    PublishError,
    PublishUnknown,
)
from django_rmq_retry.messages.message import Delivery, Message, Settlement
from django_rmq_retry.topology.declarations import Topology
from django_rmq_retry.topology.versions import Server


class Outcome(Enum):
    """How a publish ended. The values are for logs."""

    CONFIRMED = "confirmed"
    RETURNED = "returned: no queue takes it"
    NACKED = "refused by a queue"
    UNKNOWN = "unknown: the broker did not say"
    UNSENT = "not sent"
    TOO_LARGE = "not sent: too large for the broker"


class Scope(Enum):
    """What the end of a publish is evidence of."""

    MESSAGE = "message"
    """Of this message alone."""
    CHANNEL = "channel"
    """Of one of the messages that were unconfirmed on its channel: the broker does not name it."""
    BROKER = "broker"
    """Of the connection; nothing is known about the message."""


class Cause(Enum):
    """Why a publish was not confirmed."""

    NO_EXCHANGE = "no exchange"
    NO_ROUTE = "no route"
    QUEUE_FULL = "queue full"
    ACCESS_EXCHANGE = "no write access to the exchange"
    ACCESS_TOPIC = "no write access to the topic"
    UNWRITABLE = "unwritable"
    BODY_LIMIT = "body limit"
    CONNECTION_LOST = "connection lost"
    TIMEOUT = "timeout"
    IO_STOPPED = "I/O thread stopped"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishResult:
    """How a publish ended, what that is evidence of, and why."""

    kind: Outcome
    scope: Scope = Scope.MESSAGE
    cause: Cause | None = None
    """None where the broker confirmed."""
    code: int = 0
    """AMQP's reply code, where the broker sent one."""
    text: str = ""
    """For people. No code reads it."""
    confirmed: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "confirmed", self.kind is Outcome.CONFIRMED)

    @property
    def shown(self) -> str:
        """The text, or the kind where there is none."""
        return self.text or self.kind.value

    def error(self, message: Message) -> PublishError:
        """Return what a publisher raises for it."""
        return ERRORS[self.kind](message.exchange, message.routing_key, said=self.text)


Done = Callable[[PublishResult], None]
CONFIRMED = PublishResult(kind=Outcome.CONFIRMED)


def unwritable(text: str) -> PublishResult:
    """The result of a message that fits into no frame."""
    return PublishResult(kind=Outcome.UNSENT, cause=Cause.UNWRITABLE, text=f"it cannot be written: {text}")


def unsent(cause: Cause, text: str) -> PublishResult:
    """The result of a message that was not sent, for a reason that is not its own."""
    return PublishResult(kind=Outcome.UNSENT, scope=Scope.BROKER, cause=cause, text=text)


def unanswered(cause: Cause, text: str, *, code: int = 0) -> PublishResult:
    """The result of a message that was sent and may be stored or not."""
    return PublishResult(kind=Outcome.UNKNOWN, scope=Scope.BROKER, cause=cause, code=code, text=text)


ERRORS: Mapping[Outcome, type[PublishError]] = {
    Outcome.RETURNED: MessageReturned,
    Outcome.NACKED: MessageNacked,
    Outcome.UNKNOWN: PublishUnknown,
    Outcome.UNSENT: MessageUnsent,
    Outcome.TOO_LARGE: MessageTooLarge,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One queue to consume: how much to hold in hand, and whether its order matters."""

    queue: str
    prefetch: int
    ordered: bool = False
    parks: bool = False
    """Whether the queue itself sends what is rejected to the parked queue."""
    keyed: bool = False
    """Whether order matters among messages of one key: several may be in hand."""
    alone: bool = False
    """Whether its messages may end the process: one is handed over when nothing else would be doubled by that."""
    acked: bool = False
    """Whether the broker counts a message as acknowledged when it has sent it: none of it can go back."""
    temporary: Topology | None = None
    """The queue and its bindings, where each connection makes its own; ``queue`` is then what it is called here."""
    longest_hold: float = 600.0
    """Seconds after which a message that is held goes back and is taken again: before the broker takes it (1800 s)."""

    @property
    def in_order(self) -> bool:
        """Whether nothing in hand goes back by itself: only a channel that closes returns it in its place."""
        return self.ordered or self.keyed


class Receiver(Protocol):
    """Who is told of arrivals; every call comes on the I/O thread and must return at once."""

    def arrived(self, delivery: Delivery) -> None: ...

    def connected(self, server: Server) -> None: ...

    def lost(self, reason: str, retry_in: float) -> None: ...

    def failed(self, error: BaseException) -> None:
        """Nothing more will arrive: the broker refuses what no waiting mends."""

    def drained(self) -> None:
        """After ``stop``: every settlement is with the broker and the connections are closed."""


class Source(Protocol):
    """A consuming connection. Its methods may be called from any thread."""

    @property
    def alive(self) -> bool:
        """Whether anybody still listens to the broker, or tries to; asked at every tick of the consumer."""
        ...

    def empty(self, told: Callable[[bool], None]) -> None:
        """Tell, on the I/O thread, whether every queue is empty and nothing is in hand."""

    def start(self, lines: Sequence[Line], receiver: Receiver) -> None: ...

    def settle(self, delivery: Delivery, settlement: Settlement) -> None: ...

    def give_back(self, deliveries: Iterable[Delivery]) -> None:
        """Return deliveries that no attempt was made of."""

    def pause(self, queue: str) -> None:
        """Take nothing more of this queue; what is in hand can still be settled. Also before the start."""

    def resume(self, queue: str, *, prefetch: int | None = None) -> None:
        """Take of it again, at most so many at once; None is as many as its line says."""

    def quiesce(self) -> None:
        """No further arrivals; what is in hand can still be settled."""

    def stop(self) -> None:
        """Settle what was handed over, then close."""


class Publisher(Protocol):
    """A publishing connection with confirms, shared by all threads of a process."""

    def publish(self, message: Message, *, timeout: float | None = None) -> None:
        """Return when the broker has confirmed, else raise what became of it."""

    def publish_many(self, messages: Iterable[Message], *, window: int = 1000, timeout: float | None = None) -> int:
        """Publish with at most ``window`` confirms outstanding; return how many were confirmed."""

    def send(self, message: Message, done: Done, *, timeout: float | None = None) -> None:
        """Hand over and return; ``done`` is called on the I/O thread, once, with the result."""

    def close(self) -> None: ...


class Caller(Protocol):
    """Who asks over the broker; shared by all threads of a process."""

    def call(self, message: Message, *, timeout: float) -> Delivery:
        """The answer to a message; its correlation id tells the answers apart, so it must be its own."""
        ...

    def close(self) -> None: ...
