"""The committed rows of one database: sent without anybody waiting for them, and deleted after their confirms."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from django.db import connections

from django_rmq_retry import database_errors
from django_rmq_retry.messages.message import Message
from django_rmq_retry.publishing import broker_connections, faults, outbox_rows
from django_rmq_retry.publishing.outbox_rows import SPARE_SECONDS, OutboxRow, RowResult, lease
from django_rmq_retry.publishing.sending import Sending

log = logging.getLogger("django_rmq_retry")

MOST_ROWS, MOST_BYTES = 10_000, 64 * 1024 * 1024
"""What is held at most, in rows and in bytes of their bodies; relays send what is beyond."""
GATHER_SECONDS = 0.01
"""Seconds between two turns, in which rows and results gather: they are sent, and written, together."""
GATHERING_TURNS = 3
"""The turns for which results wait for others: the DELETE of one row costs more than sending it."""
SILENT_SECONDS = 1.0
"""Seconds without a result for any row in flight after which the broker counts as unreachable."""
WRITE_PAUSE_SECONDS, WRITE_TRIES = 0.5, 10
_NOTHING = Message(body=b"")


@dataclass(frozen=True, slots=True, kw_only=True)
class Handed:
    """The rows of one transaction or savepoint, as its commit hands them over."""

    rows: Sequence[OutboxRow]
    doubtful: bool = False
    """True if a savepoint that was rolled back by hand may have deleted some of them."""
    send: bool = True
    """False if they are the relay's."""
    more: bool = False
    """True if the transaction has more rows, which are the relay's."""


@dataclass(slots=True, kw_only=True)
class _Unwritten:
    """Results that the database has not taken yet."""

    results: list[RowResult] = field(default_factory=list)
    free: list[OutboxRow] = field(default_factory=list)
    """The rows whose leases are to be ended."""
    wake: bool = False
    """True if a relay has rows to send that it does not know of."""
    tries: int = 0
    next_at: float = 0.0

    def __bool__(self) -> bool:
        return bool(self.results or self.free or self.wake)


