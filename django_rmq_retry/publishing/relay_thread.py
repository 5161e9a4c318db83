"""The thread with the relays of a process, one for each database that has an outbox."""

import logging
import queue
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress

from django.db import connections

from django_rmq_retry.messages.texts import one_line
from django_rmq_retry.publishing import outbox_rows
from django_rmq_retry.publishing.due_rows import next_due
from django_rmq_retry.publishing.relay import Relay, Turn
from django_rmq_retry.publishing.wake_ups import WakeUps
from django_rmq_retry.recurring import LastingFailures, Recurring

log = logging.getLogger("django_rmq_retry")

RELAYED = {"event": "relayed"}
POLL_SECONDS = 1.0
"""Seconds between polls of a database without notifications."""
LISTENING_POLL_SECONDS = 3.0
SOONEST_SECONDS = 0.05
RETRY_SECONDS = 1.0
"""Seconds after which an unreachable broker or database is tried again."""
PROGRESS_SECONDS = 30.0
"""Seconds without a finished round and without a sent message after which `empty` stops waiting for a round."""
UNKNOWN_DATABASES = "The relay cannot read from the database routers which outboxes it serves"

ContextFactory = Callable[[], AbstractContextManager[object]]
Report = Callable[[bool], None]


class RelayThread(Recurring):
    """The thread with the relays of all outboxes; an unreachable database stops its own relay only."""

    def __init__(self, *, with_connections: ContextFactory = nullcontext, burst: bool = False) -> None:
        super().__init__("rmq-relay")
        self._with_connections = with_connections
        self._burst = burst
        self.over = threading.Event()
        """Set when the thread has ended, after `stop` or by itself."""
        self.away = ""
        """The reason why not all rows were sent; read after a burst."""
        self.trouble = self._trouble = ""
        """The reason why the last round, and the present one, did not send all rows that were due."""
        self._wake_ups = WakeUps()
        self._relays: dict[str, Relay] = {}
        self._failures = LastingFailures()
        self.sent = 0
        self._reports: queue.SimpleQueue[Report] = queue.SimpleQueue()
        self._reported = self._seen = 0
        """The values of `sent` when `empty` last reported a result, and when it was last called."""
        self._since = 0.0
        """The time since which a caller of `empty` has had no result, and no message was sent."""

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        outbox_rows.wakers.add(self.wake)
        super().start()

    def wake(self) -> None:
        self._wake_ups.wake()

    def wait(self, seconds: float) -> None:
        self._wake_ups.wait(seconds)

    def report_emptiness(self, report: Report) -> None:
        """Call the given function after the next round, with True if no message was sent since the last report.

        It is called with True at once if the thread has ended, or after PROGRESS_SECONDS without progress, because a
        database that does not respond would block the round.
        """
        now = time.monotonic()
        if not self._since or self._seen != self.sent:
            self._since, self._seen = now, self.sent
        if self.over.is_set() or now - self._since > PROGRESS_SECONDS:
            report(True)  # noqa: FBT003 - the answer
            return
        self._reports.put(report)
        self.wake()

    def turn(self) -> float:
        reports = [self._reports.get() for _ in range(self._reports.qsize())]
        self._trouble = ""
        wait = self._round()
        self.trouble = self._trouble
        self._report(reports)
        if self._burst:
            self.stopping.set()
        return wait

    def at_end(self) -> None:
        outbox_rows.wakers.discard(self.wake)
        self._wake_ups.close()
        self.over.set()

    def _report(self, reports: list[Report]) -> None:
        if not reports:
            return
        quiet, self._reported, self._since = self.sent == self._reported, self.sent, 0.0
        for report in reports:
            report(quiet)

    def _round(self) -> float:
        """Serve each database, and return the seconds until the next round."""
        waits = [LISTENING_POLL_SECONDS]
        try:
            served = outbox_rows.served()
        except Exception as error:  # noqa: BLE001 - a database router of the project may raise anything
            self._log_failure(UNKNOWN_DATABASES, error)
            return RETRY_SECONDS
        self._failures.ends(UNKNOWN_DATABASES)
        for using in served:
            if self.stopping.is_set():
                return 0.0
            failure = f"The relay cannot serve the outbox of {using!r}"
            try:
                with self._with_connections():
                    waits.append(self._serve(using))
                self._failures.ends(failure)
            except Exception as error:  # noqa: BLE001 - the thread must survive any error
                self._log_failure(failure, error)
                if not connections[using].in_atomic_block:
                    # A transaction around the relay would still need the connection.
                    with suppress(Exception):
                        connections[using].close()
                waits.append(RETRY_SECONDS)
        return min(waits)

    def _serve(self, using: str) -> float:
        if not outbox_rows.table_exists(using):
            return LISTENING_POLL_SECONDS
        # Start listening before reading the table, so that no notification in between is lost.
        poll = LISTENING_POLL_SECONDS if self._wake_ups.listens(using) else POLL_SECONDS
        away = self._send_all(using).away
        if away:
            self.away, self._trouble = self.away or away, away
            return RETRY_SECONDS
        due = next_due(using)
        return poll if due is None else max(SOONEST_SECONDS, min(poll, due))

    def _send_all(self, using: str) -> Turn:
        relay = self._relays.setdefault(using, Relay(using, ended=self.stopping))
        while True:
            turn = relay.turn()
            self.sent += turn.sent
            if turn.sent:
                what = "message" if turn.sent == 1 else "messages"
                log.info("The relay sent %d %s from the outbox of %r", turn.sent, what, using, extra=RELAYED)
            if turn.nothing or turn.away or self.stopping.is_set():
                relay.forget()
                return turn

    def _log_failure(self, failure: str, error: Exception) -> None:
        self.away, self._trouble = self.away or str(error), str(error)
        if self._failures.begins(failure):
            text = one_line(error)
            log.warning("%s and retries every %g s: %s", failure, RETRY_SECONDS, text, extra={"event": "relay"})
