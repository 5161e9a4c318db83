"""Publish results that arrive after their batch: written to the database by a thread of their own."""

import atexit
import logging
import os
import queue
import threading
from contextlib import suppress

from django.db import connections

from django_rmq_retry.publishing import broker_connections, faults, outbox_rows
from django_rmq_retry.publishing.faults import RowFault, fault
from django_rmq_retry.publishing.outbox_rows import OutboxRow, RowResult

log = logging.getLogger("django_rmq_retry")

IDLE_SECONDS = 5.0
"""Seconds without a result after which the thread ends."""
WRITE_PAUSE_SECONDS, WRITE_TRIES = 0.5, 10
MOST_RESULTS = 500
AT_EXIT = "interpreter shutdown"
"""The words of Python's error on starting a thread then."""


class ResultWriter:
    """Writes late publish results to the database in its own thread, so that the I/O thread never waits for a query."""

    def __init__(self) -> None:
        self._answers: queue.SimpleQueue[tuple[str, RowResult] | None] = queue.SimpleQueue()
        """The results; None wakes the thread at the exit."""
        self._lock = threading.Lock()
        self._busy = False
        self._thread: threading.Thread | None = None
        self._over = False
        self._ended = threading.Event()

    def take(self, using: str, answer: RowResult) -> None:
        """Queue a result for writing. Returns at once, in any thread."""
        if answer.result.confirmed:
            broker_connections.connections.reach.found()
        self._answers.put((using, answer))
        self.start()

    def start(self) -> None:
        """Start the thread if results wait and it does not run. A failure is logged: the next call tries again."""
        with self._lock:
            if self._busy or self._over or self._answers.empty():
                return
            self._busy = True
        try:
            self._thread = threading.Thread(target=self._run, name="rmq-outbox-late", daemon=True)
            self._thread.start()
        except (RuntimeError, MemoryError) as error:
            # The caller may be the I/O thread, which must not end.
            with self._lock:
                self._busy = False
            if AT_EXIT in str(error):
                # ``finish`` writes it.
                return
            log.warning("The thread that writes late publish results could not start: %s", error)

    def finish(self) -> None:
        """Write what is left in the calling thread: at the interpreter's shutdown no thread starts or is awaited."""
        with self._lock:
            self._over, busy = True, self._busy
        if busy and self._thread is not None:
            self._answers.put(None)
            with suppress(RuntimeError):
                # It is just being started.
                self._thread.join(IDLE_SECONDS)
        while results := self._rest():
            self._write(results, tries=1)

    def _run(self) -> None:
        try:
            while True:
                try:
                    first = self._answers.get(timeout=IDLE_SECONDS)
                except queue.Empty:
                    with self._lock:
                        if self._answers.empty():
                            self._busy = False
                            return
                    continue
                if first is not None:
                    self._write([first, *self._rest()])
                if self._over:
                    return
        finally:
            connections.close_all()

    def _rest(self) -> list[tuple[str, RowResult]]:
        results: list[tuple[str, RowResult]] = []
        with suppress(queue.Empty):
            while len(results) < MOST_RESULTS:
                answer = self._answers.get_nowait()
                if answer is not None:
                    results.append(answer)
        return results

    def _write(self, answers: list[tuple[str, RowResult]], tries: int = WRITE_TRIES) -> None:
        for using in dict.fromkeys(using for using, _answer in answers):
            results = [answer for alias, answer in answers if alias == using]
            for left in reversed(range(tries)):
                try:
                    record_results(results, using=using)
                    break
                except Exception as error:  # noqa: BLE001 - the database may be unreachable
                    with suppress(Exception):
                        # An error here would end the thread, and with it the writing of all later results.
                        connections[using].close()
                    if not left:
                        log.warning(
                            "%s publish results for the outbox of %r could not be written: %s",
                            *(len(results), using, error),
                        )
                    else:
                        self._ended.wait(WRITE_PAUSE_SECONDS)


def record_results(answers: list[RowResult], *, using: str) -> None:
    """Record publish results: delete confirmed rows, postpone rows with a fault, release the others to the relays."""
    confirmed = [answer.row.id for answer in answers if answer.result.confirmed]
    if confirmed:
        outbox_rows.delete(confirmed, using=using)
    suspects = [answer.row.id for answer in answers if faults.suspect(answer.result)]
    if suspects:
        outbox_rows.send_alone(suspects, using=using)
    free: list[OutboxRow] = []
    for answer in answers:
        if answer.result.confirmed:
            continue
        whose = fault(answer.result, alone=False)
        if whose in (RowFault.BROKER, RowFault.SHARED):
            free.append(answer.row)
        else:
            faults.failed(answer.row, using=using, why=answer.result.shown, whose=whose)
    if free:
        outbox_rows.release(free, using=using)


result_writer = ResultWriter()


def _forked() -> None:
    """Start with an empty queue in a forked child, because the parent writes its own results."""
    global result_writer  # noqa: PLW0603 - there is one process
    result_writer = ResultWriter()


os.register_at_fork(after_in_child=_forked)


def _exit() -> None:
    """Write the results that arrive at the exit: a row whose confirm is lost would be sent again."""
    # The connections close first, because that ends what is in flight.
    broker_connections.close()
    result_writer.finish()


atexit.register(_exit)
