"""The fourteen AMQP properties of a message, between bytes and a value."""

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
"""The flag of the header table, in the first byte of the properties."""


DIRECT = "amq.rabbitmq.reply-to"
"""Bare, it may be sent only by who consumes it: from anybody else it closes the channel (406)."""
BARE = "rmq-retry-reply-to"
"""Where copies of ours keep it. Brokers store it for senders by other protocols, such as AMQP 1.0."""

# Plain numbers: comparing enum members costs as much as decoding a field.
_TEXT, _TABLE, _OCTET, _TIMESTAMP = range(4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Properties:
    """What a message says about itself; text that is not UTF-8 is kept with surrogate escapes.

    The shared `headers.EMPTY` stands for a message without a header table; any other empty Headers for an empty table.
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
    """As a copy of ours bears them: it outlives the broker, and does not expire with the original."""
    if known.reply_to == DIRECT:
        known, headers = replace(known, reply_to=None), headers.replacing(drop={BARE}, put={BARE: DIRECT})
    # Written out: dataclasses.replace() takes twice as long, at every retry.
    return Properties(
        content_type=known.content_type,
        content_encoding=known.content_encoding,
        headers=headers,
        # Transient would be lost with the broker.
        delivery_mode=2,
        priority=known.priority,
        correlation_id=known.correlation_id,
        reply_to=known.reply_to,
        expiration=expiration,
        message_id=known.message_id,
        timestamp=known.timestamp,
        type=known.type,
        # A forwarded one must be the forwarder's own (406).
        user_id=None,
        app_id=known.app_id,
        cluster_id=known.cluster_id,
    )


def reply_of(known: Properties) -> str | None:
    """Where its sender wants the answer, whether or not this is a copy of ours."""
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
    """Tell from the first byte whether a header table follows."""
    return len(raw) > 0 and raw[0] & HEADERS != 0


def decode_properties(raw: bytes) -> Properties:
    """Decode the bytes of a content header after its body size."""
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
    """Encode what stands in a content header after its body size."""
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
    """The same properties with another header table, or with none: cut out of their bytes, for that is far quicker."""
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
