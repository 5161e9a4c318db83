"""AMQP 0-9-1 field values as RabbitMQ writes them: one byte of type, then the value."""

import struct
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from django_rmq_retry.core.errors import UndecodableHeaders

DEPTH_LIMIT = 64
SHORT_STRING_LIMIT = 255

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_INT32 = range(-(2**31), 2**31)
_INT64 = range(-(2**63), 2**63)
_SCALE_LIMIT = 255
_LENGTH = struct.Struct(">I")
_DECIMAL = struct.Struct(">Bi")
_TIMESTAMP = struct.Struct(">Q")

# RabbitMQ's letters, which differ from the AMQP 0-9-1 specification's (rabbitmq.com/amqp-0-9-1-errata, section 3).
_NUMBERS = {
    ord(letter): struct.Struct(layout)
    for letter, layout in {
        "b": ">b", "B": ">B", "s": ">h", "U": ">h", "u": ">H", "I": ">i", "i": ">I", "l": ">q", "L": ">q",
        "f": ">f", "d": ">d",
    }.items()
}  # fmt: skip
_FIXED_SIZES = {kind: layout.size for kind, layout in _NUMBERS.items()} | {
    ord("t"): 1, ord("D"): _DECIMAL.size, ord("T"): _TIMESTAMP.size, ord("V"): 0,
}  # fmt: skip
_PREFIXED = frozenset(b"SxAF")


def value_end(raw: bytes, at: int, end: int) -> int:
    """Return where the value whose type stands at `at` ends, without looking into it."""
    if at >= end:
        raise UndecodableHeaders("a value is missing at the end of the table")
    kind = raw[at]
    size = _FIXED_SIZES.get(kind)
    if size is None:
        if kind not in _PREFIXED:
            raise UndecodableHeaders(f"its type {chr(kind)!a} is not known to RabbitMQ")
        if at + 5 > end:
            raise UndecodableHeaders("its length is cut off")
        size = 4 + _LENGTH.unpack_from(raw, at + 1)[0]
    stop: int = at + 1 + size
    if stop > end:
        raise UndecodableHeaders(f"it is cut off {stop - end} bytes before its end")
    return stop


def entries(raw: bytes, at: int, end: int) -> Iterator[tuple[bytes, int, int, int]]:
    """Cut a table into (key, start of entry, start of value, end of entry), never looking into a value."""
    while at < end:
        value_at = at + 1 + raw[at]
        key = raw[at + 1 : value_at]
        try:
            stop = value_end(raw, value_at, end)
        except UndecodableHeaders as error:
            raise UndecodableHeaders(error.problem, header=error.header or shown(key)) from None
        yield key, at, value_at, stop
        at = stop


def shown(key: bytes, *, limit: int = 60) -> str:
    """Write a header's name so that any screen, log and database takes it."""
    text = key.decode("utf-8", "backslashreplace")
    safe = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text[:limit])
    return safe if len(text) <= limit else safe + "…"


def decode_value(raw: bytes, at: int, stop: int, *, depth: int = 1) -> object:
    """Decode the value between `at` and `stop`, as `value_end` found it."""
    kind = raw[at]
    if (number := _NUMBERS.get(kind)) is not None:
        return number.unpack_from(raw, at + 1)[0]
    return _DECODERS[kind](raw, at + 1, stop, depth)


def _decode_text(raw: bytes, at: int, stop: int, _: int) -> str | bytes:
    text = raw[at + 4 : stop]
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError:
        return text


def _decode_decimal(raw: bytes, at: int, *_: int) -> Decimal:
    scale, digits = _DECIMAL.unpack_from(raw, at)
    # Built from digits: arithmetic would round to whatever decimal context the process has.
    return Decimal((int(digits < 0), tuple(map(int, str(abs(digits)))), -scale))


def _decode_timestamp(raw: bytes, at: int, *_: int) -> datetime:
    seconds = _TIMESTAMP.unpack_from(raw, at)[0]
    try:
        return _EPOCH + timedelta(seconds=seconds)
    except OverflowError:
        raise UndecodableHeaders(f"the timestamp {seconds} lies after the year 9999; AMQP counts seconds") from None


def _decode_array(raw: bytes, at: int, stop: int, depth: int) -> list[object]:
    _check_depth(depth)
    at += 4
    values = []
    while at < stop:
        end = value_end(raw, at, stop)
        values.append(decode_value(raw, at, end, depth=depth + 1))
        at = end
    return values


def _decode_table(raw: bytes, at: int, stop: int, depth: int) -> dict[str, object]:
    _check_depth(depth)
    return {
        decode_key(key): decode_value(raw, value_at, end, depth=depth + 1)
        for key, _, value_at, end in entries(raw, at + 4, stop)
    }


def decode_key(key: bytes) -> str:
    """Decode a key that has to be UTF-8."""
    try:
        return key.decode("utf-8")
    except UnicodeDecodeError:
        raise UndecodableHeaders("the key is not UTF-8", header=shown(key)) from None


def _check_depth(depth: int) -> None:
    if depth > DEPTH_LIMIT:
        raise UndecodableHeaders(f"it is nested more than {DEPTH_LIMIT} levels deep")


_DECODERS: dict[int, Callable[[bytes, int, int, int], object]] = {
    ord("t"): lambda raw, at, stop, depth: raw[at] != 0,  # noqa: ARG005 the decoders share one signature
    ord("V"): lambda raw, at, stop, depth: None,  # noqa: ARG005
    ord("x"): lambda raw, at, stop, depth: raw[at + 4 : stop],  # noqa: ARG005
    ord("S"): _decode_text,
    ord("D"): _decode_decimal,
    ord("T"): _decode_timestamp,
    ord("A"): _decode_array,
    ord("F"): _decode_table,
}


def encode_entry(key: str, value: object, *, depth: int = 1) -> bytes:
    """Encode one entry of a table."""
    name = key.encode("utf-8")
    if len(name) > SHORT_STRING_LIMIT:
        raise ValueError(f"Header name {shown(name)!r} takes {len(name)} bytes; AMQP takes {SHORT_STRING_LIMIT}.")
    try:
        return bytes((len(name),)) + name + encode_value(value, depth=depth)
    except (TypeError, ValueError) as error:
        error.add_note(f"in header {shown(name)!r}")
        raise


def encode_value(value: object, *, depth: int = 1) -> bytes:
    """Encode a value with its type; what RabbitMQ could not take is a ValueError or TypeError."""
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
    return kind + _LENGTH.pack(len(content)) + content


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
    return b"D" + _DECIMAL.pack(scale, number)


def _encode_timestamp(value: datetime) -> bytes:
    if value.tzinfo is None:
        raise ValueError("A header takes no naive datetime; give it a time zone.")
    if value < _EPOCH:
        raise ValueError(f"A header cannot carry {value.isoformat()}: AMQP counts from 1970.")
    return b"T" + _TIMESTAMP.pack(int((value - _EPOCH).total_seconds()))


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
