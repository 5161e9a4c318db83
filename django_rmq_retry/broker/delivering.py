"""Cuts a whole delivery out of received bytes in a few steps, where pika builds eight objects for it.

Only the plain case is handled: method, content header and one body frame of the same channel, one behind the other.
Everything else is left to pika, frame by frame.
"""

import struct
from collections.abc import Callable
from typing import Any, TypeAlias

from pika import BasicProperties
from pika.exceptions import InvalidFrameError

from django_rmq_retry.broker.envelope import (
    CLASS_BASIC,
    FRAME_BODY,
    FRAME_END,
    FRAME_HEADER,
    FRAME_METHOD,
)

# Consumer tag, delivery tag, redelivered, exchange, routing key, bytes of the properties, body.
Received: TypeAlias = tuple[str, int, bool, str, str, bytes, bytes]
Receive: TypeAlias = Callable[[str, int, bool, str, str, bytes, bytes], object]
# Where it ends, channel, consumer tag, delivery tag, redelivered, exchange with routing key, properties, body.
Cut: TypeAlias = tuple[int, int, bytes, int, bool, bytes, bytes, bytes]

# Beyond this a body is worth more time than its frames, and waiting for it would keep two copies.
LARGE = 65536
NAMES_KEPT = 1000

# Where a cut ends if there is none: the rest has not come yet, or it is not the plain case.
INCOMPLETE: Cut = (0, 0, b"", 0, False, b"", b"", b"")
OTHER: Cut = (-1, 0, b"", 0, False, b"", b"", b"")

_DELIVER = (CLASS_BASIC << 16) | 60
_CONTENT_CLASS = CLASS_BASIC << 16
# The last byte of a frame and the first of the next, left of a channel number.
_END_THEN_HEADER = (FRAME_END << 24) | (FRAME_HEADER << 16)
_END_THEN_BODY = (FRAME_END << 24) | (FRAME_BODY << 16)

_method = struct.Struct(">BHIIB").unpack_from
_content = struct.Struct(">IIIQ").unpack_from
_body = struct.Struct(">II").unpack_from
_tag = struct.Struct(">QB").unpack_from


def cut(buffer: bytes, at: int, end: int) -> Cut:  # noqa: PLR0911 a guard per frame; calls cost time here
    """Cut the delivery that begins at `at`; nothing is kept between calls, so an incomplete one is simply cut again."""
    if end - at < 12:  # noqa: PLR2004 the first five fields
        return OTHER
    kind, number, size, method, tag_size = _method(buffer, at)
    if kind != FRAME_METHOD or method != _DELIVER:
        return OTHER
    content = at + 7 + size
    if end < content + 20:
        return OTHER if _is_other(buffer, content, end, _END_THEN_HEADER + number) else INCOMPLETE
    marker, header_size, content_class, body_size = _content(buffer, content)
    if marker != _END_THEN_HEADER + number or content_class != _CONTENT_CLASS or header_size < 12:  # noqa: PLR2004
        return OTHER
    body = content + 8 + header_size
    if not 0 < body_size <= LARGE:
        return OTHER
    if end < body + 8:
        return OTHER if _is_other(buffer, body, end, _END_THEN_BODY + number) else INCOMPLETE
    marker, part_size = _body(buffer, body)
    if marker != _END_THEN_BODY + number or part_size != body_size:
        return OTHER
    stop = body + 9 + body_size
    if stop > end:
        return INCOMPLETE
    after_tag = at + 12 + tag_size
    if buffer[stop - 1] != FRAME_END or after_tag + 9 > content:
        return OTHER
    delivery_tag, bits = _tag(buffer, after_tag)
    return (
        stop,
        number,
        buffer[at + 12 : after_tag],
        delivery_tag,
        bits & 1 == 1,
        buffer[after_tag + 9 : content],
        buffer[content + 20 : body],
        buffer[body + 8 : stop - 1],
    )


def _is_other(buffer: bytes, at: int, end: int, marker: int) -> bool:
    """Tell whether the bytes between two frames, as far as they have come, are not the ones expected."""
    return not marker.to_bytes(4).startswith(buffer[at : min(end, at + 4)])


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


class DeliverTo:
    """What basic_consume takes as callback: our connection calls `receive` itself, pika comes through `__call__`."""

    __slots__ = ("receive",)

    def __init__(self, receive: Receive) -> None:
        self.receive = receive

    def __call__(self, channel: object, method: Any, properties: BasicProperties, body: bytes) -> None:
        names = text_of(method.exchange), text_of(method.routing_key)
        raw = b"".join(properties.encode())
        self.receive(text_of(method.consumer_tag), method.delivery_tag, method.redelivered, *names, raw, body)


def text_of(name: str | bytes) -> str:
    # pika gives names that are not UTF-8 as bytes.
    return name if isinstance(name, str) else name.decode("utf-8", "surrogateescape")
