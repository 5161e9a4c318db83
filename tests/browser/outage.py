"""The records of an incident: payments parked while a gateway was down, some of them malformed; and the bank's book."""

import json
import os
from collections import Counter
from decimal import Decimal
from pathlib import Path

from django.contrib.auth.models import User
from django.utils import timezone

from django_rmq_retry import Message
from django_rmq_retry.admin import requeue_form
from django_rmq_retry.messages import Reason
from tests.admin import made
from tests.parked.arrivals import ticket_in
from tests.parked.made import copy_failed, copy_succeeded

HANDLERS = ("transfer", "card")
PARKED, PAID, MALFORMED = 200, 30, 12
"""Payments that the gateway did not take; those of them that were made in another way; others that cannot be read."""


def reference(number: int) -> str:
    return f"PAY-{80_000 + number}"


def paid_elsewhere() -> list[str]:
    """Return the references on the bank's list: some of each handler."""
    return [reference(number * PARKED // PAID) for number in range(PAID)]


def fill() -> None:
    """One cause behind two handlers, and the malformed ones."""
    User.objects.create_superuser("lead", password="lead")
    now = timezone.now()
    timeouts = made.group(title="GatewayTimeout", culprit="pay.gateway:post")
    malformed = made.group(title="UnreadableAmount", culprit="pay.amounts:read", reason=Reason.PERMANENT)
    for number in range(PARKED + MALFORMED):
        broken = number >= PARKED
        amount = f'"{number},50"' if broken else f"{number}.50"
        made.message(
            malformed if broken else timeouts,
            body=f'{{"reference": "{reference(number)}", "amount": {amount}}}'.encode(),
            business_key=reference(number),
            handler=HANDLERS[number % 2],
            queue="payments.main",
            parked_at=now,
        )
    # Scaled down, like the number of messages.
    vars(requeue_form)["TYPED_FROM"] = PARKED // 4


def pay(copy: Message) -> None:
    """Make a payment, as a consumer does: write it into the book, whether or not it was made before."""
    ticket = ticket_in(copy.headers, queue=copy.routing_key, id=copy.properties.message_id, body=copy.body)
    payment = json.loads(copy.body, parse_float=Decimal)
    if not isinstance(payment["amount"], Decimal):
        copy_failed(*ticket)
        return
    with book(Path(os.environ["RMQ_BROWSER_FOLDER"])).open("a") as lines:
        lines.write(f"{payment['reference']} {payment['amount']}\n")
    copy_succeeded(*ticket)


def book(folder: Path) -> Path:
    return folder / "book.txt"


def payments(folder: Path) -> Counter[str]:
    """Return how often each payment was made here."""
    return Counter(book(folder).read_text().splitlines())


def due() -> Counter[str]:
    """Return the payments that are to be made here: each once."""
    elsewhere = {*paid_elsewhere()}
    every = [(reference(number), f"{number}.50") for number in range(PARKED + MALFORMED)]
    return Counter(f"{name} {amount}" for name, amount in every if name not in elsewhere)
