"""Records as the drainer leaves them, and people who act on them."""

import hashlib
import itertools
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pytest
from django.db.models import F
from django.utils import timezone

from django_rmq_retry.messages import Headers, Properties, encode_properties
from django_rmq_retry.messages.properties import EMPTY
from django_rmq_retry.models import (
    Action,
    BusinessKey,
    ErrorGroup,
    OperatorAction,
    ParkedMessage,
    ParkedOrigin,
    RequeueRun,
    State,
)
from django_rmq_retry.models.parked import COUNTED_AS, OriginKey
from django_rmq_retry.parked import items, listing, requeue, run_steering
from django_rmq_retry.parked.actions import Done, discard, hold, restore, unhold
from django_rmq_retry.parked.audit import log_action
from django_rmq_retry.parked.claims import claim
from django_rmq_retry.parked.copies import copies_of
from django_rmq_retry.parked.database import records_alias
from django_rmq_retry.parked.groups import count_minutes, minute_of
from django_rmq_retry.parked.operators import Actor
from django_rmq_retry.parked.requeue_options import RequeueOptions
from django_rmq_retry.parked.run_steps import RunSteps, send_run
from django_rmq_retry.parked.selection import Selection

ANN = Actor(name="ann", source="cli")
BOB = Actor(name="bob", source="cli")
QUEUE = "payments.charge"
Chosen = Selection | Iterable[int]
"""Records that an operator has chosen: a selection, or their ids."""
numbers = itertools.count(1)


def group(fingerprint: str = "f", **fields: Any) -> ErrorGroup:
    now = timezone.now()
    defaults = {"title": "BankDown", "reason": "retries_exhausted", "first_seen": now, "last_seen": now, **fields}
    defaults.setdefault("last_new", defaults["last_seen"])
    return ErrorGroup.objects.get_or_create(fingerprint=fingerprint, defaults=defaults)[0]


def record(**fields: Any) -> ParkedMessage:
    """A parked message, counted in its group; each has an id of its own."""
    message = uncounted(**fields)
    counter = COUNTED_AS[message.state]
    ErrorGroup.objects.filter(pk=message.group_id).update(**{counter: F(counter) + 1})
    again = message.requeued_at is not None and message.requeued_at < message.parked_at
    new = message.copies == 1 and not again
    count_minutes([(message.group_id, minute_of(message.parked_at), new, 1)], using=records_alias())
    return message


def uncounted(
    *, key: str = "", keys: Iterable[str] = (), headers: dict[str, object] | None = None, **fields: Any
) -> ParkedMessage:
    """A parked message that the counters of its group leave out; those by queue and handler count it."""
    number = next(numbers)
    body = fields.setdefault("body", b'{"payment": 7}')
    name = fields.setdefault("message_id", f"m-{number}")
    properties = Properties(
        message_id=name, content_type="application/json", headers=Headers.of(headers or {}) or EMPTY
    )
    now = timezone.now()
    values = {
        "identity": f"message:{number}",
        "group": fields.get("group") or group(),
        "business_key": key,
        "queue": QUEUE,
        "parked_in": f"{QUEUE}.parked",
        "exchange": "payments",
        "routing_key": "charge.card",
        "size": len(body),
        "sha256": hashlib.sha256(body).hexdigest(),
        "properties": encode_properties(properties),
        "by": "consumer",
        "reason": "retries_exhausted",
        "error": "BankDown",
        "attempts": 5,
        "copy": hashlib.sha256(str(number).encode()).hexdigest(),
        "parked_at": now - timedelta(minutes=5) + timedelta(milliseconds=number),
        "recorded_at": now,
    }
    message = ParkedMessage.objects.create(**(values | fields))
    named = list(keys) or [message.business_key] * bool(message.business_key)
    BusinessKey.objects.bulk_create([BusinessKey(message=message, value=value) for value in named])
    ParkedOrigin.objects.add({OriginKey.of(message): int(message.state == State.PARKED)}, using=records_alias())
    return message


def requeue_run(chosen: Chosen, by: Actor = ANN, *, reason: str = "", **options: Any) -> RequeueRun:
    """Start a requeue run of these records; no driver sends it yet."""
    return requeue.start(selected(chosen), by, RequeueOptions(**options), reason=reason)


def pause_run(run: RequeueRun, by: Actor = ANN, **options: Any) -> RequeueRun:
    return run_steering.pause_run(run.pk, by, **options)


def resume_run(run: RequeueRun, by: Actor = ANN) -> RequeueRun:
    return run_steering.resume_run(run.pk, by)


def stop_run(run: RequeueRun, by: Actor = ANN, **options: Any) -> RequeueRun:
    return run_steering.stop_run(run.pk, by, **options)


def driver_of(run: RequeueRun, name: str = "test", **parts: Any) -> RunSteps:
    """A driver of this run, which sends at each step what is due."""
    return RunSteps(run.pk, name, **parts)


def drive_run(run: RequeueRun, driver: str = "test", *, outcomes: bool = False, **options: Any) -> RequeueRun:
    """Send a run to its end, by default without waiting for the outcomes of its copies."""
    return send_run(run.pk, driver, outcomes=outcomes, **options)


def list_in_parts(patch: pytest.MonkeyPatch, part: int, *, at_once: int, patience: float | None = None) -> None:
    """List runs of more than `at_once` messages later, in parts: a few messages do for many thousands."""
    patch.setattr(listing, "LISTED_AT_ONCE", at_once)
    patch.setattr(listing, "PART_ITEMS", part)
    patch.setattr(items, "SKIPPED_AT_ONCE", part)
    if patience is not None:
        patch.setattr(run_steering, "STOP_SECONDS", patience)


def list_part_of(run: RequeueRun, driver: str = "me") -> None:
    """Let a driver list the next part of a large run."""
    listing.list_part(run.pk, driver)


def claimed_of(run: RequeueRun, driver: str = "me", **which: Any) -> list[Any]:
    """Claim the items of a run for a driver, as it does before it sends them."""
    return list(claim(run.pk, driver, list(run.items.filter(**which)), copies_of))


def discard_messages(chosen: Chosen, by: Actor = ANN, *, category: str = "test", **options: Any) -> Done:
    """Let an operator discard these records."""
    return discard(selected(chosen), by, category=category, **options)


def restore_messages(chosen: Chosen, by: Actor = ANN) -> Done:
    return restore(selected(chosen), by, reason="wrong row")


def hold_messages(chosen: Chosen, by: Actor = ANN) -> Done:
    """Let an operator put these records on hold for an hour."""
    return hold(selected(chosen), by, until=timezone.now() + timedelta(hours=1))


def unhold_messages(chosen: Chosen, by: Actor = ANN) -> Done:
    return unhold(selected(chosen), by)


def selected(chosen: Chosen) -> Selection:
    return chosen if isinstance(chosen, Selection) else Selection.of_ids(chosen)


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
