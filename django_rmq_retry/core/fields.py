"""AMQP 0-9-1 field values as RabbitMQ writes them, cut apart, checked and decoded."""

import struct
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from django_rmq_retry.core.errors import UndecodableHeaders

DEPTH_LIMIT = 64
SHORT_STRING_LIMIT = 255

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LENGTH = struct.Struct(">I")
DECIMAL = struct.Struct(">Bi")
TIMESTAMP = struct.Struct(">Q")

# RabbitMQ's letters, which differ from the AMQP 0-9-1 specification's (rabbitmq.com/amqp-0-9-1-errata, section 3).
_NUMBERS = {
    ord(letter): struct.Struct(layout)
    for letter, layout in {
        "b": ">b", "B": ">B", "s": ">h", "U": ">h", "u": ">H", "I": ">i", "i": ">I", "l": ">q", "L": ">q",
        "f": ">f", "d": ">d",
    }.items()
}  # fmt: skip
_FIXED_SIZES = {kind: layout.size for kind, layout in _NUMBERS.items()} | {
    ord("t"): 1, ord("D"): DECIMAL.size, ord("T"): TIMESTAMP.size, ord("V"): 0,
}  # fmt: skip
_PREFIXED = frozenset(b"SxAF")
_ARRAY, _TABLE = b"AF"
FALLIBLE = frozenset(b"AFT")
"""The types of which a value may be whole and still not be decoded."""


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
        size = 4 + LENGTH.unpack_from(raw, at + 1)[0]
    stop: int = at + 1 + size
    if stop > end:
        raise UndecodableHeaders(f"it is cut off {stop - end} bytes before its end")
    return stop


def entries(raw: bytes, at: int, end: int) -> Iterator[tuple[bytes, int, int, int]]:
    """Cut a table into (key, start of entry, start of value, end of entry), never looking into a value."""
    while at < end:
        value_at = at + 1 + raw[at]
        key = raw[at + 1 : value_at]
        # What most values are, without a call: every message that failed before is cut apart.
        if value_at + 5 <= end and raw[value_at] in _PREFIXED:
            stop = value_at + 5 + LENGTH.unpack_from(raw, value_at + 1)[0]
        else:
            stop = end + 1
        if stop > end:
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


def check_value(raw: bytes, at: int, stop: int, *, depth: int = 1) -> None:
    """Raise what decoding the value would raise, without making anything of what cannot fail."""
    kind = raw[at]
    if kind == _TABLE:
        _check_depth(depth)
        for key, _, value_at, end in entries(raw, at + 5, stop):
            if not key.isascii():
                decode_key(key)
            if raw[value_at] in FALLIBLE:
                check_value(raw, value_at, end, depth=depth + 1)
    elif kind == _ARRAY:
        _check_depth(depth)
        at += 5
        while at < stop:
            end = value_end(raw, at, stop)
            if raw[at] in FALLIBLE:
                check_value(raw, at, end, depth=depth + 1)
            at = end
    elif kind in FALLIBLE:
        decode_value(raw, at, stop, depth=depth)


def _decode_text(raw: bytes, at: int, stop: int, _: int) -> str | bytes:
    text = raw[at + 4 : stop]
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError:
        return text


def _decode_decimal(raw: bytes, at: int, *_: int) -> Decimal:
    scale, digits = DECIMAL.unpack_from(raw, at)
    # Built from digits: arithmetic would round to whatever decimal context the process has.
    return Decimal((int(digits < 0), tuple(map(int, str(abs(digits)))), -scale))


def _decode_timestamp(raw: bytes, at: int, *_: int) -> datetime:
    seconds = TIMESTAMP.unpack_from(raw, at)[0]
    try:
        return EPOCH + timedelta(seconds=seconds)
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
