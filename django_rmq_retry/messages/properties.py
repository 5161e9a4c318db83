"""Encoding and decoding of AMQP header tables and properties. Headers set by others are copied byte for byte."""

import math
import struct
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any

from django_rmq_retry.errors import UndecodableHeaders
from django_rmq_retry.messages.header_names import BARE

SHOWN_NAME_CHARACTERS = 60
HEADER_DEPTH_LIMIT = 64
SHORT_STRING_BYTES = 255

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LENGTH = struct.Struct(">I")
OCTET = struct.Struct(">B")
DECIMAL = struct.Struct(">Bi")
TIMESTAMP = struct.Struct(">Q")

# RabbitMQ's type letters, which differ from the AMQP 0-9-1 specification (rabbitmq.com/amqp-0-9-1-errata, section 3).
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
"""The types whose value may be complete and still fail to decode."""

INT32 = range(-(2**31), 2**31)
_INT64 = range(-(2**63), 2**63)
_SCALE_LIMIT = 255

_FLAGS = struct.Struct(">H")
# RabbitMQ refuses a message with any of these set (rabbit_framing_amqp_0_9_1:decode_properties).
_UNUSED_FLAGS = 0b11
HEADERS = 0x20
"""The bit in the first byte of the encoded properties that is set if a header table is present."""

DIRECT = "amq.rabbitmq.reply-to"
"""RabbitMQ's direct reply-to queue. The broker closes the channel (406) of a publisher of it who is no consumer."""
# Plain numbers: comparing enum members costs as much as decoding a field.
_TEXT, _HEADER_TABLE, _OCTET, _TIMESTAMP = range(4)


def milliseconds(seconds: float) -> int:
    """Convert seconds to whole milliseconds, rounded up, so that a wait is never shorter than requested."""
    return math.ceil(round(seconds * 1000, 6))


def value_end(raw: bytes, at: int, end: int) -> int:
    """Return the end of the value whose type letter is at `at`, without decoding the value."""
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
    """Yield (key, start of entry, start of value, end of entry) for each entry of a table, without decoding values."""
    while at < end:
        value_at = at + 1 + raw[at]
        key = raw[at + 1 : value_at]
        # Most values have a length prefix. Inlined for speed: each retried message passes through this loop.
        if value_at + 5 <= end and raw[value_at] in _PREFIXED:
            stop = value_at + 5 + LENGTH.unpack_from(raw, value_at + 1)[0]
        else:
            stop = end + 1
        if stop > end:
            try:
                stop = value_end(raw, value_at, end)
            except UndecodableHeaders as error:
                raise UndecodableHeaders(error.problem, header=error.header or printable_name(key)) from None
        yield key, at, value_at, stop
        at = stop


def printable_name(key: bytes) -> str:
    """Return a header's name with unprintable characters escaped, safe for any terminal, log and database."""
    text = key.decode("utf-8", "backslashreplace")
    safe = "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text[:SHOWN_NAME_CHARACTERS]
    )
    return safe if len(text) <= SHOWN_NAME_CHARACTERS else safe + "…"


def decode_value(raw: bytes, at: int, stop: int, *, depth: int = 1) -> object:
    """Decode the value between `at` and `stop`, which `value_end` returned."""
    kind = raw[at]
    if (number := _NUMBERS.get(kind)) is not None:
        return number.unpack_from(raw, at + 1)[0]
    return _DECODERS[kind](raw, at + 1, stop, depth)


def check_value(raw: bytes, at: int, stop: int, *, depth: int = 1) -> None:
    """Raise the error that decoding the value would raise, without decoding the types that cannot fail."""
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
    # Built from digits, because arithmetic would round to the precision of the process's decimal context.
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
    """Decode a key, or raise UndecodableHeaders if it is not UTF-8."""
    try:
        return key.decode("utf-8")
    except UnicodeDecodeError:
        raise UndecodableHeaders("the key is not UTF-8", header=printable_name(key)) from None


def _check_depth(depth: int) -> None:
    if depth > HEADER_DEPTH_LIMIT:
        raise UndecodableHeaders(f"it is nested more than {HEADER_DEPTH_LIMIT} levels deep")


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
    if not isinstance(key, str):
        raise TypeError(f"A header's name is a text, not {key!r}.")
    try:
        if type(value) is str:
            # Most values are text. Inlined for speed: each copy is stamped with three or more.
            text = value.encode("utf-8")
            return b"%bS%b%b" % (_encode_key(key), LENGTH.pack(len(text)), text)
        return _encode_key(key) + encode_value(value, depth=depth)
    except (TypeError, ValueError) as error:
        error.add_note(f"in header {printable_name(key.encode('utf-8', 'replace'))!r}")
        raise


@lru_cache(maxsize=256)
def _encode_key(key: str) -> bytes:
    name = key.encode("utf-8")
    if len(name) > SHORT_STRING_BYTES:
        raise ValueError(
            f"Header name {printable_name(name)!r} takes {len(name)} bytes; AMQP takes {SHORT_STRING_BYTES}."
        )
    return bytes((len(name),)) + name


