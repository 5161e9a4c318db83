"""A connection without a socket: what is fed comes in as from the broker, what is sent is kept."""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pika
from pika import frame, spec
from pika.adapters.utils.nbio_interface import AbstractIOReference, AbstractStreamProtocol, AbstractStreamTransport

from django_rmq_retry.amqp.connection import Connection
from django_rmq_retry.amqp.frames import RawProperties
from django_rmq_retry.amqp.protocol import BasicProtocol, IoServices

Call = Callable[[], None]
Received = tuple[str, int, bool, str, str, bytes, bytes]


class ManualLoop:
    """An I/O thread that is the test's own; its timers run when the test says so."""

    def __init__(self) -> None:
        self.timers: list[tuple[float, Call]] = []

    def call(self, call: Call) -> None:
        call()

    def later(self, seconds: float, call: Call) -> tuple[float, Call]:
        self.timers.append((seconds, call))
        return self.timers[-1]

    def cancel(self, timer: object) -> None:
        self.timers = [one for one in self.timers if one is not timer]

    def tick(self) -> None:
        """Run the timers that wait now."""
        due, self.timers = self.timers, []
        for _, call in due:
            call()


class OneByOne(BasicProtocol):
    """Handles one frame at a time."""

    def _deliveries(self, buffer: bytes, end: int) -> None: ...

    def _acks(self, buffer: bytes, end: int) -> None: ...


class Recording(AbstractStreamTransport):
    """Records what is written."""

    def __init__(self, protocol: AbstractStreamProtocol) -> None:
        self.sent: list[bytes] = []
        self.failed: Exception | None = None
        self._protocol = protocol

    def write(self, data: bytes) -> None:
        self.sent.append(data)

    def abort(self) -> None: ...

    def fail(self, error: Exception) -> None:
        self.failed = error

    def get_protocol(self) -> AbstractStreamProtocol:
        return self._protocol

    def get_write_buffer_size(self) -> int:
        return 0


class Done(AbstractIOReference):
    """A request that has ended already."""

    def cancel(self) -> bool:
        return False


class Offline(IoServices):
    """An event loop that connects to nothing."""

    def getaddrinfo(self, *_: Any, on_done: Any, **__: Any) -> Any:  # type: ignore[override]  # as pika calls it
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 5672))]
        self.add_callback_threadsafe(lambda: on_done(found))
        return Done()

    def connect_socket(self, sock: Any, resolved_addr: Any, on_done: Any) -> Any:
        self.add_callback_threadsafe(lambda: on_done(None))
        return Done()

    def create_streaming_connection(
        self, protocol_factory: Any, sock: Any, on_done: Any, ssl_context: Any = None, server_hostname: Any = None
    ) -> Any:
        sock.close()

        def made() -> None:
            self.made = self.protocol(protocol_factory(), self)
            self.made.connection_made(Recording(self.made))  # type: ignore[arg-type]  # it stands for a Transport
            on_done((self.transport, self.made.inner))

        self.add_callback_threadsafe(made)
        return Done()


class Wire:
    """An open connection with channel 1, on which the consumers "one" and "two" are."""

    def __init__(self, connection: Any, opened: list[Any]) -> None:
        self.connection = connection
        self.received: list[Received] = []
        loop = connection.ioloop
        loop.activate_poller()
        while connection.services.transport is None:
            loop.poll()
            loop.process_timeouts()
        self.protocol = connection.services.made
        self.transport: Any = connection.services.transport
        capabilities = {"publisher_confirms": True, "basic.nack": True, "consumer_cancel_notify": True}
        server: Any = {"product": "RabbitMQ", "version": "3.10.0", "capabilities": capabilities}
        self.feed(method(spec.Connection.Start(0, 9, server, "PLAIN", "en_US"), channel=0))
        self.feed(method(spec.Connection.Tune(2047, 131072, 0), channel=0))
        self.feed(method(spec.Connection.OpenOk(), channel=0))
        while not opened:
            loop.poll()
            loop.process_timeouts()
        self.channel = self.open_channel(1)
        for tag in ("one", "two"):
            self.channel.consumers[tag] = self.receive

    @property
    def sent(self) -> list[bytes]:
        sent: list[bytes] = self.transport.sent
        return sent

    @property
    def left(self) -> bytes:
        """The bytes received of a frame that is not complete."""
        left: bytes = self.protocol.left
        return left

    def open_channel(self, number: int) -> Any:
        channel = self.connection.channel(on_open_callback=lambda _channel: None)
        assert channel.channel_number == number
        self.feed(method(spec.Channel.OpenOk(), channel=number))
        self.sent.clear()
        for counter in ("bytes_sent", "bytes_received", "frames_sent", "frames_received"):
            setattr(self.connection, counter, 0)
        return channel

    def receive(self, *values: Any) -> None:
        self.received.append(values)

    def feed(self, data: bytes) -> None:
        self.protocol.data_received(data)


@contextmanager
def wire(kind: type[BasicProtocol] = BasicProtocol) -> Iterator[Wire]:
    class Made(Offline):
        protocol = kind

    opened: list[Any] = []
    connection = Connection(pika.ConnectionParameters(), services=Made, on_open_callback=opened.append)
    try:
        yield Wire(connection, opened)
    finally:
        connection.ioloop.close()


def delivery(
    body: bytes = b"{}",
    raw: bytes = b"\0\0",
    *,
    tag: str = "one",
    delivery_tag: int = 1,
    redelivered: bool = False,
    exchange: bytes = b"",
    routing_key: bytes = b"q",
    channel: int = 1,
    part: int = 65536,
) -> bytes:
    """The bytes of a delivery as a broker sends it, its body in frames of `part` bytes."""
    names: Any = exchange, routing_key
    deliver = spec.Basic.Deliver(tag, delivery_tag, redelivered, *names)
    frames: list[Any] = [frame.Method(channel, deliver), frame.Header(channel, len(body), RawProperties(raw))]
    frames += [frame.Body(channel, body[at : at + part]) for at in range(0, len(body), part)]
    return b"".join(each.marshal() for each in frames)


def method(method: Any, *, channel: int = 1) -> bytes:
    """The bytes of one method frame."""
    return frame.Method(channel, method).marshal()


HEARTBEAT = frame.Heartbeat().marshal()
