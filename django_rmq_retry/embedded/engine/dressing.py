"""What a delivery shows of its past: the counts that quorum queues write into the headers."""

from django_rmq_retry.embedded.engine.entries import Entry
from django_rmq_retry.embedded.engine.messages import with_table
from django_rmq_retry.embedded.engine.queues import Queue
from django_rmq_retry.embedded.engine.returning import carried

_COUNTS = frozenset({"x-delivery-count", "x-acquired-count"})


def dressed(queue: Queue, entry: Entry) -> tuple[bytes, bool]:
    """The properties as this delivery shows them, and whether it is a second one."""
    message = entry.message
    if queue.counts is None:
        marked = queue.around.behaviour.classic_carries and bool(message.count)
        return message.raw, entry.redelivered or marked
    shown = queue.counts.headers(entry)
    if not shown and message.count:
        shown = carried(message.count)
    raw = with_table(message.raw, drop=_COUNTS, add=shown) if shown else message.raw
    return raw, entry.redelivered or bool(message.count)
