"""One consuming process: signals, limits, memory and liveness file."""

import atexit
import json
import logging
import math
import os
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from django.db import connections

from django_rmq_retry import __version__, forks, hooks
from django_rmq_retry.arguments import plural
from django_rmq_retry.conf import settings
from django_rmq_retry.consumer import assembly, events, status_line
from django_rmq_retry.consumer.assembly import parked_queues
from django_rmq_retry.consumer.consumer import Consumer, Limits, Watchers
from django_rmq_retry.consumer.events import Events
from django_rmq_retry.consumer.status_line import LastRow, last_row
from django_rmq_retry.consumer.supervisor import RENEW, Supervisor, ignore, listen, wait_for
from django_rmq_retry.handlers.attempt import FinishedAttempt
from django_rmq_retry.handlers.subscription import WorkQueue
from django_rmq_retry.parked.driver import RunDriver
from django_rmq_retry.publishing import broker_connections, outbox_rows
from django_rmq_retry.publishing.relay import RelayThread
from django_rmq_retry.server import FreshConnections, close_for_fork
from django_rmq_retry.telemetry.figures import Figures
from django_rmq_retry.telemetry.health import Health, Instruments
from django_rmq_retry.telemetry.http import Address, HttpServer, HttpThread
from django_rmq_retry.telemetry.meter import Meter, Slot
from django_rmq_retry.telemetry.prometheus import text_of_default_registry

log = logging.getLogger("django_rmq_retry")

EVERY = 1.0
STALE = 15.0
"""Seconds without a write after which a process counts as not responding."""

Call = Callable[[], None]
Content = dict[str, object]

MB = 1024 * 1024
STATM = Path("/proc/self/statm")

TRACES = 2
"""The lowest verbosity at which failures are logged with their traceback."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The options of rmq_consume; an option that is not given is taken from the settings."""

    work_queues: Sequence[WorkQueue]
    threads: int
    processes: int
    prefetch: int
    shutdown: float
    burst: bool
    messages: int | None
    seconds: float | None
    memory: int | None
    fail_fast: bool
    liveness_file: Path | None
    verbosity: int
    http: Address | None = None
    """The address of the HTTP server for metrics and health."""
    parks: bool = False
    """True if this process moves parked messages into the database."""

    @classmethod
    def of(cls, work_queues: Sequence[WorkQueue], options: Mapping[str, Any]) -> "Start":
        now = settings()
        return cls(
            work_queues=work_queues,
            threads=options["threads"] or now.threads,
            processes=options["processes"],
            prefetch=options["prefetch"] or now.prefetch,
            shutdown=now.shutdown_timeout if options["shutdown_timeout"] is None else options["shutdown_timeout"],
            burst=options["burst"],
            messages=options["max_messages"],
            seconds=options["max_runtime"],
            memory=options["max_memory"],
            fail_fast=options["fail_fast"],
            liveness_file=options["liveness_file"],
            verbosity=options["verbosity"],
            http=options["http"],
            parks=bool(now.records and not options["no_park"] and parked_queues()),
        )

    def lines(self, *, plain: bool) -> Iterator[str]:
        """Return the lines of the banner: sizes, queues, broker and databases."""
        dot = ", " if plain else " · "
        sizes = [f"pid {os.getpid()}", plural(self.threads, "thread"), f"prefetch {self.prefetch}"]
        if self.processes > 1:
            sizes.insert(1, plural(self.processes, "process", "es"))
        yield dot.join([f"django-rmq-retry {__version__}", *sizes])
        width = max((len(work_queue.queue.name) for work_queue in self.work_queues), default=0)
        for work_queue in self.work_queues:
            names = ", ".join(one.name for one in work_queue.subscriptions)
            ordered = "  (in order, one at a time)" if work_queue.ordered else ""
            yield f"  queue     {work_queue.queue.name.ljust(width)}  {names}{ordered}"
        if self.parks:
            yield f"  parked    {', '.join(parked_queues())}"
        yield f"  broker    {settings().address().shown}"
        for database in databases():
            yield f"  database  {database}"
        yield "Ctrl-C: finish and stop"

    def facts(self) -> dict[str, object]:
        """Return the content of the banner as the fields of a log line."""
        from_all = [one.name for work_queue in self.work_queues for one in work_queue.subscriptions]
        return {
            "queues": ",".join(work_queue.queue.name for work_queue in self.work_queues),
            "handlers": ",".join(from_all),
            "parked": ",".join(parked_queues()) if self.parks else "",
            "broker": settings().address().shown,
            "databases": ",".join(databases()),
            "version": __version__,
            "processes": self.processes,
            "threads": self.threads,
            "prefetch": self.prefetch,
        }


