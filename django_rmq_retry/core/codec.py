"""Bodies to data and back. JSON by default, read so strictly that two readers cannot understand one payment differently."""

import datetime
import json
import uuid
from decimal import Decimal
from typing import Protocol

from django_rmq_retry.core.errors import UndecodableBody, UnencodableData
from django_rmq_retry.core.properties import Properties

SHOWN = 80


class Codec(Protocol):
    """How one handler's bodies are written and read."""

    content_type: str

    def encode(self, data: object) -> bytes: ...

    def decode(self, body: bytes, properties: Properties | None = None) -> object: ...


class Json:
    """UTF-8 JSON; numbers with a point are read as Decimal; NaN, doubled keys and compressed bodies are refused."""

    content_type = "application/json"

    def encode(self, data: object) -> bytes:
        try:
            return _ENCODER.encode(data).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise UnencodableData(f"{str(error) or 'it is nested too deeply'} (JSON)") from error

    def decode(self, body: bytes, properties: Properties | None = None) -> object:
        if properties is not None and properties.content_encoding not in (
            None,
            "",
            "utf-8",
            "UTF-8",
            "utf8",
            "identity",
        ):
            raise UndecodableBody(f"its content-encoding is {properties.content_encoding[:SHOWN]!r}", size=len(body))
        try:
            return _decode(body.decode())
        except UnicodeDecodeError as error:
            problem = f"it is not UTF-8 at byte {error.start}"
        except RecursionError:
            problem = "it is nested too deeply"
        except ValueError as error:
            problem = f"it is not JSON: {str(error)[:SHOWN]}"
        raise UndecodableBody(problem, size=len(body))


class Raw:
    """Bytes as they are."""

    content_type = "application/octet-stream"

    def encode(self, data: object) -> bytes:
        if isinstance(data, (bytes, bytearray, memoryview)):
            return bytes(data)
        raise UnencodableData(f"the Raw codec takes bytes, not {type(data).__name__}")

    def decode(self, body: bytes, properties: Properties | None = None) -> object:
        return body


def _plain(value: object) -> object:
    if isinstance(value, (Decimal, uuid.UUID)):
        return str(value)
    if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
        return value.isoformat()
    raise TypeError(f"an object of type {type(value).__name__} has no JSON form")


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return found


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is not a number")


_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"), ensure_ascii=False, default=_plain)
_decode = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse, parse_float=Decimal).decode
JSON = Json()
