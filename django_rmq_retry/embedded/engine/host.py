"""The state that all channels of a virtual host share."""

from collections.abc import Callable

from django_rmq_retry.embedded.engine.arguments import QueueSpec
from django_rmq_retry.embedded.engine.behaviour import Behaviour
from django_rmq_retry.embedded.engine.clock import Clock
from django_rmq_retry.embedded.engine.consumers import Valve
from django_rmq_retry.embedded.engine.dead_letters import Undertaker
from django_rmq_retry.embedded.engine.exchanges import Exchange, Router
from django_rmq_retry.embedded.engine.messages import Ack, Event, Message
from django_rmq_retry.embedded.engine.queue import Lease, Queue, Surroundings
from django_rmq_retry.embedded.engine.refusals import missing
from django_rmq_retry.embedded.engine.store import Store

Chance = Callable[[], str]


class Outbox:
    """What one client has not been told yet."""

    def __init__(self, busy: dict["Outbox", None]) -> None:
        self.events: list[Event] = []
        self.valve = Valve()
        self.hears_cancels = True
        """It wants to know when the queue of a consumer goes."""
        self._busy = busy

    def tell(self, event: Event) -> None:
        if not self.events:
            self._busy[self] = None
        self.events.append(event)

    def confirm(self, channel: int, number: int) -> None:
        """Confirms in a row become one."""
        last = self.events[-1] if self.events else None
        if type(last) is Ack and last.channel == channel:
            last.number = number
            last.multiple = True
        else:
            self.tell(Ack(channel, number))

    def drain(self) -> list[Event]:
        """Take everything there is to tell, in order."""
        events, self.events = self.events, []
        self._busy.pop(self, None)
        return events


class Host:
    """The state of a virtual host. Ends every method of a channel by burying what died."""

    def __init__(self, name: str, clock: Clock, behaviour: Behaviour, *, chance: Chance, store: Store) -> None:
        self.name = name
        self.clock = clock
        self.behaviour = behaviour
        self.chance = chance
        self.store = store
        self.busy: dict[Outbox, None] = {}
        """The clients that have something to be told."""
        self.repliers: dict[str, Callable[[Message], None]] = {}
        """Who waits for answers by direct reply-to, by the name that stands in reply_to."""
        self.around = Surroundings(clock, behaviour, store)
        self.router = Router(store)
        self._undertaker = Undertaker(self.around, self.router)
        self.around.settle = self.settle

    def settle(self) -> None:
        """Bury what died; called whenever something may have."""
        if self.around.graves:
            self._undertaker.bury_all()

    def queue(self, name: str) -> Queue:
        found = self.router.queues.get(name)
        if found is None:
            raise missing("queue", name, self.name)
        return found

    def exchange(self, name: str) -> Exchange:
        found = self.router.exchanges.get(name)
        if found is None:
            raise missing("exchange", name, self.name)
        return found

    def add_queue(self, spec: QueueSpec, owner: Outbox | None) -> Queue:
        queue = Queue(spec, self.around, owner)
        self.router.queues[spec.name] = queue
        seconds = spec.seconds("x-expires")
        if seconds is not None:
            queue.lease = Lease(self.clock, seconds, quorum=spec.quorum, end=lambda: self.remove_queue(queue))
        if spec.kept:
            self.store.queue_declared(spec)
        return queue

    def add_exchange(self, exchange: Exchange) -> None:
        self.router.exchanges[exchange.name] = exchange
        if exchange.durable:
            self.store.exchange_declared(
                exchange.name,
                exchange.type,
                auto_delete=exchange.auto_delete,
                internal=exchange.internal,
                arguments=exchange.arguments,
            )

    def remove_queue(self, queue: Queue) -> None:
        """With what is in it, which is not dead-lettered; its consumers are told."""
        if self.router.queues.get(queue.name) is not queue:
            return
        self.router.remove_queue(queue)
        self.around.lost["queue deleted"] += queue.close()
        for consumer in list(queue.roster.members):
            queue.roster.remove(consumer)
            consumer.gone()
