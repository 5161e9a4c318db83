"""Frames and methods, parsed and written."""

import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, cast

from pika import frame, spec
from pika.amqp_object import Method

from django_rmq_retry.amqp.frames import (
    ACK_FRAME,
    ACK_SIZE,
    BASIC,
    BASIC_ACK,
    BASIC_DELIVER,
    BASIC_NACK,
    FRAME_END,
    FRAME_METHOD,
    FRAME_OVERHEAD,
    content_frames,
    method_frame,
    short_string,
)
from django_rmq_retry.embedded.engine.envelopes import Ack, Cancel, Deliver, Event, Got, Nack, Returned, StoredMessage
from django_rmq_retry.embedded.engine.refusals import RequestRefused
from django_rmq_retry.messages.properties import Headers

PROTOCOL = b"AMQP\0\0\x09\x01"
_MOST_OCTETS_SHOWN = 16
_LONG = frozenset({"response", "new_secret"})
_CONNECTION = 10
_frame = struct.Struct(">BHI").unpack_from

HEARTBEAT = bytes((8, 0, 0, 0, 0, 0, 0, FRAME_END))
_RETURN, _CANCEL, _GET_OK = (BASIC | number for number in (50, 30, 71))

_tag = struct.Struct(">QB").pack
_left = struct.Struct(">I").pack
_code = struct.Struct(">H").pack


class Frames:
    """Cuts bytes into frames as they arrive."""

    __slots__ = ("_rest", "most")

    def __init__(self, most: int) -> None:
        self._rest = b""
        self.most = most
        """The largest frame that the client may send."""

    def cut(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        """Yield (type, channel, payload) of each complete frame; an incomplete one waits for more bytes."""
        buffer = self._rest + data if self._rest else data
        at, end = 0, len(buffer)
        self._rest = b""
        while end - at >= FRAME_OVERHEAD - 1:
            kind, channel, size = _frame(buffer, at)
            stop = at + FRAME_OVERHEAD + size
            # RabbitMQ refuses only a payload above frame_max, and its message names the limit of the standard.
            if size > self.most:
                what = f"{{frame_too_large,{size},{self.most - FRAME_OVERHEAD}}}"
                raise RequestRefused(501, f"type {kind}, all octets = <<>>: {what}")
            if stop > end:
                break
            if buffer[stop - 1] != FRAME_END:
                octets = _shown(buffer[at + 7 : min(stop - 1, at + 7 + _MOST_OCTETS_SHOWN)])
                amount = f"first {_MOST_OCTETS_SHOWN}" if size > _MOST_OCTETS_SHOWN else "all"
                marker = f"{{invalid_frame_end_marker,{buffer[stop - 1]}}}"
                raise RequestRefused(501, f"type {kind}, {amount} octets = <<{octets}>>: {marker}")
            yield kind, channel, buffer[at + 7 : stop - 1]
            at = stop
        self._rest = buffer[at:] if at else buffer


def _shown(octets: bytes) -> str:
    """Return bytes as Erlang prints them: printable ones as text."""
    if octets and octets.isascii() and octets.decode().isprintable():
        return f'"{octets.decode()}"'
    return ",".join(map(str, octets))


def read_method(payload: bytes) -> Method:
    index = int.from_bytes(payload[:4])
    kind = spec.methods.get(index)
    if kind is None:
        raise RequestRefused(541, f"unknown method {index >> 16}.{index & 0xFFFF}")
    try:
        method = _decoded(kind, payload)
    except Exception as error:
        # pika's decoders raise any exception on invalid bytes.
        raise RequestRefused(502, f"cannot decode the arguments of {kind.NAME}").answering(index) from error
    _check_names(method, index)
    return method


def _decoded(kind: type[Method], payload: bytes) -> Method:
    if kind is spec.Connection.UpdateSecret:
        # pika cannot decode this method, and the broker needs neither argument.
        return spec.Connection.UpdateSecret("", "")
    method: Any = kind().decode(payload, 4)
    if getattr(method, "arguments", None):
        # Read the table at the end again, because pika turns fractions into integers.
        method.arguments = None
        at = 4 + sum(map(len, method.encode()))
        method.arguments = dict(Headers(payload[at:]))
    return cast("Method", method)


def _check_names(method: Method, index: int) -> None:
    """Refuse names that are not UTF-8, which pika leaves as bytes. RabbitMQ skips those of basic.publish, for speed."""
    if all(type(value) is not bytes or field in _LONG for field, value in vars(method).items()):
        return
    raise RequestRefused(501, "Malformed UTF-8 in shortstr").answering(index if index >> 16 == _CONNECTION else 0)


def write_method(out: bytearray, channel: int, method: Method) -> None:
    out += frame.Method(channel, method).marshal()


def write_got(out: bytearray, channel: int, got: Got, *, frame_max: int) -> None:
    message = got.message
    arguments = _tag(got.tag, got.redelivered) + _place(message.exchange, message.key) + _left(got.left)
    out += method_frame(channel, _GET_OK, arguments)
    _write_content(out, channel, message, got.raw, frame_max=frame_max)


def write_event(out: bytearray, event: Event, *, frame_max: int) -> None:
    """Write an event that the client did not request."""
    channel = event.channel
    match event:
        case Deliver(message=message):
            place = _tag(event.tag, event.redelivered) + _place(message.exchange, message.key)
            out += method_frame(channel, BASIC_DELIVER, short_string(event.consumer) + place)
            _write_content(out, channel, message, event.raw, frame_max=frame_max)
        case Ack():
            out += ACK_FRAME.pack(FRAME_METHOD, channel, ACK_SIZE, BASIC_ACK, event.number, event.multiple, FRAME_END)
        case Nack():
            out += ACK_FRAME.pack(FRAME_METHOD, channel, ACK_SIZE, BASIC_NACK, event.number, 0, FRAME_END)
        case Returned(message=message):
            words = _code(event.code) + short_string(event.text)
            out += method_frame(channel, _RETURN, words + _place(message.exchange, message.key))
            _write_content(out, channel, message, message.raw, frame_max=frame_max)
        case Cancel():
            out += method_frame(channel, _CANCEL, short_string(event.consumer) + b"\1")


def _write_content(out: bytearray, channel: int, message: StoredMessage, raw: bytes, *, frame_max: int) -> None:
    for piece in content_frames(channel, raw, message.body, frame_max=frame_max):
        out += piece


@lru_cache(4096)
def _place(exchange: str, key: str) -> bytes:
    return short_string(exchange) + short_string(key)
