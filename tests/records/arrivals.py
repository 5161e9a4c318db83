"""Copies as they are delivered from a parked queue, and a parker to hand them to."""

from dataclasses import replace
from typing import Any

from django_rmq_retry import Delivery, RetryThenPark
from django_rmq_retry.handlers import registry, work_queues
from django_rmq_retry.handlers.settlement import parked as parking
from django_rmq_retry.handlers.settlement import unhandled
from django_rmq_retry.handlers.ticket import Ticket, bearer
from django_rmq_retry.messages import ErrorNote, Reason
from django_rmq_retry.models import ErrorGroup, ParkedMessage
from django_rmq_retry.parked.store import Store, Stored
from django_rmq_retry.policies import park
from tests.core.made import arrived, delivery, subscription

HOMES = {"payments.parked": "payments"}
DAWN = 1_700_000_000_000
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
    return {"rmq-retry-ticket": Ticket(record=record, cycle=cycle).signed(bearer(queue, id, body))}


def by_us(*, at: int = DAWN, again: bool = False, ticket: tuple[int, int] | None = None, error: str = "BankDown",
          id: str | None = "m-1", **told: Any) -> Delivery:  # noqa: A002  # fmt: skip
    """A message that our consumer parked; a requeued copy has a signed ticket with its record and cycle."""
    headers = dict(told.pop("headers", {}))
    if ticket is not None:
        headers |= ticket_header(*ticket, id=id, body=told.get("body", b"{}"))
    verdict = park(Reason.EXHAUSTED, "after 5 attempts", ErrorNote(kind=error, text="timeout"))
    failed = delivery(message_id=id, headers=headers, attempt=5, **told)
    copy = parking(verdict, failed, "payments.parked", handler="payments.charge", now=at).copy
    assert copy is not None
    return replace(arrived(copy, queue="payments.parked"), redelivered=again)


def untaken() -> Delivery:
    """A message that our consumer parked because none of its handlers takes it."""
    (work_queue,) = work_queues([subscription(RetryThenPark())])
    copy = unhandled(park(Reason.UNHANDLED, "none takes it"), delivery(message_id="m-1"), work_queue, now=DAWN).copy
    assert copy is not None
    return arrived(copy, queue="payments.parked")


def foreign(*, again: bool = False, id: str | None = "m-1", **told: Any) -> Delivery:  # noqa: A002
    """A message that another program put into a parked queue."""
    return delivery(**{"queue": "payments.parked", **told}, message_id=id, redelivered=again)


def store(*batch: Delivery) -> list[Stored]:
    """In one batch."""
    return list(Store(HOMES, registry.work_queues()).store(batch))


def the_record() -> ParkedMessage:
    return ParkedMessage.objects.get()


def the_group() -> ErrorGroup:
    return ErrorGroup.objects.get()


def change(record: ParkedMessage, **changes: Any) -> ParkedMessage:
    """As an operator or a worker would."""
    ParkedMessage.objects.filter(pk=record.pk).update(**changes)
    return ParkedMessage.objects.get(pk=record.pk)
