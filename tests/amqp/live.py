"""The I/O thread, a publisher and a source on a real broker, for as long as a test needs them."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

from django_rmq_retry import Delivery, Message
from django_rmq_retry.amqp import Access, Done, Line, Publisher
from django_rmq_retry.amqp.caller import PikaCaller
from django_rmq_retry.amqp.io_thread import IoThread
from django_rmq_retry.amqp.publisher import PikaPublisher
from django_rmq_retry.amqp.session import NamedDeclaration
from django_rmq_retry.amqp.source import PikaSource
from django_rmq_retry.messages import Properties
from django_rmq_retry.topology import Server
from tests.tooling.waiting import longer

PATIENCE = 10.0


class Seen:
    """A receiver that keeps its calls, which come on the I/O thread ``io``."""

    def __init__(self, io: IoThread) -> None:
        self.io = io
        self.arrivals: SimpleQueue[Delivery] = SimpleQueue()
        self.servers: list[Server] = []
        self.losses: list[tuple[str, float]] = []
        self.failures: list[BaseException] = []
        self.has_closed = threading.Event()

    def arrived(self, delivery: Delivery) -> None:
        self.arrivals.put(delivery)

    def connected(self, server: Server) -> None:
        self.servers.append(server)

    def lost(self, reason: str, retry_in: float) -> None:
        self.losses.append((reason, retry_in))

    def failed(self, error: BaseException) -> None:
        self.failures.append(error)

    def closed(self) -> None:
        self.has_closed.set()

    def next(self, timeout: float = PATIENCE) -> Delivery:
        """The next arrival; queue.Empty where none comes."""
        return self.arrivals.get(timeout=longer(timeout))

    def bodies(self, count: int) -> list[bytes]:
        return [self.next().body for _ in range(count)]


class Held:
    """A publisher whose confirms come when the test says so."""

    def __init__(self) -> None:
        self.sent: SimpleQueue[tuple[Message, Done]] = SimpleQueue()
        self.closed = 0

    def send(self, message: Message, done: Done, *, timeout: float | None = None) -> None:
        self.sent.put((message, done))

    def publish(self, message: Message, *, timeout: float | None = None) -> None:
        raise NotImplementedError

    def publish_many(self, messages: Any, *, window: int = 1000, timeout: float | None = None) -> int:
        raise NotImplementedError

    def close(self) -> None:
        self.closed += 1


@contextmanager
def io_thread() -> Iterator[IoThread]:
    io = IoThread("rmq-test")
    io.start()
    try:
        yield io
    finally:
        assert io.stop(timeout=longer(5))


def publisher_on(io: IoThread, url: str | Sequence[str], **options: Any) -> PikaPublisher:
    """A publisher on an I/O thread that the test has."""
    return PikaPublisher(io, Access.parse(url, **options))


def source_on(
    io: IoThread, url: str | Sequence[str], publisher: Publisher, *, patient: bool = False, **options: Any
) -> PikaSource:
    """A source on an I/O thread that the test has; its copies go by the publisher."""
    return PikaSource(io, Access.parse(url, **options), publisher, patient=patient)


@contextmanager
def publishing(url: str | Sequence[str], *, publish_timeout: float = 5, **options: Any) -> Iterator[PikaPublisher]:
    """A publisher with its own I/O thread, which must still live in the end."""
    with io_thread() as io:
        publisher = publisher_on(io, url, publish_timeout=publish_timeout, **options)
        yield publisher

        assert io.alive
        publisher.close()


@contextmanager
def calling(url: str, *, exclusive: bool = False) -> Iterator[PikaCaller]:
    with io_thread() as io:
        caller = PikaCaller(io, Access.parse(url), exclusive=exclusive)
        yield caller

        assert io.alive
        caller.close()


@contextmanager
def consuming(
    url: str | Sequence[str],
    *lines: Line,
    publisher: Publisher | None = None,
    needs: Sequence[NamedDeclaration] = (),
    **options: Any,
) -> Iterator[tuple[PikaSource, Seen]]:
    """A source that has been started; it is stopped in the end, if the test has not done so."""
    with io_thread() as io:
        access = Access.parse(url, **options)
        copies = publisher or PikaPublisher(io, access)
        source, seen = PikaSource(io, access, copies, needs=needs), Seen(io)
        source.start(lines, seen)
        try:
            yield source, seen

            assert io.alive
        finally:
            source.stop()
            seen.has_closed.wait(longer(5))
            if publisher is None:
                copies.close()


def to(key: str, body: bytes = b"{}", *, exchange: str = "", mandatory: bool = True, **properties: Any) -> Message:
    """A message."""
    said = Properties(delivery_mode=2, **properties)
    return Message(body=body, exchange=exchange, routing_key=key, properties=said, mandatory=mandatory)
