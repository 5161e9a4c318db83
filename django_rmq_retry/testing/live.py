"""The same kit on a real broker: real queues and real time; handlers still run in the test's own thread."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace

from django_rmq_retry.broker.address import Access
from django_rmq_retry.broker.asking import Session
from django_rmq_retry.broker.base import Caller, Publisher
from django_rmq_retry.broker.calling import PikaCaller
from django_rmq_retry.broker.consuming import PikaSource
from django_rmq_retry.broker.declaring import Declarer
from django_rmq_retry.broker.looping import IoThread
from django_rmq_retry.broker.peeking import peek
from django_rmq_retry.broker.plans import State
from django_rmq_retry.broker.publishing import PikaPublisher
from django_rmq_retry.core.declarations import BindingDeclaration, ExchangeDeclaration, QueueDeclaration, Role, Topology
from django_rmq_retry.core.errors import BrokerUnfit
from django_rmq_retry.core.message import Delivery, Message
from django_rmq_retry.embedded.direct.broker import DirectBroker
from django_rmq_retry.embedded.direct.calling import RunUntil
from django_rmq_retry.embedded.direct.publishing import Meddler
from django_rmq_retry.testing.driving import NeverQuiet
from django_rmq_retry.testing.places import Hands, Sent
from django_rmq_retry.testing.wrapping import Asking, LiveHands, Meddled

LOOK = 0.05


class Live:
    """A virtual host of a real broker. It must hold no message of the topology's; what is made here is deleted."""

    breakable = False

    def __init__(self, url: str, *, patience: float) -> None:
        self._patience = patience
        self._woken = threading.Event()
        self._access = Access.parse(url)
        self._session = Session(self._access, purpose="test")
        self._session.__enter__()
        self.server = self._session.server
        self._io = IoThread("rmq-test")
        self._io.start()
        self._publisher = PikaPublisher(self._io, self._access)
        self._callers: list[Asking] = []
        self._shadow = DirectBroker(epoch=0)
        self._began = time.monotonic()
        self._deadline = 0.0
        self._hands: list[LiveHands] = []
        self._made: list[ExchangeDeclaration | QueueDeclaration] = []
        self._waiting: list[str] = []
        self._checked: set[str] = set()

    @property
    def now(self) -> float:
        return time.monotonic() - self._began

    def today(self) -> int:
        return time.time_ns() // 1_000_000

    def begin(self, until: float | None) -> None:
        self._deadline = self.now + self._patience if until is None else float("inf")

    def next_due(self) -> float | None:
        """Quiet is what has been quiet twice: between two queues a message is in neither."""
        if self._quiet() and not self._woken.wait(LOOK) and self._quiet():
            return None
        if self.now > self._deadline:
            raise NeverQuiet(f"After {self._patience:g} s messages still wait or are in hand. RmqTest(patience=…)?")
        return self.now + LOOK

    def advance(self, now: float) -> None:
        self._woken.wait(max(0.0, now - self.now))
        self._woken.clear()

    def declare(self, topology: Topology) -> None:
        """Make what is missing; a message that is there already is somebody's, and is not touched."""
        queues = {name: replace(queue, existing=False) for name, queue in topology.queues.items()}
        exchanges = {name: replace(exchange, existing=False) for name, exchange in topology.exchanges.items()}
        whole = Topology(exchanges=exchanges, queues=queues, bindings=topology.bindings)
        plan = Declarer(self._session).declare(whole)
        created = [item.declaration for item in plan.of(State.CREATE)]
        self._made += [one for one in created if not isinstance(one, BindingDeclaration)]
        if not plan.possible:
            said = "; ".join(item.said for item in plan.of(State.DIFFERS, State.REFUSED, State.LEFT))
            raise BrokerUnfit(f"The topology cannot be made on {self._access.shown}: {said}")
        found = {one.name for one in self._made} | self._checked
        full = [name for name in queues if name not in found and self._depth(name)]
        if full:
            raise BrokerUnfit(
                f"Queue {full[0]!r} on {self._access.shown} holds messages. Give the tests a virtual host of their own."
            )
        self._checked |= queues.keys()
        self._waiting = [name for name, queue in queues.items() if queue.role is Role.WAITING]
        self._shadow.declare(topology)

    def lying(self, name: str) -> list[Delivery]:
        return peek(self._access, name)

    def takers(self, message: Message) -> list[str]:
        return self._shadow.takers(message)

    def publisher(self, meddler: Meddler, sent: Sent) -> Publisher:
        return Meddled(self._publisher, meddler, sent)

    def caller(self, run_until: RunUntil, meddler: Meddler, sent: Sent, *, exclusive: bool) -> Caller:
        caller = PikaCaller(self._io, self._access, exclusive=exclusive)
        asking = Asking(caller, run_until, self._woken, meddler=meddler, sent=sent)
        self._callers.append(asking)
        return asking

    def hands(self, publisher: Publisher) -> Hands:
        hands = LiveHands(PikaSource(self._io, self._access, publisher), self._woken)
        # Of a crashed one nothing is left to be asked.
        self._hands = [hands]
        return hands

    def close(self) -> None:
        for hands in self._hands:
            hands.die()
        for caller in self._callers:
            caller.close()
        self._publisher.close()
        self._io.stop(timeout=2)
        for made in self._made:
            self._session.ask(_deleting(made))
        self._session.__exit__(None, None, None)

    def _quiet(self) -> bool:
        return all(hands.idle for hands in self._hands) and not any(map(self._depth, self._waiting))

    def _depth(self, name: str) -> int:
        answer = self._session.ask(lambda channel, done: channel.queue_declare(name, passive=True, callback=done))
        return int(answer.method.message_count)


def _deleting(made: ExchangeDeclaration | QueueDeclaration) -> Callable[..., object]:
    if isinstance(made, QueueDeclaration):
        return lambda channel, done: channel.queue_delete(made.name, callback=done)
    return lambda channel, done: channel.exchange_delete(made.name, callback=done)
