"""Counters, histograms and states of consuming processes, in memory that a supervisor shares with its children.

Every number has a fixed place, so the label sets are bounded whatever is published, and a killed process loses none.
"""

import math
import mmap
import threading
import time
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import accumulate, pairwise

from django_rmq_retry.handlers.contracts import FinishedAttempt
from django_rmq_retry.handlers.subscription import Subscription, WorkQueue
from django_rmq_retry.messages.properties import decode_properties
from django_rmq_retry.messages.reasons import Reason
from django_rmq_retry.policies.verdict import DUPLICATE, Kind

VERDICTS = (*(kind.value for kind in Kind), DUPLICATE.name)
REASONS = tuple(reason.value for reason in Reason)
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
AGES = (0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 86_400.0)
WAITS = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 86_400.0, 604_800.0)
"""The upper bounds of the histograms' buckets, in seconds."""
SILENT_SECONDS = 1.8
"""Seconds without a beat after which a process is silent: it beats each half second."""
_VERDICTS = 0
_REASONS = _VERDICTS + len(VERDICTS)
_SECONDS = _REASONS + len(REASONS)
_AGES = _SECONDS + len(SECONDS) + 2
_WAITS = _AGES + len(AGES) + 2
_SIZE = _WAITS + len(WAITS) + 2
_TOTAL = len(SECONDS) + 1
_ACK = VERDICTS.index(Kind.ACK.value)
DOUBLE = 8


class Slot(IntEnum):
    """The places of the numbers of one process."""

    STARTS = 0
    """Starts of a process in this place."""
    CONNECTIONS = 1
    """Connections to the broker, reconnects included."""
    UNANSWERED = 2
    HOOK_FAILURES = 3
    THREADS = 4
    BUSY = 5
    WAITING = 6
    """Messages that wait in the process for a thread or for their turn."""
    COPIES = 7
    """Copies that are sent and not confirmed yet."""
    CONNECTED = 8
    READY = 9
    """1 if it is connected, consumes all of its queues that are not paused, and is neither stopping nor stuck."""
    BEAT = 10
    """The monotonic time at which its main loop last ran while its I/O thread answered and its threads lived."""


COUNTERS = (Slot.STARTS, Slot.CONNECTIONS, Slot.UNANSWERED, Slot.HOOK_FAILURES)


@dataclass(frozen=True, slots=True)
class Labels:
    """The labels of one handler's numbers; without a handler those of messages that no handler takes."""

    queue: str
    handler: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """A histogram as Prometheus has it: the cumulative counts of the buckets, the sum and the count."""

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    total: float

    @property
    def count(self) -> float:
        return self.counts[-1]


class Board:
    """The numbers of all processes of one consumer."""

    def __init__(self, work_queues: Sequence[WorkQueue], *, processes: int = 1) -> None:
        self.labels = tuple(_labels(work_queues))
        self.work_queue_of = {one.quarantine: one.queue.name for one in work_queues if one.quarantine is not None}
        """The work queue of each quarantine queue: messages in quarantine count for their work queue."""
        self.processes = processes
        self._share = len(Slot) + len(self.labels) * _SIZE
        # Anonymous shared memory: children that are forked later write into it, and it ends with the processes.
        self._memory = mmap.mmap(-1, max(processes * self._share, 1) * DOUBLE)
        self.values = memoryview(self._memory).cast("d")

    def start_of(self, process: int) -> int:
        return process * self._share

    def slot(self, process: int, slot: Slot) -> float:
        return self.values[process * self._share + slot]

    def sum_of(self, slot: Slot) -> float:
        """Return the sum of one number over all processes."""
        return sum(self.slot(process, slot) for process in range(self.processes))

    def verdicts(self, place: int) -> Iterator[tuple[str, float]]:
        """Yield the attempts of one handler by verdict, over all processes."""
        yield from zip(VERDICTS, self._sums(place, _VERDICTS, len(VERDICTS)), strict=True)

    def reasons(self, place: int) -> Iterator[tuple[str, float]]:
        """Yield the parked messages of one handler by reason."""
        yield from zip(REASONS, self._sums(place, _REASONS, len(REASONS)), strict=True)

    def seconds(self, place: int) -> Histogram:
        return self._histogram(place, _SECONDS, SECONDS)

    def ages(self, place: int) -> Histogram:
        return self._histogram(place, _AGES, AGES)

    def waits(self, place: int) -> Histogram:
        return self._histogram(place, _WAITS, WAITS)

    def clear_states(self, process: int, *, now: float, over: bool = False) -> None:
        """Clear the states of a process that has ended; its counters stay, because counters never go down.

        It is silent from now on; its supervisor has some seconds to start another one before it counts as dead. A
        process that has done all of its work is ``over``: it is missed by no health check.
        """
        for slot in Slot:
            if slot not in COUNTERS:
                self.values[process * self._share + slot] = 0.0
        self.values[process * self._share + Slot.BEAT] = math.inf if over else now - 2 * SILENT_SECONDS
        self.values[process * self._share + Slot.READY] = float(over)

    def silent(self, seconds: float, *, now: float) -> list[int]:
        """Return the numbers of the processes that have not beaten for so long, from 1."""
        return [process + 1 for process in range(self.processes) if now - self.slot(process, Slot.BEAT) >= seconds]

    def _sums(self, place: int, offset: int, count: int) -> list[float]:
        """Return neighbouring numbers of one handler, each summed over all processes."""
        at = len(Slot) + place * _SIZE + offset
        starts = range(at, at + self.processes * self._share, self._share)
        # Read as a whole: a scrape of many handlers takes some thousand numbers.
        found = [[*self.values[start : start + count]] for start in starts]
        return found[0] if len(found) == 1 else [sum(each) for each in zip(*found, strict=True)]

    def _histogram(self, place: int, offset: int, bounds: tuple[float, ...]) -> Histogram:
        *counts, total = self._sums(place, offset, len(bounds) + 2)
        return Histogram(bounds=bounds, counts=tuple(accumulate(counts)), total=total)


