"""Payments generated from the seed, and their producer, which writes each in one transaction with its message."""

import random
import sys
from dataclasses import dataclass
from threading import Event

ACCOUNTS, BATCH = 100, 50
MOST_CENTS = 1_000_000


@dataclass(frozen=True, slots=True)
class Money:
    """Return a payment; the same seed always gives the same."""

    account: int
    cents: int


def made_up(seed: int | str, payment: int) -> Money:
    chance = random.Random(f"{seed}/payment/{payment}")
    return Money(chance.randint(1, ACCOUNTS), chance.randint(1, MOST_CENTS))


def pay(seed: str, total: int, stopping: Event) -> None:
    """Write batch after batch, each repeated until its commit is certain; then wait for SIGTERM."""
    from django.db import DatabaseError, connection, transaction  # noqa: PLC0415 - Django must be set up first
    from django.db.models import Max  # noqa: PLC0415 - as above

    from django_rmq_retry import publish_many  # noqa: PLC0415 - as above
    from tests.chaos.project.handlers import book  # noqa: PLC0415 - as above
    from tests.chaos.project.models import Payment  # noqa: PLC0415 - as above

    while not stopping.is_set():
        try:
            first = (Payment.objects.aggregate(last=Max("pk"))["last"] or 0) + 1
            batch = {pk: made_up(seed, pk) for pk in range(first, min(first + BATCH, total + 1))}
            if not batch:
                stopping.wait()
                return
            with transaction.atomic():
                Payment.objects.bulk_create(
                    Payment(pk=pk, account=money.account, cents=money.cents) for pk, money in batch.items()
                )
                publish_many(
                    book.message(
                        {"payment": pk, "account": money.account, "cents": money.cents}, message_id=f"payment-{pk}"
                    )
                    for pk, money in batch.items()
                )
        except DatabaseError as error:
            print(repr(error)[:300], file=sys.stderr, flush=True)
            connection.close()
            stopping.wait(0.5)
