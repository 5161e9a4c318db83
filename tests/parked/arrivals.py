"""Copies as they are delivered from a parked queue, and the store to hand them to."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from django_rmq_retry import Delivery, RetryThenPark
from django_rmq_retry.handlers import registry, work_queues_of
from django_rmq_retry.handlers.ticket import Ticket
from django_rmq_retry.messages import ErrorNote, Reason
from django_rmq_retry.messages.identity import message_identity
from django_rmq_retry.models import ErrorGroup, ParkedMessage, ParkedOrigin
from django_rmq_retry.parked.store import RecordStore, Stored
from django_rmq_retry.policies import park
from tests.handlers.factories import NOW, arrived, delivery, subscription
from tests.messages.parked_copies import HOMES, parked_copy, unhandled_copy

DAWN = NOW
"""The time at which messages are parked, in milliseconds of the epoch."""
BANK_DOWN = park(Reason.EXHAUSTED, "after 5 attempts", ErrorNote(kind="BankDown", text="timeout"))


def ticket_header(
    record: int,
    cycle: int,
    *,
    queue: str = "payments",
    id: str | None = "m-1",  # noqa: A002 - its name in AMQP
    body: bytes = b"{}",
) -> dict[str, object]:
    """The header of the copy that a requeue sends: the signed ticket of its record and cycle."""
    return {"rmq-retry-ticket": Ticket(record=record, cycle=cycle).signed(message_identity(queue, id, body))}


def ticket_in(
    headers: Mapping[str, Any],
    *,
    queue: str,
    id: str | None,  # noqa: A002 - its name in AMQP
    body: bytes,
) -> tuple[int, int]:
    """The record and the cycle in the ticket of a requeued copy, which must be signed for this message."""
    found = Ticket.read(headers["rmq-retry-ticket"], message_identity(queue, id, body))
    assert found is not None
    return found.record, found.cycle


def by_us(*, at: int = DAWN, again: bool = False, ticket: tuple[int, int] | None = None, error: str = "BankDown",
          id: str | None = "m-1", handler: str = "payments.charge", **told: Any) -> Delivery:  # noqa: A002  # fmt: skip
    """A message that our consumer parked; a requeued copy has a signed ticket with its record and cycle."""
    exhausted = park(Reason.EXHAUSTED, "after 5 attempts", ErrorNote(kind=error, text="timeout"))
    headers, verdict = dict(told.pop("headers", {})), told.pop("verdict", exhausted)
    if ticket is not None:
        headers |= ticket_header(*ticket, id=id, body=told.get("body", b"{}"))
    failed = delivery(message_id=id, headers=headers, attempt=5, **told)
    copy = parked_copy(verdict, failed, handler=handler, now=at)
    return replace(arrived(copy, queue="payments.parked"), redelivered=again)


def untaken() -> Delivery:
    """A message that our consumer parked because none of its handlers takes it."""
    (work_queue,) = work_queues_of([subscription(RetryThenPark())])
    copy = unhandled_copy(park(Reason.UNHANDLED, "none takes it"), delivery(message_id="m-1"), work_queue)
    return arrived(copy, queue="payments.parked")


def foreign(*, again: bool = False, id: str | None = "m-1", **told: Any) -> Delivery:  # noqa: A002
    """A message that another program put into a parked queue."""
    return delivery(**{"queue": "payments.parked", **told}, message_id=id, redelivered=again)


def record_store(homes: Mapping[str, str] = HOMES) -> RecordStore:
    """The store of the drainer, for these parked queues and the registered handlers."""
    return RecordStore(homes, registry.work_queues())


def store(*batch: Delivery, homes: Mapping[str, str] = HOMES) -> list[Stored]:
    """In one batch."""
    return list(record_store(homes).store(batch))


def the_record() -> ParkedMessage:
    return ParkedMessage.objects.get()


def the_group() -> ErrorGroup:
    return ErrorGroup.objects.get()


def change(record: ParkedMessage, **changes: Any) -> ParkedMessage:
    """As an operator or a worker would."""
    before = ParkedMessage.objects.get(pk=record.pk)
    ParkedMessage.objects.filter(pk=record.pk).update(**changes)
    ParkedOrigin.objects.count_moved([before], changes.get("state", before.state), using="default")
    return ParkedMessage.objects.get(pk=record.pk)
