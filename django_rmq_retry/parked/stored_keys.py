"""The business keys of stored messages that no handler has seen yet: in the outbox, or behind a blocked key."""

from django_rmq_retry.handlers import registry
from django_rmq_retry.handlers.business_keys import readable_keys
from django_rmq_retry.messages.message import Delivery
from django_rmq_retry.models import BlockedMessage, OutboxMessage

MOST_LISTED_BYTES = 16 * 1024
"""The size of a body up to which a list reads it for its business keys; the page of a row reads any body."""


def keys_of(row: OutboxMessage | BlockedMessage, body: bytes) -> list[str]:
    """Return the business keys by which the handlers here that will get the message name it."""
    queue = row.block.queue if isinstance(row, BlockedMessage) else "" if row.exchange else row.routing_key
    delivery = Delivery(
        queue=queue,
        body=body,
        raw=bytes(row.properties),
        exchange=row.exchange,
        routing_key=row.routing_key,
    )
    keys = dict[str, None]()
    for work_queue in registry.work_queues():
        to = work_queue.queue
        bound = any(one.source.name == row.exchange and one.takes(row.routing_key) for one in to.bindings)
        if to.name == queue if queue else bound:
            keys |= dict.fromkeys(readable_keys(work_queue.presumed(delivery), delivery))
    return list(keys)
