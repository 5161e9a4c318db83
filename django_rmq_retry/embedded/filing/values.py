"""What SQLite has no type for: names that may be no UTF-8, argument tables, and what a message has been through."""

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from django_rmq_retry.embedded.engine.messages import PERSISTENT, Death, Message, glance
from django_rmq_retry.embedded.engine.terms import milliseconds

_NO_PROPERTIES = b"\0\0"


def name_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def name_text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def table_text(table: Mapping[str, object]) -> str:
    """An argument table as JSON; what JSON has no type for is written as an object with one key."""
    return json.dumps({key: _written(value) for key, value in table.items()})


def table_of(text: str) -> dict[str, object]:
    return {key: _read(value) for key, value in json.loads(text).items()}


def past_text(message: Message) -> str | None:
    """What the bytes of a message do not say; None for most."""
    if not message.more and not message.deaths and message.count is None:
        return None
    deaths = [asdict(death) for death in message.deaths]
    return json.dumps({"more": message.more, "bcc": message.bcc, "count": message.count, "deaths": deaths})


def message_of(exchange: bytes, key: bytes, raw: bytes, body: bytes, past: str | None) -> Message:
    message = Message(name_text(exchange), name_text(key), raw, body)
    if raw != _NO_PROPERTIES:
        seen = glance(raw)
        message.persistent, message.priority = seen.mode == PERSISTENT, seen.priority
        if seen.expiration is not None:
            message.expiration = str(milliseconds(seen.expiration))
    if past is not None:
        told = json.loads(past)
        message.more, message.bcc, message.count = tuple(told["more"]), tuple(told["bcc"]), told["count"]
        message.deaths = tuple(Death(**{**death, "keys": tuple(death["keys"])}) for death in told["deaths"])
    return message


def _written(value: object) -> object:
    match value:
        case bytes():
            return {"bytes": b64encode(value).decode()}
        case Decimal():
            return {"decimal": str(value)}
        case datetime():
            return {"time": value.isoformat()}
        case dict():
            return {"table": {key: _written(item) for key, item in value.items()}}
        case list():
            return [_written(item) for item in value]
    return value


def _read(value: Any) -> object:
    match value:
        case {"bytes": str(text)}:
            return b64decode(text)
        case {"decimal": str(text)}:
            return Decimal(text)
        case {"time": str(text)}:
            found = datetime.fromisoformat(text)
            return found if found.tzinfo is None else found.astimezone(UTC)
        case {"table": dict(table)}:
            return {key: _read(item) for key, item in table.items()}
        case list():
            return [_read(item) for item in value]
    return value
