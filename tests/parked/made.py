"""Records as the tests need them."""

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

from django.utils import timezone

from django_rmq_retry.handlers.ticket import Ticket
from django_rmq_retry.models import ErrorGroup, ItemState, ParkedMessage, ParkedOrigin, RequeueItem, RequeueRun, State
from django_rmq_retry.models.parked import OriginKey
from django_rmq_retry.parked.claims import failed, succeeded

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
_numbers = itertools.count(1)


def minutes(count: float) -> datetime:
    """The time this number of minutes after noon."""
    return NOON + timedelta(minutes=count)


def group(**told: Any) -> ErrorGroup:
    """An error group without messages."""
    number = next(_numbers)
    known = {"fingerprint": f"{number:040x}", "title": "BankDown", "reason": "retries_exhausted"}
    return ErrorGroup.objects.create(**{**known, "first_seen": NOON, "last_seen": NOON, **told})


def parked(**told: Any) -> ParkedMessage:
    """A record, by default one that was parked at noon and is open."""
    number = next(_numbers)
    known = {
        "identity": f"message:{number}",
        "state": State.PARKED,
        "message_id": f"id-{number}",
        "queue": "payments",
        "parked_in": "payments.parked",
        "body": b"{}",
        "size": 2,
        "sha256": "0" * 64,
        "properties": b"\0\0",
        "by": "consumer",
        "reason": "retries_exhausted",
        "copy": f"{number:064x}",
        "parked_at": NOON,
        "recorded_at": NOON,
    }
    if "group" not in told:
        told["group"] = group()
    message = ParkedMessage.objects.create(**{**known, **told})
    ParkedOrigin.objects.add({OriginKey.of(message): int(message.state == State.PARKED)}, using="default")
    return message


def item(message: ParkedMessage, **told: Any) -> RequeueItem:
    """A message's place in a run of its own."""
    run = told.pop("run", None) or RequeueRun.objects.create(created_at=NOON, by="ann", total=1, sent=1)
    known = {"place": 1, "revision": 1, "state": ItemState.SENT, "cycle": message.cycle}
    return RequeueItem.objects.create(run=run, message=message, **{**known, **told})


def copy_succeeded(record: int, cycle: int = 2, *, at: datetime | None = None) -> None:
    """Note that the requeued copy of a record was handled, as the consumer does."""
    succeeded(Ticket(record=record, cycle=cycle), at or timezone.now())


def copy_failed(record: int, cycle: int = 2, *, at: datetime | None = None) -> None:
    """Note that the requeued copy of a record has failed in a process that parks nothing."""
    failed(Ticket(record=record, cycle=cycle), at or timezone.now(), error="BankDown", text="no answer")
