"""Codecs: bodies to data and back. JSON, the default, rejects ambiguous input: two readers get the same data."""

import datetime
import itertools
import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Protocol, runtime_checkable

from django_rmq_retry.errors import InvalidBody, InvalidData, Misfit, UndecodableBody, UnencodableData
from django_rmq_retry.messages.message import Delivery
from django_rmq_retry.messages.properties import Properties
from django_rmq_retry.messages.texts import ErrorNote

SHOWN_CHARACTERS = 80
BODY_DEPTH_LIMIT = 64
MAGNITUDE_LIMIT = 308
"""The largest decimal exponent, up or down, that a 64-bit floating point number of any reader can hold."""
ENCODINGS = frozenset({"", "utf-8", "utf8", "identity"})
# One match skips a whole string, even an unterminated one, so that the scan stays linear.
_BRACKETS = re.compile(r'[\[{]|[\]}]|"(?:[^"\\]++|\\.)*+"?', re.DOTALL)

ENCODED = 0x40
"""The bit in the first byte of the encoded properties that is set if content-encoding is present."""


class Codec(Protocol):
    """The interface that encodes and decodes the message bodies of a handler.

    A codec may also have a function ``keys``: the business keys of a message whose handler names none.
    """

    content_type: str

    def encode(self, data: object) -> bytes: ...

    def decode(self, body: bytes, properties: Properties | None = None) -> object: ...


@runtime_checkable
class Described(Protocol):
    """A codec that knows which bodies it reads; the AsyncAPI document has its schema."""

    def schema(self) -> Mapping[str, object]:
        """Return a JSON Schema of the data, whose references begin at its own root: ``#/$defs/…``."""
        ...


class Json:
    """UTF-8 JSON. Numbers with a fraction are read as Decimal. NaN, duplicate keys and compressed bodies are errors."""

    content_type = "application/json"

    def encode(self, data: object) -> bytes:
        try:
            return _ENCODER.encode(data).encode()
        except UnencodableData:
            raise
        except (TypeError, ValueError, RecursionError) as error:
            raise UnencodableData(f"{str(error) or 'it is nested too deeply'} (JSON)") from error

    def decode(self, body: bytes, properties: Properties | None = None) -> object:
        if properties is not None and (properties.content_encoding or "").lower() not in ENCODINGS:
            raise UndecodableBody(
                f"its content-encoding is {properties.content_encoding!a:.{SHOWN_CHARACTERS}}", size=len(body)
            )
        try:
            text = body.decode()
            if text.count("[") + text.count("{") <= BODY_DEPTH_LIMIT or not _too_deep(text):
                return _decode(text)
            problem = f"it is nested more than {BODY_DEPTH_LIMIT} levels deep"
        except UnicodeDecodeError as error:
            problem = f"it is not UTF-8 at byte {error.start}"
        except ValueError as error:
            problem = f"it is not JSON: {str(error)[:SHOWN_CHARACTERS]}"
        raise UndecodableBody(problem, size=len(body))


class Raw:
    """The codec that passes bytes through unchanged."""

    content_type = "application/octet-stream"

    def encode(self, data: object) -> bytes:
        if isinstance(data, (bytes, bytearray, memoryview)):
            return bytes(data)
        raise UnencodableData(f"the Raw codec takes bytes, not {type(data).__name__}")

    def decode(self, body: bytes, properties: Properties | None = None) -> object:
        return body


class Fit(Protocol):
    """A type that data are converted to, and back. Both raise Misfit for data that do not fit."""

    schema: Mapping[str, object]
    """The JSON Schema of the type."""

    def load(self, data: object, text: bytes | None) -> object:
        """Return the value of data that were decoded from this JSON, or from anything else if it is None."""
        ...

    def dump(self, data: object) -> object:
        """Return a value as plain data, which a codec encodes."""
        ...


class Typed:
    """The codec of a handler whose annotation names a type: what its own codec reads is converted to that type."""

    def __init__(self, inner: Codec, fit: Fit) -> None:
        self.inner = inner
        self.fit = fit
        self.content_type = inner.content_type

    def encode(self, data: object) -> bytes:
        try:
            plain = self.fit.dump(data)
        except Misfit as misfit:
            raise InvalidData(misfit) from None
        return self.inner.encode(plain)

    def decode(self, body: bytes, properties: Properties | None = None) -> object:
        data = self.inner.decode(body, properties)
        try:
            # A codec of a project may read its JSON from bytes in which nobody finds it.
            return self.fit.load(data, body if type(self.inner) is Json else None)
        except Misfit as misfit:
            # Without the exception behind it, whose text may have values of the message.
            raise InvalidBody(misfit, size=len(body)) from None

    def schema(self) -> Mapping[str, object]:
        return self.fit.schema


