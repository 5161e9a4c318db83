"""The methods that declare and delete queues, exchanges and bindings."""

from collections.abc import Mapping
from typing import NamedTuple

from django_rmq_retry.embedded.engine.queue import BrokerQueue
from django_rmq_retry.embedded.engine.refusals import RequestRefused, locked, missing, resource_text
from django_rmq_retry.embedded.engine.routing import TYPES, BrokerBinding, check_match
from django_rmq_retry.embedded.engine.specs import ExchangeSpec, QueueSpec, type_name
from django_rmq_retry.embedded.engine.vhost import EventOutbox, Vhost

OptionalArguments = Mapping[str, object] | None
REPLY_TO = "amq.rabbitmq.reply-to"
_RESERVED = "amq."


class DeclareOk(NamedTuple):
    queue: str
    messages: int
    consumers: int


class Declaring:
    """The declaring half of a channel."""

    def __init__(self, vhost: Vhost, outbox: EventOutbox) -> None:
        self.vhost = vhost
        self.outbox = outbox
        self.last_queue = ""
        """The queue that an empty queue name stands for."""

    def exchange_declare(
        self,
        name: str,
        kind: str = "direct",
        *,
        passive: bool = False,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: OptionalArguments = None,
    ) -> None:
        name = _stripped(name)
        if passive:
            _refuse_default(name)
            self.vhost.exchange(name)
            return
        if kind not in TYPES:
            raise RequestRefused(406, f"unknown exchange type '{kind}'")
        _refuse_default(name)
        spec = ExchangeSpec(
            name=name,
            type=kind,
            durable=durable,
            auto_delete=auto_delete,
            internal=internal,
            arguments=dict(arguments or {}),
        )
        existing = self.vhost.router.exchanges.get(name)
        if existing is not None:
            existing.spec.check_same(spec, resource_text("exchange", name, self.vhost.name))
            return
        if name.startswith(_RESERVED):
            raise _reserved("exchange", name)
        alternate = spec.arguments.get("alternate-exchange", "")
        if not isinstance(alternate, str):
            place = f"exchange '{name}' in vhost '{self.vhost.name}'"
            raise RequestRefused(406, f"invalid type '{type_name(alternate)}' for arg 'alternate-exchange' in {place}")
        self.vhost.add_exchange(spec)

    def exchange_delete(self, name: str, *, if_unused: bool = False) -> None:
        _refuse_default(name)
        if name.startswith(_RESERVED):
            raise RequestRefused(
                403, f"deletion of system {resource_text('exchange', name, self.vhost.name)} not allowed"
            )
        exchange = self.vhost.router.exchanges.get(name)
        if exchange is None:
            return
        if if_unused and exchange.bindings:
            raise RequestRefused(406, f"{resource_text('exchange', name, self.vhost.name)} in use")
        self.vhost.router.remove_exchange(exchange)

    def exchange_bind(self, destination: str, source: str, key: str = "", arguments: OptionalArguments = None) -> None:
        binding = self._exchange_binding(destination, source, key, arguments)
        check_match(binding)
        self.vhost.router.bind(binding)

    def exchange_unbind(
        self, destination: str, source: str, key: str = "", arguments: OptionalArguments = None
    ) -> None:
        if destination in self.vhost.router.exchanges and source in self.vhost.router.exchanges:
            self.vhost.router.unbind(self._exchange_binding(destination, source, key, arguments))

    def queue_declare(
        self,
        name: str = "",
        *,
        passive: bool = False,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: OptionalArguments = None,
    ) -> DeclareOk:
        name = _stripped(name)
        if name == REPLY_TO or name.startswith(f"{REPLY_TO}."):
            if name != REPLY_TO and name not in self.vhost.repliers:
                raise missing("queue", name, self.vhost.name)
            return DeclareOk(name, 0, 1)
        vhost = self.vhost
        if passive:
            return self._declared(self._own_queue(name))
        spec = QueueSpec(
            name=name or f"amq.gen-{vhost.random_name()}",
            vhost=vhost.name,
            durable=durable,
            exclusive=exclusive,
            auto_delete=auto_delete,
            arguments=dict(arguments or {}),
        )
        existing = vhost.router.queues.get(spec.name)
        if existing is not None:
            if existing.spec.exclusive != exclusive:
                raise locked(name, vhost.name)
            self._check_mine(existing)
            existing.spec.check_same(spec, vhost.behaviour)
            return self._declared(existing)
        if name.startswith(_RESERVED):
            raise _reserved("queue", name)
        spec.check(vhost.behaviour, server_named=not name)
        return self._declared(vhost.add_queue(spec, self.outbox if exclusive else None))

    def queue_bind(self, queue: str, exchange: str, key: str = "", arguments: OptionalArguments = None) -> None:
        binding = self._queue_binding(queue, exchange, key, arguments)
        check_match(binding)
        if isinstance(binding.destination, BrokerQueue):
            self._check_mine(binding.destination)
        self.vhost.router.bind(binding)

    def queue_unbind(self, queue: str, exchange: str, key: str = "", arguments: OptionalArguments = None) -> None:
        _refuse_default(exchange)
        if self._named(queue) in self.vhost.router.queues and exchange in self.vhost.router.exchanges:
            self.vhost.router.unbind(self._queue_binding(queue, exchange, key, arguments))

    def queue_purge(self, queue: str = "") -> int:
        return self._own_queue(self._named(queue)).purge()

    def queue_delete(self, queue: str = "", *, if_unused: bool = False, if_empty: bool = False) -> int:
        name = self._named(queue)
        named_queue = self.vhost.router.queues.get(name)
        if named_queue is None:
            return 0
        self._check_mine(named_queue)
        if named_queue.spec.quorum and (if_unused or if_empty):
            flag = "if-unused" if if_unused else "if-empty"
            why = f"queue.delete operations with {flag} flag set are not supported by quorum queues"
            raise RequestRefused(540, f"cannot delete {named_queue.spec.thing}. {why}")
        if if_unused and named_queue.roster.members:
            raise RequestRefused(406, f"{named_queue.spec.thing} in use")
        if if_empty and named_queue.ready.count:
            raise RequestRefused(406, f"{named_queue.spec.thing} not empty")
        count = named_queue.ready.count
        self.vhost.remove_queue(named_queue)
        return count

    def _declared(self, queue: BrokerQueue) -> DeclareOk:
        self.last_queue = queue.name
        if queue.lease is not None:
            queue.lease.declared()
        return DeclareOk(queue.name, queue.ready.count, len(queue.roster.members))

    def _named(self, queue: str) -> str:
        if not queue and not self.last_queue:
            raise RequestRefused(404, "no previously declared queue")
        return queue or self.last_queue

    def _own_queue(self, name: str) -> BrokerQueue:
        """Return an existing queue that no other connection owns."""
        queue = self.vhost.queue(name)
        self._check_mine(queue)
        return queue

    def _check_mine(self, queue: BrokerQueue) -> None:
        if queue.owner is not None and queue.owner is not self.outbox:
            raise locked(queue.name, self.vhost.name)

    def _queue_binding(self, queue: str, exchange: str, key: str, arguments: OptionalArguments) -> BrokerBinding:
        name = self._named(queue)
        _refuse_default(exchange)
        source = self.vhost.exchange(exchange)
        # An empty key with an empty queue name stands for the name of that queue (AMQP 0-9-1, queue.bind).
        key = name if not queue and not key else key
        return BrokerBinding(source, self.vhost.queue(name), key, dict(arguments or {}))

    def _exchange_binding(self, destination: str, source: str, key: str, arguments: OptionalArguments) -> BrokerBinding:
        _refuse_default(destination)
        _refuse_default(source)
        start = self.vhost.exchange(source)
        return BrokerBinding(start, self.vhost.exchange(destination), key, dict(arguments or {}))


def _stripped(name: str) -> str:
    """Remove line ends from a name, as RabbitMQ does."""
    return name.replace("\r", "").replace("\n", "")


def _refuse_default(exchange: str) -> None:
    if not exchange:
        raise RequestRefused(403, "operation not permitted on the default exchange")


def _reserved(what: str, name: str) -> RequestRefused:
    return RequestRefused(403, f"{what} name '{name}' contains reserved prefix 'amq.*'")
