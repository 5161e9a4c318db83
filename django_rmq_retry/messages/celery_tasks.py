"""The codec of Celery's message format, protocol 1 and 2, for JSON only. Nothing of Celery is imported."""

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

from django_rmq_retry.errors import UndecodableBody, UnencodableData
from django_rmq_retry.messages.codecs import SHOWN_CHARACTERS, Json, exact_number
from django_rmq_retry.messages.message import Delivery
from django_rmq_retry.messages.properties import Headers, Properties

ENVELOPE = {"__type__", "__value__"}
"""The keys of an object in which Celery writes a value that has no JSON form."""
MOMENTS = ("eta", "expires")
LINKS = ("callbacks", "errbacks", "chain", "chord")


@dataclass(frozen=True, slots=True, kw_only=True)
class CeleryCall:
    """The call of a task, as Celery's message has it: ``message.data`` of a handler with ``codec=CeleryTask()``."""

    task: str
    """The name of the task."""
    id: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    retries: int = 0
    """The retries that Celery had made."""
    eta: datetime | None = None
    """The moment before which Celery would not run the task, with a time zone."""
    expires: datetime | None = None
    """The moment after which Celery would not run the task, with a time zone."""
    links: Mapping[str, Any] = field(default_factory=dict)
    """What Celery would start after this task: its callbacks, errbacks, chain and chord, without the empty ones."""


class CeleryTask(Json):
    """The message format of Celery, version 1 and 2 of its protocol, with the JSON serializer.

    Messages of other serializers, such as pickle, and compressed ones are parked; they are never loaded. It encodes a
    ``CeleryCall`` by version 1, which has everything in the body and which each Celery worker reads.
    """

    def encode(self, data: object) -> bytes:
        if not isinstance(data, CeleryCall):
            raise UnencodableData(f"the CeleryTask codec takes a CeleryCall, not {type(data).__name__}")
        written = {one.name: getattr(data, one.name) for one in fields(data) if one.name != "links"}
        try:
            written |= {name: _written(name, written[name]) for name in MOMENTS}
            # Workers of Celery need the keys of all links.
            body = _ENCODER.encode({**dict.fromkeys(LINKS), **data.links, **written, "utc": True}).encode()
            # What this codec could not read, a worker of Celery could not read either.
            self.decode(body)
        except UndecodableBody as error:
            raise UnencodableData(error.problem) from error
        except (TypeError, ValueError, RecursionError) as error:
            raise UnencodableData(f"{str(error) or 'it is nested too deeply'} (JSON)") from error
        return body

    def decode(self, body: bytes, properties: Properties | None = None) -> CeleryCall:
        known = properties or Properties()
        try:
            _check_plain(known)
            return _call(_python(super().decode(body, properties)), known.headers)
        except ValueError as error:
            raise UndecodableBody(str(error), size=len(body)) from error

    @staticmethod
    def keys(message: Delivery) -> list[str]:
        """Return the business keys of a handler that has no ``keys``: the task's name and id."""
        return [message.data.task, message.data.id]


def _check_plain(properties: Properties) -> None:
    """Raise ValueError with a sentence for a body that is serialized in another way, or compressed."""
    kind = properties.content_type or CeleryTask.content_type
    if kind != CeleryTask.content_type:
        raise ValueError(
            f"it is {kind!a:.{SHOWN_CHARACTERS}}, and CeleryTask reads JSON only. Set task_serializer='json' in Celery"
        )
    if packed := properties.headers.get("compression"):
        raise ValueError(
            f"it is compressed ({packed!a:.{SHOWN_CHARACTERS}}), and CeleryTask reads plain bodies only. Omit "
            "task_compression in Celery"
        )


def _call(data: object, headers: Headers) -> CeleryCall:
    """Return the call; ValueError with a sentence if it is none."""
    named: Mapping[str, Any]
    match data:
        case [args, kwargs, links] if "task" in headers:
            named = {**{name: headers.get(name) for name in WANTED}, "args": args, "kwargs": kwargs}
        case dict() if "task" not in headers:
            named = links = data
        case _ if "task" in headers:
            raise ValueError("it is not [args, kwargs, embed], as Celery's protocol 2 has it")
        case _:
            raise ValueError(
                "it is no message of Celery: protocol 2 has the header 'task' and the property content-encoding, "
                "protocol 1 an object with a 'task'"
            )
    given = {name: value for name, value in named.items() if name in WANTED and value is not None}
    for name, kind in WANTED.items():
        if (name in given or name in ("task", "id")) and type(given.get(name)) is not kind:
            found = type(given[name]).__name__ if name in given else "missing"
            raise ValueError(f"the {name!r} of the Celery message is {found}, not {kind.__name__}")
    if not given["task"]:
        raise ValueError("the 'task' of the Celery message is empty")
    if links is not None and not isinstance(links, dict):
        raise ValueError(f"the embedded part of the Celery message is {type(links).__name__}, not dict")
    moments = {name: _moment(name, given[name]) for name in MOMENTS if name in given}
    links = {name: links[name] for name in LINKS if links.get(name)} if links else {}
    return CeleryCall(**{**given, **moments, "args": tuple(given.get("args", ())), "links": links})


def _moment(name: str, text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"the {name!r} of the Celery message is no time in ISO 8601") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _written(name: str, moment: object) -> str | None:
    if moment is None:
        return None
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        raise ValueError(f"{name} is a datetime with a time zone, such as timezone.now(), not {moment!r:.80}")
    return moment.isoformat()


WANTED = {"task": str, "id": str, "args": list, "kwargs": dict, "retries": int, "eta": str, "expires": str}
"""The parts of a call and their types in JSON."""


def _decimal(text: str) -> Decimal:
    number = exact_number(text)
    if not number.is_finite():
        raise ValueError("it is not finite")
    return number


class _Kind(NamedTuple):
    """A type of Python that has no JSON form, with its name in Celery's messages."""

    name: str
    type: type
    written: Callable[[Any], object]
    read: Callable[[Any], object]


# A datetime is a date too, so it comes first.
_KINDS = (
    _Kind("datetime", datetime, datetime.isoformat, datetime.fromisoformat),
    _Kind("date", date, date.isoformat, date.fromisoformat),
    _Kind("time", time, time.isoformat, time.fromisoformat),
    _Kind("decimal", Decimal, str, _decimal),
    _Kind("uuid", UUID, lambda value: {"hex": value.hex}, lambda value: UUID(hex=value["hex"])),
    _Kind("base64", bytes, lambda value: base64.b64encode(value).decode(), base64.b64decode),
    _Kind("bytes", bytes, bytes.decode, str.encode),
)
_NAMED = {one.name: one for one in _KINDS}


def _envelope(value: object) -> object:
    for one in _KINDS:
        if isinstance(value, one.type):
            return {"__type__": one.name, "__value__": one.written(value)}
    raise TypeError(f"an object of type {type(value).__name__} has no form in Celery's JSON")


def _python(value: Any) -> Any:
    """Return the data with the values of its envelopes; the depth of the data is limited already."""
    if isinstance(value, list):
        return [_python(one) for one in value]
    if not isinstance(value, dict):
        return value
    value = {name: _python(one) for name, one in value.items()}
    if value.keys() != ENVELOPE:
        return value
    try:
        return _NAMED[value["__type__"]].read(value["__value__"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        # Any other name is a text of the body, which not every operator who reads the reason may see.
        kind = next((f"Celery's type {name!r}" for name in _NAMED if name == value["__type__"]), "an unknown type")
        raise ValueError(f"it has a value of {kind} that cannot be read") from error


_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"), ensure_ascii=False, default=_envelope)
