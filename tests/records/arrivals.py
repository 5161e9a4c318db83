"""Copies as they are delivered from a parked queue, and a parker to hand them to."""

from dataclasses import replace
from typing import Any

from django_rmq_retry.handlers.settlement import parked as parking
from django_rmq_retry.handlers.settlement import unhandled
from django_rmq_retry.handlers.subscription import intakes
from django_rmq_retry.handlers.ticket import Ticket, bearer
from django_rmq_retry.messages.deaths import Reason
from django_rmq_retry.messages.message import Delivery
from django_rmq_retry.messages.tracebacks import ErrorNote
from django_rmq_retry.models import ErrorGroup, ParkedMessage
from django_rmq_retry.parked.store import Store, Stored
from django_rmq_retry.policies.policy import RetryThenPark, park
from tests.core.made import arrived, delivery, subscription

HOMES = {"payments.parked": "payments"}
DAWN = 1_700_000_000_000
"""When messages are parked, in milliseconds of the epoch."""
BANK_DOWN = park(Reason.EXHAUSTED, "after 5 attempts", ErrorNote(kind="BankDown", text="timeout"))


def by_us(*, at: int = DAWN, again: bool = False, ticket: tuple[int, int] | None = None, error: str = "BankDown",
          id: str | None = "m-1", **told: Any) -> Delivery:  # noqa: A002  # fmt: skip
    """What our consumer parked at some time; of a requeued copy with its record and cycle, signed for it."""
    headers = dict(told.pop("headers", {}))
    if ticket is not None:
        sent = bearer("payments", id, told.get("body", b"{}"))
        headers["rmq-retry-ticket"] = Ticket(record=ticket[0], cycle=ticket[1]).signed(sent)
    verdict = park(Reason.EXHAUSTED, "after 5 attempts", ErrorNote(kind=error, text="timeout"))
    failed = delivery(message_id=id, headers=headers, attempt=5, **told)
    copy = parking(verdict, failed, "payments.parked", handler="payments.charge", now=at).copy
    assert copy is not None
    return replace(arrived(copy, queue="payments.parked"), redelivered=again)


def untaken() -> Delivery:
    """What our consumer parked because none of its handlers takes it."""
    (intake,) = intakes([subscription(RetryThenPark())])
    copy = unhandled(park(Reason.UNHANDLED, "none takes it"), delivery(message_id="m-1"), intake, now=DAWN).copy
    assert copy is not None
    return arrived(copy, queue="payments.parked")


def foreign(*, again: bool = False, id: str | None = "m-1", **told: Any) -> Delivery:  # noqa: A002
    """What somebody else put into a parked queue."""
    return delivery(**{"queue": "payments.parked", **told}, message_id=id, redelivered=again)


def store(*batch: Delivery) -> list[Stored]:
    """In one batch."""
    return list(Store(HOMES).store(batch))


def the_record() -> ParkedMessage:
    return ParkedMessage.objects.get()


def the_group() -> ErrorGroup:
    return ErrorGroup.objects.get()


def change(record: ParkedMessage, **changes: Any) -> ParkedMessage:
    """As an operator or a worker would."""
    ParkedMessage.objects.filter(pk=record.pk).update(**changes)
    return ParkedMessage.objects.get(pk=record.pk)