class Outgoing:
    """What a process holds of the rows of one database; see `Sender` for the thread that takes its turns."""

    def __init__(self, using: str, *, wake: Callable[[], None], soon: Callable[[], bool] = lambda: False) -> None:
        self.using = using
        self._wake = wake
        self._soon = soon
        """Returns True if a turn follows in a moment."""
        self._sending = Sending(answered=wake)
        self._turning = threading.Lock()
        """Held by the thread that takes a turn: a thread that ends slowly may be in one when its successor starts."""
        self._lock = threading.Lock()
        self._handed: deque[Handed] = deque()
        """The rows that the database has to be asked about before they are sent."""
        self._rows = self._bytes = 0
        self._gathered = 0
        """The number of turns in a row that let results gather."""
        self._keyed: dict[str, set[int]] = {}
        """The ids of the rows that are held, by ordering key."""
        self._unwritten = _Unwritten()
        self.sent = 0
        """The number of rows that were sent and deleted."""

    @property
    def holds(self) -> bool:
        """True if rows are held, or something is to be written about rows."""
        return bool(self._rows or self._handed or self._unwritten)

    @property
    def has_work(self) -> bool:
        """True if a turn has something to do, now or soon."""
        return bool(self._handed or self._sending.answers or self._unwritten)

    @property
    def held(self) -> int:
        """The number of rows that are held."""
        return self._rows

    def room(self) -> tuple[int, int]:
        """Return how many rows, and how many bytes of bodies, it would take."""
        return MOST_ROWS - self._rows, MOST_BYTES - self._bytes

    def woken_by(self, wake: Callable[[], None]) -> None:
        """Call another function when a turn has something to do."""
        self._wake = self._sending.answered = wake

    def hand_over(self, handed: Handed) -> None:
        """Take the rows of a transaction after its commit. No query is made, and nothing is waited for."""
        self._note_silence()
        size = _size(handed.rows)
        with self._lock:
            rows, bytes_ = self.room()
            if not handed.send or len(handed.rows) > rows or size > bytes_:
                # Only the leases of rows that are left to the relay are needed.
                handed = replace(handed, rows=[replace(row, message=_NOTHING) for row in handed.rows], send=False)
                size = 0
            self._rows += len(handed.rows)
            self._bytes += size
        if handed.send and not (handed.doubtful or handed.more or any(map(_to_be_checked, handed.rows))):
            self._sending.put(handed.rows)
            # A wake-up of the I/O thread costs about as much as the INSERT, so commits share one.
            if not self._soon():
                self._sending.send_ready()
            if self.has_work:
                # No thread could be started when the results arrived.
                self._wake()
            return
        self._handed.append(handed)
        self._wake()

    def wait(self) -> None:
        """Send in this thread, and wait for the confirms as long as the broker answers."""
        self._ask()
        self._sending.send_ready()
        self._sending.wait(0.0 if broker_connections.connections.reach.away else SILENT_SECONDS)
        self._note_silence()

    def await_confirms(self, seconds: float) -> None:
        """Wait for the confirms of what is sent, at most for some seconds."""
        self._sending.wait(seconds)

    def turn(self, *, at_once: bool = False) -> float | None:
        """Do what is due, and return the seconds until more is; None if nothing is known to be.

        Only the results gather for a moment, so that many are written together; not so with ``at_once``.
        """
        if not self._turning.acquire(blocking=False):
            return GATHER_SECONDS
        try:
            self._ask()
            sent = self._sending.send_ready()
            seconds = self._write_due(at_once=at_once)
            # While there is work in each turn, nobody has to wake this thread.
            return GATHER_SECONDS if sent and seconds is None else seconds
        finally:
            self._turning.release()

    def end(self) -> None:
        """Send no more rows, and write what is known of the others."""
        self._sending.close()
        self.turn(at_once=True)

    def _ask(self) -> None:
        while self._handed:
            self._take(self._handed.popleft())

    def _note_silence(self) -> None:
        silent = self._sending.silent_since
        if silent and time.monotonic() - silent >= SILENT_SECONDS:
            broker_connections.connections.reach.lost("no confirm in time")

    def _take(self, handed: Handed) -> None:
        """Send rows that may be sent, and leave the others to the relays."""
        self._unwritten.wake = self._unwritten.wake or handed.more
        rows: Sequence[OutboxRow] = handed.rows
        try:
            if handed.doubtful:
                rows = outbox_rows.rows_in_table(rows, using=self.using)
            if not handed.send:
                self._leave(rows)
                rows = []
            elif rows and rows[0].until - time.monotonic() < SPARE_SECONDS / 2:
                # A long transaction. A relay may have claimed some of them meanwhile, which leaves it all of them.
                renewed = outbox_rows.renew(rows, using=self.using, seconds=lease())
                if not renewed:
                    self._leave(rows)
                rows = renewed
            rows = self._in_turn(rows)
        except Exception as error:  # noqa: BLE001 - the rows are committed, and a relay sends them
            log_left(len(rows), self.using, error)
            self._close_connection()
            self._forget(handed.rows)
            return
        # By number, because SQLite reuses the ids of rows that were rolled back.
        self._free(len(handed.rows) - len(rows), _size(handed.rows) - _size(rows))
        if rows:
            self._sending.put(rows)

    def _in_turn(self, rows: Sequence[OutboxRow]) -> Sequence[OutboxRow]:
        """Return the rows but those behind another process's row of their ordering key, which a relay sends in turn."""
        keys = {row.message.order_key for row in rows} - {""}
        if not keys:
            return rows
        held = {row.id for row in rows}.union(*(self._keyed.get(key, ()) for key in keys))
        others = outbox_rows.earliest(keys, using=self.using, without=held)
        going: list[OutboxRow] = []
        behind: list[OutboxRow] = []
        closed: set[str] = set()
        for row in rows:
            key = row.message.order_key
            if key in closed or others.get(key, row.id) < row.id:
                closed.add(key)
                behind.append(row)
            else:
                going.append(row)
                if key:
                    self._keyed.setdefault(key, set()).add(row.id)
        self._leave(behind)
        return going

    def _leave(self, rows: Sequence[OutboxRow]) -> None:
        self._unwritten.free += rows

    def _write_due(self, *, at_once: bool) -> float | None:
        now, sending, unwritten = time.monotonic(), self._sending, self._unwritten
        if unwritten.tries and now < unwritten.next_at and not at_once:
            return unwritten.next_at - now
        if sending.answers and self._gathered < GATHERING_TURNS and not (at_once or unwritten):
            self._gathered += 1
            return GATHER_SECONDS
        self._gathered = 0
        answers, unsent = sending.take()
        self._look_at_the_broker(answers)
        unwritten.results += answers
        self._leave(unsent)
        self._forget(unsent, keyed=True)
        if not unwritten:
            return None
        try:
            self._write()
        except Exception as error:  # noqa: BLE001 - the database may be unreachable
            return self._write_later(error)
        return GATHER_SECONDS

    def _write(self) -> None:
        """Write the results and the ends of leases."""
        unwritten = self._unwritten
        recorded = faults.record(unwritten.results, using=self.using)
        self.sent += len(recorded.sent)
        ended = [one.row for one in unwritten.results]
        keys = {row.message.order_key for row in ended if row.message.order_key}
        unwritten.free += recorded.free
        unwritten.results = []
        self._forget(ended, keyed=True)
        self._sending.mend(keys | {row.message.order_key for row in unwritten.free})
        if unwritten.free:
            outbox_rows.release(unwritten.free, using=self.using)
        elif unwritten.wake or self._others_wait(keys):
            outbox_rows.notify(self.using)
        self._unwritten = _Unwritten()

    def _others_wait(self, keys: set[str]) -> bool:
        """True if a relay may now send rows of these ordering keys: others left them, or were behind ours."""
        keys = {key for key in keys if key not in self._keyed}
        return bool(keys and outbox_rows.can_notify(self.using) and outbox_rows.earliest(keys, using=self.using))

    def _write_later(self, error: Exception) -> float | None:
        unwritten = self._unwritten
        self._close_connection()
        unwritten.tries += 1
        if unwritten.tries >= WRITE_TRIES:
            count = len(unwritten.results) + len(unwritten.free)
            log.warning("%s publish results for the outbox of %r could not be written: %s", count, self.using, error)
            ended = [one.row for one in unwritten.results]
            self._forget(ended, keyed=True)
            self._sending.mend({row.message.order_key for row in (*ended, *unwritten.free)})
            self._unwritten = _Unwritten()
            return None
        # The database has rolled a deadlock back. The rows are confirmed, so another try does not wait.
        pause = 0.0 if database_errors.clashed(error) else WRITE_PAUSE_SECONDS
        unwritten.next_at = time.monotonic() + pause
        return pause

    def _close_connection(self) -> None:
        connection = connections[self.using]
        if not connection.in_atomic_block:
            # A transaction around the committing thread would still need it.
            with suppress(Exception):
                connection.close()

    def _forget(self, rows: Sequence[OutboxRow], *, keyed: bool = False) -> None:
        """Hold these rows no longer."""
        self._free(len(rows), _size(rows))
        for row in rows if keyed else ():
            if ids := self._keyed.get(row.message.order_key):
                ids.discard(row.id)
                if not ids:
                    del self._keyed[row.message.order_key]

    def _free(self, count: int, size: int) -> None:
        with self._lock:
            self._rows -= count
            self._bytes -= size

    def _look_at_the_broker(self, answers: Sequence[RowResult]) -> None:
        """Note a broker that does not answer: later commits do not hand their rows over."""
        if any(one.result.confirmed for one in answers):
            return
        kinds = ((one, faults.fault(one.result, alone=False)) for one in answers)
        lost = next((one.result for one, kind in kinds if kind is faults.RowFault.BROKER), None)
        if lost is not None:
            broker_connections.connections.reach.lost(lost.shown)


def _size(rows: Sequence[OutboxRow]) -> int:
    return sum(len(row.message.body) for row in rows)


def _to_be_checked(row: OutboxRow) -> bool:
    """True if the database is asked about this row before it is sent."""
    return bool(row.message.order_key) or row.until - time.monotonic() < SPARE_SECONDS / 2


def log_left(count: int, using: str, error: Exception) -> None:
    messages, them = staying(count)
    text = "After the commit %s in the outbox of %r until a relay sends %s: %s"
    log.warning(text, messages, using, them, error, extra={"event": "outbox_waiting"})


def staying(count: int) -> tuple[str, str]:
    """Return what a log line says of so many messages, and how it names them again."""
    return ("1 message stays", "it") if count == 1 else (f"{count} messages stay", "them")
