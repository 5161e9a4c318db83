"""The frames of a publish, marshalled in one step, and the parts of frames that readers and writers share."""

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import NoReturn, TypeAlias

import pika
from pika.exceptions import InvalidFrameError

from django_rmq_retry.errors import ConfigurationError, HeadersTooLarge
from django_rmq_retry.messages.message import Message
from django_rmq_retry.messages.properties import DIRECT, encode_properties

FRAME_METHOD, FRAME_HEADER, FRAME_BODY, FRAME_END = 1, 2, 3, 0xCE
FRAME_OVERHEAD = 8
FRAME_MAX = 131_072
"""The frame size in bytes that RabbitMQ and pika negotiate; a consumer refuses a broker with less."""
MOST_HEADER_BYTES = FRAME_MAX - 4096
"""The largest header table in bytes, which leaves 4096 bytes of the frame for the other properties."""
CLASS_BASIC = 60
BASIC = CLASS_BASIC << 16
BASIC_PUBLISH, BASIC_DELIVER = BASIC | 40, BASIC | 60
BASIC_ACK, BASIC_REJECT, BASIC_NACK = BASIC | 80, BASIC | 90, BASIC | 120
ACK_FRAME = struct.Struct(">BHIIQBB")
"""A whole ack, nack or reject: type, channel, payload size, class and method, delivery tag, bits, end of frame.

The bits are 'multiple' for an ack, 'multiple' and 'requeue' for a nack, and 'requeue' for a reject.
"""
ACK_SIZE = 13

DIRECT_PREFIX = f"{DIRECT}."
"""The beginning of each address that RabbitMQ writes into the reply_to of a request."""
_DIRECT_PREFIX = DIRECT_PREFIX.encode()
_SHORT_STRING_LIMIT = 255
_FRAME = struct.Struct(">BHI")
# Frame type, channel, size of payload, class and method.
_METHOD_FRAME = struct.Struct(">BHII")
# Frame type, channel, size of payload, class, weight, size of body.
_HEADER_FRAME = struct.Struct(">BHIHHQ")
# Class, weight, size of body.
CONTENT_HEADER = struct.Struct(">HHQ")
_HEADER_FIXED = CONTENT_HEADER.size
_END = bytes((FRAME_END,))

# Consumer tag, delivery tag, redelivered, exchange, routing key, bytes of the properties, body.
Received: TypeAlias = tuple[str, int, bool, str, str, bytes, bytes]
Receive: TypeAlias = Callable[[str, int, bool, str, str, bytes, bytes], object]
NAMES_KEPT = 1000


class RawProperties(pika.BasicProperties):
    """Encoded properties that pika passes through without decoding them."""

    def __init__(self, raw: bytes) -> None:
        # super().__init__() is not called: it would set fourteen attributes to None for every message.
        self.raw = raw

    def encode(self) -> list[bytes]:
        return [self.raw]

    def decode(self, encoded: bytes, offset: int = 0) -> NoReturn:
        raise NotImplementedError("RawProperties are never decoded by pika; use messages.properties on .raw")

    def __repr__(self) -> str:
        return f"<RawProperties: {len(self.raw)} bytes>"


def marshal_publish(
    channel_number: int,
    raw_properties: bytes,
    body: bytes,
    *,
    exchange: str,
    routing_key: str,
    mandatory: bool,
    frame_max: int,
) -> bytes:
    """Return the frames of a basic.publish: the method, the content header and body frames within `frame_max`."""
    if _HEADER_FIXED + len(raw_properties) + FRAME_OVERHEAD > frame_max:
        raise _too_large(raw_properties, frame_max)
    mandatory_bit = b"\1" if mandatory else b"\0"
    # Two zeros for the reserved ticket come first.
    arguments = b"\0\0%b%b%b" % (short_string(exchange), short_string(routing_key), mandatory_bit)
    pieces = [
        method_frame(channel_number, BASIC_PUBLISH, arguments),
        *content_frames(channel_number, raw_properties, body, frame_max=frame_max),
    ]
    return b"".join(pieces)


def method_frame(channel_number: int, method: int, arguments: bytes) -> bytes:
    return b"%b%b%b" % (_METHOD_FRAME.pack(FRAME_METHOD, channel_number, 4 + len(arguments), method), arguments, _END)


