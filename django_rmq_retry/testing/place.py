"""A test's broker as the driver sees it, and the faults that a test injects."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Protocol

from django_rmq_retry.amqp.contracts import Caller, Line, Outcome, Publisher, Receiver
from django_rmq_retry.messages.message import Delivery, Message, Settlement
from django_rmq_retry.topology.declarations import Server, Topology

Sent = Callable[[Message], None]
Meddler = Callable[[Message], Outcome | None]
"""A test's choice of a publish's end; None leaves it to the broker."""
RunUntil = Callable[[Callable[[], bool], float], None]
"""Runs handlers until the given function returns True, or this many seconds have passed."""

PUBLISH = "publish"


class Hands(Protocol):
    """A consuming connection that a test can break."""

    def start(self, lines: Sequence[Line], receiver: Receiver) -> None: ...

    def settle(self, delivery: Delivery, settlement: Settlement) -> None: ...

    def give_back(self, deliveries: Iterable[Delivery]) -> None: ...

    def pause(self, queue: str) -> None: ...

    def resume(self, queue: str, *, prefetch: int | None = None) -> None: ...

    def poll(self) -> None:
        """Hand over new deliveries."""

    def die(self) -> None:
        """End as a killed process does."""

    def lose(self, reason: str) -> None:
        """Break the connection."""

    def lose_ack(self, delivery: Delivery, settlement: Settlement) -> None:
        """Break the connection after the settlement and before its ack."""


class Place(Protocol):
    """A broker with an empty virtual host, and its clock."""

    server: Server
    breakable: bool
    """True if a test can break its connections."""

    @property
    def now(self) -> float:
        """Seconds since the start of the test."""
        ...

    def now_ms(self) -> int:
        """Milliseconds of the epoch."""
        ...

    def begin(self, until: float | None) -> None:
        """Prepare a run until that time, or until nothing is left to do."""

    def next_due(self) -> float | None:
        """Return the time of the next event; None if there is none."""
        ...

    def advance(self, now: float) -> None:
        """Move time forward to that time, or until a delivery arrives."""

    def declare(self, topology: Topology) -> None: ...

    def messages_in(self, name: str) -> list[Delivery]: ...

    def takers(self, message: Message) -> list[str]: ...

    def publisher(self, meddler: Meddler, sent: Sent) -> Publisher: ...

    def caller(self, run_until: RunUntil, meddler: Meddler, sent: Sent, *, exclusive: bool) -> Caller: ...

    def hands(self, publisher: Publisher) -> Hands: ...

    def close(self) -> None: ...


class NeverQuiet(AssertionError):
    """A run without an end."""


class Fault(StrEnum):
    """A fault after a handler has run, or of a publish."""

    CRASH = "crash before ack"
    """The handler has run, and its worker dies before it settles the message."""
    DUPLICATE = "duplicate delivery"
    """Only the ack is lost: the message is redelivered after a complete attempt."""
    BROKER = "broker loss"
    """The connection breaks while the handler runs; at a publish, the message is not sent."""
    CONFIRM = "confirm lost"
    """The message is stored, but its publisher gets no confirm."""
    NACK = "nack"
    """A queue refuses the message."""


Trouble = Fault | BaseException | type[BaseException]

ENDS = {Fault.BROKER: Outcome.UNSENT, Fault.CONFIRM: Outcome.UNKNOWN, Fault.NACK: Outcome.NACKED}
"""The outcome of a publish with a fault."""

AROUND_HANDLERS = (Fault.CRASH, Fault.DUPLICATE, Fault.BROKER)


class Faults:
    """A queue of faults for each point; each use of the point takes one."""

    def __init__(self) -> None:
        self._lines: dict[str, deque[Trouble]] = {}

    def add(self, point: str, trouble: Trouble | str, *, times: int) -> None:
        injected = Fault(trouble) if isinstance(trouble, str) else trouble
        fitting: tuple[Fault, ...] = tuple(ENDS) if point == PUBLISH else AROUND_HANDLERS
        if (isinstance(injected, Fault) and injected not in fitting) or (
            point == PUBLISH and not isinstance(injected, Fault)
        ):
            choices = ", ".join(repr(fault.value) for fault in fitting)
            more = "" if point == PUBLISH else ", or an exception"
            raise ValueError(f"fail_next({point!r}, …) takes {choices}{more}, not {trouble!r}.")
        self._lines.setdefault(point, deque()).extend([injected] * times)

    def take(self, point: str) -> Trouble | None:
        line = self._lines.get(point)
        return line.popleft() if line else None

    def take_end(self) -> Outcome | None:
        """Take the outcome of the current publish, if it has a fault."""
        trouble = self.take(PUBLISH)
        return ENDS[trouble] if isinstance(trouble, Fault) else None
