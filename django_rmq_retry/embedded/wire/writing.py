"""What the server says, as bytes; deliveries and confirms are packed by hand, for there are many of them."""

import struct
from functools import lru_cache

from pika import frame
from pika.amqp_object import Method

from django_rmq_retry.broker.envelope import (
    CLASS_BASIC,
    FRAME_BODY,
    FRAME_END,
    FRAME_HEADER,
    FRAME_METHOD,
    FRAME_OVERHEAD,
    short_string,
)
from django_rmq_retry.embedded.engine.events import Ack, Cancel, Deliver, Event, Got, Nack, Return
from django_rmq_retry.embedded.engine.messages import Message

HEARTBEAT = bytes((8, 0, 0, 0, 0, 0, 0, FRAME_END))
_BASIC = CLASS_BASIC << 16
_RETURN, _CANCEL, _DELIVER, _GET_OK, _ACK, _NACK = (_BASIC | number for number in (50, 30, 60, 71, 80, 120))
_HEADER_FIXED = 12
_END = bytes((FRAME_END,))

_method = struct.Struct(">BHII").pack
_header = struct.Struct(">BHIHHQ").pack
_body = struct.Struct(">BHI").pack
_tag = struct.Struct(">QB").pack
_settled = struct.Struct(">BHIIQBB").pack
_SETTLED_SIZE = 13
_left = struct.Struct(">I").pack
_code = struct.Struct(">H").pack


def write_method(out: bytearray, channel: int, method: Method) -> None:
    out += frame.Method(channel, method).marshal()


def write_got(out: bytearray, channel: int, got: Got, *, frame_max: int) -> None:
    """The answer to basic.get."""
    message = got.message
    _write(
        out, channel, _GET_OK, _tag(got.tag, got.redelivered) + _place(message.exchange, message.key) + _left(got.left)
    )
    _write_content(out, channel, message, got.raw, frame_max=frame_max)


def write_event(out: bytearray, event: Event, *, frame_max: int) -> None:
    """What the engine tells a client by itself."""
    channel = event.channel
    match event:
        case Deliver(message=message):
            place = _tag(event.tag, event.redelivered) + _place(message.exchange, message.key)
            _write(out, channel, _DELIVER, _short(event.consumer) + place)
            _write_content(out, channel, message, event.raw, frame_max=frame_max)
        case Ack():
            out += _settled(FRAME_METHOD, channel, _SETTLED_SIZE, _ACK, event.number, event.multiple, FRAME_END)
        case Nack():
            out += _settled(FRAME_METHOD, channel, _SETTLED_SIZE, _NACK, event.number, 0, FRAME_END)
        case Return(message=message):
            words = _code(event.code) + _short(event.text)
            _write(out, channel, _RETURN, words + _place(message.exchange, message.key))
            _write_content(out, channel, message, message.raw, frame_max=frame_max)
        case Cancel():
            _write(out, channel, _CANCEL, _short(event.consumer) + b"\1")


def _write(out: bytearray, channel: int, method: int, arguments: bytes) -> None:
    out += _method(FRAME_METHOD, channel, 4 + len(arguments), method)
    out += arguments
    out += _END


def _write_content(out: bytearray, channel: int, message: Message, raw: bytes, *, frame_max: int) -> None:
    body = message.body
    out += _header(FRAME_HEADER, channel, _HEADER_FIXED + len(raw), CLASS_BASIC, 0, len(body))
    out += raw
    out += _END
    most = frame_max - FRAME_OVERHEAD
    for start in range(0, len(body), most):
        part = body if len(body) <= most else body[start : start + most]
        out += _body(FRAME_BODY, channel, len(part))
        out += part
        out += _END


@lru_cache(4096)
def _place(exchange: str, key: str) -> bytes:
    return short_string(exchange) + short_string(key)


@lru_cache(4096)
def _short(text: str) -> bytes:
    return short_string(text)
