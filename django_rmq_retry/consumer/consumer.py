"""The consumer: it joins source, worker threads and attempts, and ends by itself at its limits."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from django_rmq_retry import forks
from django_rmq_retry.amqp.contracts import Source
from django_rmq_retry.arguments import plural
from django_rmq_retry.consumer.attempt_state import AttemptState
from django_rmq_retry.consumer.batch_attempt import BatchPipeline
from django_rmq_retry.consumer.batches import Gatherer, Gathering, batches_of
from django_rmq_retry.consumer.deadlines import SlowHandlers
from django_rmq_retry.consumer.hung import HungHandlers
from django_rmq_retry.consumer.last_acks import AckedMessage, LastAcks
from django_rmq_retry.consumer.lines import IdleQueues, QueuePauses, consumed_lines, consumed_queues
from django_rmq_retry.consumer.quota import Quota
from django_rmq_retry.consumer.sequencer import Sequencer
from django_rmq_retry.consumer.workers import Pool, TwoPools, Workers
from django_rmq_retry.errors import BrokerRefused, BrokerUnfit, QueueUnusable, TopologyMissing
from django_rmq_retry.exit_codes import Exit
from django_rmq_retry.handlers.loop import known_loop
from django_rmq_retry.handlers.subscription import WorkQueue
from django_rmq_retry.messages.message import Delivery, Instruction, Settlement
from django_rmq_retry.topology.declarations import Server

log = logging.getLogger("django_rmq_retry")

UNTIMED_SINCE = (4, 3)
"""The version from which a quorum queue gives its consumers the timeout that they ask for."""
STRICT_DEADLINE_SECONDS = 1620.0
"""Seconds after which a handler in strict order is ended on older brokers: they take its message back after 1800."""

MOST_PREFETCHED = 65_535
"""The highest prefetch that the protocol can express."""
TICK_SECONDS = 0.5
CLOSE_SECONDS = 5.0
"""Seconds that the connection may take to close at least, even if the handlers have used up the shutdown timeout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerLimits:
    """The conditions under which a consumer ends by itself; None means that a limit is not set."""

    burst: bool = False
    messages: int | None = None
    seconds: float | None = None
    fail_fast: bool = False
    shutdown: float = 30.0
    also: Sequence[Callable[[], str | None]] = ()
    """Functions called at every tick; one that returns a reason stops the consumer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watchers:
    reached: Callable[[], None] = lambda: None
    """Called each time the consumer has connected to the broker."""
    ticked: Callable[[], None] = lambda: None
    """Called at every tick until the consumer stops, for example to write a liveness file."""
    stopping: Callable[[], None] = lambda: None
    """Called once, when the consumer begins to stop."""
    others_empty: Callable[[Callable[[bool], None]], None] = lambda answer: answer(True)  # noqa: FBT003 - the answer
    """Called as all queues are empty, before a burst ends; calls back with True if the threads beside have no work."""


class Consumer:
    """One consuming process. ``run`` returns its exit code."""

    hung = False
    """True if the process ends because a deadline could not end a handler, whose thread may never end."""

    def __init__(
        self,
        work_queues: Sequence[WorkQueue],
        source: Source,
        pipeline: BatchPipeline,
        *,
        threads: int,
        prefetch: int,
        asynchronous: int = 1,
        limits: ConsumerLimits,
        refusal: Callable[[Server], str | None] = lambda _server: None,
        watchers: Watchers = Watchers(),
        acks_lost: Callable[[Sequence[AckedMessage]], None] = lambda _messages: None,
    ) -> None:
        most = limits.messages
        self._quota = None if most is None else Quota(most, last=self._last_begun)
        self._lines = tuple(
            line
            for work_queue in work_queues
            for line in consumed_lines(work_queue, _held(work_queue, prefetch, threads, asynchronous, most))
        )
        self._source = source
        self._pipeline = pipeline
        self._in_order = frozenset(line.queue for line in self._lines if line.in_order)
        self._slow = SlowHandlers()
        self._limits = limits
        self._watchers = watchers
        self._refusal = refusal
        self.sizes = sizes_of(work_queues, threads=threads, asynchronous=asynchronous)
        self._side_by_side = frozenset(
            name for work_queue in work_queues if work_queue.asynchronous for name in consumed_queues(work_queue)
        )
        batches = batches_of(work_queues)
        work: Callable[[Any], object] = self._attempt_in_turn if self._in_order else self._attempt_and_settle
        work = self._work_off if batches else work
        pool: Pool[Any] = (
            TwoPools(self.sizes[0], self.sizes[1], work, is_async=self._is_async)
            if self._side_by_side
            else Workers(threads, work)
        )
        self._gatherer = Gatherer(batches, pool, source.later, in_turn=self._in_order)
        self._workers: Pool[Delivery] | Gatherer = self._gatherer if batches else pool
        self._sequencer = Sequencer(pipeline.read_key, again=self._workers.add)
        self._over = False
        # A SimpleQueue, because signal handlers call stop(): Event.set() there could deadlock on its own lock.
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._source_closed = threading.Event()
        self._code, self._lost_at, self._tries = Exit.DONE, 0.0, 0
        self._hung_handlers = HungHandlers(pipeline, source)
        self._last_acks = LastAcks(acks_lost)
        self.why = ""
        """The reason why the consumer stops; empty while it runs."""
        self.server: Server | None = None
        self.online = False
        self.lost_since: float | None = None
        """The monotonic time at which the connection was lost; None while there is one, and before the first one."""
        self.closing_since: float | None = None
        """The monotonic time at which it began to close the connection for good: what it has returns to its queues."""
        self.gave_back = False
        """True if it was told to end, and handlers did not finish in time."""
        self.unread: Callable[[], bool] = lambda: False
        """Returns True until the pauses of the queues were read once: none of them is consumed before."""
        able = lambda: self.online and not self._over  # noqa: E731
        self.idle = IdleQueues(work_queues, source)
        self.pauses = QueuePauses(
            work_queues, source, self._workers, self._sequencer, able=able, in_flight=lambda: self.in_flight
        )

    def run(self) -> int:
        """Consume until stop() is called, a limit is reached or the consumer cannot continue."""
        began = time.monotonic()
        self._workers.start()
        self._source.start(self._lines, self)
        while not self._over:
            with suppress(queue.Empty):
                self._wake.get(timeout=TICK_SECONDS)
            if not self._over:
                self._look_after(time.monotonic() - began)
        return self._wind_down()

    def stop(self, why: str, code: Exit = Exit.DONE) -> None:
        """Stop in good order; a second call is ignored, so the first reason and exit code stand."""
        if self._over:
            return
        self.why, self._code, self._over = why, code, True
        self._wake.put(None)
        if code:
            log.critical("%s", why, extra={"event": "failed"})

    @property
    def fault(self) -> str:
        """Why the consumer ends with an error, with the exit code; empty if it does not."""
        return f"exit {self._code:d}: {self.why}" if self._code else ""

    @property
    def queues(self) -> tuple[str, ...]:
        return tuple(line.queue for line in self._lines)

    @property
    def running(self) -> int:
        return self._workers.running

    @property
    def waiting(self) -> int:
        """The number of messages that wait in this process for a thread or for their turn."""
        return self._workers.waiting + self._sequencer.waiting

    @property
    def ready(self) -> bool:
        """True if it is connected, consumes each queue that is not paused, and is not stopping."""
        return self.online and not self._over and not self.unread() and self._source.ready

    @property
    def stuck_since(self) -> float | None:
        """The monotonic time since when each thread runs a handler beyond its deadline; None if one does not.

        The threads for async handlers are looked at by themselves.
        """
        late = [state for state in self.in_flight if state.deadline < time.monotonic()]
        since = [
            sorted(deadlines)[size - 1]
            for size, deadlines in zip(self.sizes, self._by_pool(late), strict=True)
            if 0 < size <= len(deadlines)
        ]
        return min(since, default=None)

    def _by_pool(self, states: Sequence[AttemptState]) -> tuple[list[float], list[float]]:
        """Return the deadlines of attempts in worker threads, and of those of async handlers."""
        pools: tuple[list[float], list[float]] = [], []
        for state in states:
            pools[self._is_async(state.arrival)].append(state.deadline)
        return pools

    @property
    def copies(self) -> int:
        return self._source.copies

    @property
    def in_flight(self) -> Sequence[AttemptState]:
        return list(self._pipeline.in_flight.copy())

    def _is_async(self, job: Delivery | Gathering) -> bool:
        return job.queue in self._side_by_side

    def arrived(self, delivery: Delivery) -> None:
        if self._over:
            self._source.give_back([delivery])
            return
        if delivery.queue in self._in_order:
            self._sequencer.add(delivery)
        self._workers.add(delivery)

    def connected(self, server: Server) -> None:
        self.server, self.online, self.lost_since, self._tries = server, True, None, 0
        self._pipeline.deadlines.strict = None if server.at_least(UNTIMED_SINCE) else STRICT_DEADLINE_SECONDS
        self._watchers.reached()
        refusal = self._refusal(server)
        if refusal:
            self.failed(BrokerUnfit(refusal))
            return
        log.info("Connected to %s", server.title, extra={"event": "connected", "broker": str(server)})

    def lost(self, reason: str, retry_in: float) -> None:
        if self.online:
            self.online, self.lost_since = False, time.monotonic()
        self._lost_at = time.time() if not self._tries else self._lost_at
        self._tries += 1
        if self._limits.fail_fast:
            self.stop(f"No broker ({reason}), and --fail-fast does not wait for one.", Exit.UNREACHABLE)
            return
        log.warning(
            "No broker since %s (%s), reconnecting in %.1f s (attempt %s)",
            *(time.strftime("%H:%M:%S", time.localtime(self._lost_at)), reason, retry_in, self._tries),
            extra={"event": "disconnected"},
        )

    def failed(self, error: BaseException) -> None:
        codes = {
            BrokerRefused: Exit.UNREACHABLE,
            BrokerUnfit: Exit.DRIFT,
            QueueUnusable: Exit.DRIFT,
            TopologyMissing: Exit.DRIFT,
        }
        self.stop(str(error), codes.get(type(error), Exit.ERROR))

    def closed(self) -> None:
        self._source_closed.set()

    def _work_off(self, job: Delivery | Gathering) -> None:
        """Do a job of a process that has a handler with ``batch``."""
        if isinstance(job, Gathering):
            self._attempt_batch(job.take())
        elif not self._gatherer.gathers(job.queue):
            self._attempt_in_turn(job)
        else:
            self._follow(self._sequencer.take(job))

    def _follow(self, turn: Delivery | None) -> None:
        """Let a message whose turn it is join the next batch: no batch has two messages of an ordering key."""
        if turn is not None:
            self._gatherer.gather(turn)

    def _attempt_batch(self, deliveries: Sequence[Delivery]) -> None:
        quota, forked = self._quota, forks.count

        def ended(delivery: Delivery, end: Settlement | BaseException) -> None:
            forks.end_since(forked, end if isinstance(end, BaseException) else None)
            if isinstance(end, BaseException):
                if self._hung_handlers.has_settled(delivery):
                    return
                end = self._pipeline.after_outside_failure(delivery, end)
            self._follow(self._settle(delivery, end))

        admitted: list[Delivery] = []
        for delivery in deliveries:
            if delivery.is_stale:
                self._follow(self._sequencer.done(delivery))
            elif quota is None or quota.admits(delivery):
                admitted.append(delivery)
            else:
                self._follow(self._not_admitted(delivery, quota))
        if admitted:
            self._pipeline.attempt_batch(admitted, ended, None if quota is None else quota.begin)

    def _attempt_in_turn(self, delivery: Delivery) -> None:
        if delivery.queue not in self._in_order:
            self._attempt_and_settle(delivery)
            return
        # The job is only a token: the sequencer chooses the message. The thread that is done with a
        # message continues with the messages that waited behind it.
        turn = self._sequencer.take(delivery)
        while turn is not None:
            turn = self._attempt_and_settle(turn)

    def _attempt_and_settle(self, delivery: Delivery) -> Delivery | None:
        """Make an attempt and settle it; return the next message that waited behind it, or None."""
        if delivery.is_stale:
            return self._sequencer.done(delivery)
        quota = self._quota
        if quota is not None and not quota.admits(delivery):
            return self._not_admitted(delivery, quota)
        forked = forks.count
        try:
            settlement = self._pipeline.attempt(delivery, None if quota is None else quota.begin)
        except BaseException as error:  # noqa: BLE001 - no error may end the worker thread
            forks.end_since(forked, error)
            if self._hung_handlers.has_settled(delivery):
                return None
            settlement = self._pipeline.after_outside_failure(delivery, error)
        # Not only handlers and hooks may fork: so may a policy's function, or a receiver of a signal.
        forks.end_since(forked)
        return self._settle(delivery, settlement)

    def _not_admitted(self, delivery: Delivery, quota: Quota) -> Delivery | None:
        following = self._sequencer.keep(delivery)
        if self._over or quota.begun:
            self._give_back_rest()
        return following

    def _settle(self, delivery: Delivery, settlement: Settlement) -> Delivery | None:
        """Settle a message; return the next one that waited behind it, or None."""
        quota = self._quota
        stays = settlement.instruction is Instruction.KEEP
        # Call keep() before settle(), after which the message may be attempted again in another thread.
        in_order = delivery.queue in self._in_order
        following = self._sequencer.keep(delivery) if stays and in_order else None
        self._source.settle(delivery, settlement)
        if in_order and not stays:
            following = self._sequencer.done(delivery)
        if quota is not None:
            for other in quota.end(delivery):
                self.arrived(other)
            if quota.used:
                self.stop(f"the limit of {quota.most} messages is reached")
        return following

    def _last_begun(self) -> None:
        """Stop the flow as the last run begins: after that message's ack the broker would send another in its place."""
        self._source.quiesce()
        self._give_back_rest()

    def _give_back_rest(self) -> None:
        self._sequencer.clear()
        self._source.give_back([*self._workers.take_back(), *(self._quota.take_spare() if self._quota else ())])

    def _look_after(self, age: float) -> None:
        dead, hung, loop_fault = self._workers.dead, self._hung_handlers.look(), _loop_fault()
        if hung:
            self.hung = True
            self.stop(self._hung_handlers.reason_to_stop(hung[0]), Exit.ERROR)
        elif dead or loop_fault:
            self.stop(loop_fault or f"Worker thread {dead[0]} has ended unexpectedly.", Exit.ERROR)
        elif not self._source.alive:
            self.stop("The I/O thread has ended, or does not respond.", Exit.ERROR)
        elif self._limits.seconds is not None and age >= self._limits.seconds:
            self.stop(f"the limit of {self._limits.seconds:g} s is reached")
        elif self._limits.burst and not self.unread():
            self._source.report_emptiness(self._emptied)
        for check in self._limits.also:
            why = check()
            if why:
                self.stop(why)
        self._slow.look(self.in_flight, time.monotonic())
        self._last_acks.look(self._source.take_lost())
        if not self._over:
            self._watchers.ticked()

    def _emptied(self, empty: bool) -> None:  # noqa: FBT001 - an answer, not an option
        if empty:
            # Check the drainer only now: the message parked last has left its work queue and is in the parked queue.
            self._watchers.others_empty(self._all_empty)

    def _all_empty(self, empty: bool) -> None:  # noqa: FBT001 - an answer, not an option
        if empty:
            self.stop("every queue is empty")

    def _log_stopping(self) -> None:
        running = self._workers.running
        if running:
            what = f"finishing {plural(running, 'message')} (max {self._limits.shutdown:g} s)."
            what += " Signal again to stop now; unfinished messages return to the queue."
        else:
            what = "no message is in flight."
        why = f" ({self.why})" if not self._code else ""
        log.info("Stopping%s: %s", why, what, extra={"event": "stopping"})

    def _wind_down(self) -> int:
        """Finish running attempts, return other messages, flush the acks to the broker and close."""
        self._watchers.stopping()
        self._log_stopping()
        end = time.monotonic() + self._limits.shutdown
        self._source.quiesce()
        self._give_back_rest()
        if not self._workers.wait_quiet(self._limits.shutdown, hung=lambda: len(self._hung_handlers.look())):
            left = self._workers.running - len(self._hung_handlers.look())
            text = f"{plural(left, 'handler')} did not finish within {self._limits.shutdown:g} s"
            log.error("%s; their messages return to their queues, or are lost with ack=auto", text)
            if not self._code:
                self.gave_back, self.why, self._code = True, f"{self.why}, but {text}", Exit.ERROR
        if hung := self._hung_handlers.look():
            self._code, self.hung = self._code or Exit.ERROR, True
            self._hung_handlers.settle(hung)
        self.closing_since = time.monotonic()
        self._source.stop()
        # A slow broker may use what the handlers left of the shutdown timeout: each ack that it takes in is one
        # message that is not redelivered. An I/O thread that has ended sends nothing more.
        rest = end - time.monotonic() if self._source.alive else 0.0
        if not self._source_closed.wait(max(CLOSE_SECONDS, rest)):
            log.error(
                "The connection did not close in time; messages that the broker did not settle return to their queues"
            )
            self._code = self._code or Exit.ERROR
        self._last_acks.end(self._source.take_unclosed())
        self._workers.stop()
        return self._code


