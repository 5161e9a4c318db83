"""Calls of tasks, as Celery 5.7.0 sent them to RabbitMQ in the messages of ``celery/``."""

import base64
import json
from dataclasses import replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from uuid import UUID

from django_rmq_retry import CeleryCall
from django_rmq_retry.messages import Properties, decode_properties

MOMENT = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
CALL = CeleryCall(task="payments.tasks.charge", id="task-1", args=(7,), kwargs={"amount": "9.90"})
TYPES = (Decimal("9.90"), MOMENT, date(2030, 1, 2), time(3, 4), UUID(int=7), b"abc", b"\xff\xfe", Decimal("0.5"))
NEXT = {"task": "payments.tasks.report", "args": [], "kwargs": {}, "options": {}}
CALLS = {
    "plain": CALL,
    "eta": replace(CALL, id="task-2", kwargs={}, eta=MOMENT),
    "types": replace(CALL, id="task-4", args=TYPES, kwargs={}),
    "linked": replace(
        CALL,
        id="task-5",
        kwargs={},
        retries=2,
        links={"callbacks": [{**NEXT, "subtask_type": None, "immutable": False}]},
    ),
}


def recorded(protocol: int, name: str) -> tuple[bytes, Properties]:
    """A message as Celery 5.7.0 published it to RabbitMQ, read by `basic_get`."""
    text = (Path(__file__).parent / "celery" / f"protocol{protocol}.json").read_text()
    message = json.loads(text)["messages"][name]
    return base64.b64decode(message["body"]), decode_properties(base64.b64decode(message["properties"]))
