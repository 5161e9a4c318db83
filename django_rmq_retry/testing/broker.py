"""The kit's broker, and the faults that a test injects."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Protocol

from django_rmq_retry.amqp.contracts import Caller, Line, Outcome, Publisher, Receiver
from django_rmq_retry.embedded.direct.broker import DirectBroker
from django_rmq_retry.embedded.direct.publisher import DirectCaller, DirectPublisher, Meddler, RunUntil
from django_rmq_retry.embedded.direct.source import DirectSource
from django_rmq_retry.messages.message import Delivery, Message, Settlement
from django_rmq_retry.topology.declarations import Topology
from django_rmq_retry.topology.versions import Server

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


PUBLISH = "publish"


class Fault(StrEnum):
    """What can go wrong around a handler that runs well, or while something is published."""

    CRASH = "crash before ack"
    """The handler has run; its worker dies before the broker is told anything."""
    DUPLICATE = "duplicate delivery"
    """Everything is done, only the acknowledgement is lost: the message comes once more."""
    BROKER = "broker loss"
    """The connection breaks while the handler runs; or the message to be published is not sent."""
    CONFIRM = "confirm lost"
    """What is published is stored, and its publisher does not learn it."""
    NACK = "nack"
    """A queue refuses what is published."""


Trouble = Fault | BaseException | type[BaseException]

ENDS = {Fault.BROKER: Outcome.UNSENT, Fault.CONFIRM: Outcome.UNKNOWN, Fault.NACK: Outcome.NACKED}
"""How a publish ends."""
AROUND_HANDLERS = (Fault.CRASH, Fault.DUPLICATE, Fault.BROKER)


class Faults:
    """Each point has its troubles in a line; one is taken each time that it is passed."""

    def __init__(self) -> None:
        self._lines: dict[str, deque[Trouble]] = {}

    def add(self, point: str, trouble: Trouble | str, *, times: int) -> None:
        found = Fault(trouble) if isinstance(trouble, str) else trouble
        fitting: tuple[Fault, ...] = tuple(ENDS) if point == PUBLISH else AROUND_HANDLERS
        if (isinstance(found, Fault) and found not in fitting) or (point == PUBLISH and not isinstance(found, Fault)):
            known = ", ".join(repr(fault.value) for fault in fitting)
            more = "" if point == PUBLISH else ", or an exception"
            raise ValueError(f"fail_next({point!r}, …) takes {known}{more}, not {trouble!r}.")
        self._lines.setdefault(point, deque()).extend([found] * times)

    def take(self, point: str) -> Trouble | None:
        line = self._lines.get(point)
        return line.popleft() if line else None

    def take_end(self) -> Outcome | None:
        """How the publish under way ends, if not well."""
        trouble = self.take(PUBLISH)
        return ENDS[trouble] if isinstance(trouble, Fault) else None
