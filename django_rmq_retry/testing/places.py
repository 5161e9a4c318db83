"""Where the kit's messages live: what it needs of a broker, and the embedded one with its virtual clock."""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from django_rmq_retry.broker.base import Caller, Line, Publisher, Receiver, Server
from django_rmq_retry.core.declarations import Topology
from django_rmq_retry.core.message import Delivery, Message
from django_rmq_retry.core.settlement import Settlement
from django_rmq_retry.embedded.direct.broker import DirectBroker
from django_rmq_retry.embedded.direct.calling import DirectCaller, RunUntil
from django_rmq_retry.embedded.direct.consuming import DirectSource
from django_rmq_retry.embedded.direct.publishing import DirectPublisher, Meddler

Sent = Callable[[Message], None]


class Hands(Protocol):
    """A consuming connection that can be broken on purpose."""

    def start(self, lines: Sequence[Line], receiver: Receiver) -> None: ...

    def settle(self, delivery: Delivery, settlement: Settlement) -> None: ...

    def give_back(self, deliveries: Iterable[Delivery]) -> None: ...

    def pause(self, queue: str) -> None: ...

    def resume(self, queue: str, *, prefetch: int | None = None) -> None: ...

    def poll(self) -> None:
        """Hand over what has arrived."""

    def die(self) -> None:
        """The process is gone."""

    def lose(self, reason: str) -> None:
        """The connection breaks."""

    def lose_ack(self, delivery: Delivery, settlement: Settlement) -> None:
        """The connection breaks between the settlement and its last word."""


class Place(Protocol):
    """A broker with an empty virtual host, and the time there."""

    server: Server
    breakable: bool
    """Whether its connections can be broken on purpose."""

    @property
    def now(self) -> float:
        """Seconds since the beginning."""
        ...

    def today(self) -> int:
        """Milliseconds of the epoch."""
        ...

    def begin(self, until: float | None) -> None:
        """Somebody is about to run, for a while or until all is quiet."""

    def next_due(self) -> float | None:
        """When there may be something to do; None: never."""
        ...

    def advance(self, now: float) -> None:
        """Let time pass until then, or until something arrives."""

    def declare(self, topology: Topology) -> None: ...

    def lying(self, name: str) -> list[Delivery]: ...

    def takers(self, message: Message) -> list[str]: ...

    def publisher(self, meddler: Meddler, sent: Sent) -> Publisher: ...

    def caller(self, run_until: RunUntil, meddler: Meddler, sent: Sent, *, exclusive: bool) -> Caller: ...

    def hands(self, publisher: Publisher) -> Hands: ...

    def close(self) -> None: ...


class Virtual(DirectBroker):
    """The embedded broker in this process."""

    breakable = True

    def begin(self, until: float | None) -> None: ...

    def publisher(self, meddler: Meddler, sent: Sent) -> Publisher:
        return DirectPublisher(self, meddler=meddler, sent=sent)

    def caller(self, run_until: RunUntil, meddler: Meddler, sent: Sent, *, exclusive: bool) -> Caller:
        return DirectCaller(self, run_until, exclusive=exclusive, meddler=meddler, sent=sent)

    def hands(self, publisher: Publisher) -> Hands:
        return DirectSource(self, publisher)

    def close(self) -> None: ...
