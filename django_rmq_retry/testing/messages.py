"""Messages to call a handler with directly."""

from typing import Any

from django_rmq_retry.core.codec import JSON
from django_rmq_retry.core.message import Delivery
from django_rmq_retry.core.properties import encode_properties
from django_rmq_retry.handler import Handler
from django_rmq_retry.options import options_of
from django_rmq_retry.publishing import message_of as published


def message_of(
    data: object,
    *,
    handler: Handler[Any] | None = None,
    attempt: int = 1,
    redelivered: bool = False,
    exchange: str = "",
    routing_key: str = "",
    **options: Any,
) -> Delivery:
    """What a handler is called with: ``charge(message_of({"payment": 7}, attempt=3))``.

    The data makes the way through the codec, so that a handler gets what it would get: ``Decimal`` for 0.5, no tuples.
    With ``handler`` it is that handler's codec, queue and key. Options are those of ``publish``.
    """
    subscription = None if handler is None else handler.subscription
    codec = JSON if subscription is None else subscription.codec
    message = published(
        data,
        exchange=exchange,
        routing_key=routing_key,
        codec=codec,
        options=options_of(options),
        subscription=subscription,
    )
    delivery = Delivery(
        queue="" if subscription is None else subscription.queue.name,
        body=message.body,
        raw=encode_properties(message.properties),
        exchange=message.exchange,
        routing_key=message.routing_key,
        redelivered=redelivered,
    )
    delivery.attempt = attempt
    delivery.data = codec.decode(message.body, message.properties)
    return delivery
