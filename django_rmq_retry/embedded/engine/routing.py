"""The map of a virtual host: its exchanges, queues and bindings, and the way of a message through them."""

from collections.abc import Callable, Sequence

from django_rmq_retry.embedded.engine.exchanges import TYPES, Binding, Destination, Exchange
from django_rmq_retry.embedded.engine.messages import Message
from django_rmq_retry.embedded.engine.queues import Queue
from django_rmq_retry.embedded.engine.store import Store


class Router:
    """Every queue is bound to the default exchange "" by its name."""

    def __init__(self, store: Store) -> None:
        self.queues: dict[str, Queue] = {}
        self.default = Exchange("")
        self.exchanges: dict[str, Exchange] = {"": self.default}
        self._store = store
        self._into: dict[Destination, dict[Binding, None]] = {}
        for kind in TYPES:
            self.exchanges[f"amq.{kind}"] = Exchange(f"amq.{kind}", kind)
        self.exchanges["amq.match"] = Exchange("amq.match", "headers")
        self.exchanges["amq.rabbitmq.trace"] = Exchange("amq.rabbitmq.trace", "topic", internal=True)

    def route(self, exchange: Exchange, message: Message) -> Sequence[Queue]:
        """Every queue that gets the message, each once."""
        if exchange is self.default and not message.more:
            queue = self.queues.get(message.key)
            return () if queue is None else (queue,)
        if exchange.plain and exchange is not self.default:
            return [one for one in exchange.route(message) if isinstance(one, Queue)]
        return self._walk(exchange, message)

    def bind(self, binding: Binding) -> None:
        if binding.source.add(binding):
            self._into.setdefault(binding.destination, {})[binding] = None
            if _lasting(binding):
                _tell(self._store.bound, binding)

    def unbind(self, binding: Binding) -> None:
        found = binding.source.find(binding)
        if found is not None:
            self._remove(found)

    def remove_queue(self, queue: Queue) -> None:
        del self.queues[queue.name]
        if queue.spec.kept:
            self._store.queue_deleted(queue.name)
        self._cut_off(queue)

    def remove_exchange(self, exchange: Exchange) -> None:
        if self.exchanges.pop(exchange.name, None) is None:
            return
        if exchange.durable:
            self._store.exchange_deleted(exchange.name)
        for binding in list(exchange.bindings):
            exchange.remove(binding)
            self._into[binding.destination].pop(binding, None)
        self._cut_off(exchange)

    def _cut_off(self, destination: Destination) -> None:
        for binding in list(self._into.pop(destination, ())):
            binding.source.remove(binding)
            self._source_left(binding.source)

    def _remove(self, binding: Binding) -> None:
        binding.source.remove(binding)
        self._into[binding.destination].pop(binding, None)
        if _lasting(binding):
            _tell(self._store.unbound, binding)
        self._source_left(binding.source)

    def _source_left(self, exchange: Exchange) -> None:
        if exchange.auto_delete and not exchange.bindings:
            self.remove_exchange(exchange)

    def _walk(self, start: Exchange, message: Message) -> list[Queue]:
        seen = {start}
        ahead: list[Exchange] = [start]
        found: dict[Queue, None] = {}
        while ahead:
            exchange = ahead.pop()
            for destination in self._out_of(exchange, message):
                if isinstance(destination, Queue):
                    found[destination] = None
                elif destination not in seen:
                    seen.add(destination)
                    ahead.append(destination)
        return list(found)

    def _out_of(self, exchange: Exchange, message: Message) -> Sequence[Destination]:
        if exchange is self.default:
            return [self.queues[key] for key in message.keys if key in self.queues]
        found = exchange.route(message)
        if not found and exchange.alternate is not None:
            alternate = self.exchanges.get(exchange.alternate)
            return () if alternate is None else (alternate,)
        return found


def _lasting(binding: Binding) -> bool:
    destination = binding.destination
    return binding.source.durable and (destination.spec.kept if isinstance(destination, Queue) else destination.durable)


def _tell(told: Callable[..., None], binding: Binding) -> None:
    told(
        binding.source.name,
        binding.destination.name,
        binding.key,
        to_exchange=isinstance(binding.destination, Exchange),
        arguments=binding.arguments,
    )
