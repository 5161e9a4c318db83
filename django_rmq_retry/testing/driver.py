"""Runs handlers in the test's own thread: deliver, attempt, settle, advance the clock."""

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, Error, connections
from django.utils.connection import ConnectionDoesNotExist

from django_rmq_retry.amqp.contracts import Line, Publisher
from django_rmq_retry.breakers.gate import BreakerGate
from django_rmq_retry.consumer.batch_attempt import BatchPipeline
from django_rmq_retry.consumer.batches import batches_of
from django_rmq_retry.consumer.lines import consumed_lines, consumed_queues, returned_as_copies
from django_rmq_retry.consumer.sequencer import Sequencer
from django_rmq_retry.consumer.surroundings import Surroundings
from django_rmq_retry.handlers.batch import Batch
from django_rmq_retry.handlers.call import Call, OnceState
from django_rmq_retry.handlers.contracts import FinishedAttempt
from django_rmq_retry.handlers.subscription import Subscription, WorkQueue
from django_rmq_retry.messages.message import Delivery, Instruction, Settlement, message_id
from django_rmq_retry.policies.verdict import Kind, Verdict
from django_rmq_retry.testing.brokers import KitBroker, KitSource
from django_rmq_retry.testing.faults import Fault, Faults, NeverQuiet
from django_rmq_retry.topology.declarations import Server

MOST_DELIVERIES = 100_000
MOST_TURNS = 1_000_000
MOST_ATTEMPTS_AT_ONCE = 1000

PlaceKey = tuple[str, str | bytes]


class KitPauses:
    """The pauses of a test's queues. Like rows in the project's database they survive a crash."""

    def __init__(self, work_queues: Sequence[WorkQueue]) -> None:
        self._consumed = {work_queue.queue.name: consumed_queues(work_queue) for work_queue in work_queues}
        self._gated = returned_as_copies(work_queues)
        self._prefetch: dict[str, int | None] = {}
        self._source: KitSource | None = None
        self._ready: deque[Delivery] = deque()
        self._sequencer = Sequencer(lambda _delivery: None)

    def attach(self, source: KitSource, ready: deque[Delivery], sequencer: Sequencer) -> None:
        """Use this connection; ``ready`` and ``sequencer`` hold its deliveries that have not started."""
        self._source, self._ready, self._sequencer = source, ready, sequencer
        for name, prefetch in self._prefetch.items():
            _apply_prefetch(source, name, prefetch)

    def pause(self, queue: str) -> None:
        names = self._consumed.get(queue, ())
        self._set_prefetch(names, 0)
        if queue in self._gated:
            return
        back = [one for one in self._ready if one.queue in names]
        for one in back:
            self._ready.remove(one)
        self._sequencer.give_up(names)
        if self._source is not None:
            self._source.give_back(back)

    def resume(self, queue: str) -> None:
        self._set_prefetch(self._consumed.get(queue, ()), None)

    def probe(self, queue: str) -> None:
        self._set_prefetch((queue,), 1)

    def able(self) -> bool:
        return True

    def _set_prefetch(self, names: Sequence[str], prefetch: int | None) -> None:
        for name in names:
            self._prefetch[name] = prefetch
            if self._source is not None:
                _apply_prefetch(self._source, name, prefetch)


