"""One consuming process: the consumer, and the threads and signs of life beside it."""

import atexit
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from django.db import connections

from django_rmq_retry import __version__, forks
from django_rmq_retry.alerts.watch import AlertWatcher
from django_rmq_retry.conf import settings
from django_rmq_retry.consumer import assembly, events, status_line
from django_rmq_retry.consumer.consumer import ConsumerLimits, Watchers
from django_rmq_retry.consumer.events import Events
from django_rmq_retry.consumer.liveness import LivenessFile, Pulse, States, content_of, content_of_all, fresh, numbered
from django_rmq_retry.consumer.memory import MemoryLimit
from django_rmq_retry.consumer.start import Start, parked_queues
from django_rmq_retry.consumer.status_line import LastRow, last_row
from django_rmq_retry.consumer.supervisor import RENEW, Supervisor, ignore, listen, wait_for
from django_rmq_retry.database_connections import FreshConnections, close_for_fork
from django_rmq_retry.exit_codes import Exit
from django_rmq_retry.handlers import loop
from django_rmq_retry.health.processes import note_end_of
from django_rmq_retry.parked.run_driver import RunDriver
from django_rmq_retry.publishing import broker_connections, outbox_rows, sender
from django_rmq_retry.publishing.relay_thread import RelayThread
from django_rmq_retry.telemetry.figures import Figures
from django_rmq_retry.telemetry.http import HttpServer, HttpThread
from django_rmq_retry.telemetry.meter import Meter, Slot
from django_rmq_retry.telemetry.probes import Instruments, Probes
from django_rmq_retry.telemetry.prometheus import text_of_default_registry

log = logging.getLogger("django_rmq_retry")

TRACES = 2
"""The lowest verbosity at which failures are logged with their traceback."""


class ConsumingProcess:
    """One consuming process; a child of a supervisor has a number from 1."""

    def __init__(
        self,
        start: Start,
        *,
        number: int = 0,
        row: LastRow | None = None,
        reached: Callable[[], None] = lambda: None,
        instruments: Instruments | None = None,
    ) -> None:
        self._start = start
        self._http: HttpThread | None = None
        if start.http is not None and instruments is None:
            instruments = _instruments(start)
            self._http = HttpThread(HttpServer(start.http, Probes(instruments, more=text_of_default_registry).answer))
        self._meter: Meter | None = None
        self._figures: Figures | None = None
        if instruments is not None:
            # A process without a supervisor has the first place of the board.
            self._meter = Meter(instruments.board, max(number - 1, 0), clock=time.monotonic)
        if instruments is not None and number <= 1:
            # One process reads them for all: a second one would cost the database the same again.
            parts = instruments.notice, instruments.board, start.work_queues
            self._figures = Figures(
                *parts,
                threads=start.threads,
                asynchronous=start.async_handlers,
                with_connections=FreshConnections,
            )
        self._reached = reached
        self._row = row
        self._number = number
        self._signalled = False
        self._memory = MemoryLimit(start.memory) if start.memory else None
        self._events = Events(
            time.time,
            events.observers(tracebacks=start.verbosity >= TRACES),
            counts_acks=row is not None or start.liveness_file is not None,
        )
        self._drainer = assembly.drainer(parked_queues()) if start.drains else None
        self._runs = RunDriver(with_connections=FreshConnections) if start.drains else None
        self._relaying = RelayThread(with_connections=FreshConnections) if outbox_rows.served() else None
        self._alerts = AlertWatcher(with_connections=FreshConnections) if settings().alerts else None
        self._with_threads = assembly.consumer(
            start.work_queues,
            self._events,
            threads=start.threads,
            prefetch=start.prefetch,
            asynchronous=start.async_handlers,
            limits=ConsumerLimits(
                burst=start.burst,
                messages=start.messages,
                seconds=start.seconds,
                fail_fast=start.fail_fast,
                shutdown=start.shutdown,
                also=(self._memory,) if self._memory else (),
            ),
            watchers=Watchers(
                reached=self._connected, ticked=self._tick, stopping=self._stopping, others_empty=self._others_empty
            ),
            meter=self._meter,
            number=number,
        )
        self._consumer = self._with_threads.consumer
        self._live = self._liveness()
        meter = self._meter
        at_once = sum(self._consumer.sizes)
        self._states = None if meter is None else States(meter, self._consumer, self._events, threads=at_once)
        beats = [one.beat for one in (self._live, self._states) if one is not None]
        self._pulse = Pulse(beats, ask=broker_connections.connections.io("rmq-io").call) if beats else None

    @property
    def why(self) -> str:
        return self._consumer.why

    def run(self) -> int:
        listen(self._stop, at_once=ignore if self._number else self._end_at_once)
        return self._consume()

    def run_reloadable(self) -> int:
        """Consume in a thread of Django's autoreloader; at its exit, unacked messages are finished first."""
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
        forks.disown_connections()
        row = self._row
        if row is None:
            return self._run_threads()
        with last_row(row, status_line.status_text(self._consumer, self._events, without_signs=row.without_signs)):
            return self._run_threads()

    def _run_threads(self) -> int:
        for one in (self._drainer, self._runs, self._relaying, self._alerts, self._figures, self._http):
            if one is not None:
                one.start()
        try:
            code = self._with_threads.run() if self._enter_lifespan() else Exit.DONE
        except loop.LifespanFailed as error:
            self._consumer.stop(str(error), Exit.ERROR)
            code = Exit.ERROR
        finally:
            ended = loop.close()
            if not ended:
                log.error("The event loop of async handlers did not end in time")
            self._stop_beside()
            if self._live is not None:
                self._live.end()
            sender.close()
            connections.close_all()
        if self._consumer.hung or not ended:
            # A regular exit would wait for the thread of the hung handler, which may never end.
            self._end_hung(code)
        exceeded = self._memory is not None and self._memory.exceeded
        return RENEW if self._number and not code and (self._signalled or exceeded) else code

    def _enter_lifespan(self) -> bool:
        """Enter the lifespan of the project for async handlers; return False if the process is to stop meanwhile."""
        lifespan = settings().lifespan
        subscriptions = (one for work_queue in self._start.work_queues for one in work_queue.subscriptions)
        if lifespan is None or not any(one.asynchronous for one in subscriptions):
            return True
        return loop.handler_loop().open(lifespan, stopping=lambda: self._consumer.why)

    def _stop_beside(self) -> None:
        timeout = self._start.shutdown
        if self._meter is not None:
            self._meter.flush()
        for one in (self._relaying, self._runs):
            if one is not None:
                one.stop(timeout=timeout)
        if self._drainer is not None and not self._drainer.stop(timeout=timeout):
            log.error("The drainer did not stop in time; messages that were not recorded are redelivered")
        for last in (self._alerts, self._figures, self._http):
            if last is not None:
                last.stop()

    def _end_hung(self, code: int) -> None:
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        self._end_at_once(RENEW if self._number else code)

    def _stop(self, why: str) -> None:
        self._signalled = True
        self._consumer.stop(why)

    def _tick(self) -> None:
        if self._states is not None:
            self._states.write()
        if self._pulse is not None:
            self._pulse.tick()

    def _connected(self) -> None:
        if self._meter is not None:
            self._meter.add(Slot.CONNECTIONS)
        self._reached()

    def _stopping(self) -> None:
        if (heartbeat := self._with_threads.heartbeat) is not None:
            heartbeat.wake()
        if self._states is not None:
            self._states.end()

    def _others_empty(self, answer: Callable[[bool], None]) -> None:
        """Check the drainer, then the outbox: the drainer's thread may unblock a key, which adds outbox rows."""
        relaying = self._relaying

        def drained(empty: bool) -> None:  # noqa: FBT001 - an answer, not an option
            # What a handler has published in its transaction may be on its way, or have arrived after the last look.
            empty = sender.sender.quiet() and empty
            relaying.report_emptiness(answer) if empty and relaying is not None else answer(empty)

        self._drainer.report_emptiness(drained) if self._drainer is not None else drained(True)  # noqa: FBT003 - the answer

    def _liveness(self) -> LivenessFile | None:
        if self._start.liveness_file is None:
            return None
        path = numbered(self._start.liveness_file, self._number) if self._number else self._start.liveness_file
        return LivenessFile(path, content_of(self._consumer, self._events))


