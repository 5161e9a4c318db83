"""The sessions of clients on a virtual host, and the host's restoration from a file."""

from django_rmq_retry.embedded.engine.channel import BrokerChannel
from django_rmq_retry.embedded.engine.entries import Entry, begin_count
from django_rmq_retry.embedded.engine.queue import BrokerQueue
from django_rmq_retry.embedded.engine.routing import BrokerBinding, Destination
from django_rmq_retry.embedded.engine.store import KeptBinding, KeptContent, KeptMessage
from django_rmq_retry.embedded.engine.vhost import EventOutbox, Vhost


class ClientSession(EventOutbox):
    """One connection: its channels, its exclusive queues and its unsent events."""

    def __init__(self, vhost: Vhost, *, user: str = "guest") -> None:
        super().__init__(vhost.busy)
        self.vhost = vhost
        self.user = user
        self.channels: dict[int, BrokerChannel] = {}

    def channel(self, number: int) -> BrokerChannel:
        """Open a channel whose number is not open yet."""
        channel = self.channels[number] = BrokerChannel(self.vhost, self, number, user=self.user)
        return channel

    def close_channel(self, number: int) -> None:
        channel = self.channels.pop(number, None)
        if channel is not None:
            channel.close()

    def left_unread(self, size: int) -> None:
        """Set the bytes that the client has not read yet; once few are left, its consumers get messages again."""
        if not self.valve.measure(size):
            return
        held = [pair for channel in self.channels.values() for pair in channel.consumers.values()]
        for consumer, queue in held:
            queue.roster.wake(consumer)
        for queue in dict.fromkeys(queue for _, queue in held):
            queue.dispatch()
        self.vhost.settle()

    def close(self) -> None:
        """End the session. None of its consumers may get a message that another of its channels returns."""
        channels = list(self.channels.values())
        self.channels.clear()
        ended: list[BrokerQueue] = []
        for channel in channels:
            ended += channel.stop_consuming()
        for channel in channels:
            channel.return_unacked()
        for channel in channels[:1]:
            channel.wake(ended)
        for queue in [one for one in self.vhost.router.queues.values() if one.owner is self]:
            self.vhost.remove_queue(queue)
        self.drain()


def restore(vhost: Vhost, kept: KeptContent) -> None:
    """Fill an empty virtual host. Its store receives queues, exchanges and bindings again, but no messages."""
    for exchange in kept.exchanges:
        vhost.add_exchange(exchange)
    for spec in kept.queues:
        vhost.add_queue(spec, None)
    for binding in kept.bindings:
        _bind(vhost, binding)
    held: dict[BrokerQueue, list[Entry]] = {}
    for message in kept.messages:
        queue = vhost.router.queues.get(message.queue)
        if queue is not None:
            _put(queue, message, held)
    for queue in list(vhost.router.queues.values()):
        if queue.limits is not None:
            queue.limits.note(queue.ready.count, queue.ready.bytes)
        queue.resume(held.get(queue, []))
    vhost.settle()


def _bind(vhost: Vhost, kept: KeptBinding) -> None:
    router = vhost.router
    source = router.exchanges.get(kept.source)
    end: Destination | None = (router.exchanges if kept.to_exchange else router.queues).get(kept.destination)
    if source is not None and end is not None:
        router.bind(BrokerBinding(source, end, kept.key, kept.arguments))


def _put(queue: BrokerQueue, kept: KeptMessage, held: dict[BrokerQueue, list[Entry]]) -> None:
    entry = kept.entry
    queue.position = max(queue.position, entry.position)
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
            begin_count(entry, queue.shared.behaviour)
            queue.ready.put(entry)