def _apply_prefetch(source: KitSource, name: str, prefetch: int | None) -> None:
    if prefetch == 0:
        source.pause(name)
    else:
        source.resume(name, prefetch=prefetch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One attempt at its end."""

    handler: str
    """Empty if no handler took the message."""
    number: int
    at: float
    """Seconds on the virtual clock since the start of the test."""
    verdict: Verdict
    error: BaseException | None
    message: Delivery


class AttemptRecorder:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failed: dict[PlaceKey, Tried] = {}
        self.attempts: list[Tried] = []
        self.waits: list[float] = []
        self.unfinished: Callable[[PlaceKey, Tried], None] = lambda _key, _tried: None
        """Called after each attempt that another one follows."""

    def coming(self) -> bool:
        """True if the next attempt of a retry has not been made yet."""
        return any(failed.verdict.kind is Kind.RETRY for failed in self._failed.values())

    def __call__(self, attempt: FinishedAttempt) -> None:
        delivery, now = attempt.delivery, self._clock()
        tried = Tried(
            handler=attempt.subscription.name if attempt.subscription else "",
            number=delivery.attempt,
            at=now,
            verdict=attempt.verdict,
            error=attempt.error,
            message=delivery,
        )
        key = (delivery.queue, message_id(delivery) or delivery.body)
        if not attempt.verdict.counted:
            if attempt.error is not None:
                self.unfinished(key, tried)
            return
        self.attempts.append(tried)
        failed = self._failed.pop(key, None)
        if failed is not None:
            self.waits.append(round(now - failed.at, 3))
        if attempt.verdict.kind in {Kind.RETRY, Kind.HALT}:
            self._failed[key] = tried
            self.unfinished(key, tried)


class Driver:
    """The consumer of a test: one worker, in the test's own thread."""

    def __init__(self, broker: KitBroker, publisher: Publisher, faults: Faults) -> None:
        self._broker = broker
        self._publisher = publisher
        self._faults = faults
        self._ready: deque[Delivery] = deque()
        self._source: KitSource | None = None
        self._lines: tuple[Line, ...] = ()
        self._made: Callable[[], BatchPipeline | None] = lambda: None
        self._pipeline: BatchPipeline | None = None
        self._breaker_gate: BreakerGate | None = None
        self._pauses = KitPauses(())
        self._keyed: frozenset[str] = frozenset()
        self._batches: dict[str, Batch] = {}
        self._sequencer = Sequencer(lambda _delivery: None)
        self._following: deque[Delivery] = deque()
        self._fault: Fault | None = None
        self._escaped: BaseException | None = None
        self._patience = Patience(0)

    def employ(
        self, work_queues: Sequence[WorkQueue], surroundings: Surroundings, gate: BreakerGate, *, prefetch: int
    ) -> None:
        """Consume these queues, as far as the gate does not pause them."""
        self._pauses = KitPauses(work_queues)
        self._breaker_gate, gate.control = gate, self._pauses
        faulty = [
            replace(work_queue, subscriptions=tuple(map(self._with_faults, work_queue.subscriptions)))
            for work_queue in work_queues
        ]
        self._made = lambda: BatchPipeline(faulty, surroundings)
        self._pipeline = self._made()
        self._batches = batches_of(work_queues)
        self._lines = tuple(
            line
            for one in work_queues
            for line in consumed_lines(one, max(prefetch, one.batch.size) if one.batch else prefetch)
        )
        self._keyed = frozenset(work_queue.queue.name for work_queue in work_queues if work_queue.keyed)
        if self._source is not None:
            self._restart()

    def run(self, *, until: float | None = None, enough: Callable[[], bool] = lambda: False, limit: int = 0) -> None:
        """Run until the clock shows ``until``, or until nothing is left to do."""
        if self._source is None:
            self._restart()
        # A handler that calls another one enters this function again.
        outer, self._patience = self._patience, Patience(limit)
        self._broker.begin(until)
        try:
            self._run(until, enough)
        finally:
            self._patience = outer

    def unfinished(self, key: PlaceKey, tried: Tried) -> None:
        """Count an attempt that another one follows."""
        self._patience.unfinished(key, tried)

    def _run(self, until: float | None, enough: Callable[[], bool]) -> None:
        deliveries = turns = 0
        while not enough():
            if self._work_one():
                deliveries += 1
                turns = 0
                if deliveries > MOST_DELIVERIES:
                    raise NeverQuiet(
                        f"After {deliveries} deliveries the queues are still not empty. Check for a handler that "
                        "publishes to itself, or drain again."
                    )
                continue
            if self._switch():
                continue
            due = self._next(until)
            if due is None:
                return
            turns += 1
            if turns > MOST_TURNS:
                raise NeverQuiet(f"{turns} times in a row the broker moved messages without a delivery to a handler.")
            self._broker.advance(due)

    def _switch(self) -> bool:
        """Let the gate change pauses that are due; return True if it did."""
        due = None if self._breaker_gate is None else self._breaker_gate.next_due()
        if self._breaker_gate is None or due is None or due > self._broker.now:
            return False
        self._breaker_gate.turn()
        return True

    def _next(self, until: float | None) -> float | None:
        """Return the time of the next step; None if there is none."""
        due = self._broker.next_due()
        switched = None if self._breaker_gate is None else self._breaker_gate.next_due()
        if switched is not None:
            due = switched if due is None else min(due, switched)
        if until is None or (due is not None and due <= until):
            return due
        return until if self._broker.now < until else None

    def arrived(self, delivery: Delivery) -> None:
        if delivery.queue in self._keyed:
            self._sequencer.add(delivery)
        self._ready.append(delivery)

    def connected(self, server: Server) -> None: ...

    def lost(self, reason: str, retry_in: float) -> None: ...

    def failed(self, error: BaseException) -> None:
        self._escaped = error

    def closed(self) -> None: ...

    def _restart(self) -> None:
        """Restart as a new process: unacked messages return, and all state in memory is lost."""
        if self._source is not None:
            self._source.die()
            self._pipeline = self._made()
        self._ready.clear()
        self._following.clear()
        if self._pipeline is not None:
            self._sequencer = Sequencer(self._pipeline.read_key)
        self._source = self._broker.source(self._publisher)
        self._pauses.attach(self._source, self._ready, self._sequencer)
        self._source.start(self._lines, self)

    def _work_one(self) -> bool:
        source, pipeline = self._source, self._pipeline
        if source is None or pipeline is None:
            return False
        source.poll()
        self._raise_what_escaped()
        if not self._following and not self._ready:
            return False
        deliveries = self._take_batch()
        if not deliveries:
            return True
        # A handler may call another one, whose attempt must not take this attempt's fault.
        outer = self._take_fault()
        settlements = _attempted(pipeline, deliveries)
        fault, self._fault = self._take_fault(), outer
        for delivery, settlement in settlements:
            stays = settlement.instruction is Instruction.KEEP
            following = self._sequencer.keep(delivery) if stays else self._sequencer.done(delivery)
            self._following.extend([] if following is None else [following])
        self._settle(source, settlements, fault)
        self._raise_what_escaped()
        return True

    def _settle(
        self, source: KitSource, settlements: Sequence[tuple[Delivery, Settlement]], fault: Fault | None
    ) -> None:
        if fault is Fault.CRASH:
            self._restart()
        elif fault is Fault.DUPLICATE:
            # The copy and the answer are stored, and the connection is lost before the ack arrives.
            for _, settlement in settlements:
                for message in (settlement.answer, None if settlement.ack_first else settlement.copy):
                    if message is not None and not settlement.hold:
                        self._publisher.send(message, lambda _result: None)
            source.lose("before the acknowledgement arrived")
        elif fault is Fault.BROKER:
            source.lose("the test asked for it")
        if fault not in (Fault.CRASH, Fault.DUPLICATE):
            for delivery, settlement in settlements:
                source.settle(delivery, settlement)

    def _take_batch(self) -> list[Delivery]:
        """Return the next deliveries to attempt together; none if the next one has to wait for another of its key."""
        first = self._take()
        batch = None if first is None or first.redelivered else self._batches.get(first.queue)
        if first is None or batch is None:
            return [] if first is None else [first]
        taken = [first]
        for one in [one for one in (*self._following, *self._ready) if one.queue == first.queue]:
            if len(taken) == batch.size:
                break
            turn = self._turn_of(one)
            if turn is not None and turn.redelivered:
                self._following.append(turn)
            elif turn is not None:
                taken.append(turn)
        return taken

    def _take(self) -> Delivery | None:
        """Return the next delivery; None if it has to wait for another one of its key."""
        return self._turn_of(self._following[0] if self._following else self._ready[0])

    def _turn_of(self, one: Delivery) -> Delivery | None:
        if one in self._following:
            self._following.remove(one)
            return one
        self._ready.remove(one)
        return self._sequencer.take(one) if one.queue in self._keyed else one

    def _take_fault(self) -> Fault | None:
        fault, self._fault = self._fault, None
        return fault

    def _with_faults(self, subscription: Subscription) -> Subscription:
        """Wrap the handler so that it fails when the test says so."""
        whole = subscription.run_batch
        return replace(
            subscription,
            run=self._faulty(subscription.run, subscription.name),
            run_batch=None if whole is None else self._faulty(whole, subscription.name),
        )

    def _faulty(self, call: Call, name: str) -> Call:
        @wraps(call)
        def run(message: Any) -> object:
            trouble = self._faults.take(name)
            if trouble is not None and not isinstance(trouble, Fault):
                raise trouble
            try:
                answer: object = call(message)
            except BaseException as error:
                if _is_the_tests(error):
                    self._escaped = error
                raise
            self._fault = trouble
            return answer

        return run

    def _raise_what_escaped(self) -> None:
        error = self._escaped or self._patience.over
        self._escaped = self._patience.over = None
        if error is not None:
            raise error


def _attempted(pipeline: BatchPipeline, deliveries: Sequence[Delivery]) -> list[tuple[Delivery, Settlement]]:
    """Attempt deliveries together; raise what one of them raises outside its handler."""
    if len(deliveries) == 1:
        return [(deliveries[0], pipeline.attempt(deliveries[0]))]
    settlements: list[tuple[Delivery, Settlement]] = []

    def ended(delivery: Delivery, end: Settlement | BaseException) -> None:
        if isinstance(end, BaseException):
            raise end
        settlements.append((delivery, end))

    pipeline.attempt_batch(deliveries, ended)
    return settlements


class Patience:
    """Detects a message that is attempted without an end."""

    def __init__(self, limit: int) -> None:
        """A limit is the most attempts of one message; without, 1000 attempts at the same time of the clock."""
        self._limit = limit
        self._counts: dict[PlaceKey, tuple[float, int]] = {}
        self.over: NeverQuiet | None = None

    def unfinished(self, key: PlaceKey, tried: Tried) -> None:
        at, count = self._counts.get(key, (tried.at, 0))
        count = count + 1 if self._limit or at == tried.at else 1
        self._counts[key] = tried.at, count
        if count >= (self._limit or MOST_ATTEMPTS_AT_ONCE):
            self.over = NeverQuiet(
                f"Handler {tried.handler} has attempted one message of queue {key[0]!r} {count} times in "
                f"{tried.at:g} s, and there is no end: {tried.verdict.kind.value}, {tried.verdict.error}. "
                "Let it succeed or be parked, give drain() a higher limit, or run only for a while with advance(…)."
            )


def _is_the_tests(error: BaseException) -> bool:
    """True for Ctrl-C, pytest.fail() and the like, which are not errors of a handler."""
    outcome = not isinstance(error, Exception) and type(error).__module__.startswith("_pytest")
    return outcome or isinstance(error, KeyboardInterrupt)


class NoDatabase(AssertionError):
    """A handler with ``once`` needs the database, which this test does not have."""


class Inbox:
    """Runs handlers with ``once``. A mistake of the test ends the test and is not a failed attempt."""

    def __init__(self, end: Callable[[BaseException], None]) -> None:
        self._end = end

    def __call__(self, subscription: Subscription, delivery: Delivery, state: OnceState) -> object:
        from django_rmq_retry.inbox.once import once  # noqa: PLC0415 - pytest loads the kit before settings and models

        self._check(subscription)
        return once(subscription, delivery, state)

    def batch(self, subscription: Subscription, messages: Sequence[tuple[Delivery, OnceState]]) -> Collection[int]:
        from django_rmq_retry.inbox.once_batch import once_batch  # noqa: PLC0415 - as above

        self._check(subscription)
        return once_batch(subscription, messages)

    def _check(self, subscription: Subscription) -> None:
        lack = _lack(subscription)
        if lack is not None:
            self._end(lack)
            raise lack


def _lack(subscription: Subscription) -> NoDatabase | None:
    alias = subscription.using or DEFAULT_DB_ALIAS
    handler = f"Handler {subscription.name} runs with once in a transaction of database {alias!r}"
    try:
        connection = connections[alias]
        connection.ensure_connection()
    except (Error, ConnectionDoesNotExist, ImproperlyConfigured) as error:
        return NoDatabase(f"{handler}, which is not available: {error}")
    except (RuntimeError, AssertionError) as error:
        # pytest-django and SimpleTestCase raise these.
        return NoDatabase(f"{handler}, which this test must not use: {error}")
    blocks = connection.atomic_blocks
    if blocks and not getattr(blocks[-1], "_from_testcase", False):
        return NoDatabase(
            f"{handler}, but the test is inside a transaction. Call drain() or advance() outside of atomic()."
        )
    return None
