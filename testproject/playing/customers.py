"""The bank's customers and their payments."""

from decimal import Decimal
from itertools import count

from django.db import transaction

from django_rmq_retry import Raw, publish
from testproject.accounts.models import Account
from testproject.payments.models import Payment
from testproject.payments.sending import send

BALANCE = Decimal(1_000_000)
LIMIT = 500
OPEN = {"DE-01": "Ann", "DE-02": "Bob", "DE-03": "Cid", "DE-04": "Dee", "DE-05": "Eli", "DE-06": "Fay"}
CLOSED = {"DE-07": "Gus", "DE-08": "Hal"}

_numbers = count(1)


def open_accounts() -> None:
    """Open all accounts, including those of former customers, because payments for them still arrive."""
    for number, holder in (OPEN | CLOSED).items():
        Account.objects.create(
            number=number, holder=holder, balance=BALANCE, limit=Decimal(LIMIT), closed=number in CLOSED
        )


def pay(number: str, kind: str, amount: int) -> str:
    """Create a payment, whose message is sent when it is saved; return the message's id."""
    with transaction.atomic():
        account = Account.objects.get(number=number)
        payment = Payment.objects.create(account=account, kind=kind, amount=Decimal(amount))
        more = {"reply_to": "reply-queue", "correlation_id": f"cash-{payment.pk}"} if kind == "cash" else {}
        return send(payment, **more)


def send_rubbish() -> str:
    """Send a truncated message, as a faulty sender might."""
    number = next(_numbers)
    body = f'{{"payment": {number}'.encode()
    return publish(body, routing_key="payments.charge", codec=Raw(), message_id=f"malformed-{number}")
