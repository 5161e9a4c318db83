"""Records as the drainer leaves them, and people who act on them."""

import hashlib
import itertools
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from django.utils import timezone

from django_rmq_retry.messages import Headers, Properties, encode_properties
from django_rmq_retry.messages.properties import EMPTY
from django_rmq_retry.models import Action, BusinessKey, ErrorGroup, OperatorAction, ParkedMessage, RequeueRun
from django_rmq_retry.models.parked import COUNTED_AS
from django_rmq_retry.parked.actions import discard
from django_rmq_retry.parked.operators import Actor, log_action
from django_rmq_retry.parked.requeue import start
from django_rmq_retry.parked.selection import Selection

ANN = Actor(name="ann", source="cli")
BOB = Actor(name="bob", source="cli")
QUEUE = "payments.charge"
numbers = itertools.count(1)


def group(fingerprint: str = "f", **fields: Any) -> ErrorGroup:
    now = timezone.now()
    defaults = {"title": "BankDown", "reason": "retries_exhausted", "first_seen": now, "last_seen": now, **fields}
    return ErrorGroup.objects.get_or_create(fingerprint=fingerprint, defaults=defaults)[0]


def record(*, key: str = "", headers: dict[str, object] | None = None, **fields: Any) -> ParkedMessage:
    """A parked message; each has an id of its own."""
    number = next(numbers)
    body = fields.pop("body", b'{"payment": 7}')
    name = fields.pop("message_id", f"m-{number}")
    properties = Properties(
        message_id=name, content_type="application/json", headers=Headers.of(headers or {}) or EMPTY
    )
    now = timezone.now()
    values = {
        "identity": f"message:{number}",
        "group": fields.pop("group", None) or group(),
        "message_id": name,
        "queue": QUEUE,
        "parked_in": f"{QUEUE}.parked",
        "exchange": "payments",
        "routing_key": "charge.card",
        "properties": encode_properties(properties),
        "by": "consumer",
        "reason": "retries_exhausted",
        "error": "BankDown",
        "attempts": 5,
        "copy": hashlib.sha256(str(number).encode()).hexdigest(),
        "parked_at": now - timedelta(minutes=5) + timedelta(milliseconds=number),
        "recorded_at": now,
        **fields,
    }
    sha = hashlib.sha256(body).hexdigest()
    made = ParkedMessage.objects.create(body=body, size=len(body), sha256=sha, business_key=key, **values)
    if key:
        BusinessKey.objects.create(message=made, value=key)
    counter = COUNTED_AS[made.state]
    ErrorGroup.objects.filter(pk=made.group_id).update(**{counter: getattr(group_of(made), counter) + 1})
    return made


def requeue_run(ids: Iterable[int], by: Actor = ANN, **options: Any) -> RequeueRun:
    """Start a requeue run of these records; no driver sends it yet."""
    return start(Selection.of_ids(ids), by, **options)


def discard_messages(ids: Iterable[int], by: Actor = ANN, *, category: str = "test", **options: Any) -> None:
    """Let an operator discard these records."""
    discard(Selection.of_ids(ids), by, category=category, **options)


def logged(action: Action, by: Actor = ANN, *, on: ParkedMessage | None = None, **columns: Any) -> OperatorAction:
    """A row of the audit log, about this record if there is one."""
    if on:
        columns["message"] = on.pk
    return log_action(by, action, **columns)


def group_of(message: ParkedMessage) -> ErrorGroup:
    return ErrorGroup.objects.get(pk=message.group_id)


def again(message: ParkedMessage) -> ParkedMessage:
    """As it is in the database now."""
    return ParkedMessage.objects.get(pk=message.pk)
