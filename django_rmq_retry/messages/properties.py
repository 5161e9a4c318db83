"""Encoding and decoding of the fourteen AMQP properties of a message."""

import struct
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from django_rmq_retry.errors import UndecodableHeaders
from django_rmq_retry.messages.headers import EMPTY, SHORT_STRING_LIMIT, Headers

_FLAGS = struct.Struct(">H")
_LENGTH = struct.Struct(">I")
_SECONDS = struct.Struct(">Q")
# RabbitMQ refuses a message with any of these set (rabbit_framing_amqp_0_9_1:decode_properties).
_UNUSED_FLAGS = 0b11
HEADERS = 0x20
"""The bit in the first byte of the encoded properties that is set if a header table is present."""


DIRECT = "amq.rabbitmq.reply-to"
"""RabbitMQ's direct reply-to queue. Only its consumer may publish with this bare name in reply_to.

The broker closes the channel of any other publisher (406).
"""
BARE = "rmq-retry-reply-to"
"""The header in which our copies carry a bare direct reply-to.

A stored message can have one, because the broker accepts it from senders using other protocols, such as AMQP 1.0.
"""

# Plain numbers: comparing enum members costs as much as decoding a field.
_TEXT, _TABLE, _OCTET, _TIMESTAMP = range(4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Properties:
    """The properties of a message. Text that is not UTF-8 is kept with surrogate escapes.

    The shared object `headers.EMPTY` means that the message has no header table; any other empty Headers object means
    that its table is empty.
    """

    content_type: str | None = None
    content_encoding: str | None = None
    headers: Headers = EMPTY
    delivery_mode: int | None = None
    priority: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration: str | None = None
    message_id: str | None = None
    timestamp: int | None = None
    type: str | None = None
    user_id: str | None = None
    app_id: str | None = None
    cluster_id: str | None = None


def lasting(known: Properties, headers: Headers, *, expiration: str | None = None) -> Properties:
    """Return the properties for a copy: persistent, and without the original's expiration."""
    if known.reply_to == DIRECT:
        known, headers = replace(known, reply_to=None), headers.replacing(drop={BARE}, put={BARE: DIRECT})
    # Not dataclasses.replace(): it takes twice as long, and this runs at every retry.
    return Properties(
        content_type=known.content_type,
        content_encoding=known.content_encoding,
        headers=headers,
        # Persistent: a transient copy would be lost when the broker restarts.
        delivery_mode=2,
        priority=known.priority,
        correlation_id=known.correlation_id,
        reply_to=known.reply_to,
        expiration=expiration,
        message_id=known.message_id,
        timestamp=known.timestamp,
        type=known.type,
        # The broker requires user_id to be the publisher's own user, else it closes the channel (406).
        user_id=None,
        app_id=known.app_id,
        cluster_id=known.cluster_id,
    )


def reply_of(known: Properties) -> str | None:
    """Return the sender's reply_to, also from a copy of ours, which carries a direct reply-to in a header."""
    return DIRECT if known.reply_to is None and known.headers.get(BARE) == DIRECT else known.reply_to


_FIELDS = (
    ("content_type", _TEXT),
    ("content_encoding", _TEXT),
    ("headers", _TABLE),
    ("delivery_mode", _OCTET),
    ("priority", _OCTET),
    ("correlation_id", _TEXT),
    ("reply_to", _TEXT),
    ("expiration", _TEXT),
    ("message_id", _TEXT),
    ("timestamp", _TIMESTAMP),
    ("type", _TEXT),
    ("user_id", _TEXT),
    ("app_id", _TEXT),
    ("cluster_id", _TEXT),
)


def has_headers(raw: bytes) -> bool:
    """True if encoded properties contain a header table, read from their first byte."""
    return len(raw) > 0 and raw[0] & HEADERS != 0


def decode_properties(raw: bytes) -> Properties:
    """Decode the part of an AMQP content header that follows its body size."""
    try:
        flags = _FLAGS.unpack_from(raw)[0]
        if flags & _UNUSED_FLAGS:
            raise UndecodableHeaders(f"the property flags {flags:#06x} are not those of AMQP 0-9-1")
        values, at = _decode_fields(raw, _present(flags))
    except (IndexError, struct.error):
        raise UndecodableHeaders("they are cut off") from None
    if at != len(raw):
        raise UndecodableHeaders(f"they should end after {at} bytes and have {len(raw)}")
    return Properties(**values)


@lru_cache(maxsize=256)
def _present(flags: int) -> tuple[tuple[str, int], ...]:
    return tuple(field for place, field in enumerate(_FIELDS) if flags & (1 << (15 - place)))


def _decode_fields(raw: bytes, fields: tuple[tuple[str, int], ...]) -> tuple[dict[str, Any], int]:
    values: dict[str, Any] = {}
    at = _FLAGS.size
    for name, kind in fields:
        if kind == _TEXT:
            stop = at + 1 + raw[at]
            values[name] = raw[at + 1 : stop].decode("utf-8", "surrogateescape")
        elif kind == _OCTET:
            stop = at + 1
            values[name] = raw[at]
        elif kind == _TIMESTAMP:
            stop = at + 8
            values[name] = _SECONDS.unpack_from(raw, at)[0]
        else:
            stop = at + 4 + _LENGTH.unpack_from(raw, at)[0]
            if stop > len(raw):
                raise UndecodableHeaders("the header table is cut off")
            values[name] = Headers(raw[at + 4 : stop])
        at = stop
    return values, at


def encode_properties(properties: Properties) -> bytes:
    """Encode the part of an AMQP content header that follows its body size."""
    flags = 0
    pieces = [b""]
    for place, (name, kind) in enumerate(_FIELDS):
        value = getattr(properties, name)
        if value is None or value is EMPTY:
            continue
        flags |= 1 << (15 - place)
        try:
            pieces.append(_encode(kind, value))
        except (struct.error, ValueError) as error:
            raise ValueError(f"Property {name} cannot be {value!r:.80}: {error}.") from None
    pieces[0] = _FLAGS.pack(flags)
    return b"".join(pieces)


def with_headers(raw: bytes, known: Properties, headers: bytes) -> bytes:
    """Return encoded properties with the header table replaced, or removed if `headers` is empty.

    It splices the bytes, which is much faster than encoding all properties again.
    """
    if not has_headers(raw):
        return raw
    at = _FLAGS.size
    for before in (known.content_type, known.content_encoding):
        if before is not None:
            at += 1 + raw[at]
    stop = at + _LENGTH.size + _LENGTH.unpack_from(raw, at)[0]
    if headers:
        return raw[:at] + _LENGTH.pack(len(headers)) + headers + raw[stop:]
    return bytes((raw[0] & ~HEADERS,)) + raw[1:at] + raw[stop:]


def _encode(kind: int, value: Any) -> bytes:
    if kind == _TABLE:
        return _LENGTH.pack(len(value.raw)) + bytes(value.raw)
    if kind == _OCTET:
        return struct.pack(">B", value)
    if kind == _TIMESTAMP:
        return _SECONDS.pack(value)
    text: bytes = value.encode("utf-8", "surrogateescape")
    if len(text) > SHORT_STRING_LIMIT:
        raise ValueError(f"it takes {len(text)} bytes and AMQP takes {SHORT_STRING_LIMIT}")
    return struct.pack(">B", len(text)) + text
