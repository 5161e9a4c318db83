"""The real connections as the kit takes them: with ends that a test asks for, and handlers in the test's thread."""

import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from django_rmq_retry.broker.base import ERRORS, Caller, Line, Outcome, Publisher, Receiver, Server
from django_rmq_retry.broker.consuming import PikaSource
from django_rmq_retry.core.message import Delivery, Message
from django_rmq_retry.core.settlement import Settlement
from django_rmq_retry.embedded.direct.calling import RunUntil, asked_for
from django_rmq_retry.embedded.direct.publishing import Meddler
from django_rmq_retry.testing.places import Sent

SOON = 10.0


class LiveHands:
    """The real consuming connection; it can be ended, but not broken on purpose."""

    def __init__(self, source: PikaSource, woken: threading.Event) -> None:
        self._source = source
        self._woken = woken
        self._drained = threading.Event()
        self._lines = 0

    def start(self, lines: Sequence[Line], receiver: Receiver) -> None:
        self._lines = len(lines)
        self._source.start(lines, Waking(receiver, self._woken, self._drained))

    def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        self._source.settle(delivery, settlement)

    def give_back(self, deliveries: Iterable[Delivery]) -> None:
        self._source.give_back(deliveries)

    def pause(self, queue: str) -> None:
        self._source.pause(queue)

    def resume(self, queue: str, *, prefetch: int | None = None) -> None:
        self._source.resume(queue, prefetch=prefetch)

    def poll(self) -> None: ...

    def die(self) -> None:
        self._source.stop()
        self._drained.wait(SOON)

    @property
    def idle(self) -> bool:
        """Whether nothing is in hand, and nothing in the queues."""
        if not self._lines:
            return True
        answer: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._source.empty(answer.put)
        return answer.get(timeout=SOON)

    def lose(self, reason: str) -> None:
        raise AssertionError("the kit refuses what would lead here")

    def lose_ack(self, delivery: Delivery, settlement: Settlement) -> None:
        self.lose("")


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

    def drained(self) -> None:
        self._ended.set()


class Meddled:
    """The real publisher, with the ends that a test asks for."""

    def __init__(self, publisher: Publisher, meddler: Meddler, sent: Sent) -> None:
        self._publisher = publisher
        self._meddler = meddler
        self._sent = sent

    def publish(self, message: Message, *, timeout: float | None = None) -> None:
        meddled = self._meddler(message)
        if meddled is None or meddled is Outcome.UNKNOWN:
            self._publisher.publish(message, timeout=timeout)
            self._sent(message)
        if meddled is not None:
            raise ERRORS[meddled](message.exchange, message.routing_key, said="the test asked for it")

    def publish_many(self, messages: Iterable[Message], *, window: int = 1000, timeout: float | None = None) -> int:
        batch = list(messages)
        for message in batch:
            self.publish(message, timeout=timeout)
        return len(batch)

    def send(self, message: Message, done: Callable[[Outcome, str], None], *, timeout: float | None = None) -> None:
        meddled = self._meddler(message)
        if meddled is not None and meddled is not Outcome.UNKNOWN:
            done(meddled, "the test asked for it")
            return
        self._sent(message)
        self._publisher.send(message, lambda outcome, said: done(meddled or outcome, said), timeout=timeout)

    def close(self) -> None: ...


class Asking:
    """The real caller, waiting in a thread of its own while handlers run in the test's."""

    def __init__(
        self, caller: Caller, run_until: RunUntil, woken: threading.Event, *, meddler: Meddler, sent: Sent
    ) -> None:
        self._caller = caller
        self._run_until = run_until
        self._woken = woken
        self._meddler = meddler
        self._sent = sent
        self._threads = ThreadPoolExecutor(8)

    def call(self, message: Message, *, timeout: float) -> Delivery:
        meddled = self._meddler(message)
        if meddled is not None:
            raise asked_for(message, meddled)
        answer = self._threads.submit(self._caller.call, message, timeout=timeout)
        answer.add_done_callback(lambda _answer: self._woken.set())
        self._sent(message)
        self._run_until(answer.done, timeout + SOON)
        return answer.result()

    def close(self) -> None:
        self._caller.close()
        self._threads.shutdown()
