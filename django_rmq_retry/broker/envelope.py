"""Messages as frames: properties that stay bytes on both ways, and a publish written in one piece."""

import struct
from typing import NoReturn

import pika
from pika import frame
from pika.exceptions import InvalidFrameError

from django_rmq_retry.core.errors import HeadersTooLarge

FRAME_METHOD, FRAME_HEADER, FRAME_BODY, FRAME_END = 1, 2, 3, 0xCE
FRAME_OVERHEAD = 8
CLASS_BASIC = 60

_PUBLISH = (CLASS_BASIC << 16) | 40
_SHORT_STRING_LIMIT = 255
_FRAME = struct.Struct(">BHI")
# Frame type, channel, size of payload, class and method, the reserved ticket.
_METHOD_FRAME = struct.Struct(">BHIIH")
# Frame type, channel, size of payload, class, weight, size of body.
_HEADER_FRAME = struct.Struct(">BHIHHQ")
_HEADER_FIXED = 12
_END = bytes((FRAME_END,))


class RawProperties(pika.BasicProperties):
    """Properties that pika carries without ever looking into them."""

    def __init__(self, raw: bytes) -> None:
        # The base class would set its fourteen attributes, for every message, to None.
        self.raw = raw

    def encode(self) -> list[bytes]:
        return [self.raw]

    def decode(self, encoded: bytes, offset: int = 0) -> NoReturn:
        raise NotImplementedError("RawProperties are never decoded by pika; use core.properties on .raw")

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
    """Write a whole basic.publish: the method, the content header and as many body frames as `frame_max` asks for."""
    header_size = _HEADER_FIXED + len(raw_properties)
    if header_size + FRAME_OVERHEAD > frame_max:
        raise HeadersTooLarge(len(raw_properties), limit=frame_max - FRAME_OVERHEAD - _HEADER_FIXED)
    place = b"%b%b%b" % (short_string(exchange), short_string(routing_key), b"\1" if mandatory else b"\0")
    pieces = [
        _METHOD_FRAME.pack(FRAME_METHOD, channel_number, 6 + len(place), _PUBLISH, 0),
        place,
        _END,
        _HEADER_FRAME.pack(FRAME_HEADER, channel_number, header_size, CLASS_BASIC, 0, len(body)),
        raw_properties,
        _END,
    ]
    most = frame_max - FRAME_OVERHEAD
    for start in range(0, len(body), most):
        part = body[start : start + most]
        pieces += (_FRAME.pack(FRAME_BODY, channel_number, len(part)), part, _END)
    return b"".join(pieces)


def short_string(text: str) -> bytes:
    """Encode a name; bytes that were not UTF-8 when they came go back as they were."""
    encoded = text.encode("utf-8", "surrogateescape")
    if len(encoded) > _SHORT_STRING_LIMIT:
        raise ValueError(f"The name {text[:60]!a}… takes {len(encoded)} bytes; AMQP takes {_SHORT_STRING_LIMIT}.")
    return bytes((len(encoded),)) + encoded


def read_header(buffer: bytes) -> tuple[int, frame.Header | None]:
    """Read the content header frame a buffer starts with: how many bytes it took (0: incomplete), and the frame."""
    if len(buffer) < _FRAME.size:
        return 0, None
    _, channel_number, size = _FRAME.unpack_from(buffer)
    stop = size + FRAME_OVERHEAD
    if stop > len(buffer):
        return 0, None
    if buffer[stop - 1] != FRAME_END or size < _HEADER_FIXED:
        raise InvalidFrameError("A content header frame is broken")
    _, _, _, class_id, _, body_size = _HEADER_FRAME.unpack_from(buffer)
    if class_id != CLASS_BASIC:
        raise InvalidFrameError(f"Content of class {class_id} does not exist in AMQP 0-9-1")
    return stop, frame.Header(channel_number, body_size, RawProperties(buffer[_HEADER_FRAME.size : stop - 1]))
