"""Threads that run jobs. A waking thread wakes the next, so that cheap jobs cost few wake-ups and slow ones spread."""

import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

log = logging.getLogger("django_rmq_retry")

Job = TypeVar("Job")


class Workers(Generic[Job]):
    """A fixed number of threads and one queue of jobs, filled by one other thread."""

    def __init__(self, threads: int, run: Callable[[Job], None], *, name: str = "rmq-worker") -> None:
        self._run = run
        self._jobs: deque[Job] = deque()
        self._lock = threading.Lock()
        # Released to wake one thread; held while all are awake or one wake-up is on its way.
        self._gate = threading.Lock()
        self._gate.acquire()
        self._idle = threads
        self._waking = False
        self._stopping = False
        self._busy = 0
        self._quiet = threading.Condition(self._lock)
        self._threads = [
            threading.Thread(target=self._work, name=f"{name}-{number + 1}", daemon=True) for number in range(threads)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    @property
    def dead(self) -> list[str]:
        """The names of threads that have ended though nobody stopped them."""
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
        """The jobs that no thread has begun; they are no longer anybody's. Those that are not wanted stay."""
        taken: list[Job] = []
        with suppress(IndexError):
            while True:
                taken.append(self._jobs.popleft())
        for job in taken:
            if not wanted(job):
                self.add(job)
        return [job for job in taken if wanted(job)]

    def wait_quiet(self, timeout: float) -> bool:
        """Wait until no thread runs a job; tell whether that came about."""
        with self._quiet:
            return self._quiet.wait_for(lambda: not self._busy and not self._jobs, timeout)

    def stop(self) -> None:
        """Let the threads end as they become idle."""
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
            # A job that came after the last look and before idle was counted has woken nobody.
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
            except BaseException:
                # A job answers for itself; this is the last net, and the thread must live on.
                log.exception("A worker thread met an error outside any handler")
