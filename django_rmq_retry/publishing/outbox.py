"""The outbox inside a transaction: rows are inserted, sent after the commit, and deleted after their confirms."""

import atexit
import logging
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from django_rmq_retry.amqp.contracts import Cause, Publisher, PublishResult, unsent, unwritable
from django_rmq_retry.amqp.frames import check_writable
from django_rmq_retry.conf import settings
from django_rmq_retry.errors import RmqRetryError
from django_rmq_retry.messages.message import Message
from django_rmq_retry.publishing import broker_connections, faults, outbox_rows
from django_rmq_retry.publishing.broker_connections import reach
from django_rmq_retry.publishing.faults import Fault, fault
from django_rmq_retry.publishing.outbox_rows import Row, RowResult, insert

log = logging.getLogger("django_rmq_retry")

CHECK_EVERY = 0.2
"""Seconds between checks whether to continue waiting."""

Late = Callable[[RowResult], None]

SPARE = 10.0
"""Seconds beyond the publish timeout for which rows are leased to their writer."""

IDLE = 5.0
"""Seconds without a result after which the thread ends."""
PAUSE, TRIES = 0.5, 10
AT_EXIT = "interpreter shutdown"
"""The words of Python's error on starting a thread then."""
MOST_RESULTS = 500

MOST = 1000
"""The largest number of messages that a transaction sends itself; relays send the others."""

touched: set[tuple[str, Publisher]] = set()
"""In tests: the databases in which rows were written with a stand-in for the broker, and that stand-in."""


@dataclass(slots=True)
class _Line:
    """Rows that are sent one after the other: those of an ordering key, those sent alone, or a single other row."""

    rows: deque[Row] = field(default_factory=deque)
    busy: bool = False
    again: bool = False


