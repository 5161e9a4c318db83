"""How a payment becomes a message: to whom, by its kind."""

from typing import Any

from testproject.payments import handlers
from testproject.payments.models import Payment


def send(payment: Payment, **options: Any) -> str:
    """Publish a payment. Inside a transaction its message leaves if and only if that commits."""
    data = {"payment": payment.pk}
    # Whoever publishes a payment again gives it the same id: a reader of logs and queues sees that it is one.
    options.setdefault("message_id", f"{payment.kind}-{payment.pk}")
    if payment.kind == Payment.Kind.CARD:
        return handlers.charge.publish(data, **options)
    if payment.kind == Payment.Kind.TRANSFER:
        return handlers.post.publish(data, **options)
    return handlers.cash.publish(data, exchange=handlers.main.name, routing_key=handlers.CASH_KEY, **options)
