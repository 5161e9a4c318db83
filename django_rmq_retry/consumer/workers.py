"""The worker threads of a process: a fixed number, which take jobs from one queue; async handlers have their own."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import copy_context
from typing import Generic, TypeAlias, TypeVar

from django_rmq_retry.handlers.contracts import log_failure

Job = TypeVar("Job")
HUNG_CHECK_SECONDS = 0.5
"""Seconds between two checks for hung handlers: no event reports a hang."""


class Workers(Generic[Job]):
    """A fixed number of threads that take jobs from one queue, which another thread fills."""

    def __init__(
        self, threads: int, run: Callable[[Job], object], *, name: str = "rmq-worker", lock: "Quieting | None" = None
    ) -> None:
        self._run = run
        self._jobs: deque[Job] = deque()
        self._lock, self._quiet = lock or _quieting()
        # Released to wake one thread; locked while all threads are awake or one wake-up is pending.
        self._gate = threading.Lock()
        self._gate.acquire()
        self._idle = threads
        self._waking = False
        self._stopping = False
        self._busy = 0
        self._threads = [
            threading.Thread(target=self._work, name=f"{name}-{number + 1}", daemon=True) for number in range(threads)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    @property
    def dead(self) -> list[str]:
        """The names of threads that have ended without a call of stop()."""
        return [thread.name for thread in self._threads if not thread.is_alive() and not self._stopping]

    @property
    def running(self) -> int:
        return self._busy

    @property
    def waiting(self) -> int:
        return len(self._jobs)

    def add(self, job: Job) -> None:
        self._jobs.append(job)
        if self._idle and not self._waking:
            self._wake()

    def take_back(self, wanted: Callable[[Job], bool] = lambda _job: True) -> list[Job]:
        """Remove the wanted jobs that no thread has begun from the queue and return them; other jobs stay."""
        taken: list[Job] = []
        others: list[Job] = []
        with suppress(IndexError):
            while True:
                job = self._jobs.popleft()
                (taken if wanted(job) else others).append(job)
        for job in others:
            self.add(job)
        return taken

    def wait_quiet(self, timeout: float, *, hung: Callable[[], int] = lambda: 0) -> bool:
        """Wait until no thread runs a job, except for hung ones; return False on timeout."""
        return _wait_quiet([self], self._quiet, timeout, hung)

    def stop(self) -> None:
        """End each thread as soon as it is idle."""
        self._stopping = True
        self._wake()

    def _wake(self) -> None:
        with self._lock:
            if self._waking or not self._idle:
                return
            self._waking = True
            self._idle -= 1
        self._gate.release()

    def _work(self) -> None:
        while not self._stopping:
            self._gate.acquire()
            with self._lock:
                self._waking = False
                self._busy += 1
            self._work_off()
            with self._lock:
                self._busy -= 1
                self._idle += 1
                self._quiet.notify_all()
            # A job added after the queue was found empty and before this thread counted as idle has woken no thread.
            if (self._jobs or self._stopping) and not self._waking:
                self._wake()

    def _work_off(self) -> None:
        jobs, run = self._jobs, self._run
        while True:
            try:
                job = jobs.popleft()
            except IndexError:
                return
            if jobs and self._idle and not self._waking:
                self._wake()
            try:
                run(job)
            except BaseException:  # noqa: BLE001 - a job handles its own errors; this one must not end the thread
                log_failure("A worker thread raised an error outside any handler")


class TwoPools(Generic[Job]):
    """The worker threads, and the threads that wait for async handlers, which run in the event loop.

    Each job of the latter has context variables of its own: a coroutine hands its own to the thread that waits for it.
    """

    def __init__(
        self, threads: int, asynchronous: int, run: Callable[[Job], object], *, is_async: Callable[[Job], bool]
    ) -> None:
        lock = _, self._quiet = _quieting()
        self._is_async = is_async
        self._plain: Workers[Job] = Workers(threads, run, lock=lock)
        self._async: Workers[Job] = Workers(
            asynchronous, lambda job: copy_context().run(run, job), name="rmq-async", lock=lock
        )
        self._pools = (self._plain, self._async)

    def start(self) -> None:
        for pool in self._pools:
            pool.start()

    @property
    def dead(self) -> list[str]:
        return [name for pool in self._pools for name in pool.dead]

    @property
    def running(self) -> int:
        return sum(pool.running for pool in self._pools)

    @property
    def waiting(self) -> int:
        return sum(pool.waiting for pool in self._pools)

    def add(self, job: Job) -> None:
        (self._async if self._is_async(job) else self._plain).add(job)

    def take_back(self, wanted: Callable[[Job], bool] = lambda _job: True) -> list[Job]:
        return [job for pool in self._pools for job in pool.take_back(wanted)]

    def wait_quiet(self, timeout: float, *, hung: Callable[[], int] = lambda: 0) -> bool:
        return _wait_quiet(self._pools, self._quiet, timeout, hung)

    def stop(self) -> None:
        for pool in self._pools:
            pool.stop()


Pool: TypeAlias = Workers[Job] | TwoPools[Job]
Quieting: TypeAlias = tuple[threading.Lock, threading.Condition]
"""The lock of a pool, and the condition that one of its threads has become idle; two pools may share them."""


def _quieting() -> Quieting:
    lock = threading.Lock()
    return lock, threading.Condition(lock)


def _wait_quiet(
    pools: Sequence[Workers[Job]], quiet: threading.Condition, timeout: float, hung: Callable[[], int]
) -> bool:
    end = time.monotonic() + timeout
    with quiet:
        while any(pool.waiting for pool in pools) or sum(pool.running for pool in pools) > hung():
            left = end - time.monotonic()
            if left <= 0:
                return False
            quiet.wait(min(left, HUNG_CHECK_SECONDS))
    return True