class Batch:
    """One batch of rows to publish.

    ``late`` is called on the I/O thread with each result that arrives after `wait` has returned.
    With ``one_by_one`` each row is sent after the confirm of the previous one, and none after a failure.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        *,
        timeout: float,
        until: float = float("inf"),
        late: Late,
        one_by_one: bool = False,
    ) -> None:
        self._timeout = timeout
        self._until = until
        """The monotonic time after which no further row is sent."""
        self._late = late
        self._lock = threading.Lock()
        self._in_flight: set[int] = set()
        self._answers: list[RowResult] = []
        self._waited_for = True
        self._left = len(rows)
        self._over = threading.Event()
        self._lines = [_Line(rows=deque(rows))] if one_by_one else _lines(rows)

    def begin(self) -> None:
        """Send the first row of each line. A row that cannot be encoded gets its result at once."""
        for line in self._lines:
            self._send_next(line)

    def wait(self, seconds: float, enough: Callable[[], bool] = lambda: False) -> tuple[list[RowResult], set[int]]:
        """Return the results that arrive within `seconds`, and the ids of the rows sent but without a result.

        Results after that are late, and no further row is sent. `enough` ends the wait early.
        """
        deadline = time.monotonic() + seconds
        while not self._over.wait(min(CHECK_EVERY, max(0.0, deadline - time.monotonic()))):
            if time.monotonic() >= deadline or enough():
                break
        with self._lock:
            self._waited_for = False
            return list(self._answers), set(self._in_flight)

    def _send_next(self, line: _Line) -> None:
        """Send the next row of a line.

        A publisher may return a result within the call, so this loops instead of recursing.
        """
        with self._lock:
            if line.busy:
                line.again = True
                return
            line.busy = True
        while True:
            row = self._next(line)
            if row is not None:
                self._send(row, line)
            with self._lock:
                if row is None or not line.again:
                    line.busy = False
                    return
                line.again = False

    def _next(self, line: _Line) -> Row | None:
        with self._lock:
            if not self._waited_for or time.monotonic() > self._until:
                self._drop(line)
            if not line.rows:
                return None
            row = line.rows.popleft()
            self._in_flight.add(row.id)
            return row

    def _send(self, row: Row, line: _Line) -> None:
        try:
            publisher = broker_connections.current.publisher
        except Exception as error:  # noqa: BLE001 - the settings may be invalid; the row stays in the outbox
            self._answered(row, line, unsent(Cause.OTHER, str(error)))
            return
        try:
            publisher.send(row.message, partial(self._answered, row, line), timeout=self._timeout)
        except Exception as error:  # noqa: BLE001 - as above
            self._answered(row, line, unwritable(str(error)))

    def _answered(self, row: Row, line: _Line, result: PublishResult) -> None:
        answer = RowResult(row=row, result=result)
        with self._lock:
            self._in_flight.discard(row.id)
            in_time = self._waited_for
            if in_time:
                self._answers.append(answer)
            if not result.confirmed:
                # Drop the rest of the line, because later rows of an ordering key must not overtake this one.
                self._drop(line)
            self._left -= 1
            if not self._left:
                self._over.set()
            more = bool(line.rows)
        if not in_time:
            self._late(answer)
        if more:
            self._send_next(line)

    def _drop(self, line: _Line) -> None:
        self._left -= len(line.rows)
        line.rows.clear()
        if not self._left:
            self._over.set()


def _lines(rows: Sequence[Row]) -> list[_Line]:
    lines: list[_Line] = []
    keyed: dict[str, _Line] = {}
    for row in rows:
        key = row.message.order_key
        line = keyed.get(key) if key else None
        if line is None:
            line = _Line()
            lines.append(line)
            if key:
                keyed[key] = line
        line.rows.append(row)
    return lines


def lease() -> float:
    """Return the seconds for which only its writer may send a row."""
    return settings().publish_timeout + SPARE


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
            reach.found()
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
        """End the thread and write what is left, in the calling thread.

        While the interpreter shuts down no thread can be started, and one that runs is not waited for.
        """
        with self._lock:
            self._over, busy = True, self._busy
        if busy and self._thread is not None:
            self._answers.put(None)
            with suppress(RuntimeError):
                # It is just being started.
                self._thread.join(IDLE)
        while results := self._rest():
            self._write(results, tries=1)

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

    def _write(self, answers: list[tuple[str, RowResult]], tries: int = TRIES) -> None:
        for using in dict.fromkeys(using for using, _answer in answers):
            results = [answer for alias, answer in answers if alias == using]
            for left in reversed(range(tries)):
                try:
                    written(results, using=using)
                    break
                except Exception as error:  # noqa: BLE001 - the database may be unreachable
                    with suppress(Exception):
                        # An error here would end the thread, and with it the writing of all later results.
                        connections[using].close()
                    if not left:
                        log.warning(
                            "%s publish results for the outbox of %r could not be written: %s",
                            len(results),
                            using,
                            error,
                        )
                    else:
                        self._ended.wait(PAUSE)


def written(answers: list[RowResult], *, using: str) -> None:
    """Record publish results: delete confirmed rows, postpone rows with a fault, release the others to the relays."""
    confirmed = [answer.row.id for answer in answers if answer.result.confirmed]
    if confirmed:
        outbox_rows.delete(confirmed, using=using)
    suspects = [answer.row.id for answer in answers if faults.suspect(answer.result)]
    if suspects:
        outbox_rows.send_alone(suspects, using=using)
    free: list[Row] = []
    for answer in answers:
        if answer.result.confirmed:
            continue
        whose = fault(answer.result, alone=False)
        if whose in (Fault.BROKER, Fault.SHARED):
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


@dataclass(slots=True, eq=False)
class AfterCommit:
    """The rows of one transaction or savepoint, sent by an on_commit callback and dropped with a rollback."""

    using: str
    begun: float
    rows: list[Row] = field(default_factory=list)
    waits_in: Sequence[Sequence[Any]] = ()
    """Django's list of on_commit callbacks at the time when this one was added."""
    done: bool = False

    def __call__(self) -> None:
        """Send the rows after the commit. Errors are logged, not raised, because the commit cannot be undone."""
        self.done = True
        try:
            self._send_rows()
        except Exception as error:  # noqa: BLE001 - the rows are committed, and a relay sends them
            text = "After the commit %s messages stay in the outbox of %r until a relay sends them: %s"
            log.warning(text, len(self.rows), self.using, error, extra={"event": "outbox_waiting"})

    def _send_rows(self) -> None:
        # Django creates a new list when a savepoint is rolled back. While it runs callbacks, the list that it works
        # off no longer contains this one.
        if connections[self.using].run_on_commit is not self.waits_in and any(one[1] is self for one in self.waits_in):
            # A savepoint rolled back by hand may have removed rows without notice, so read which ones exist.
            self.rows = outbox_rows.written(self.rows, using=self.using)
        if not self.rows:
            return
        # Results for which no thread could be started may be waiting.
        result_writer.start()
        answers, in_flight = self._sent() if not reach.away or reach.take_probe() else ([], set())
        confirmed = [answer.row for answer in answers if answer.result.confirmed]
        if confirmed:
            outbox_rows.delete([row.id for row in confirmed], using=self.using)
        missing = [answer for answer in answers if not answer.result.confirmed]
        if missing:
            written(missing, using=self.using)
        done = {answer.row.id for answer in answers} | in_flight
        free = [row for row in self.rows if row.id not in done]
        keys = {row.message.order_key for row in confirmed} - {""}
        if free:
            outbox_rows.release(free, using=self.using)
        elif keys and outbox_rows.can_notify(self.using) and outbox_rows.earliest(keys, using=self.using):
            # Other transactions may have left rows of these ordering keys behind ours: a relay can send them now.
            outbox_rows.notify(self.using)

    def _sent(self) -> tuple[list[RowResult], set[int]]:
        """Send the rows that no relay can have taken, and return the results and the ids of the rows in flight."""
        timeout = settings().publish_timeout
        if time.monotonic() - self.begun >= SPARE / 2 and not self._renewed():
            return [], set()
        rows = self._in_turn() if any(row.message.order_key for row in self.rows) else self.rows
        if not rows:
            return [], set()
        batch = Batch(rows, timeout=timeout, until=self.begun + SPARE, late=partial(_late, self.using))
        batch.begin()
        answers, in_flight = batch.wait(0.0 if reach.away else broker_connections.PATIENCE)
        if any(answer.result.confirmed for answer in answers):
            if reach.away:
                reach.found()
            return answers, in_flight
        lost = next((answer.result for answer in answers if fault(answer.result, alone=False) is Fault.BROKER), None)
        if in_flight or lost:
            reach.lost(lost.text if lost else "no confirm in time")
        return answers, in_flight

    def _renewed(self) -> bool:
        """Extend the lease of the rows after a long transaction; False if a relay has claimed any of them."""
        self.begun = time.monotonic()
        renewed = outbox_rows.renew(self.rows, using=self.using, seconds=lease())
        self.rows = renewed or self.rows
        return bool(renewed)

    def _in_turn(self) -> list[Row]:
        """Return all rows except those of ordering keys with an earlier row in the table, which a relay sends."""
        firsts: dict[str, int] = {}
        for row in self.rows:
            firsts.setdefault(row.message.order_key, row.id)
        firsts.pop("", None)
        earliest = outbox_rows.earliest(firsts, using=self.using)
        late = {key for key, first in firsts.items() if earliest.get(key) != first}
        return [row for row in self.rows if row.message.order_key not in late]


