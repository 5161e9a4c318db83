"""Scenes that tests play in the teller process, where the bank's Django is set up."""

from contextlib import suppress
from decimal import Decimal
from io import StringIO
from typing import Any

from django.core.management import call_command
from django.db import transaction

from django_rmq_retry import Message, Raw, publish
from django_rmq_retry.errors import CallFailed, CallUnanswered
from django_rmq_retry.messages import Headers, Properties
from django_rmq_retry.topology import Role
from testproject.accounts.models import Account
from testproject.payments import gateway as other_bank
from testproject.payments import handlers
from testproject.payments.models import Entry, GatewayCharge, Payment
from testproject.payments.sending import send
from testproject.playing.depths import depths
from tests.tooling.brokers import publish_exactly
from tests.tooling.waiting import longer


class Regret(Exception):
    """Raised to roll a transaction back."""


def declare() -> None:
    call_command("rmq_declare", stdout=StringIO())


def account(number: str, *, balance: int = 1000, limit: int = 500, closed: bool = False) -> int:
    return Account.objects.create(number=number, holder=number, balance=balance, limit=limit, closed=closed).pk


def change(number: str, **fields: Any) -> None:
    Account.objects.filter(number=number).update(**fields)


def gateway(mode: str) -> None:
    other_bank.become(mode)


def pay(number: str, kind: str, amount: int, **options: Any) -> int:
    payment = _payment(number, kind, amount)
    send(payment, **options)
    return payment.pk


def pay_in_transaction(number: str, *, regret: bool) -> dict[str, object]:
    """Return the messages sent before the transaction ended, and True if its payment exists afterwards."""
    within = -1
    with suppress(Regret), transaction.atomic():
        payment = _payment(number, Payment.Kind.CARD, 1)
        send(payment)
        within = depths()[Role.WORK]
        if regret:
            raise Regret
    return {"within": within, "exists": Payment.objects.filter(pk=payment.pk).exists()}


def send_again(payment: int) -> None:
    send(Payment.objects.get(pk=payment))


def publish_bytes(text: str) -> None:
    publish(text.encode(), routing_key="payments.charge", codec=Raw())


def publish_with_headers(raw: str) -> None:
    """Invalid header bytes, in hex."""
    properties = Properties(headers=Headers(bytes.fromhex(raw)), delivery_mode=2)
    publish_exactly(Message(body=b"{}", routing_key="payments.charge", properties=properties))


def state(payment: int) -> str:
    return Payment.objects.get(pk=payment).state


def attempts(payment: int) -> int:
    return Payment.objects.get(pk=payment).attempts


def balance(number: str) -> Decimal:
    return Account.objects.get(number=number).balance


def charges(payment: int) -> int:
    """Return how often the other bank has charged the payment."""
    return GatewayCharge.objects.filter(reference=Payment.objects.get(pk=payment).reference).count()


def ledger() -> list[int]:
    """Return the payments in the order of their postings."""
    return list(Entry.objects.order_by("pk").values_list("payment_id", flat=True))


def quote(pair: str, timeout: float = 30) -> dict[str, object]:
    try:
        return {"answer": handlers.quote.call({"pair": pair}, timeout=longer(timeout))}
    except CallFailed as error:
        return {"failed": error.kind, "said": error.text}
    except CallUnanswered as error:
        return {"unanswered": error.routing_key, "sent": error.sent}


def _payment(number: str, kind: str, amount: int) -> Payment:
    return Payment.objects.create(account=Account.objects.get(number=number), kind=kind, amount=amount)