def encode_value(value: object, *, depth: int = 1) -> bytes:
    """Encode a value with its type. Raise ValueError or TypeError for a value that RabbitMQ would not accept."""
    encoder = _PLAIN.get(type(value))
    if encoder is not None:
        return encoder(value)
    for kind, encode in _ENCODERS:
        if isinstance(value, kind):
            return encode(value)
    return _encode_nested(value, depth)


def _encode_nested(value: object, depth: int) -> bytes:
    if depth > HEADER_DEPTH_LIMIT:
        raise ValueError(f"A header may be nested {HEADER_DEPTH_LIMIT} levels deep, this one is nested deeper.")
    if isinstance(value, dict):
        return _prefixed(b"F", b"".join(encode_entry(key, item, depth=depth + 1) for key, item in value.items()))
    if isinstance(value, list | tuple):
        return _prefixed(b"A", b"".join(encode_value(item, depth=depth + 1) for item in value))
    raise TypeError(f"A header cannot carry {type(value).__qualname__}; send it as text or in the body.")


def _prefixed(kind: bytes, content: bytes) -> bytes:
    return kind + LENGTH.pack(len(content)) + content


def _encode_int(value: int) -> bytes:
    # A subclass, such as a member of Django's IntegerChoices, is looked for by a walk through the whole range.
    value = int(value)
    if value in INT32:
        return struct.pack(">ci", b"I", value)
    if value in _INT64:
        return struct.pack(">cq", b"l", value)
    raise ValueError("A header takes integers of 64 bits; send a larger one as text.")


def _encode_float(value: float) -> bytes:
    if value - value != 0:
        raise ValueError(f"A header cannot carry {value}: RabbitMQ closes the connection of a client that sends it.")
    return struct.pack(">cd", b"d", value)


def _encode_decimal(value: Decimal) -> bytes:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise ValueError(f"A header cannot carry the decimal {value}.")  # noqa: TRY004 the type is right
    scale = max(-exponent, 0)
    if exponent > len(str(INT32.stop)) or scale > _SCALE_LIMIT:
        raise ValueError(f"The decimal {value} does not fit into a header; send it as text.")
    number = int("".join(map(str, digits))) * 10 ** max(exponent, 0) * (-1 if sign else 1)
    if number not in INT32:
        raise ValueError(f"The decimal {value} has too many digits for a header; send it as text.")
    return b"D" + DECIMAL.pack(scale, number)


def _encode_timestamp(value: datetime) -> bytes:
    if value.tzinfo is None:
        raise ValueError("A header takes no naive datetime; give it a time zone.")
    if value < EPOCH:
        raise ValueError(f"A header cannot carry {value.isoformat()}: AMQP counts from 1970.")
    return b"T" + TIMESTAMP.pack(int((value - EPOCH).total_seconds()))


# bool precedes int, because isinstance(True, int) is true.
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


class Headers(Mapping[str, object]):
    """An AMQP field table. Its entries are located when it is created; each value is decoded on access.

    Duplicate keys stay in `raw`; a lookup returns the last value, like the dict that pika decodes. A key that is not
    UTF-8 is listed with surrogate escapes, so that it can be dropped or kept like any other key.
    """

    __slots__ = ("_doubtful", "_known", "raw")

    raw: bytes

    def __init__(self, raw: bytes = b"") -> None:
        self.raw = raw
        self._known: dict[str, tuple[int, int]] | None
        self._known, self._doubtful = _cut(raw)

    @classmethod
    def _sound(cls, raw: bytes) -> "Headers":
        """Return headers from bytes that this module encoded, without parsing them: most are sent and never read."""
        headers = cls.__new__(cls)
        headers.raw = raw
        headers._known = None  # noqa: SLF001 - it is one of us
        return headers

    @property
    def _spans(self) -> dict[str, tuple[int, int]]:
        if self._known is None:
            self._known, self._doubtful = _cut(self.raw)
        return self._known

    @classmethod
    def of(cls, values: Mapping[str, object]) -> "Headers":
        """Encode values. Integers take 32 bits if they fit, else 64."""
        return cls._sound(b"".join([encode_entry(*entry) for entry in values.items()])) if values else EMPTY

    def __getitem__(self, key: str) -> object:
        at, stop = self._spans[key]
        try:
            return decode_value(self.raw, at, stop)
        except UndecodableHeaders as error:
            name = printable_name(key.encode("utf-8", "surrogateescape"))
            raise UndecodableHeaders(error.problem, header=name) from None

    def get(self, key: str, default: object = None) -> object:
        # Faster than Mapping.get, which raises and catches KeyError for each missing header; most are missing.
        return self[key] if key in self._spans else default

    def __contains__(self, key: object) -> bool:
        return key in self._spans

    def __iter__(self) -> Iterator[str]:
        return iter(self._spans)

    def __len__(self) -> int:
        return len(self._spans)

    def __eq__(self, other: object) -> bool:
        return self.raw == other.raw if isinstance(other, Headers) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.raw)

    def __repr__(self) -> str:
        return f"<Headers: {len(self)} entries, {len(self.raw)} bytes>"

    def replacing(self, *, drop: Collection[str] = (), put: Mapping[str, object] | None = None) -> "Headers":
        """Return headers without `drop` and with `put` at the end; every other entry keeps its bytes and its place."""
        raw = self.raw
        pieces = []
        if raw:
            gone = _encoded(frozenset(drop)) | _encoded(frozenset(put or ()))
            pieces = [raw[start:stop] for key, start, _, stop in entries(raw, 0, len(raw)) if key not in gone]
        pieces += [encode_entry(key, value) for key, value in (put or {}).items()]
        encoded = b"".join(pieces)
        return self if encoded == raw else self._sound(encoded)

    def check(self) -> None:
        """Raise UndecodableHeaders with the name of the first header that cannot be decoded, if any."""
        if self._known is None:
            self._known, self._doubtful = _cut(self.raw)
        for key, value_at, stop in self._doubtful:
            if not key.isascii():
                decode_key(key)
            try:
                check_value(self.raw, value_at, stop)
            except UndecodableHeaders as error:
                raise UndecodableHeaders(error.problem, header=printable_name(key)) from None


