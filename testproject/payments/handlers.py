"""The bank's handlers: one for each scenario, and one on a topology that is older than this project.

A message may be delivered twice. A handler that calls another bank first checks what was done before; a posting is
one transaction, done once.
"""

import uuid
from decimal import Decimal
from typing import Any

from django.conf import settings

from django_rmq_retry import (
    DeadLetter,
    Delivery,
    Exchange,
    Exponential,
    OneShot,
    Queue,
    Retry,
    RetryThenPark,
    StopTheLine,
    handler,
)
from testproject.accounts.models import Account
from testproject.payments import gateway, ledger
from testproject.payments.errors import AboveLimit, AccountClosed, RateLimited, Refused, UnknownPair
from testproject.payments.models import Payment

RATES = {"EURUSD": "1.0831", "EURGBP": "0.8412", "EURCHF": "0.9377"}
CASH_KEY = "srvc.transact.cash"
REQUESTS = uuid.UUID("5f1a3a52-3c8e-4f0e-9c7e-3b1f3a0c7d11")
"""The namespace for the ids of payments that other departments request."""

main = Exchange("main-exchange", "direct")


def named(message: Delivery) -> list[str]:
    """Return the payment's number, by which an operator finds the message."""
    data: Any = message.data
    return [f"PAY-{data['payment']}"] if isinstance(data, dict) and "payment" in data else []


@handler(
    "payments.charge",
    policy=RetryThenPark(
        attempts=5,
        backoff=Exponential(settings.BANK_CHARGE_WAIT, factor=2, jitter=0.2),
        park_on=(AccountClosed, Refused),
    ),
    keys=named,
)
def charge(message: Delivery) -> None:
    """Charge a card payment at the other bank, then post it to the ledger."""
    payment = _payment(message.data)
    if payment.state == Payment.State.NEW:
        try:
            gateway.charge(payment)
        except RateLimited as error:
            raise Retry(after=error.seconds) from error
        Payment.objects.filter(pk=payment.pk, state=Payment.State.NEW).update(state=Payment.State.CHARGED)
    # Published inside the attempt: if this fails, the attempt fails too, and the next one publishes again.
    post.publish({"payment": payment.pk}, message_id=f"post-{payment.pk}")


@handler(
    "ledger.post",
    policy=StopTheLine(backoff=Exponential(settings.BANK_LEDGER_WAIT, factor=2, cap=60)),
    once=True,
    keys=named,
)
def post(message: Delivery) -> None:
    """Post a payment. Order matters: no posting passes one that is not covered."""
    ledger.book(_payment(message.data))


@handler("rates.quote", policy=OneShot())
def quote(message: Delivery) -> dict[str, str]:
    """Answer a caller who waits: one attempt, an answer, never a retry."""
    data: Any = message.data
    pair = data["pair"]
    if pair not in RATES:
        raise UnknownPair(pair)
    return {"pair": pair, "rate": RATES[pair]}


@handler(
    Queue("main-queue", type=None, bindings=[main.bind(CASH_KEY)]),
    policy=RetryThenPark(
        attempts=4, via=DeadLetter(exchange="retry-exchange", queue="retry-queue", after=settings.BANK_CASH_WAIT)
    ),
    park="parking-queue",
    keys=named,
)
def cash(message: Delivery) -> dict[str, str]:
    """Pay out cash: an amount above the limit fails until the limit is raised.

    The bank's own messages name a payment. Other departments send one, with the accounts that it debits and credits.
    """
    payment = _payment(message.data) if "payment" in message.data else _requested(message)
    if payment.state == Payment.State.NEW:
        if payment.amount > payment.account.limit:
            raise AboveLimit(payment.amount, payment.account.limit)
        ledger.book(payment)
    return {"status": "ok"}


def _requested(message: Delivery) -> Payment:
    """Return the payment of a request such as ``{"num": 7, "dbt": "1001001", "krd": "2002002", "amount": 10.23}``.

    The same request has the same payment.
    """
    data: Any = message.data
    account = Account.objects.get(number=str(data["dbt"]))
    name = message.id or message.correlation_id
    reference = uuid.uuid5(REQUESTS, f"{account.number} {name}") if name else uuid.uuid4()
    known = Payment.objects.filter(reference=reference).first()
    payment = known or Payment(
        reference=reference, kind=Payment.Kind.CASH, account=account, amount=Decimal(data["amount"])
    )
    if payment.amount > account.limit and known is None:
        # A request that may never be paid leaves no row.
        raise AboveLimit(payment.amount, account.limit)
    if known is None:
        payment.full_clean()
        payment.save()
    return _payment({"payment": payment.pk})


def _payment(data: Any) -> Payment:
    payment = Payment.objects.select_related("account").get(pk=data["payment"])
    if payment.account.closed and payment.state == Payment.State.NEW:
        raise AccountClosed(payment.account.number)
    return payment
