"""The other bank, which can be set to fail: ``manage.py gateway down``."""

import time

from django.db.models import F

from testproject.payments.errors import GatewayDown, RateLimited, Refused
from testproject.payments.models import Gateway, GatewayCharge, Payment

SLOW = 3.0
BUSY = 2.0


def mode() -> str:
    return Gateway.objects.get_or_create(pk=1)[0].mode


def become(new: str) -> None:
    """Set the other bank to up, down, slow, busy or refusing."""
    Gateway.objects.update_or_create(pk=1, defaults={"mode": Gateway.Mode(new)})


def charge(payment: Payment) -> None:
    """Charge a card at the other bank. The payment's reference is the idempotency key, so a second call changes
    nothing.
    """
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
