"""The call of a task as a message: ``{"task": "shop.tasks.send", "args": [7], "kwargs": {}}``."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from django_rmq_retry.errors import UndecodableBody, UnencodableData
from django_rmq_retry.messages.codecs import Json
from django_rmq_retry.messages.message import Delivery
from django_rmq_retry.messages.properties import Properties

PARTS = {"task": str, "args": list, "kwargs": dict}


class TaskCalls(Json):
    """JSON of exactly these parts. A number with a fraction is a float, as in Django's other backends."""

    def encode(self, data: object) -> bytes:
        body = super().encode(data)
        try:
            # What a consumer would park is refused where it is enqueued.
            self.decode(body)
        except UndecodableBody as error:
            raise UnencodableData(error.problem) from error
        return body

    def decode(self, body: bytes, properties: Properties | None = None) -> dict[str, Any]:
        data = super().decode(body, properties)
        if not isinstance(data, dict) or data.keys() != PARTS.keys():
            raise UndecodableBody("it is no task: an object with task, args and kwargs", size=len(body))
        for name, kind in PARTS.items():
            if not isinstance(data[name], kind):
                # Not its value: an error is also read by operators who may not see bodies.
                found = type(data[name]).__name__
                raise UndecodableBody(f"it is no task: its {name!r} is {found}, not {kind.__name__}", size=len(body))
        return {**data, "args": _floats(data["args"]), "kwargs": _floats(data["kwargs"])}

    def schema(self) -> Mapping[str, object]:
        """Return the JSON Schema of a call, for the AsyncAPI document."""
        kinds = {"task": {"type": "string"}, "args": {"type": "array"}, "kwargs": {"type": "object"}}
        return {"type": "object", "properties": kinds, "required": [*PARTS], "additionalProperties": False}

    @staticmethod
    def keys(message: Delivery) -> list[str]:
        """Return the business keys of a task: its path and its id."""
        return [message.data["task"], *([message.id] if message.id else [])]


def _floats(value: Any) -> Any:
    """Return the data with floats; the depth of the data is limited already."""
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, list):
        return [_floats(one) for one in value]
    if isinstance(value, dict):
        return {name: _floats(one) for name, one in value.items()}
    return value


CALLS = TaskCalls()