def databases() -> Iterator[str]:
    """Return each database as ``default postgresql bank@db``, without connecting to it."""
    for alias in connections:
        connection = connections[alias]
        host = connection.settings_dict.get("HOST")
        name = connection.settings_dict.get("NAME")
        yield f"{alias} {connection.vendor} {name}{f'@{host}' if host else ''}"


class Liveness:
    """Writes ``content()`` to a file each second, if the callback given to ``ask`` was called since the last write."""

    def __init__(self, path: Path, content: Callable[[], Content], *, ask: Callable[[Call], None]) -> None:
        self._path = path
        self._content = content
        self._ask = ask
        self._answered = False
        self._next = 0.0
        self._failing = False

    def beat(self) -> None:
        """Write the file if it is due, and ask again. The main thread calls this at every tick."""
        now = time.monotonic()
        if self._answered and now >= self._next:
            self._answered = False
            self._next = now + EVERY
            self._write()
        self._ask(self._answer)

    def end(self) -> None:
        """Remove the file, because the process ends."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    def _answer(self) -> None:
        self._answered = True

    def _write(self) -> None:
        try:
            write(self._path, self._content())
            self._failing = False
        except OSError as error:
            # A full disk must not end the consumer; the file becomes stale, and the liveness probe decides.
            if not self._failing:
                log.warning("The liveness file cannot be written: %s", error, extra={"event": "liveness"})
            self._failing = True


def write(path: Path, content: Content) -> None:
    """Replace a file atomically, so that its readers never see a part of it."""
    handle, name = tempfile.mkstemp(prefix=path.name, dir=path.parent)
    try:
        with os.fdopen(handle, "w") as file:
            json.dump({**content, "pid": os.getpid(), "beat": round(time.time(), 3)}, file, default=str)
        Path(name).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise


def content_of(consumer: Consumer, events: Events) -> Callable[[], Content]:
    """Return the function that makes the content of a consumer's liveness file."""

    def content() -> Content:
        return {
            "connected": consumer.online,
            "broker": str(consumer.server or ""),
            "queues": consumer.queues,
            "running": consumer.running,
            "waiting": consumer.waiting,
            "counts": {kind.value: count for kind, count in events.counts.items()},
            "duplicates": events.duplicates,
            "unanswered": events.unanswered,
            "halts": [
                {
                    "queue": halt.queue,
                    "since": round(halt.since, 3),
                    "attempt": halt.attempt,
                    "error": halt.error,
                    "message_id": halt.message_id,
                }
                for halt in events.halts
            ],
        }

    return content


def content_of_all(paths: Sequence[Path]) -> Callable[[], Content]:
    """Return the function that joins the liveness files of a supervisor's processes."""

    def content() -> Content:
        return {"processes": [json.loads(path.read_text()) for path in paths]}

    return content


def fresh(paths: Sequence[Path]) -> bool:
    """True if each of these files was written in the last STALE seconds."""
    try:
        return all(time.time() - path.stat().st_mtime < STALE for path in paths)
    except OSError:
        return False


def used() -> int:
    """Return the bytes of resident memory, or the process's peak on a system without /proc."""
    try:
        return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