def _cut(raw: bytes) -> tuple[dict[str, tuple[int, int]], list[tuple[bytes, int, int]]]:
    """Return the span of each value by key, and a list of (key, start, end) of the values that may fail to decode."""
    spans: dict[str, tuple[int, int]] = {}
    doubtful: list[tuple[bytes, int, int]] = []
    for key, _, value_at, stop in entries(raw, 0, len(raw)):
        spans[key.decode("utf-8", "surrogateescape")] = value_at, stop
        if raw[value_at] in FALLIBLE or not key.isascii():
            doubtful.append((key, value_at, stop))
    return spans, doubtful


@lru_cache(maxsize=64)
def _encoded(keys: frozenset[str]) -> frozenset[bytes]:
    return frozenset(key.encode("utf-8", "surrogateescape") for key in keys)


EMPTY = Headers()


@dataclass(frozen=True, slots=True, kw_only=True)
class Properties:
    """The properties of a message; text that is not UTF-8 has surrogate escapes. `EMPTY` is no header table at all."""

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
    encoded: bytes | None = field(default=None, init=False, repr=False, compare=False)
    """The properties as bytes, cached when they are first encoded: a message is checked first, and sent later."""


def copied_properties(known: Properties, headers: Headers, *, expiration: str | None = None) -> Properties:
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


_KINDS = {"headers": _HEADER_TABLE, "delivery_mode": _OCTET, "priority": _OCTET, "timestamp": _TIMESTAMP}
# The fields above have the order of AMQP's flags.
_FIELDS = tuple((one.name, _KINDS.get(one.name, _TEXT)) for one in fields(Properties) if one.init)


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
        raise UndecodableHeaders(f"they end after {at} of {len(raw)} bytes")
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
            values[name] = TIMESTAMP.unpack_from(raw, at)[0]
        else:
            stop = at + 4 + LENGTH.unpack_from(raw, at)[0]
            if stop > len(raw):
                raise UndecodableHeaders("the header table is cut off")
            values[name] = Headers(raw[at + 4 : stop])
        at = stop
    return values, at


def encode_properties(properties: Properties) -> bytes:
    """Encode the part of an AMQP content header that follows its body size."""
    if properties.encoded is not None:
        return properties.encoded
    flags = 0
    pieces = [b""]
    for place, (name, kind) in enumerate(_FIELDS):
        value = getattr(properties, name)
        if value is None or value is EMPTY:
            continue
        flags |= 1 << (15 - place)
        try:
            if kind == _TEXT:
                text = value.encode("utf-8", "surrogateescape")
                if len(text) > SHORT_STRING_BYTES:
                    raise ValueError(f"it takes {len(text)} bytes and AMQP takes {SHORT_STRING_BYTES}")  # noqa: TRY301
                pieces += (bytes((len(text),)), text)
            elif kind == _OCTET:
                pieces.append(OCTET.pack(value))
            elif kind == _TIMESTAMP:
                pieces.append(TIMESTAMP.pack(value))
            else:
                pieces += (LENGTH.pack(len(value.raw)), bytes(value.raw))
        except (struct.error, ValueError) as error:
            raise ValueError(f"Property {name} cannot be {value!r:.80}: {error}.") from None
    pieces[0] = _FLAGS.pack(flags)
    encoded = b"".join(pieces)
    # A cache, not part of the immutable value.
    object.__setattr__(properties, "encoded", encoded)
    return encoded


def with_headers(raw: bytes, known: Properties, headers: bytes) -> bytes:
    """Return encoded properties with another header table, or none if it is empty: spliced, not encoded again."""
    if not has_headers(raw):
        return raw
    at = _FLAGS.size
    for before in (known.content_type, known.content_encoding):
        if before is not None:
            at += 1 + raw[at]
    stop = at + LENGTH.size + LENGTH.unpack_from(raw, at)[0]
    if headers:
        return raw[:at] + LENGTH.pack(len(headers)) + headers + raw[stop:]
    return bytes((raw[0] & ~HEADERS,)) + raw[1:at] + raw[stop:]
