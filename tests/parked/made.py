"""Records as the tests need them."""

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

from django.utils import timezone

from django_rmq_retry.handlers.ticket import Ticket
from django_rmq_retry.models import ErrorGroup, ItemState, ParkedMessage, RequeueItem, RequeueRun
from django_rmq_retry.parked.outcomes import failed, succeeded
from tests.operators import made

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
_numbers = itertools.count(1)


def minutes(count: float) -> datetime:
    """The time this number of minutes after noon."""
    return NOON + timedelta(minutes=count)


def group(**told: Any) -> ErrorGroup:
    """An error group of its own, without messages."""
    times = {"first_seen": NOON, "last_seen": NOON}
    return made.group(f"{next(_numbers):040x}", **{**times, **told})


def parked(**told: Any) -> ParkedMessage:
    """A record, by default one that was parked at noon and is open, in a group of its own that does not count it."""
    if "group" not in told:
        told["group"] = group()
    places = {"queue": "payments", "parked_in": "payments.parked", "body": b"{}", "error": ""}
    times = {"parked_at": NOON, "recorded_at": NOON}
    return made.uncounted(**{**places, **times, **told})


def item(message: ParkedMessage, **told: Any) -> RequeueItem:
    """A message's place in a run of its own."""
    run = told.pop("run", None) or RequeueRun.objects.create(created_at=NOON, by="ann", total=1, sent=1)
    known = {"place": 1, "revision": 1, "state": ItemState.SENT, "cycle": message.cycle}
    return RequeueItem.objects.create(run=run, message=message, **{**known, **told})


def copy_succeeded(record: int, cycle: int = 2, *, at: datetime | None = None, **told: bool) -> None:
    """Note that the requeued copy of a record was handled, as the consumer does."""
    succeeded(Ticket(record=record, cycle=cycle), at or timezone.now(), **told)


def copy_failed(record: int, cycle: int = 2, *, at: datetime | None = None) -> None:
    """Note that the requeued copy of a record has failed in a process that parks nothing."""
    failed(Ticket(record=record, cycle=cycle), at or timezone.now(), error="BankDown", text="no answer")
