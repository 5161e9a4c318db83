"""Before a handler can be run: where the message first came in, its data, and its key where order counts."""

from django_rmq_retry.core.errors import UndecodableBody
from django_rmq_retry.core.keying import NoKey, key_of
from django_rmq_retry.core.message import Delivery
from django_rmq_retry.core.stamps import story
from django_rmq_retry.core.subscription import Subscription
from django_rmq_retry.core.verdict import ErrorNote

ENCODED = 0x40
"""The flag of the property content-encoding, in the first byte of the properties."""


def restore_origin(delivery: Delivery, work: str) -> None:
    """After a wait a message arrives by the default exchange; handlers see where it was first published to.

    One that came otherwise keeps the key it came by: a sender must not choose another handler by a header.
    """
    by_name = not delivery.exchange and delivery.routing_key == delivery.queue
    delivery.queue = work
    stamp = story(delivery)
    if by_name and stamp.queue:
        delivery.exchange, delivery.routing_key = stamp.exchange, stamp.routing_key


def ready(delivery: Delivery, subscription: Subscription) -> UndecodableBody | NoKey | None:
    """Set the data and the key; what keeps us from it."""
    if delivery.decoded:
        # Once: a handler may change the data, and its next attempt gets them anew.
        delivery.decoded = False
        return None
    error = _decode(delivery, subscription)
    if error is not None or subscription.order_by is None or delivery.key is not None:
        return error
    try:
        delivery.key = key_of(subscription.order_by, delivery)
    except NoKey as unknown:
        return unknown
    return None


def _decode(delivery: Delivery, subscription: Subscription) -> UndecodableBody | None:
    """Set the data; whatever keeps a codec from reading a body, no retry will mend."""
    # Properties are decoded only for a body that says it is encoded: most messages are never asked for them.
    properties = delivery.properties if delivery.raw[0] & ENCODED else None
    try:
        delivery.data = subscription.codec.decode(delivery.body, properties)
    except UndecodableBody as unreadable:
        return unreadable
    except Exception as broken:  # noqa: BLE001 - a codec of the project's
        found = UndecodableBody(str(ErrorNote.of(broken)), size=len(delivery.body))
        found.__cause__ = broken
        return found
    return None