def untyped(codec: Codec) -> Codec:
    """Return the codec that reads and writes the bytes: a handler's type is that of its messages, not its answers."""
    return codec.inner if isinstance(codec, Typed) else codec


SMALL_BYTES = 64 * 1024
"""In bytes. A smaller body is within any limit."""
# One match skips a whole string, even an unterminated one: nothing is copied, and marks inside strings do not count.
_MARKS = re.compile(rb'[\[{,:]|"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
QUOTE = ord('"')


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyLimits:
    """The limits on a body that is decoded: data take up to eighty times the memory of their JSON."""

    most_bytes: int = 16 * 1024 * 1024
    most_elements: int = 500_000
    """The objects, lists, keys and values of a JSON body."""

    def problem(self, body: bytes, codec: Codec) -> str:
        """Return a sentence if the body is beyond a limit; it is found without decoding it."""
        codec = untyped(codec)
        if len(body) <= SMALL_BYTES or isinstance(codec, Raw):
            return ""
        if len(body) > self.most_bytes:
            return f"it is larger than RMQ_RETRY['BODY_BYTES'], {self.most_bytes}"
        if isinstance(codec, Json) and _has_more_elements(body, self.most_elements):
            return f"it has more elements than RMQ_RETRY['BODY_ELEMENTS'], {self.most_elements}"
        return ""


LIMITS = BodyLimits()


def _has_more_elements(text: bytes, most: int) -> bool:
    """True if a JSON text has more elements than `most`. The count ends there: it takes little time and no memory."""
    if sum(map(text.count, (b"[", b"{", b",", b":"))) <= most:
        return False
    marks = (found for found in _MARKS.finditer(text) if text[found.start()] != QUOTE)
    return next(itertools.islice(marks, most, None), None) is not None


def decoded(delivery: Delivery, codec: Codec, limits: BodyLimits = LIMITS) -> object:
    """Return the data of a message; raise UndecodableBody if the codec cannot read it, or if it is beyond a limit."""
    if len(delivery.body) > SMALL_BYTES and (problem := limits.problem(delivery.body, codec)):
        raise UndecodableBody(problem, size=len(delivery.body))
    # Json and Raw look only at the content-encoding, and most messages have none and never need them decoded.
    unread = type(untyped(codec)) in (Json, Raw) and not delivery.raw[0] & ENCODED
    properties = None if unread else delivery.properties
    try:
        return codec.decode(delivery.body, properties)
    except UndecodableBody:
        raise
    except Exception as broken:
        raise UndecodableBody(str(ErrorNote.of(broken)), size=len(delivery.body)) from broken


def _plain(value: object) -> object:
    if isinstance(value, Decimal) and not value.is_finite():
        raise ValueError(f"Decimal {value} has no JSON form")
    if isinstance(value, (Decimal, uuid.UUID)):
        return str(value)
    if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
        return value.isoformat()
    raise UnencodableData(f"an object of type {type(value).__name__} has no JSON form", advice=_advice(value))


def _advice(value: object) -> str:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return "Use codec=Raw() to send bytes as they are, or pass them as text, such as base64."
    if isinstance(value, (set, frozenset)):
        return "Pass a list."
    return "Pass plain values, such as the pk of a model instance."


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("a key occurs twice in one object")
    return values


def _too_deep(text: str) -> bool:
    """True if the text is nested too deep: the parser, and readers of its data, recurse per level."""
    depth = 0
    for bracket in _BRACKETS.finditer(text):
        first = bracket[0][0]
        depth += (first in "[{") - (first in "]}")
        if depth > BODY_DEPTH_LIMIT:
            return True
    return False


def exact_number(text: str) -> Decimal:
    try:
        number = Decimal(text)
    except ArithmeticError:
        raise ValueError("a number has too large an exponent") from None
    # Other readers would turn such a number into infinity, and int() of 1e999999999 would exhaust the memory.
    if abs(number.adjusted()) > MAGNITUDE_LIMIT:
        raise ValueError("a number has too large an exponent")
    return number


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is not a number in JSON")


_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"), ensure_ascii=False, default=_plain)

_decode = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse, parse_float=exact_number).decode

JSON = Json()
