"""The virtual host of a test, in its process, with a topology declared in it."""

import threading
from collections.abc import Callable
from itertools import count

from django_rmq_retry.embedded.engine.behaviour import V4_0, Behaviour
from django_rmq_retry.embedded.engine.clock import Clock, Timer
from django_rmq_retry.embedded.engine.entries import Entry
from django_rmq_retry.embedded.engine.envelopes import Message as Stored
from django_rmq_retry.embedded.engine.queue import Queue
from django_rmq_retry.embedded.engine.vhost import Vhost
from django_rmq_retry.messages.message import Delivery, Message
from django_rmq_retry.messages.properties import encode_properties
from django_rmq_retry.topology.declarations import BindingDeclaration, Topology
from django_rmq_retry.topology.versions import Server


class DirectBroker:
    """A broker for one test. Nothing happens by itself: time passes only through ``advance``."""

    def __init__(self, behaviour: Behaviour = V4_0, *, epoch: float) -> None:
        names = count(1)
        self.lock = threading.RLock()
        """Held during a publish or call: async code makes them in other threads."""
        self.clock = Clock(epoch=epoch)
        self.vhost = Vhost("/", self.clock, behaviour, chance=lambda: f"direct-{next(names)}")
        self.server = Server(product="RabbitMQ", version=tuple(map(int, behaviour.version.split("."))))

    def declare(self, topology: Topology) -> None:
        """Create what is missing, also queues and exchanges of other owners, which do not exist in a test."""
        session = self.vhost.connect()
        channel = session.channel(1)
        for exchange in topology.exchanges.values():
            channel.exchange_declare(
                exchange.name,
                exchange.type,
                durable=exchange.durable,
                auto_delete=exchange.auto_delete,
                internal=exchange.internal,
                arguments=exchange.arguments,
            )
        for queue in topology.queues.values():
            channel.queue_declare(queue.name, durable=True, arguments=queue.arguments)
        for binding in topology.bindings:
            _bind(channel.exchange_bind if binding.to_exchange else channel.queue_bind, binding)
        session.close()

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return self.clock.now

    def today(self) -> int:
        """Return the time in milliseconds since the epoch."""
        return round((self.clock.now + self.clock.epoch) * 1000)

    def next_due(self) -> float | None:
        """Return the time of the next timer; None if there is none."""
        return self.vhost.next_due()

    def advance(self, now: float) -> None:
        self.vhost.advance(now)

    def later(self, seconds: float, run: Callable[[], None]) -> Timer:
        return self.clock.at(self.clock.now + seconds, run)

    def queue(self, name: str) -> Queue | None:
        return self.vhost.router.queues.get(name)

    def lying(self, name: str) -> list[Delivery]:
        """Return the ready messages of a queue in order, without removing them."""
        queue = self.queue(name)
        return [] if queue is None else [seen(entry, name) for entry in queue.ready]

    def takers(self, message: Message) -> list[str]:
        """Return the names of the queues to which a message is routed."""
        exchange = self.vhost.router.exchanges.get(message.exchange)
        if exchange is None:
            return []
        stored = Stored(message.exchange, message.routing_key, encode_properties(message.properties), message.body)
        return [queue.name for queue in self.vhost.router.route(exchange, stored)]


def seen(entry: Entry, queue: str) -> Delivery:
    """Return a message in a queue as a delivery that cannot be settled."""
    message = entry.message
    return Delivery(
        queue=queue,
        body=message.body,
        raw=message.raw,
        exchange=message.exchange,
        routing_key=message.key,
        redelivered=entry.redelivered,
    )


def _bind(bind: Callable[..., None], binding: BindingDeclaration) -> None:
    bind(binding.destination, binding.source, binding.key, binding.arguments)
