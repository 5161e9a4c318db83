"""The destination of a payment's message, by its kind."""

from typing import Any

from testproject.payments import handlers
from testproject.payments.models import Payment


def send(payment: Payment, **options: Any) -> str:
    """Publish a payment. Inside a transaction its message is sent if and only if the transaction commits."""
    data = {"payment": payment.pk}
    # The id stays the same when a payment is published again, so that logs and queues show one message.
    options.setdefault("message_id", f"{payment.kind}-{payment.pk}")
    options.setdefault("type", payment.kind)
    if payment.kind == Payment.Kind.CARD:
        return handlers.charge.publish(data, **options)
    if payment.kind == Payment.Kind.TRANSFER:
        return handlers.post.publish(data, **options)
    return handlers.cash.publish(data, exchange=handlers.main.name, routing_key=handlers.CASH_KEY, **options)