class Memory:
    """A limit on memory: a consumer calls it at every tick and stops for the reason returned above ``limit`` MB."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.exceeded = False

    def __call__(self) -> str | None:
        held = used()
        if held <= self._limit * MB:
            return None
        self.exceeded = True
        return f"{held // MB} MB of memory are in use, and the limit is {self._limit} MB"


class Pulse:
    """Writes the states of a process to its board at each tick, while its I/O thread answers."""

    def __init__(self, meter: Meter, consumer: Consumer, events: Events, *, ask: Callable[[Call], None]) -> None:
        self._meter = meter
        self._consumer = consumer
        self._events = events
        self._ask = ask
        self._answered = True
        self._counted = {Slot.UNANSWERED: 0, Slot.HOOK_FAILURES: 0}

    def beat(self) -> None:
        """Write the states. The main thread calls this at every tick."""
        meter, consumer = self._meter, self._consumer
        meter.flush()
        meter.set(Slot.BUSY, consumer.running)
        meter.set(Slot.WAITING, consumer.waiting)
        meter.set(Slot.COPIES, consumer.copies)
        meter.set(Slot.CONNECTED, consumer.online)
        meter.set(Slot.READY, consumer.ready)
        self._count(Slot.UNANSWERED, self._events.unanswered)
        self._count(Slot.HOOK_FAILURES, sum(hooks.current().failures.values()))
        if self._answered:
            self._answered = False
            meter.set(Slot.BEAT, time.monotonic())
        self._ask(self._answer)

    def end(self) -> None:
        """Write that the process is stopping: it is no longer ready, and counts as alive until it has ended."""
        self._meter.set(Slot.READY, 0.0)
        self._meter.set(Slot.BEAT, math.inf)

    def _answer(self) -> None:
        self._answered = True

    def _count(self, slot: Slot, number: int) -> None:
        self._meter.add(slot, number - self._counted[slot])
        self._counted[slot] = number


class Process:
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
            self._http = HttpThread(HttpServer(start.http, Health(instruments, more=text_of_default_registry).answer))
        self._meter = None if instruments is None else _meter(instruments, number)
        # One process reads them for all: a second one would cost the database the same again.
        self._figures = None if instruments is None or number > 1 else _figures(start, instruments)
        self._reached = reached
        self._row = row
        self._number = number
        self._signalled = False
        self._live: Liveness | None = None
        self._memory = Memory(start.memory) if start.memory else None
        self._events = Events(time.time, (*events.observers(), *((trace,) if start.verbosity >= TRACES else ())))
        self._drainer = assembly.drainer() if start.parks else None
        self._runs = RunDriver(around=FreshConnections) if start.parks else None
        self._relaying = RelayThread(around=FreshConnections) if outbox_rows.served() else None
        self._consumer = assembly.consumer(
            start.work_queues,
            self._events,
            threads=start.threads,
            prefetch=start.prefetch,
            limits=self._limits(),
            watchers=self._watchers(),
            meter=self._meter,
            number=number,
        )
        self._live = self._liveness()
        self._pulse = self._pulsing()
        self._events.counts_acks = bool(row or self._live)

    @property
    def why(self) -> str:
        """The reason why the consumer ended."""
        return self._consumer.why

    def run(self) -> int:
        """Consume until a limit or a signal ends it."""
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
            return self._consumed()
        with last_row(row, status_line.text_of(self._consumer, self._events, plain=row.plain)):
            return self._consumed()

    def _consumed(self) -> int:
        for one in (self._drainer, self._runs, self._relaying, self._figures, self._http):
            if one is not None:
                one.start()
        try:
            code = self._consumer.run()
        finally:
            self._stop_beside()
            if self._live is not None:
                self._live.end()
            broker_connections.close()
            connections.close_all()
        if self._consumer.hung:
            # A regular exit would wait for the thread of the hung handler, which may never end.
            self._end_hung(code)
        exceeded = self._memory is not None and self._memory.exceeded
        return RENEW if self._number and not code and (self._signalled or exceeded) else code

    def _stop_beside(self) -> None:
        """Stop the threads beside the consumer."""
        timeout = self._start.shutdown
        if self._meter is not None:
            self._meter.flush()
        if self._relaying is not None:
            self._relaying.stop(timeout=timeout)
        if self._runs is not None:
            self._runs.stop(timeout=timeout)
        if self._drainer is not None and not self._drainer.stop(timeout=timeout):
            log.error("The drainer did not stop in time; messages that were not recorded are redelivered")
        if self._figures is not None:
            self._figures.stop()
        if self._http is not None:
            self._http.stop()

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
        if self._live is not None:
            self._live.beat()
        if self._pulse is not None:
            self._pulse.beat()

    def _watchers(self) -> Watchers:
        return Watchers(
            reached=self._connected, ticked=self._tick, stopping=self._stopping, others_empty=self._others_empty
        )

    def _connected(self) -> None:
        if self._meter is not None:
            self._meter.add(Slot.CONNECTIONS)
        self._reached()

    def _stopping(self) -> None:
        if self._pulse is not None:
            self._pulse.end()

    def _pulsing(self) -> Pulse | None:
        if self._meter is None:
            return None
        self._meter.add(Slot.STARTS)
        self._meter.set(Slot.THREADS, self._start.threads)
        self._meter.set(Slot.BEAT, time.monotonic())
        return Pulse(self._meter, self._consumer, self._events, ask=broker_connections.current.io("rmq-io").call)

    def _others_empty(self, answer: Callable[[bool], None]) -> None:
        """Check the drainer, then the outbox: the drainer's thread may unblock a key, which adds outbox rows."""
        relaying = self._relaying

        def drained(empty: bool) -> None:  # noqa: FBT001 - an answer, not an option
            relaying.empty(answer) if empty and relaying is not None else answer(empty)

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
        content = content_of(self._consumer, self._events)
        return Liveness(path, content, ask=broker_connections.current.io("rmq-io").call)


