"""A client that speaks in single frames, so that it can say what no library would."""

import socket
import struct
from typing import Any, Self
from urllib.parse import urlsplit

from pika import frame, spec
from pika.amqp_object import Method

from tests.tooling.vhosts import Vhost

HEADER = b"AMQP\0\0\x09\x01"
PLAIN = b"\0guest\0guest"


class Raw:
    """A socket, and frames read from it."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=10)
        self._buffer = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.sock.close()

    def send(self, *pieces: bytes) -> None:
        self.sock.sendall(b"".join(pieces))

    def say(self, *methods: Method, channel: int = 0) -> None:
        self.send(*(frame.Method(channel, method).marshal() for method in methods))

    def frame(self) -> tuple[int, int, bytes]:
        """The next frame; type 0 at the end."""
        while True:
            if len(self._buffer) >= 8:
                kind, channel, size = struct.unpack_from(">BHI", self._buffer)
                if len(self._buffer) >= size + 8:
                    payload = self._buffer[7 : 7 + size]
                    self._buffer = self._buffer[8 + size :]
                    return kind, channel, payload
            data = self.sock.recv(65536)
            if not data:
                return 0, 0, self._buffer
            self._buffer += data

    def method(self) -> Any:
        """The next method, heartbeats left out; None at the end."""
        kind, _, payload = self.frame()
        while kind == 8:
            kind, _, payload = self.frame()
        if not kind:
            return None
        return spec.methods[int.from_bytes(payload[:4])]().decode(payload, 4)

    def start(self, *, response: bytes = PLAIN, mechanism: str = "PLAIN", **properties: Any) -> Any:
        """Say who we are; what the server answers."""
        self.send(HEADER)
        self.method()
        said: Any = response
        self.say(spec.Connection.StartOk(properties, mechanism, said, "en_US"))
        return self.method()

    def open(self, *, channel_max: int = 2047, frame_max: int = 131072, heartbeat: int = 0, channel: int = 0) -> Any:
        """The whole handshake; and a channel, if its number is given."""
        self.start()
        self.say(spec.Connection.TuneOk(channel_max, frame_max, heartbeat), spec.Connection.Open("/"))
        answer = self.method()
        if channel:
            self.say(spec.Channel.Open(), channel=channel)
            answer = self.method()
        return answer


def publish(key: str, *, mandatory: bool = False) -> bytes:
    """The method frame of a publish on channel 1."""
    payload = struct.pack(">IHB", 0x3C0028, 0, 0) + bytes((len(key),)) + key.encode() + bytes((mandatory,))
    return framed(1, payload)


def framed(kind: int, payload: bytes, channel: int = 1) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def header(size: int, properties: bytes = b"\0\0", *, of: int = 60) -> bytes:
    return framed(2, struct.pack(">HHQ", of, 0, size) + properties)


def closed(method: Any) -> tuple[str, int, str]:
    return method.NAME, method.reply_code, method.reply_text


def raw_to(vhost: Vhost) -> Raw:
    return Raw(urlsplit(vhost.url).port or 5672)


def opened(raw: Raw, vhost: Vhost, *, frame_max: int = 131072, heartbeat: int = 0, **capabilities: bool) -> Any:
    raw.start(capabilities={"authentication_failure_close": True, **capabilities})
    name = urlsplit(vhost.url).path[1:].replace("%2F", "/")
    raw.say(spec.Connection.TuneOk(2047, frame_max, heartbeat), spec.Connection.Open(name))
    answer = raw.method()
    if answer is not None and answer.NAME == "Connection.OpenOk":
        raw.say(spec.Channel.Open(), channel=1)
        raw.method()
    return answer
