"""One consuming process, or several under a supervisor: joins the consumer with signals, memory and liveness file."""

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from django.db import connections

from django_rmq_retry import announcing, consuming, draining, wiring
from django_rmq_retry.management import lastrow
from django_rmq_retry.management.lastrow import LastRow, last_row
from django_rmq_retry.management.starting import Start
from django_rmq_retry.operating.driving import RunDriver
from django_rmq_retry.outbox import placing
from django_rmq_retry.outbox.running import Relaying
from django_rmq_retry.runtime import liveness, shutdown
from django_rmq_retry.runtime.events import Events
from django_rmq_retry.runtime.journal import Attempt
from django_rmq_retry.runtime.limits import Limits
from django_rmq_retry.runtime.liveness import Liveness
from django_rmq_retry.runtime.memory import Memory
from django_rmq_retry.runtime.supervising import RENEW, Supervisor

log = logging.getLogger("django_rmq_retry")

TRACES = 2
"""The verbosity from which failures are shown with their traceback."""


class Process:
    """One consuming process; a child of a supervisor has a number from 1."""

    def __init__(
        self, start: Start, *, number: int = 0, row: LastRow | None = None, reached: Callable[[], None] = lambda: None
    ) -> None:
        self._start = start
        self._row = row
        self._number = number
        self._signalled = False
        self._memory = Memory(start.memory) if start.memory else None
        self._events = Events(time.time, (*announcing.observers(), *((trace,) if start.verbosity >= TRACES else ())))
        self._consumer = consuming.consumer(
            start.intakes, self._events, threads=start.threads, prefetch=start.prefetch, limits=self._limits()
        )
        self._drainer = draining.drainer() if start.parks else None
        self._runs = RunDriver(around=consuming.Around) if start.parks else None
        self._relaying = Relaying(around=consuming.Around) if placing.served() else None
        self._consumer.beside_empty, self._consumer.reached = self._beside_empty, reached
        self._live = self._liveness()
        self._events.counts_acks = bool(row or self._live)

    @property
    def why(self) -> str:
        """Why it ended."""
        return self._consumer.why

    def run(self) -> int:
        """Consume until a limit or a signal ends it."""
        shutdown.listen(self._stop, at_once=shutdown.ignore if self._number else self._end_at_once)
        return self._consume()

    def run_reloadable(self) -> int:
        """Consume in the thread of a reloader: as it exits, what is in hand is finished first."""
        ended = threading.Event()

        def finish() -> None:
            self._consumer.stop("the code has changed, or Ctrl-C")
            ended.wait(self._start.shutdown)

        atexit.register(finish)
        try:
            return self._consume()
        finally:
            ended.set()
            atexit.unregister(finish)

    def _end_at_once(self, code: int) -> None:
        if self._row is not None:
            self._row.end()
        os._exit(code)

    def _consume(self) -> int:
        row = self._row
        if row is None:
            return self._consumed()
        with last_row(row, lastrow.told_by(self._consumer, self._events, plain=row.plain)):
            return self._consumed()

    def _consumed(self) -> int:
        if self._drainer is not None:
            self._drainer.start()
        if self._runs is not None:
            self._runs.start()
        if self._relaying is not None:
            self._relaying.start()
        try:
            code = self._consumer.run()
        finally:
            if self._relaying is not None:
                self._relaying.stop(timeout=self._start.shutdown)
            if self._runs is not None:
                self._runs.stop(timeout=self._start.shutdown)
            if self._drainer is not None and not self._drainer.stop(timeout=self._start.shutdown):
                log.error("The database did not answer; what was not recorded comes again")
            if self._live is not None:
                self._live.end()
            wiring.close()
            connections.close_all()
        exceeded = self._memory is not None and self._memory.exceeded
        return RENEW if self._number and not code and (self._signalled or exceeded) else code

    def _stop(self, why: str) -> None:
        self._signalled = True
        self._consumer.stop(why)

    def _beside_empty(self, told: Callable[[bool], None]) -> None:
        """The outbox last: the drainer's thread may have let a key go on."""
        relaying = self._relaying

        def drained(empty: bool) -> None:  # noqa: FBT001 - an answer, not an option
            relaying.empty(told) if empty and relaying is not None else told(empty)

        self._drainer.empty(drained) if self._drainer is not None else drained(True)  # noqa: FBT003 - the answer

    def _limits(self) -> Limits:
        start = self._start
        return Limits(
            burst=start.burst,
            messages=start.messages,
            seconds=start.seconds,
            fail_fast=start.fail_fast,
            shutdown=start.shutdown,
            also=(self._memory,) if self._memory else (),
        )

    def _liveness(self) -> Liveness | None:
        if self._start.liveness_file is None:
            return None
        path = numbered(self._start.liveness_file, self._number) if self._number else self._start.liveness_file
        content = liveness.told_by(self._consumer, self._events)
        live = Liveness(path, content, ask=wiring.io("rmq-io").call)
        self._consumer.ticked = live.beat
        return live


def supervised(start: Start) -> int:
    """Run several processes; the liveness file is fresh while those of all of them are."""
    # A connection that some system check has opened must not be shared by all children.
    connections.close_all()
    live = _joint_liveness(start)
    supervisor = Supervisor(
        start.processes,
        lambda number: Process(start, number=number, reached=lambda: supervisor.reached(number)).run(),
        shutdown=start.shutdown,
        ticked=live.beat if live else lambda: None,
    )
    code = supervisor.run()
    if live is not None and supervisor.here:
        live.end()
    return code


def _joint_liveness(start: Start) -> Liveness | None:
    path = start.liveness_file
    if path is None:
        return None
    paths = [numbered(path, number + 1) for number in range(start.processes)]
    for one in paths:
        with suppress(OSError):
            one.unlink()

    def ask(answer: liveness.Call) -> None:
        if liveness.fresh(paths):
            answer()

    return Liveness(path, liveness.told_by_all(paths), ask=ask)


def numbered(path: Path, number: int) -> Path:
    """The liveness file of one process of several."""
    return path.with_name(f"{path.name}.{number}")


def trace(attempt: Attempt) -> None:
    """Log where a handler failed; the verdict's own line is written already."""
    if attempt.error is not None:
        name = attempt.subscription.name if attempt.subscription else attempt.delivery.queue
        extra = {"event": "trace", "queue": attempt.delivery.queue}
        log.info("Where %s failed:", name, exc_info=attempt.error, extra=extra)
