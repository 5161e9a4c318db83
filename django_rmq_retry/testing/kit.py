"""The test kit: a broker, the project's handlers and a virtual clock for one test."""

import json
import logging
import os
import random
import threading
import time
import unittest
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from difflib import unified_diff
from pathlib import Path
from typing import Any, ClassVar, Self

from django.db import connections

from django_rmq_retry import conf, hooks
from django_rmq_retry.amqp.contracts import Caller, PublishResult
from django_rmq_retry.amqp.frames import check_writable
from django_rmq_retry.breakers.gate import BreakerGate
from django_rmq_retry.breakers.rates import RateGate
from django_rmq_retry.consumer.events import Announcer, Events
from django_rmq_retry.consumer.surroundings import Surroundings
from django_rmq_retry.embedded.direct_broker import DirectBroker, Sent
from django_rmq_retry.embedded.engine.behaviour import behaviour
from django_rmq_retry.errors import BrokerUnfit, RmqRetryError, UndecodableHeaders
from django_rmq_retry.handlers import loop, registry
from django_rmq_retry.handlers.contracts import Gate
from django_rmq_retry.handlers.handler import Handler
from django_rmq_retry.handlers.layout import homes_of, waiting_queues_of
from django_rmq_retry.handlers.subscription import Subscription, WorkQueue
from django_rmq_retry.messages import codecs
from django_rmq_retry.messages.codecs import JSON, Codec
from django_rmq_retry.messages.message import Delivery, Message
from django_rmq_retry.messages.parked_copy import read_parked
from django_rmq_retry.messages.properties import Headers, encode_properties
from django_rmq_retry.messages.stamp import Stamp
from django_rmq_retry.messages.texts import ErrorNote
from django_rmq_retry.publishing.options import options_of
from django_rmq_retry.publishing.publish import message_of as published
from django_rmq_retry.testing.brokers import Live
from django_rmq_retry.testing.driver import AttemptRecorder, Driver, Inbox, Tried
from django_rmq_retry.testing.faults import PUBLISH, Fault, Faults, FaultyCaller, FaultyPublisher, Trouble
from django_rmq_retry.testing.stand_in import OutboxOfTest, standing_in
from django_rmq_retry.topology.drawings import definitions

log = logging.getLogger("django_rmq_retry")

UPDATE = "RMQ_UPDATE_SNAPSHOTS"