def supervised(start: Start) -> int:
    """Run several processes; the joint liveness file is fresh while the files of all of them are."""
    # The children must not share a connection that a system check, or a query of the project, has opened.
    close_for_fork()
    forks.disown_connections()
    live = _joint_liveness(start)
    instruments = None if start.http is None else _instruments(start)
    server = _server(start, instruments)

    def work(number: int) -> int:
        if server is not None:
            server.close()
        reached = partial(supervisor.reached, number)
        return Process(start, number=number, reached=reached, instruments=instruments).run()

    def cleared(number: int, over: bool) -> None:  # noqa: FBT001 - the supervisor's protocol
        if instruments is not None:
            instruments.board.clear_states(number - 1, now=time.monotonic(), over=over)

    supervisor = Supervisor(
        start.processes,
        work,
        shutdown=start.shutdown,
        ticked=live.beat if live else lambda: None,
        ended=cleared,
        wait=wait_for if server is None else server.wait_for,
    )
    code = supervisor.run()
    if server is not None and supervisor.here:
        server.close()
    if live is not None and supervisor.here:
        live.end()
    return code


def _server(start: Start, instruments: Instruments | None) -> HttpServer | None:
    """Return the supervisor's HTTP server, which its main loop drives: it must have no thread when it forks."""
    if start.http is None or instruments is None:
        return None
    return HttpServer(start.http, Health(instruments).answer)


def _instruments(start: Start) -> Instruments:
    return Instruments.of(start.work_queues, processes=start.processes, version=__version__)


def _meter(instruments: Instruments, number: int) -> Meter:
    """Return the meter of a process; a process without a supervisor has the first place of the board."""
    return Meter(instruments.board, max(number - 1, 0), clock=time.monotonic)


def _figures(start: Start, instruments: Instruments) -> Figures:
    return Figures(
        instruments.notice, instruments.board, start.work_queues, threads=start.threads, around=FreshConnections
    )


def _joint_liveness(start: Start) -> Liveness | None:
    path = start.liveness_file
    if path is None:
        return None
    paths = [numbered(path, number + 1) for number in range(start.processes)]
    for one in paths:
        with suppress(OSError):
            one.unlink()

    def ask(answer: Call) -> None:
        if fresh(paths):
            answer()

    return Liveness(path, content_of_all(paths), ask=ask)


def numbered(path: Path, number: int) -> Path:
    """Return the path of the liveness file of one process of several."""
    return path.with_name(f"{path.name}.{number}")


def trace(attempt: FinishedAttempt) -> None:
    """Log the traceback of a handler that failed; the line of the verdict is in the log already."""
    if attempt.error is not None:
        name = attempt.subscription.name if attempt.subscription else attempt.delivery.queue
        extra = {"event": "trace", "queue": attempt.delivery.queue}
        log.info("Traceback of %s:", name, exc_info=attempt.error, extra=extra)
