"""A minimal AMQP 1.0 client that sends a message to a queue of RabbitMQ 4."""

import socket
import struct
from urllib.parse import unquote, urlsplit

from tests.tooling.waiting import wait_until

NULL, FALSE, TRUE = b"\x40", b"\x42", b"\x41"
OPEN, BEGIN, ATTACH, TRANSFER, CLOSE = 0x10, 0x11, 0x12, 0x14, 0x18
SOURCE, TARGET, PROPERTIES, SASL_INIT = 0x28, 0x29, 0x73, 0x41


def text(value: str) -> bytes:
    return b"\xa1" + bytes([len(value.encode())]) + value.encode()


def symbol(value: str) -> bytes:
    return b"\xa3" + bytes([len(value)]) + value.encode()


def binary(value: bytes) -> bytes:
    return b"\xa0" + bytes([len(value)]) + value


def number(value: int) -> bytes:
    return b"\x70" + struct.pack(">I", value)


def described(code: int, *items: bytes) -> bytes:
    body = b"".join(items)
    return b"\x00\x53" + bytes([code]) + b"\xd0" + struct.pack(">II", len(body) + 4, len(items)) + body


class Wire:
    """A connection after its login."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._socket = socket.create_connection((parts.hostname or "", parts.port or 5672), timeout=5)
        secret = f"\0{parts.username or 'guest'}\0{parts.password or 'guest'}".encode()
        self.greet(b"AMQP\x03\x01\x00\x00")
        self.receive()
        self.send(described(SASL_INIT, symbol("PLAIN"), binary(secret)), kind=1)
        self.receive()
        self.greet(b"AMQP\x00\x01\x00\x00")
        self.send(described(OPEN, text("sender"), text("vhost:" + unquote(parts.path[1:]))))

    def greet(self, header: bytes) -> None:
        self._socket.sendall(header)
        assert self._read(8) == header

    def send(self, body: bytes, *, kind: int = 0) -> None:
        self._socket.sendall(struct.pack(">IBBH", len(body) + 8, 2, kind, 0) + body)

    def receive(self) -> int:
        """Receive a frame and return its type."""
        (size,) = struct.unpack(">I", self._read(4))
        frame = self._read(size - 4)
        return frame[6] if len(frame) > 6 else 0

    def close(self) -> None:
        """Close the connection after the broker has processed everything sent."""
        self.send(described(CLOSE))
        wait_until(lambda: self.receive() == CLOSE, 5)
        self._socket.close()

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self._socket.recv(count - len(data))
            assert more, "the broker closed the connection"
            data += more
        return data


def send(url: str, queue: str, body: bytes, *, reply_to: str) -> None:
    """Send a message without an id, with properties that an AMQP 0-9-1 client might not send."""
    wire = Wire(url)
    wire.send(described(BEGIN, NULL, number(0), number(1000), number(1000)))
    target = described(TARGET, text(f"/queues/{queue}"))
    settled, first = b"\x50\x01", b"\x50\x00"
    wire.send(
        described(
            ATTACH,
            text("link"),
            number(0),
            FALSE,
            settled,
            first,
            described(SOURCE, NULL),
            target,
            NULL,
            NULL,
            number(0),
        )
    )
    # Nothing may be sent before the broker has answered the link and granted credit.
    wait_until(lambda: wire.receive() == 0x13, 5)
    said = described(PROPERTIES, NULL, NULL, NULL, NULL, text(reply_to))
    wire.send(
        described(TRANSFER, number(0), number(0), binary(b"1"), number(0), TRUE) + said + b"\x00\x53\x75" + binary(body)
    )
    wire.close()