def supervised(start: Start) -> int:
    """Run several processes; the joint liveness file is fresh while the files of all of them are."""
    # The children must not share a connection that a system check, or a query of the project, has opened.
    close_for_fork()
    forks.disown_connections()
    path = start.liveness_file
    files = [numbered(path, number + 1) for number in range(start.processes)] if path else []
    for file in files:
        with suppress(OSError):
            file.unlink()
    live = LivenessFile(path, content_of_all(files)) if path else None
    instruments = None if start.http is None else _instruments(start)
    # The supervisor's main loop drives the HTTP server: it must have no thread when it forks.
    server = None if start.http is None or instruments is None else HttpServer(start.http, Probes(instruments).answer)

    def work(number: int) -> int:
        if server is not None:
            server.close()
        reached = partial(supervisor.reached, number)
        return ConsumingProcess(start, number=number, reached=reached, instruments=instruments).run()

    def cleared(number: int, over: bool) -> None:  # noqa: FBT001 - the supervisor's protocol
        if instruments is not None:
            instruments.board.clear_states(number - 1, now=time.monotonic(), over=over)

    def tick() -> None:
        if live is not None and fresh(files):
            live.beat()

    supervisor = Supervisor(
        start.processes,
        work,
        shutdown=start.shutdown,
        ticked=tick,
        ended=cleared,
        tell=_tell_end if settings().records else None,
        wait=wait_for if server is None else server.wait_for,
    )
    code = supervisor.run()
    if server is not None and supervisor.here:
        server.close()
    if live is not None and supervisor.here:
        live.end()
    return code


def _tell_end(pid: int, ending: str) -> None:
    """Write the end of a child, which nobody else may be there to see; without a database it is told by its log."""
    with suppress(Exception), FreshConnections():
        note_end_of(pid, ending)


def _instruments(start: Start) -> Instruments:
    return Instruments.of(start.work_queues, processes=start.processes, version=__version__)