def _loop_fault() -> str:
    """Return why async handlers cannot run any more, or nothing; if one blocks the event loop, name it in the log."""
    loop = known_loop()
    if loop is None:
        return ""
    loop.look()
    return loop.fault


def sizes_of(work_queues: Sequence[WorkQueue], *, threads: int, asynchronous: int) -> tuple[int, int]:
    """Return how many messages may be handled at once in worker threads, and how many by async handlers."""
    of_threads = not work_queues or any(not work_queue.asynchronous for work_queue in work_queues)
    of_loop = any(work_queue.asynchronous for work_queue in work_queues)
    return threads if of_threads else 0, asynchronous if of_loop else 0


def _held(work_queue: WorkQueue, prefetch: int, threads: int, asynchronous: int, most: int | None) -> int:
    """Return how many messages of a queue may be unacked at once.

    Enough for one batch that is handled in each thread while another one is gathered; async handlers share the loop, so
    two batches keep it busy. Not more than may be run: the rest would be returned, and a queue may count a return as a
    crash.
    """
    held = max(prefetch, asynchronous) if work_queue.asynchronous else prefetch
    if work_queue.batch is not None:
        at_once = 1 if work_queue.asynchronous else threads
        held = min(max(held, work_queue.batch.size * (at_once + 1)), MOST_PREFETCHED)
    return held if most is None else min(held, most)
