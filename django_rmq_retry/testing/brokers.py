"""The brokers of a test: the embedded one in its process, or a real one with real queues and real time."""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from django_rmq_retry.amqp.address import Access
from django_rmq_retry.amqp.caller import PikaCaller
from django_rmq_retry.amqp.contracts import Caller, Line, Publisher, Receiver
from django_rmq_retry.amqp.declarer import Declarer
from django_rmq_retry.amqp.inspection import peek
from django_rmq_retry.amqp.io_thread import IoThread
from django_rmq_retry.amqp.publisher import PikaPublisher
from django_rmq_retry.amqp.session import Session
from django_rmq_retry.amqp.source import PikaSource
from django_rmq_retry.embedded.direct_broker import DirectBroker, DirectSource, RunUntil, Sent
from django_rmq_retry.errors import BrokerUnfit
from django_rmq_retry.messages.message import Delivery, Message
from django_rmq_retry.testing.faults import NeverQuiet
from django_rmq_retry.topology.declarations import (
    BindingDeclaration,
    ExchangeDeclaration,
    QueueDeclaration,
    Role,
    Server,
    Topology,
)
from django_rmq_retry.topology.plan import PlanState

SOON_SECONDS = 10.0
"""The longest that a busy broker takes to answer, or to move a message to its next queue."""
LOOK_SECONDS = 0.05


class LiveSource(PikaSource):
    """The real consuming connection; it can be closed, but not broken on purpose."""

    def __init__(self, io: IoThread, access: Access, publisher: Publisher, woken: threading.Event) -> None:
        super().__init__(io, access, publisher)
        self._woken = woken
        self._ended = threading.Event()
        self._consumes = False

    def start(self, lines: Sequence[Line], receiver: Receiver) -> None:
        self._consumes = bool(lines)
        super().start(lines, Waking(receiver, self._woken, self._ended))

    def poll(self) -> None: ...

    def die(self) -> None:
        self.stop()
        self._ended.wait(SOON_SECONDS)

    @property
    def idle(self) -> bool:
        """True if no message is unacked and the queues are empty."""
        if not self._consumes:
            return True
        answer: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self.report_emptiness(answer.put)
        return answer.get(timeout=SOON_SECONDS)

    def lose(self, reason: str) -> None:
        raise AssertionError("the kit refuses faults that break a real connection")


class Waking:
    """A receiver that wakes the test, which waits in its own thread."""

    def __init__(self, receiver: Receiver, woken: threading.Event, ended: threading.Event) -> None:
        self._receiver = receiver
        self._woken = woken
        self._ended = ended

    def arrived(self, delivery: Delivery) -> None:
        self._receiver.arrived(delivery)
        self._woken.set()

    def connected(self, server: Server) -> None:
        self._woken.set()

    def lost(self, reason: str, retry_in: float) -> None:
        self._woken.set()

    def failed(self, error: BaseException) -> None:
        self._receiver.failed(error)
        self._woken.set()

    def closed(self) -> None:
        self._ended.set()


class LiveCaller:
    """The real caller, which waits in its own thread while handlers run in the test's."""

    def __init__(self, caller: Caller, run_until: RunUntil, woken: threading.Event, sent: Sent) -> None:
        self._caller = caller
        self._run_until = run_until
        self._woken = woken
        self._sent = sent
        self._threads = ThreadPoolExecutor(8)

    def call(self, message: Message, *, timeout: float) -> Delivery:
        answer = self._threads.submit(self._caller.call, message, timeout=timeout)
        answer.add_done_callback(lambda _answer: self._woken.set())
        self._sent(message)
        self._run_until(answer.done, timeout + SOON_SECONDS)
        return answer.result()

    def close(self) -> None:
        self._caller.close()
        self._threads.shutdown()


