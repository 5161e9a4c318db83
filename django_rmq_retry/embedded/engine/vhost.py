"""A virtual host: the state that all its channels share."""

from collections.abc import Callable

from django_rmq_retry.embedded.engine.behaviour import V4_0, Behaviour
from django_rmq_retry.embedded.engine.clock import Clock
from django_rmq_retry.embedded.engine.consumers import Valve
from django_rmq_retry.embedded.engine.dead_letters import Undertaker
from django_rmq_retry.embedded.engine.envelopes import Ack, Event, StoredMessage
from django_rmq_retry.embedded.engine.queue import BrokerQueue, Lease, SharedState
from django_rmq_retry.embedded.engine.refusals import missing
from django_rmq_retry.embedded.engine.routing import BrokerExchange, Router
from django_rmq_retry.embedded.engine.specs import ExchangeSpec, QueueSpec
from django_rmq_retry.embedded.engine.store import DurableStore


class EventOutbox:
    """The events that one client has not received yet."""

    def __init__(self, busy: dict["EventOutbox", None]) -> None:
        self.events: list[Event] = []
        self.valve = Valve()
        self.supports_cancel = True
        """True if the client accepts basic.cancel for a deleted queue."""
        self._busy = busy

    def put(self, event: Event) -> None:
        if not self.events:
            self._busy[self] = None
        self.events.append(event)

    def confirm(self, channel: int, number: int) -> None:
        """Confirm one publish; consecutive confirms become one."""
        last = self.events[-1] if self.events else None
        if type(last) is Ack and last.channel == channel:
            last.number = number
            last.multiple = True
        else:
            self.put(Ack(channel, number))

    def drain(self) -> list[Event]:
        events, self.events = self.events, []
        self._busy.pop(self, None)
        return events


class Vhost:
    """A virtual host. Every method of a channel ends by dead-lettering what died; ``busy`` are sessions with events."""

    def __init__(
        self,
        name: str,
        clock: Clock,
        behaviour: Behaviour = V4_0,
        *,
        random_name: Callable[[], str],
        store: DurableStore | None = None,
    ) -> None:
        self.name = name
        self.clock = clock
        self.behaviour = behaviour
        self.random_name = random_name
        """Makes the part of a name that the broker chooses."""
        self.store = store = store or DurableStore()
        self.busy: dict[EventOutbox, None] = {}
        """The clients with unsent events."""
        self.repliers: dict[str, Callable[[StoredMessage], None]] = {}
        """The channels that wait for direct replies, by the name in reply_to."""
        self.shared = SharedState(clock, behaviour, store)
        self.router = Router(store)
        self._undertaker = Undertaker(self.shared, self.router)
        self.shared.settle = self.settle

    def settle(self) -> None:
        """Dead-letter every message that died; called after each operation that may have ended one."""
        if self.shared.graves:
            self._undertaker.bury_all()

    def queue(self, name: str) -> BrokerQueue:
        entry = self.router.queues.get(name)
        if entry is None:
            raise missing("queue", name, self.name)
        return entry

    def exchange(self, name: str) -> BrokerExchange:
        entry = self.router.exchanges.get(name)
        if entry is None:
            raise missing("exchange", name, self.name)
        return entry

    def add_queue(self, spec: QueueSpec, owner: EventOutbox | None) -> BrokerQueue:
        queue = BrokerQueue(spec, self.shared, owner)
        self.router.queues[spec.name] = queue
        seconds = spec.seconds("x-expires")
        if seconds is not None:
            queue.lease = Lease(self.clock, seconds, quorum=spec.quorum, end=lambda: self.remove_queue(queue))
        if spec.kept:
            self.store.queue_declared(spec)
        return queue

    def add_exchange(self, spec: ExchangeSpec) -> None:
        self.router.exchanges[spec.name] = BrokerExchange(spec)
        if spec.durable:
            self.store.exchange_declared(spec)

    def remove_queue(self, queue: BrokerQueue) -> None:
        """Delete a queue with its messages, which are not dead-lettered; its consumers get basic.cancel."""
        if self.router.queues.get(queue.name) is not queue:
            return
        self.router.remove_queue(queue)
        self.shared.lost["queue deleted"] += queue.close()
        for consumer in list(queue.roster.members):
            queue.roster.remove(consumer)
            consumer.gone()