def _late(using: str, answer: RowResult) -> None:
    # Read the module attribute at each call, because a forked child has its own writer.
    result_writer.take(using, answer)


def open_transaction() -> str | None:
    """Return the database with an open transaction, preferring the default one; None if no transaction is open."""
    replaced = broker_connections.current.replaced
    begun = [
        connection.alias
        for connection in connections.all(initialized_only=True)
        # The transaction that TestCase wraps around a test never commits, so ignore it with a stand-in.
        if connection.in_atomic_block and not (replaced and _of_a_test(connection.atomic_blocks))
    ]
    return DEFAULT_DB_ALIAS if DEFAULT_DB_ALIAS in begun else next(iter(begun), None)


def _of_a_test(blocks: Sequence[object]) -> bool:
    return all(getattr(block, "_from_testcase", False) for block in blocks)


def keep(message: Message, *, using: str, order_key: str = "") -> None:
    """Write a message as an outbox row in the open transaction of a database. It is sent after the commit.

    Messages with the same ``order_key`` are sent in the order of writing, each after the previous one is confirmed.
    """
    keep_all([replace(message, order_key=order_key) if order_key else message], using=using)


def keep_all(messages: Sequence[Message], *, using: str) -> None:
    """Write messages, all or none, as outbox rows in the open transaction."""
    for message in messages:
        _check(message)
    if broker_connections.current.replaced:
        touched.add((using, broker_connections.current.publisher))
    send_now = not reach.away or reach.probe_due()
    # Read before the insert: the lease starts then, and the database may keep the insert waiting.
    begun = time.monotonic()
    rows = insert(messages[:MOST], using=using, lease=lease() if send_now else 0.0)
    if len(messages) > MOST:
        insert(messages[MOST:], using=using, lease=0.0)
    if send_now:
        _send_on_commit(rows, using, begun)


def _check(message: Message) -> None:
    """Raise MessageUnsent for a message that never can be sent, as a publish outside of a transaction does."""
    try:
        check_writable(message)
        # Only bytes that came from a broker may be no text, and no row can hold them.
        f"{message.exchange}{message.routing_key}".encode()
    except RmqRetryError:
        raise
    except ValueError as problem:
        raise unwritable(str(problem)).error(message) from problem


def _send_on_commit(rows: Sequence[Row], using: str, begun: float) -> None:
    connection = connections[using]
    pending = _last_of(connection)
    if pending is None or len(pending.rows) + len(rows) > MOST:
        pending = AfterCommit(using, begun, [*rows])
        # Robust, so that the callbacks after it run even if it raises.
        transaction.on_commit(pending, using=using, robust=True)
        pending.waits_in = connection.run_on_commit
    else:
        pending.rows += rows


def _last_of(connection: BaseDatabaseWrapper) -> AfterCommit | None:
    """Return the last AfterCommit of this connection if it belongs to the same savepoint; new rows can join it."""
    if not connection.in_atomic_block or getattr(connection.atomic_blocks[0], "_from_testcase", False):
        return None
    for entry in reversed(connection.run_on_commit):
        savepoints, callback = entry[:2]
        if isinstance(callback, AfterCommit):
            same = savepoints == set(connection.savepoint_ids) and not callback.done
            return callback if same else None
    return None
