"""The business keys of stored messages that no handler has seen yet: in the outbox, or behind a blocked key."""

from django_rmq_retry.handlers import registry
from django_rmq_retry.handlers.business_keys import readable_keys
from django_rmq_retry.messages.message import Delivery
from django_rmq_retry.models import BlockedMessage, OutboxMessage

MOST_LISTED_BYTES = 16 * 1024
"""The size of a body up to which a list reads it for its business keys; the page of a row reads any body."""


def keys_of(row: OutboxMessage, body: bytes) -> list[str]:
    """Return the business keys by which the handler of the row's destination names a message."""
    delivery = Delivery(
        queue="" if row.exchange else row.routing_key,
        body=body,
        raw=bytes(row.properties),
        exchange=row.exchange,
        routing_key=row.routing_key,
    )
    for work_queue in registry.work_queues():
        queue = work_queue.queue
        bound = any(one.source.name == row.exchange and one.takes(row.routing_key) for one in queue.bindings)
        if bound if row.exchange else queue.name == row.routing_key:
            return readable_keys(work_queue.presumed(delivery), delivery)
    return []


def keys_behind(row: BlockedMessage) -> list[str]:
    """Return the business keys by which the handler of the blocked key's queue names a message that waits there."""
    delivery = Delivery(
        queue=row.block.queue,
        body=bytes(row.body),
        raw=bytes(row.properties),
        exchange=row.exchange,
        routing_key=row.routing_key,
    )
    readers = (one for one in registry.work_queues() if one.queue.name == row.block.queue)
    return [key for one in readers for key in readable_keys(one.presumed(delivery), delivery)]