HandlerOrName = Handler[Any] | str
UNPUBLISHED = (
    " Nothing was published to it. In a TestCase, messages published inside atomic() are sent only with "
    "captureOnCommitCallbacks(execute=True)."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parked:
    """A message in a parked queue."""

    reason: str
    """For operators: ``Gave up after 5 attempts: BankDown: timeout``."""
    code: str
    """For programs: ``retries_exhausted``."""
    error: ErrorNote | None
    """``kind`` is the class's name, ``text`` the message."""
    attempts: int
    handler: str
    """Empty if no handler took the message."""
    queue: str
    """The work queue where the message first arrived."""
    message: Delivery

    @property
    def body(self) -> bytes:
        return self.message.body

    @property
    def data(self) -> Any:
        """The decoded body; None if it cannot be decoded."""
        return self.message.data

    @property
    def headers(self) -> Headers:
        return self.message.headers


def parked(delivery: Delivery, codec: Codec, homes: Mapping[str, str], waiting: Collection[str]) -> Parked:
    """Read a message from a parked queue, as ``read_parked`` does."""
    copy = read_parked(delivery, homes, waiting)
    return Parked(
        reason=copy.detail or f"The broker removed it: {copy.reason}",
        code=str(copy.reason),
        error=ErrorNote(kind=copy.error, text=copy.error_text) if copy.error else None,
        attempts=copy.stamp.attempts,
        handler=copy.handler,
        queue=copy.queue,
        message=replace(delivery, data=decoded(delivery, codec)),
    )


def decoded(delivery: Delivery, codec: Codec = JSON) -> Any:
    with suppress(RmqRetryError):
        return codecs.decoded(delivery, codec)
    return None


def arriving(message: Message, queue: str) -> Delivery:
    """Return a message as the delivery that a handler of that queue gets."""
    stamp = Stamp.read(message.headers)
    delayed = bool(stamp.queue)
    return Delivery(
        queue=queue,
        body=message.body,
        raw=encode_properties(message.properties),
        exchange=stamp.exchange if delayed else message.exchange,
        routing_key=stamp.routing_key if delayed else message.routing_key,
    )


def taken(delivery: Delivery, work_queue: WorkQueue, subscription: Subscription) -> bool:
    """True if this handler of the queue takes the message."""
    try:
        chosen = work_queue.choose(delivery)
    except UndecodableHeaders:
        return False
    return chosen is not None and chosen.name == subscription.name


def message_of(
    data: object,
    *,
    handler: Handler[Any] | None = None,
    attempt: int = 1,
    redelivered: bool = False,
    state: object = None,
    exchange: str = "",
    routing_key: str = "",
    **options: Any,
) -> Delivery:
    """Return a handler's argument: ``charge(message_of({"payment": 7}, attempt=3))``.

    The data passes through the codec, so that a handler gets its real types: ``Decimal`` for 0.5, no tuples.
    ``handler`` supplies the codec, queue and key, ``state`` stands for the value of the project's lifespan. The options
    are those of ``publish``.
    """
    subscription = None if handler is None else handler.subscription
    codec = JSON if subscription is None else subscription.codec
    message = published(
        data,
        exchange=exchange,
        routing_key=routing_key,
        codec=codec,
        options=options_of(
            options, "message_of", ("handler", "attempt", "redelivered", "state", "exchange", "routing_key")
        ),
        destination=None if handler is None else handler.destination,
    )
    return Delivery(
        queue="" if subscription is None else subscription.queue.name,
        body=message.body,
        raw=encode_properties(message.properties),
        exchange=message.exchange,
        routing_key=message.routing_key,
        redelivered=redelivered,
        attempt=attempt,
        data=codec.decode(message.body, message.properties),
        state=state,
    )


def assert_topology(snapshot: str | os.PathLike[str]) -> None:
    """Fail unless every exchange, queue and binding of the project equals the snapshot.

    ``RMQ_UPDATE_SNAPSHOTS=1`` in the environment writes the file, in the format of
    ``rabbitmqctl import_definitions``.
    """
    registry.autodiscover()
    path = Path(snapshot)
    now = json.dumps(definitions(registry.topology()), indent=2, sort_keys=True) + "\n"
    if os.environ.get(UPDATE, "0") not in {"", "0"}:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(now)
        return
    fix = f"To accept it, run this test once with {UPDATE}=1 and commit the file."
    if not path.exists():
        raise AssertionError(f"There is no snapshot of the topology at {path}. {fix}")
    stored = path.read_text()
    if json.loads(stored) != json.loads(now):
        difference = unified_diff(stored.splitlines(), now.splitlines(), str(path), "the project now", lineterm="", n=2)
        raise AssertionError("\n".join([f"The topology differs from {path}. {fix}", *difference]))


class WithCommitCallbacks:
    """Run commit callbacks when an attempt ends, because a TestCase never commits.

    Connections stay open, unlike in production, because the test continues to use them.
    """

    def __init__(self) -> None:
        self._waiting = {one.alias: len(one.run_on_commit) for one in connections.all(initialized_only=True)}

    def __enter__(self) -> None: ...

    def __exit__(self, *_error: object) -> None:
        for connection in connections.all(initialized_only=True):
            known = self._waiting.get(connection.alias, 0)
            while len(connection.run_on_commit) > known:
                left: list[Any] = connection.run_on_commit[known:]
                del connection.run_on_commit[known:]
                for _savepoints, callback, robust in left:
                    _run(callback, robust=robust)


def _run(callback: Callable[[], object], *, robust: bool) -> None:
    try:
        callback()
    except Exception:
        if not robust:
            raise
        log.exception("A callback for the commit failed")


def orders(work_queues: Sequence[WorkQueue]) -> Sequence[Gate]:
    """Return the gate of handlers with ``order_by``; none without such handlers."""
    if not any(work_queue.keyed for work_queue in work_queues):
        return ()
    from django_rmq_retry.ordering.gate import OrderGate  # noqa: PLC0415 - pytest loads the kit before settings and models

    return (OrderGate(),)


class RmqTest:
    """``with RmqTest() as rmq``: every message published inside comes here, and ``rmq.drain()`` handles it.

    ``seed`` enables back-off jitter. ``version`` is the RabbitMQ version to simulate: 4.0 or 4.3.
    ``url`` selects a real broker in real time; ``drain`` then takes at most ``patience`` seconds.
    """

    def __init__(
        self, *, seed: int | None = None, version: str = "4.0", url: str | None = None, patience: float = 60.0
    ) -> None:
        self._chance: Callable[[], float] = random.Random(seed).random if seed is not None else lambda: 0.0
        self._recorder = AttemptRecorder(lambda: self._broker.now)
        self._broker = (
            Live(url, patience=patience, coming=self._recorder.coming)
            if url
            else DirectBroker(behaviour(version), epoch=time.time())
        )
        self._lock = threading.RLock()
        self._faults = Faults()
        self._sent: list[Message] = []
        self._driver = Driver(self._broker, self._publisher(_forget), self._faults)
        self._recorder.unfinished = self._driver.unfinished
        self._known: Mapping[str, registry.Registration] = {}
        self._work_queues: Mapping[str, WorkQueue] = {}
        self._callers: dict[bool, Caller] = {}
        self._outbox = OutboxOfTest()
        self._lives = False
        self._open = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as opening:
            self._enter(opening)
            self._open = opening.pop_all()
        return self

    def __exit__(self, *_error: object) -> None:
        self._open.close()

    @property
    def now(self) -> float:
        """Seconds on the virtual clock since the start of the test."""
        return self._broker.now

    @property
    def waits(self) -> list[float]:
        """The wait of each retry, in order: seconds from the failed attempt to the next one."""
        return list(self._recorder.waits)

    def drain(self, *, limit: int = 100) -> int:
        """Run everything, with all retries and delays, until nothing is left to do; return the number of attempts.

        A message with ``limit`` attempts and no end is an error, unless its policy allows more.
        """
        self._look()
        own = [
            one.policy.attempts or 0 for work_queue in self._work_queues.values() for one in work_queue.subscriptions
        ]
        limit = max([limit, *(attempts + 1 for attempts in own)])
        before = len(self._recorder.attempts)
        self._outbox.send_left()
        self._driver.run(limit=limit)
        while self._outbox.send_left():
            self._driver.run(limit=limit)
        return len(self._recorder.attempts) - before

    def advance(self, seconds: float) -> int:
        """Move time forward, and run everything due by then; return the number of attempts."""
        self._look()
        before = len(self._recorder.attempts)
        self._outbox.send_left()
        self._driver.run(until=self._broker.now + seconds)
        return len(self._recorder.attempts) - before

    def published(self, handler: HandlerOrName | None = None) -> list[Delivery]:
        """The messages published to that handler, or all; retries and answers are not included."""
        messages = [(message, self._queues(message)) for message in self._sent]
        if handler is None:
            return [_read(arriving(message, queues[0] if queues else "")) for message, queues in messages]
        subscription = registry.subscription(_name(handler))
        name = subscription.queue.name
        arrivals = [arriving(message, name) for message, queues in messages if name in queues]
        fitting = [one for one in arrivals if taken(one, self._work_queues[name], subscription)]
        return [replace(one, data=decoded(one, subscription.codec)) for one in fitting]

    def parked(self, handler: HandlerOrName) -> Parked:
        """The handler's parked message; the last one if there are several."""
        messages = self.all_parked(handler)
        if messages:
            return messages[-1]
        tried = self.attempts(handler)
        last = f"; the last ended with {tried[-1].verdict.kind.value}" if tried else ""
        hint = "" if tried or self.published(handler) else UNPUBLISHED
        raise AssertionError(
            f"No message of {_name(handler)} is parked. It has made {len(tried)} attempts{last}.{hint}"
        )

    def all_parked(self, handler: HandlerOrName) -> list[Parked]:
        """Every message that this handler parked, or that the broker removed from its queue."""
        subscription = registry.subscription(_name(handler))
        work_queues = tuple(self._work_queues.values())
        homes, waiting = homes_of(work_queues), set[str]().union(*map(waiting_queues_of, work_queues))
        # A message that somebody put into the parked queue comes from no work queue.
        homes.pop(subscription.park, None)
        deliveries = self._broker.messages_in(subscription.park)
        messages = [parked(delivery, subscription.codec, homes, waiting) for delivery in deliveries]
        queue = subscription.queue.name
        return [one for one in messages if one.handler == subscription.name or (not one.handler and one.queue == queue)]

    def attempts(self, handler: HandlerOrName | None = None) -> list[Tried]:
        """Every attempt of this handler, or of all handlers."""
        return [one for one in self._recorder.attempts if handler is None or one.handler == _name(handler)]

    def messages(self, queue: str) -> list[Delivery]:
        """The messages in a queue without a handler, such as a queue for answers."""
        return [_read(delivery) for delivery in self._broker.messages_in(queue)]

    def fail_next(self, point: HandlerOrName, trouble: Trouble | str, *, times: int = 1) -> None:
        """Inject a fault: ``fail_next(charge, BankDown("timeout"), times=2)``.

        An exception is raised instead of the handler. ``"crash before ack"``, ``"duplicate delivery"`` and
        ``"broker loss"`` happen after the handler has run. For the point ``"publish"``, the faults are
        ``"confirm lost"``, ``"broker loss"`` and ``"nack"``.
        """
        name = point if point == PUBLISH else _name(point)
        self._look()
        if name != PUBLISH and name not in self._known:
            raise ValueError(f"fail_next() takes a handler or {PUBLISH!r}, not {point!r}.")
        if name != PUBLISH and trouble in {Fault.DUPLICATE, Fault.BROKER} and not self._broker.breakable:
            raise ValueError(f"{str(trouble)!r} at a handler needs the embedded broker. Omit url=….")
        self._faults.add(name, trouble, times=times)

    def _enter(self, opening: ExitStack) -> None:
        opening.callback(self._broker.close)
        opening.callback(loop.close)
        registry.autodiscover()
        self._outbox = opening.enter_context(standing_in(self._publisher(self._sent.append), self._caller))
        self._look()

    def _look(self) -> None:
        """Declare and consume the queues of all handlers, including those defined since the last call."""
        registrations = registry.registrations()
        if registrations == self._known:
            return
        self._known = registrations
        work_queues = registry.work_queues()
        self._work_queues = {work_queue.queue.name: work_queue for work_queue in work_queues}
        for subscription in registry.subscriptions():
            refusal = subscription.policy.via.version_refusal(self._broker.server)
            if refusal:
                raise BrokerUnfit(f"Handler {subscription.name}: {refusal} Use RmqTest(version='4.3').")
        self._broker.declare(registry.topology())
        self._enter_lifespan()
        clock = lambda: self._broker.now  # noqa: E731 - called at every attempt
        breaker_gate = BreakerGate(work_queues, None, now=clock, chance=self._chance)
        gates: Sequence[Gate] = (breaker_gate, RateGate(work_queues, None, now=clock), *orders(work_queues))
        self._driver.employ(work_queues, self._surroundings(gates), breaker_gate, prefetch=conf.settings().prefetch)

    def _enter_lifespan(self) -> None:
        lifespan = conf.settings().lifespan
        if lifespan is None or self._lives or not any(one.asynchronous for one in registry.subscriptions()):
            return
        self._lives = loop.handler_loop().open(lifespan)

    def _surroundings(self, gates: Sequence[Gate]) -> Surroundings:
        clock = lambda: self._broker.now  # noqa: E731 - called at every attempt
        settings = conf.settings()
        events = Events(clock, [self._recorder, Announcer()])
        return Surroundings(
            with_connections=WithCommitCallbacks,
            journals=(events,),
            clock=clock,
            now_ms=self._broker.now_ms,
            chance=self._chance,
            crash_limit=settings.crash_limit,
            reply_to=settings.reply_to,
            refused=events.refuse_answer,
            check=check_writable,
            hooks=hooks.project_hooks() if settings.around else None,
            keep=lambda kept: kept.store([kept.row]),
            gates=gates,
            once=(inbox := Inbox(self._driver.failed)),
            once_batch=inbox.batch,
        )

    def _publisher(self, sent: Sent) -> FaultyPublisher:
        return FaultyPublisher(self._broker.publisher, self._next_result, sent)

    def _next_result(self) -> PublishResult | None:
        with self._lock:
            self._look()
            return self._faults.take_result()

    def _caller(self, exclusive: bool) -> Caller:  # noqa: FBT001 - the signature of broker_connections
        if exclusive not in self._callers:
            caller = self._broker.caller(self._run_until, self._sent.append, exclusive=exclusive)
            self._callers[exclusive] = FaultyCaller(caller, self._next_result)
        return self._callers[exclusive]

    def _run_until(self, enough: Callable[[], bool], seconds: float) -> None:
        self._driver.run(until=self._broker.now + seconds, enough=enough)

    def _queues(self, message: Message) -> list[str]:
        delayed = Stamp.read(message.headers).queue
        return [delayed] if delayed else self._broker.takers(message)


def _forget(_message: Message) -> None:
    """Ignore retries and answers, which the test did not publish."""


def _read(delivery: Delivery) -> Delivery:
    return replace(delivery, data=decoded(delivery))


def _name(handler: HandlerOrName) -> str:
    return handler if isinstance(handler, str) else handler.name


class RmqTestMixin(unittest.TestCase):
    """Give each test its own kit: ``class ChargeTest(RmqTestMixin, TestCase)``, then ``self.rmq.drain()``."""

    rmq: RmqTest
    rmq_options: ClassVar[Mapping[str, Any]] = {}
    """The arguments of ``RmqTest``, such as ``{"seed": 7}``."""

    def setUp(self) -> None:
        super().setUp()
        self.rmq = self.enterContext(RmqTest(**self.rmq_options))
