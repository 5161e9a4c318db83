"""The faults that a test injects, and the publisher and caller that have them."""

from collections import deque
from collections.abc import Callable, Iterable
from enum import StrEnum

from django_rmq_retry.amqp.contracts import Caller, Cause, Done, PublishEnd, Publisher, PublishResult, Scope
from django_rmq_retry.errors import CallUnanswered
from django_rmq_retry.messages.message import Delivery, Message

PUBLISH = "publish"


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

_INJECTED = "the test asked for it"
_PUBLISH_RESULTS = {
    Fault.BROKER: PublishResult(kind=PublishEnd.UNSENT, scope=Scope.BROKER, cause=Cause.OTHER, text=_INJECTED),
    Fault.CONFIRM: PublishResult(kind=PublishEnd.UNKNOWN, scope=Scope.CHANNEL, cause=Cause.OTHER, text=_INJECTED),
    Fault.NACK: PublishResult(kind=PublishEnd.NACKED, scope=Scope.MESSAGE, cause=Cause.QUEUE_FULL, text=_INJECTED),
}

_HANDLER_FAULTS = (Fault.CRASH, Fault.DUPLICATE, Fault.BROKER)

NextResult = Callable[[], PublishResult | None]
"""Takes the result that a test chose for the next publish; None leaves it to the broker."""


class Faults:
    """A queue of faults for each point; each use of the point takes one."""

    def __init__(self) -> None:
        self._queued: dict[str, deque[Trouble]] = {}

    def add(self, point: str, trouble: Trouble | str, *, times: int) -> None:
        injected = Fault(trouble) if isinstance(trouble, str) else trouble
        fitting: tuple[Fault, ...] = tuple(_PUBLISH_RESULTS) if point == PUBLISH else _HANDLER_FAULTS
        unfit = injected not in fitting if isinstance(injected, Fault) else point == PUBLISH
        if unfit:
            choices = ", ".join(repr(fault.value) for fault in fitting)
            more = "" if point == PUBLISH else ", or an exception"
            raise ValueError(f"fail_next({point!r}, …) takes {choices}{more}, not {trouble!r}.")
        self._queued.setdefault(point, deque()).extend([injected] * times)

    def take(self, point: str) -> Trouble | None:
        troubles = self._queued.get(point)
        return troubles.popleft() if troubles else None

    def take_result(self) -> PublishResult | None:
        """Take the result of the current publish, if it has a fault."""
        trouble = self.take(PUBLISH)
        return _PUBLISH_RESULTS[trouble] if isinstance(trouble, Fault) else None


class FaultyPublisher:
    """A publisher with injected results; `sent` is called with each message that the broker has confirmed."""

    def __init__(self, publisher: Publisher, next_result: NextResult, sent: Callable[[Message], None]) -> None:
        self._publisher = publisher
        self._next_result = next_result
        self._sent = sent

    def publish(self, message: Message, *, timeout: float | None = None) -> None:
        injected = self._next_result()
        if injected is None or injected.kind is PublishEnd.UNKNOWN:
            self._publisher.publish(message, timeout=timeout)
            self._sent(message)
        if injected is not None:
            raise injected.error(message)

    def publish_many(self, messages: Iterable[Message], *, window: int = 1000, timeout: float | None = None) -> int:
        """Publish one message after the other; raise the first failure."""
        if window < 1:
            raise ValueError(f"The window of a batch is a whole number from 1, not {window!r}.")
        confirmed = 0
        for message in messages:
            self.publish(message, timeout=timeout)
            confirmed += 1
        return confirmed

    def send(self, message: Message, done: Done, *, timeout: float | None = None) -> None:
        injected = self._next_result()
        if injected is not None and injected.kind is not PublishEnd.UNKNOWN:
            done(injected)
            return

        def ended(result: PublishResult) -> None:
            if result.confirmed:
                self._sent(message)
            done(result if injected is None or not result.confirmed else injected)

        self._publisher.send(message, ended, timeout=timeout)

    def close(self) -> None: ...


class FaultyCaller:
    """A caller whose question is lost when the test says so."""

    def __init__(self, caller: Caller, next_result: NextResult) -> None:
        self._caller = caller
        self._next_result = next_result

    def call(self, message: Message, *, timeout: float) -> Delivery:
        injected = self._next_result()
        if injected is not None:
            sent = injected.kind is not PublishEnd.UNSENT
            raise CallUnanswered(message.routing_key, timeout=0, sent=sent, reason=_INJECTED)
        return self._caller.call(message, timeout=timeout)

    def close(self) -> None:
        self._caller.close()