class Live:
    """A virtual host of a real broker. Its queues must be empty at the start; the kit deletes what it declares."""

    breakable = False

    def __init__(self, url: str, *, patience: float, coming: Callable[[], bool]) -> None:
        """``coming`` tells whether a retry has not come back yet."""
        self._patience = patience
        self._coming = coming
        self._woken = threading.Event()
        self._access = Access.parse(url)
        self._session = Session(self._access, purpose="test")
        self._session.__enter__()
        self.server = self._session.server
        self._io = IoThread("rmq-test")
        self._io.start()
        self.publisher = PikaPublisher(self._io, self._access)
        self._callers: list[LiveCaller] = []
        self._shadow = DirectBroker(epoch=0)
        self._began = time.monotonic()
        self._deadline = 0.0
        self._quiet_since: float | None = None
        self._sources: list[LiveSource] = []
        self._made: list[ExchangeDeclaration | QueueDeclaration] = []
        self._waiting: list[str] = []
        self._checked: set[str] = set()

    @property
    def now(self) -> float:
        return time.monotonic() - self._began

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def begin(self, until: float | None) -> None:
        self._deadline = self.now + self._patience if until is None else float("inf")
        self._quiet_since = None

    def next_due(self) -> float | None:
        """Return None when nothing is left to do.

        A message on its way between queues is in neither: it takes two quiet looks in a row, and patience with a retry.
        """
        if self._quiet() and not self._woken.wait(LOOK_SECONDS) and self._quiet():
            self._quiet_since = self.now if self._quiet_since is None else self._quiet_since
            if not self._coming() or self.now - self._quiet_since > SOON_SECONDS:
                return None
        else:
            self._quiet_since = None
        if self.now > self._deadline:
            raise NeverQuiet(
                f"After {self._patience:g} s messages are still waiting or unacked. Raise RmqTest(patience=…)."
            )
        return self.now + LOOK_SECONDS

    def advance(self, now: float) -> None:
        self._woken.wait(max(0.0, now - self.now))
        self._woken.clear()

    def declare(self, topology: Topology) -> None:
        """Declare everything missing. Existing messages belong to other programs and stop the test."""
        queues = {name: replace(queue, existing=False) for name, queue in topology.queues.items()}
        exchanges = {name: replace(exchange, existing=False) for name, exchange in topology.exchanges.items()}
        whole = Topology(exchanges=exchanges, queues=queues, bindings=topology.bindings)
        plan = Declarer(self._session).declare(whole)
        created = [item.declaration for item in plan.of(PlanState.CREATE)]
        self._made += [made for made in created if not isinstance(made, BindingDeclaration)]
        if not plan.possible:
            problems = "; ".join(item.text for item in plan.of(PlanState.DIFFERS, PlanState.REFUSED, PlanState.LEFT))
            raise BrokerUnfit(f"The topology cannot be declared on {self._access.shown}: {problems}")
        checked = {made.name for made in self._made} | self._checked
        full = [name for name in queues if name not in checked and self._depth(name)]
        if full:
            raise BrokerUnfit(
                f"Queue {full[0]!r} on {self._access.shown} holds messages. Use a separate virtual host for tests."
            )
        self._checked |= queues.keys()
        self._waiting = [name for name, queue in queues.items() if queue.role is Role.WAITING]
        self._shadow.declare(topology)

    def messages_in(self, name: str) -> list[Delivery]:
        return peek(self._access, name)

    def takers(self, message: Message) -> list[str]:
        return self._shadow.takers(message)

    def caller(self, run_until: RunUntil, sent: Sent, *, exclusive: bool) -> Caller:
        caller = PikaCaller(self._io, self._access, exclusive=exclusive)
        asking = LiveCaller(caller, run_until, self._woken, sent)
        self._callers.append(asking)
        return asking

    def source(self, publisher: Publisher) -> LiveSource:
        source = LiveSource(self._io, self._access, publisher, self._woken)
        # A closed connection after a crash has no state to read.
        self._sources = [source]
        return source

    def close(self) -> None:
        for source in self._sources:
            source.die()
        for caller in self._callers:
            caller.close()
        self.publisher.close()
        self._io.stop(timeout=2)
        for declaration in self._made:
            self._session.ask(_deleting(declaration))
        self._session.__exit__(None, None, None)

    def _quiet(self) -> bool:
        return all(source.idle for source in self._sources) and not any(map(self._depth, self._waiting))

    def _depth(self, name: str) -> int:
        answer = self._session.ask(lambda channel, done: channel.queue_declare(name, passive=True, callback=done))
        return int(answer.method.message_count)


def _deleting(declaration: ExchangeDeclaration | QueueDeclaration) -> Callable[..., object]:
    if isinstance(declaration, QueueDeclaration):
        return lambda channel, done: channel.queue_delete(declaration.name, callback=done)
    return lambda channel, done: channel.exchange_delete(declaration.name, callback=done)


KitBroker = DirectBroker | Live
KitSource = DirectSource | LiveSource
