"""Python values as AMQP 0-9-1 field values: one byte of type, then the value. What cannot be sent is refused."""

import struct
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any

from django_rmq_retry.core.fields import DECIMAL, DEPTH_LIMIT, EPOCH, LENGTH, SHORT_STRING_LIMIT, TIMESTAMP, shown

_INT32 = range(-(2**31), 2**31)
_INT64 = range(-(2**63), 2**63)
_SCALE_LIMIT = 255


def encode_entry(key: str, value: object, *, depth: int = 1) -> bytes:
    """Encode one entry of a table."""
    name = _encode_key(key)
    try:
        return name + encode_value(value, depth=depth)
    except (TypeError, ValueError) as error:
        error.add_note(f"in header {shown(name[1:])!r}")
        raise


@lru_cache(maxsize=256)
def _encode_key(key: str) -> bytes:
    name = key.encode("utf-8")
    if len(name) > SHORT_STRING_LIMIT:
        raise ValueError(f"Header name {shown(name)!r} takes {len(name)} bytes; AMQP takes {SHORT_STRING_LIMIT}.")
    return bytes((len(name),)) + name


def encode_value(value: object, *, depth: int = 1) -> bytes:
    """Encode a value with its type; what RabbitMQ could not take is a ValueError or TypeError."""
    plain = _PLAIN.get(type(value))
    if plain is not None:
        return plain(value)
    for kind, encode in _ENCODERS:
        if isinstance(value, kind):
            return encode(value)
    return _encode_nested(value, depth)


def _encode_nested(value: object, depth: int) -> bytes:
    if depth > DEPTH_LIMIT:
        raise ValueError(f"A header may be nested {DEPTH_LIMIT} levels deep, this one is nested deeper.")
    if isinstance(value, dict):
        return _prefixed(b"F", b"".join(encode_entry(key, item, depth=depth + 1) for key, item in value.items()))
    if isinstance(value, list | tuple):
        return _prefixed(b"A", b"".join(encode_value(item, depth=depth + 1) for item in value))
    raise TypeError(f"A header cannot carry {type(value).__qualname__}; send it as text or in the body.")


def _prefixed(kind: bytes, content: bytes) -> bytes:
    return kind + LENGTH.pack(len(content)) + content


def _encode_int(value: int) -> bytes:
    if value in _INT32:
        return struct.pack(">ci", b"I", value)
    if value in _INT64:
        return struct.pack(">cq", b"l", value)
    raise ValueError("A header takes integers of 64 bits; send a larger one as text.")


def _encode_float(value: float) -> bytes:
    if value - value != 0:
        raise ValueError(f"A header cannot carry {value}: RabbitMQ closes the connection of whoever sends it.")
    return struct.pack(">cd", b"d", value)


def _encode_decimal(value: Decimal) -> bytes:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise ValueError(f"A header cannot carry the decimal {value}.")  # noqa: TRY004 the type is right
    scale = max(-exponent, 0)
    if exponent > len(str(_INT32.stop)) or scale > _SCALE_LIMIT:
        raise ValueError(f"The decimal {value} does not fit into a header; send it as text.")
    number = int("".join(map(str, digits))) * 10 ** max(exponent, 0) * (-1 if sign else 1)
    if number not in _INT32:
        raise ValueError(f"The decimal {value} has too many digits for a header; send it as text.")
    return b"D" + DECIMAL.pack(scale, number)


def _encode_timestamp(value: datetime) -> bytes:
    if value.tzinfo is None:
        raise ValueError("A header takes no naive datetime; give it a time zone.")
    if value < EPOCH:
        raise ValueError(f"A header cannot carry {value.isoformat()}: AMQP counts from 1970.")
    return b"T" + TIMESTAMP.pack(int((value - EPOCH).total_seconds()))


# A bool is an int to isinstance, so it comes first.
_ENCODERS: tuple[tuple[type, Callable[[Any], bytes]], ...] = (
    (str, lambda value: _prefixed(b"S", value.encode("utf-8"))),
    (bool, lambda value: b"t\1" if value else b"t\0"),
    (int, _encode_int),
    (bytes, lambda value: _prefixed(b"x", value)),
    (type(None), lambda _: b"V"),
    (float, _encode_float),
    (Decimal, _encode_decimal),
    (datetime, _encode_timestamp),
)
_PLAIN: dict[type, Callable[[Any], bytes]] = dict(_ENCODERS)