class Meter:
    """Counts the attempts of one process. A journal that all worker threads share.

    Of successful first attempts only the seconds are kept, and one sample for the age, until ``flush`` counts them
    every half second: a killed process loses at most those. All others are counted at once.
    """

    notes_acks = False
    """Successful first attempts are passed to ``acked``, which costs less than ``note``."""

    def __init__(
        self, board: Board, process: int = 0, *, clock: Callable[[], float], epoch: Callable[[], float] = time.time
    ) -> None:
        self._values = board.values
        self._start = board.start_of(process)
        self._clock = clock
        self._epoch = epoch
        self._work_queue_of = board.work_queue_of
        first = self._start + len(Slot)
        self._places = {(one.queue, one.handler): first + at * _SIZE for at, one in enumerate(board.labels)}
        self._successes: dict[str, deque[float]] = {one.handler: deque() for one in board.labels if one.handler}
        """The seconds of the successful first attempts that are not counted yet, by handler."""
        self._sampled: tuple[Subscription, float, bytes] | None = None
        """The handler, the begin and the encoded properties of the first of them after a flush; its age is measured."""
        self._lock = threading.Lock()

    def acked(self, subscription: Subscription, seconds: float, properties: bytes) -> None:
        """Take a successful first attempt.

        It runs for every message, so it keeps a plain number of each: tuples of all of them would be visited by the
        garbage collector, and their properties would fill the processor's cache.
        """
        self._successes[subscription.name].append(seconds)
        # Without a lock: a race with another thread or with ``flush`` costs one sample, and never a count.
        if self._sampled is None:
            self._sampled = subscription, self._clock() - seconds, properties

    def note(self, attempt: FinishedAttempt) -> None:
        """Count any other attempt, or the decision not to make one."""
        verdict, subscription, delivery = attempt.verdict, attempt.subscription, attempt.delivery
        queue = self._work_queue_of.get(delivery.queue, delivery.queue)
        place = self._places.get((queue, subscription.name if subscription else ""))
        ran = verdict.counted or attempt.error is not None
        if place is None or (verdict.kind is Kind.RETRY and not ran):
            # A message that is moved or put back without a run is no attempt.
            return
        index = VERDICTS.index(verdict.name)
        with self._lock:
            self._values[place + _VERDICTS + index] += 1
            if verdict.kind is Kind.PARK and verdict.reason is not None:
                self._values[place + _REASONS + REASONS.index(verdict.reason.value)] += 1
            if subscription is not None and ran:
                self._observe(place + _SECONDS, SECONDS, attempt.seconds)
            if verdict.kind in (Kind.RETRY, Kind.HALT) and verdict.after:
                self._observe(place + _WAITS, WAITS, verdict.after)
        if delivery.attempt == 1 and ran:
            self._measure_age(place, delivery.raw, attempt.seconds)

    def flush(self) -> None:
        """Count the successes since the last call, and measure the age of one message among them."""
        for (_queue, handler), place in self._places.items():
            waiting = self._successes.get(handler)
            if waiting:
                self._count(place, [waiting.popleft() for _ in range(len(waiting))])
        sampled, self._sampled = self._sampled, None
        if sampled is not None:
            subscription, began, properties = sampled
            place = self._places[subscription.queue.name, subscription.name]
            self._measure_age(place, properties, self._clock() - began)

    def set(self, slot: Slot, value: float) -> None:
        self._values[self._start + slot] = value

    def add(self, slot: Slot, count: float = 1.0) -> None:
        with self._lock:
            self._values[self._start + slot] += count

    def _count(self, place: int, durations: list[float]) -> None:
        durations.sort()
        # Sorted once, each bucket takes one search, whatever the number of messages.
        ends = [bisect_right(durations, bound) for bound in SECONDS] + [len(durations)]
        with self._lock:
            self._values[place + _ACK] += len(durations)
            for at, (begin, end) in enumerate(pairwise((0, *ends))):
                self._values[place + _SECONDS + at] += end - begin
            self._values[place + _SECONDS + _TOTAL] += sum(durations)

    def _observe(self, at: int, bounds: tuple[float, ...], value: float) -> None:
        self._values[at + bisect_left(bounds, value)] += 1
        self._values[at + len(bounds) + 1] += value

    def _measure_age(self, place: int, properties: bytes, ago: float) -> None:
        """Measure the time from a message's timestamp to the begin of its attempt ``ago`` seconds before now."""
        try:
            at = decode_properties(properties).timestamp
        except Exception:  # noqa: BLE001 - no content of a message may fail an attempt
            return
        if at is not None:
            with self._lock:
                # AMQP has whole seconds, and the clocks of two hosts differ.
                self._observe(place + _AGES, AGES, max(self._epoch() - ago - at, 0.0))


def _labels(work_queues: Sequence[WorkQueue]) -> Iterator[Labels]:
    for work_queue in work_queues:
        for subscription in work_queue.subscriptions:
            yield Labels(work_queue.queue.name, subscription.name)
        yield Labels(work_queue.queue.name, "")
