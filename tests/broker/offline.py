"""A connection without a socket: what is fed comes in as from the broker, what is sent is kept."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pika
from pika import frame, spec

from django_rmq_retry.amqp.connection import Connection
from django_rmq_retry.amqp.frames import DeliverTo, RawProperties

Received = tuple[str, int, bool, str, str, bytes, bytes]


class SlowConnection(Connection):
    """Leaves every frame to pika."""

    def _deliver(self) -> bool:
        return False


class Wire:
    """An open connection with channel 1, on which the consumers "one" and "two" are."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.received: list[Received] = []
        self.sent: list[bytes] = []
        connection._adapter_emit_data = self.sent.append
        connection._set_connection_state(connection.CONNECTION_OPEN)
        self.channel = self.open_channel(1)
        for tag in ("one", "two"):
            self.channel._consumers[tag] = DeliverTo(self.receive)

    def open_channel(self, number: int) -> Any:
        channel = self.connection.channel(number)
        self.feed(method(spec.Channel.OpenOk(), channel=number))
        self.sent.clear()
        for counter in ("bytes_sent", "bytes_received", "frames_sent", "frames_received"):
            setattr(self.connection, counter, 0)
        return channel

    def receive(self, *values: Any) -> None:
        self.received.append(values)

    def feed(self, data: bytes) -> None:
        self.connection._on_data_available(data)


@contextmanager
def wire(cls: type[Connection] = Connection) -> Iterator[Wire]:
    connection = cls(pika.ConnectionParameters(), internal_connection_workflow=False)
    try:
        yield Wire(connection)
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
