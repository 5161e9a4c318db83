"""The other bank, which can be told to fail: ``manage.py gateway down``."""

import time

from django.db.models import F

from testproject.payments.errors import GatewayDown, RateLimited, Refused
from testproject.payments.models import Gateway, GatewayCharge, Payment

SLOW = 3.0
BUSY = 2.0


def mode() -> str:
    return Gateway.objects.get_or_create(pk=1)[0].mode


def become(new: str) -> None:
    """From now on the other bank is up, down, slow, busy, or refuses."""
    Gateway.objects.update_or_create(pk=1, defaults={"mode": Gateway.Mode(new)})


def charge(payment: Payment) -> None:
    """Have the other bank charge a card. The payment's reference is its idempotency key: twice told is once done."""
    Payment.objects.filter(pk=payment.pk).update(attempts=F("attempts") + 1)
    feels = mode()
    try:
        _connect(feels)
    except TimeoutError as error:
        raise GatewayDown("no answer from the other bank") from error
    if feels == Gateway.Mode.BUSY:
        raise RateLimited(BUSY)
    if feels == Gateway.Mode.REFUSE:
        raise Refused("the other bank does not take this card")
    if feels == Gateway.Mode.SLOW:
        time.sleep(SLOW)
    GatewayCharge.objects.get_or_create(reference=payment.reference, defaults={"amount": payment.amount})


def _connect(feels: str) -> None:
    if feels == Gateway.Mode.DOWN:
        raise TimeoutError("timed out")
