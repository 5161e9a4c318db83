"""Unconfirmed outbox rows: whose fault it is, and when to try again."""

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
"""After so many the broker can never take it, as far as anybody knows: with these waits that is nine minutes."""
FIRST_WAIT, LONGEST_WAIT = 1.0, 60.0


class Fault(Enum):
    """Whose fault it is."""

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
"""Where the message is known to be the one that was refused."""


def fault(result: PublishResult, *, alone: bool) -> Fault:
    """Return whose fault it is that a message was not confirmed; `alone` means that nothing else was in flight."""
    if result.scope is Scope.BROKER:
        return Fault.BROKER
    if result.scope is Scope.CHANNEL and not alone:
        return Fault.SHARED
    return FAULTS[result.cause]


def wait_after(attempts: int) -> float:
    """Seconds until the next try."""
    return float(min(FIRST_WAIT * 2 ** min(attempts - 1, 16), LONGEST_WAIT))


def failed(row: Row, *, using: str, why: str, whose: Fault) -> float:
    """Try again after that many seconds, or keep it for a person."""
    # How long a queue was full, or a right was missing, says nothing of how long a message may be returned.
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
"""Seconds after a row is due again, before it is sent: it must be found then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """Which row asks for its exchange, and from when on."""

    row: int
    at: float


class Denied:
    """Of one relay: each has to learn it for itself."""

    def __init__(self) -> None:
        self._asking: dict[str, Asking] = {}

    @property
    def exchanges(self) -> Collection[str]:
        """Whose rows would only be refused, and the channel closed with all that is under way on it."""
        return self._asking.keys()

    def note(self, exchange: str, row: int, *, seconds: float) -> None:
        """This row was refused, and is due again after so many seconds."""
        self._asking[exchange] = Asking(row=row, at=time.monotonic() + seconds + MARGIN)

    def next(self) -> int | None:
        """A row to be sent alone, for its time has come; with its answer its exchange is open, or denied once more."""
        now = time.monotonic()
        for exchange, asking in self._asking.items():
            if asking.at <= now:
                del self._asking[exchange]
                return asking.row
        return None


IDLE = 5.0
"""Seconds without an answer after which the thread ends."""
PAUSE, TRIES = 0.5, 10
MOST = 500


class Clerk:
    """Takes answers from any thread, at once; the broker's thread must never wait for a database."""

    def __init__(self) -> None:
        self._answers: queue.SimpleQueue[tuple[str, Answer]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._busy = False
        self._ended = threading.Event()

    def take(self, using: str, answer: Answer) -> None:
        """Write this one down soon."""
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
                except Exception as error:  # noqa: BLE001 - a database that is away
                    connections[using].close()
                    if not left:
                        log.warning("%s answers for the outbox of %r are lost: %s", len(told), using, error)
                    self._ended.wait(PAUSE)


def written(answers: list[Answer], *, using: str) -> None:
    """Delete what was confirmed, put off what failed by its own fault, leave the rest to the relays."""
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
    """In the child: the parent's answers are the parent's."""
    global clerk  # noqa: PLW0603 - there is one process
    clerk = Clerk()


os.register_at_fork(after_in_child=_forked)