def content_frames(channel_number: int, raw_properties: bytes, body: bytes, *, frame_max: int) -> list[bytes]:
    """Return the pieces of a content header and of body frames within `frame_max`."""
    header_size = _HEADER_FIXED + len(raw_properties)
    pieces = [
        _HEADER_FRAME.pack(FRAME_HEADER, channel_number, header_size, CLASS_BASIC, 0, len(body)),
        raw_properties,
        _END,
    ]
    most = frame_max - FRAME_OVERHEAD
    for start in range(0, len(body), most):
        part = body[start : start + most]
        pieces += (_FRAME.pack(FRAME_BODY, channel_number, len(part)), part, _END)
    return pieces


def check_writable(message: Message) -> None:
    """Raise HeadersTooLarge or ValueError if a message cannot be written, before anything depends on sending it."""
    check_address(message)
    check_frames(message)


def check_frames(message: Message) -> None:
    """Raise HeadersTooLarge or ValueError for properties or names that no frame can hold."""
    raw = encode_properties(message.properties)
    if _HEADER_FIXED + len(raw) + FRAME_OVERHEAD > FRAME_MAX:
        raise _too_large(raw, FRAME_MAX)
    short_string(message.exchange)
    short_string(message.routing_key)


def _too_large(raw_properties: bytes, frame_max: int) -> HeadersTooLarge:
    return HeadersTooLarge(len(raw_properties), limit=frame_max - FRAME_OVERHEAD - _HEADER_FIXED)


def check_address(message: Message) -> None:
    """Raise ConfigurationError for a direct reply-to address: only answers are sent there, on other connections.

    RabbitMQ before 4.3 closes the connection over such an address that it cannot resolve, with everything in flight on
    it. A sender may invent the address, and the broker resolves it in no other exchange than the default one.
    """
    if message.exchange:
        return
    keys, headers = [message.routing_key], message.properties.headers
    # The headers are decoded only if they may name such an address.
    if _DIRECT_PREFIX in headers.raw:
        for name in ("CC", "BCC"):
            more = headers.get(name)
            keys += [key for key in more if isinstance(key, str)] if isinstance(more, list) else []
    for key in keys:
        if key.startswith(DIRECT_PREFIX):
            raise ConfigurationError(
                f"{key!r:.60} is a direct reply-to address, and accepts only answers. Return the answer from the "
                "handler, or have the caller wait on a named queue."
            )


@lru_cache(maxsize=NAMES_KEPT)
def short_string(text: str) -> bytes:
    """Encode a name; bytes that arrived as invalid UTF-8 are written unchanged."""
    encoded = text.encode("utf-8", "surrogateescape")
    if len(encoded) > _SHORT_STRING_LIMIT:
        raise ValueError(f"The name {text[:60]!a}… takes {len(encoded)} bytes; AMQP takes {_SHORT_STRING_LIMIT}.")
    return bytes((len(encoded),)) + encoded


def read_content_header(payload: bytes) -> tuple[int, bytes]:
    """Return the size of the body in bytes, and the encoded properties."""
    if len(payload) < _HEADER_FIXED:
        raise InvalidFrameError("A content header frame is too short")
    class_id, _, body_size = CONTENT_HEADER.unpack_from(payload)
    if class_id != CLASS_BASIC:
        raise InvalidFrameError(f"Content of class {class_id} does not exist in AMQP 0-9-1")
    return body_size, payload[_HEADER_FIXED:]


class Tags(dict[bytes, str]):
    """Consumer tags, each decoded once."""

    def __missing__(self, raw: bytes) -> str:
        if len(self) >= NAMES_KEPT:
            self.clear()
        tag = self[raw] = raw.decode("utf-8", "surrogateescape")
        return tag


class Places(dict[bytes, tuple[str, str]]):
    """Pairs of exchange and routing key, each decoded once; bytes that are not UTF-8 become surrogate escapes."""

    def __missing__(self, raw: bytes) -> tuple[str, str]:
        middle = 1 + raw[0] if raw else 0
        if middle >= len(raw) or middle + 1 + raw[middle] != len(raw):
            raise InvalidFrameError("A basic.deliver is longer or shorter than its names")
        if len(self) >= NAMES_KEPT:
            self.clear()
        exchange = raw[1:middle].decode("utf-8", "surrogateescape")
        place = self[raw] = exchange, raw[middle + 1 :].decode("utf-8", "surrogateescape")
        return place


def name_text(name: str | bytes) -> str:
    # pika passes names that are not UTF-8 as bytes.
    return name if isinstance(name, str) else name.decode("utf-8", "surrogateescape")
