"""Frames cut out of what a client sends, and the methods in them; what is no AMQP is refused in RabbitMQ's words."""

import struct
from collections.abc import Iterator
from typing import Any, cast

from pika import spec
from pika.amqp_object import Method

from django_rmq_retry.broker.envelope import FRAME_END, FRAME_OVERHEAD
from django_rmq_retry.core.headers import Headers
from django_rmq_retry.embedded.engine.refusals import Refused

PROTOCOL = b"AMQP\0\0\x09\x01"
_SHOWN = 16
_LONG = frozenset({"response", "new_secret"})
_CONNECTION = 10
_frame = struct.Struct(">BHI").unpack_from


class Frames:
    """Cuts bytes into frames, as they come."""

    __slots__ = ("_rest", "most")

    def __init__(self, most: int) -> None:
        self._rest = b""
        self.most = most
        """The largest frame that may come."""

    def cut(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        """Yield (type, channel, payload) of each whole frame; a part of one waits for more bytes."""
        buffer = self._rest + data if self._rest else data
        at, end = 0, len(buffer)
        self._rest = b""
        while end - at >= FRAME_OVERHEAD - 1:
            kind, channel, size = _frame(buffer, at)
            stop = at + FRAME_OVERHEAD + size
            if size > self.most - FRAME_OVERHEAD:
                what = f"{{frame_too_large,{size},{self.most - FRAME_OVERHEAD}}}"
                raise Refused(501, f"type {kind}, all octets = <<>>: {what}")
            if stop > end:
                break
            if buffer[stop - 1] != FRAME_END:
                octets = _shown(buffer[at + 7 : min(stop - 1, at + 7 + _SHOWN)])
                amount = f"first {_SHOWN}" if size > _SHOWN else "all"
                marker = f"{{invalid_frame_end_marker,{buffer[stop - 1]}}}"
                raise Refused(501, f"type {kind}, {amount} octets = <<{octets}>>: {marker}")
            yield kind, channel, buffer[at + 7 : stop - 1]
            at = stop
        self._rest = buffer[at:] if at else buffer


def _shown(octets: bytes) -> str:
    """Bytes as Erlang writes them: as text where they are such."""
    if octets and octets.isascii() and octets.decode().isprintable():
        return f'"{octets.decode()}"'
    return ",".join(map(str, octets))


def read_method(payload: bytes) -> Method:
    """The method in a frame."""
    index = int.from_bytes(payload[:4])
    kind = spec.methods.get(index)
    if kind is None:
        raise Refused(541, f"unknown method {index >> 16}.{index & 0xFFFF}")
    try:
        method = _decoded(kind, payload)
    except Exception as error:
        # pika's decoders fail in whatever way the bytes lead them to.
        refused = Refused(502, f"cannot decode the arguments of {kind.NAME}")
        refused.class_id, refused.method_id = index >> 16, index & 0xFFFF
        raise refused from error
    _check_names(method, index)
    return method


def _decoded(kind: type[Method], payload: bytes) -> Method:
    method: Any = kind().decode(payload, 4)
    if getattr(method, "arguments", None):
        # The table at the end, read once more: pika makes whole numbers of fractions.
        method.arguments = None
        at = 4 + sum(map(len, method.encode()))
        method.arguments = dict(Headers(payload[at:]))
    return cast("Method", method)


def _check_names(method: Method, index: int) -> None:
    """Names are text: pika leaves as bytes what is none. RabbitMQ skips those of basic.publish, for speed."""
    if all(type(value) is not bytes or field in _LONG for field, value in vars(method).items()):
        return
    refused = Refused(501, "Malformed UTF-8 in shortstr")
    if index >> 16 == _CONNECTION:
        refused.class_id, refused.method_id = index >> 16, index & 0xFFFF
    raise refused
