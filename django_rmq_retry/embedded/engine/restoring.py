"""A virtual host as it was when it ended; what clients held then comes back, as from connections that were lost."""

from django_rmq_retry.embedded.engine.entries import Entry
from django_rmq_retry.embedded.engine.exchanges import Binding, Destination, Exchange
from django_rmq_retry.embedded.engine.host import Host
from django_rmq_retry.embedded.engine.queues import Queue
from django_rmq_retry.embedded.engine.returning import begin
from django_rmq_retry.embedded.engine.store import Kept, KeptBinding, KeptMessage


def restore(host: Host, kept: Kept) -> None:
    """Fill an empty virtual host. Its store is told again of queues, exchanges and bindings, not of messages."""
    for one in kept.exchanges:
        host.add_exchange(
            Exchange(one.name, one.kind, auto_delete=one.auto_delete, internal=one.internal, arguments=one.arguments)
        )
    for spec in kept.queues:
        host.add_queue(spec, None)
    for binding in kept.bindings:
        _bind(host, binding)
    held: dict[Queue, list[Entry]] = {}
    for message in kept.messages:
        queue = host.router.queues.get(message.queue)
        if queue is not None:
            _put(queue, message, held)
    for queue in list(host.router.queues.values()):
        if queue.limits is not None:
            queue.limits.note(queue.ready.count, queue.ready.bytes)
        queue.resume(held.get(queue, []))
    host.settle()


def _bind(host: Host, kept: KeptBinding) -> None:
    router = host.router
    source = router.exchanges.get(kept.source)
    end: Destination | None = (router.exchanges if kept.to_exchange else router.queues).get(kept.destination)
    if source is not None and end is not None:
        router.bind(Binding(source, end, kept.key, kept.arguments))


def _put(queue: Queue, kept: KeptMessage, held: dict[Queue, list[Entry]]) -> None:
    entry = Entry(kept.message, kept.position, kept.expires)
    queue.position = max(queue.position, kept.position)
    if kept.count is not None:
        entry.redelivered, entry.acquired = kept.redelivered, kept.acquired
        entry.count, entry.unkept = kept.count, kept.unkept
    elif kept.message.count is not None:
        begin(entry, queue.around.behaviour)
    match kept.place, kept.detail:
        case "held", _:
            held.setdefault(queue, []).append(entry)
        case "back", _:
            queue.ready.restore(entry)
        case "delayed", float(due):
            queue.delayed.put(entry, due)
        case "dying", str(reason):
            queue.bury(entry, reason)
        case _:
            queue.ready.put(entry)
