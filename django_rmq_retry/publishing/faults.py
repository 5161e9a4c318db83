"""Unconfirmed outbox rows: classifying the fault, and scheduling the next attempt."""

import logging
import os
import queue
import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum

from django.db import connections

from django_rmq_retry.amqp.contracts import Cause, PublishResult, Scope
from django_rmq_retry.publishing import outbox_rows
from django_rmq_retry.publishing.broker_connections import reach
from django_rmq_retry.publishing.outbox_rows import Answer, Row

log = logging.getLogger("django_rmq_retry")

MOST_ATTEMPTS = 15
"""Failed attempts after which a row needs an operator; with these waits that takes about nine minutes."""
FIRST_WAIT, LONGEST_WAIT = 1.0, 60.0


class Fault(Enum):
    """The cause of a missing confirm."""

    BROKER = "the broker is away"
    FULL = "it is refused for now"
    RIGHT = "a right to its exchange is missing"
    ROW = "the message itself"
    SHARED = "something that was sent together with it"


FAULTS: Mapping[Cause | None, Fault] = {
    Cause.NO_EXCHANGE: Fault.ROW,
    Cause.NO_ROUTE: Fault.ROW,
    Cause.QUEUE_FULL: Fault.FULL,
    Cause.ACCESS_EXCHANGE: Fault.RIGHT,
    Cause.ACCESS_TOPIC: Fault.FULL,
    Cause.UNWRITABLE: Fault.ROW,
    Cause.BODY_LIMIT: Fault.ROW,
    Cause.CONNECTION_LOST: Fault.BROKER,
    Cause.TIMEOUT: Fault.BROKER,
    Cause.IO_STOPPED: Fault.BROKER,
    Cause.OTHER: Fault.ROW,
}
"""The fault by cause, if it is known that this message is the one that the broker refused."""


def fault(result: PublishResult, *, alone: bool) -> Fault:
    """Return the fault for an unconfirmed message. `alone` means that no other message was in flight."""
    if result.scope is Scope.BROKER:
        return Fault.BROKER
    if result.scope is Scope.CHANNEL and not alone:
        return Fault.SHARED
    return FAULTS[result.cause]


def wait_after(attempts: int) -> float:
    """Return the seconds until the next attempt."""
    return float(min(FIRST_WAIT * 2 ** min(attempts - 1, 16), LONGEST_WAIT))


def failed(row: Row, *, using: str, why: str, whose: Fault) -> float:
    """Schedule the next attempt and return the seconds until it; 0 if the row is kept for an operator."""
    # Only faults of the message itself may use up its attempts: a full queue or a missing permission may last longer.
    attempts = row.attempts + 1 if whose is Fault.ROW else min(row.attempts + 1, MOST_ATTEMPTS // 2)
    if whose is Fault.ROW and attempts >= MOST_ATTEMPTS:
        outbox_rows.give_up(row.id, using=using, attempts=attempts, error=why)
        said = "Message %r stays in the outbox of %r until somebody sends it again or discards it: %s"
        log.critical(said, *_facts(row, using, why), extra=_extra(row, "outbox_failed"))
        return 0.0
    outbox_rows.put_off(row.id, using=using, seconds=wait_after(attempts), attempts=attempts, error=why)
    if attempts == 1:
        said = "Message %r waits in the outbox of %r and is tried again: %s"
        log.warning(said, *_facts(row, using, why), extra=_extra(row, "outbox_retry"))
    return wait_after(attempts)


def _facts(row: Row, using: str, why: str) -> tuple[str | None, str, str]:
    return row.message.properties.message_id, using, why


def _extra(row: Row, event: str) -> dict[str, object]:
    return {"event": event, "message_id": row.message.properties.message_id, "row": row.id}


MARGIN = 1.0
"""Seconds added to a row's due time before it is used as a probe, so that the query surely finds the row as due."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """The row that probes an exchange without write permission, and the time from which it may be sent."""

    row: int
    at: float


class Denied:
    """The exchanges to which a relay may not write. Each relay keeps its own list."""

    def __init__(self) -> None:
        self._asking: dict[str, Asking] = {}

    @property
    def exchanges(self) -> Collection[str]:
        """The exchanges whose rows are not sent.

        The broker would refuse each and close the channel, with all other messages in flight on it.
        """
        return self._asking.keys()

    def note(self, exchange: str, row: int, *, seconds: float) -> None:
        """Record that this row was refused and is due again after `seconds`."""
        self._asking[exchange] = Asking(row=row, at=time.monotonic() + seconds + MARGIN)

    def next(self) -> int | None:
        """Return a probe row that is due, to be sent alone; None if no row is due.

        Its exchange counts as writable again, until the probe is refused and noted.
        """
        now = time.monotonic()
        for exchange, asking in self._asking.items():
            if asking.at <= now:
                del self._asking[exchange]
                return asking.row
        return None


IDLE = 5.0
"""Seconds without a result after which the thread ends."""
PAUSE, TRIES = 0.5, 10
MOST = 500


class Clerk:
    """Writes late publish results to the database in its own thread, so that the I/O thread never waits for a query."""

    def __init__(self) -> None:
        self._answers: queue.SimpleQueue[tuple[str, Answer]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._busy = False
        self._ended = threading.Event()

    def take(self, using: str, answer: Answer) -> None:
        """Queue a result for writing. Returns at once, in any thread."""
        if answer.result.confirmed:
            reach.found()
        self._answers.put((using, answer))
        with self._lock:
            if self._busy:
                return
            self._busy = True
        threading.Thread(target=self._run, name="rmq-outbox-late", daemon=True).start()

    def _run(self) -> None:
        try:
            while True:
                try:
                    first = self._answers.get(timeout=IDLE)
                except queue.Empty:
                    with self._lock:
                        if self._answers.empty():
                            self._busy = False
                            return
                    continue
                self._write([first, *self._rest()])
        finally:
            connections.close_all()

    def _rest(self) -> list[tuple[str, Answer]]:
        found: list[tuple[str, Answer]] = []
        while len(found) < MOST and not self._answers.empty():
            found.append(self._answers.get())
        return found

    def _write(self, answers: list[tuple[str, Answer]]) -> None:
        for using in dict.fromkeys(using for using, _answer in answers):
            told = [answer for alias, answer in answers if alias == using]
            for left in reversed(range(TRIES)):
                try:
                    written(told, using=using)
                    break
                except Exception as error:  # noqa: BLE001 - the database may be unreachable
                    connections[using].close()
                    if not left:
                        log.warning("%s answers for the outbox of %r are lost: %s", len(told), using, error)
                    self._ended.wait(PAUSE)


def written(answers: list[Answer], *, using: str) -> None:
    """Record publish results: delete confirmed rows, postpone rows with a fault, release the others to the relays."""
    confirmed = [answer.row.id for answer in answers if answer.result.confirmed]
    if confirmed:
        outbox_rows.delete(confirmed, using=using)
    free: list[Row] = []
    for answer in answers:
        if answer.result.confirmed:
            continue
        whose = fault(answer.result, alone=False)
        if whose in (Fault.BROKER, Fault.SHARED):
            free.append(answer.row)
        else:
            failed(answer.row, using=using, why=answer.result.shown, whose=whose)
    if free:
        outbox_rows.release(free, using=using)


clerk = Clerk()


def _forked() -> None:
    """Start with an empty queue in a forked child, because the parent writes its own results."""
    global clerk  # noqa: PLW0603 - there is one process
    clerk = Clerk()


os.register_at_fork(after_in_child=_forked)
