"""Outbox rows on their way to the broker: those of an ordering key one after the other, all others side by side."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

from django_rmq_retry.amqp.contracts import Cause, PublishResult, unsent, unwritable
from django_rmq_retry.conf import settings
from django_rmq_retry.publishing import broker_connections
from django_rmq_retry.publishing.outbox_rows import OutboxRow, RowResult

WINDOW = 1000
"""The largest number of rows whose confirms are awaited at once."""
CHECK_SECONDS = 0.2
_ALONE = "\0"
"""The chain of rows that are sent one by one; no ordering key has it, because PostgreSQL stores no such text."""


class Sending:
    """Sends rows as their turns come and keeps the results until they are taken. Any thread may add rows."""

    def __init__(self, *, one_by_one: bool = False, answered: Callable[[], None] = lambda: None) -> None:
        self._one_by_one = one_by_one
        self.answered = answered
        """Called after each result, mostly on the I/O thread."""
        self._lock = threading.Lock()
        self._ready: deque[OutboxRow] = deque()
        self._chains: dict[str, deque[OutboxRow]] = {}
        """By ordering key, the rows behind one that is ready or in flight."""
        self._broken: set[str] = set()
        """The ordering keys of rows that failed or were not sent, until that is written: none may overtake them."""
        self._in_flight: set[int] = set()
        self._filling: set[int] = set()
        """The threads that are sending: a publisher may return a result within the call."""
        self._answers: list[RowResult] = []
        self._unsent: list[OutboxRow] = []
        self._idle = threading.Event()
        self._closed = False
        self.silent_since = 0.0
        """Since when no result has arrived for the rows in flight; 0 if none is."""

    def put(self, rows: Iterable[OutboxRow]) -> None:
        """Take rows, which the next ``send_ready`` sends."""
        with self._lock:
            self._idle.clear()
            for row in rows:
                key = self._chain_of(row)
                if not key:
                    self._ready.append(row)
                elif key in self._broken:
                    self._unsent.append(row)
                elif key in self._chains:
                    self._chains[key].append(row)
                else:
                    self._chains[key] = deque()
                    self._ready.append(row)

    def wait(self, seconds: float, enough: Callable[[], bool] = lambda: False) -> None:
        """Wait until no row is left to send and none is in flight, for some seconds, or until it is enough."""
        deadline = time.monotonic() + seconds
        while not self._idle.wait(min(CHECK_SECONDS, max(0.0, deadline - time.monotonic()))):
            if time.monotonic() >= deadline or enough():
                return

    def close(self) -> None:
        """Send no more rows. The results of those in flight can still be taken."""
        with self._lock:
            self._closed = True
            while self._ready:
                self._drop(self._ready.popleft())

    @property
    def in_flight(self) -> frozenset[int]:
        with self._lock:
            return frozenset(self._in_flight)

    @property
    def answers(self) -> int:
        """The number of results, and of rows that were not sent, to be taken."""
        return len(self._answers) + len(self._unsent)

    def take(self) -> tuple[list[RowResult], list[OutboxRow]]:
        """Return the results since the last call, and the rows that were not sent and will not be."""
        with self._lock:
            answers, self._answers = self._answers, []
            unsent_rows, self._unsent = self._unsent, []
        return answers, unsent_rows

    def mend(self, keys: Iterable[str]) -> None:
        """Send rows of these ordering keys again: what was taken of them is written."""
        with self._lock:
            self._broken.difference_update(keys)
            self._broken.update(row.message.order_key for row in self._unsent if row.message.order_key)

    def send_ready(self) -> bool:
        """Send rows whose turn has come, and do not wait for their confirms; return True if there are any."""
        thread, found = threading.get_ident(), False
        if thread in self._filling:
            return False
        self._filling.add(thread)
        try:
            while (row := self._next()) is not None:
                self._send(row)
                found = True
        finally:
            self._filling.discard(thread)
        if self._unsent:
            self.answered()
        return found

    def _next(self) -> OutboxRow | None:
        with self._lock:
            while self._ready and len(self._in_flight) < WINDOW:
                row = self._ready.popleft()
                if self._closed or time.monotonic() > row.until:
                    self._drop(row)
                    self._note_idle()
                    continue
                self.silent_since = self.silent_since or time.monotonic()
                self._in_flight.add(row.id)
                return row
            return None

    def _send(self, row: OutboxRow) -> None:
        done = partial(self._answered, row)
        try:
            publisher = broker_connections.connections.publisher
        except Exception as error:  # noqa: BLE001 - the settings may be invalid; the row stays in the outbox
            done(unsent(Cause.OTHER, str(error)))
            return
        try:
            publisher.send(row.message, done, timeout=settings().publish_timeout)
        except Exception as error:  # noqa: BLE001 - as above
            done(unwritable(str(error)))

    def _answered(self, row: OutboxRow, result: PublishResult) -> None:
        if result.confirmed:
            broker_connections.connections.reach.found()
        key = self._chain_of(row)
        with self._lock:
            now = time.monotonic()
            self._in_flight.discard(row.id)
            self._answers.append(RowResult(row=row, result=result))
            if key:
                self._go_on(key, confirmed=result.confirmed)
            self.silent_since = now if self._in_flight else 0.0
            self._note_idle()
            more = bool(self._ready)
        self.answered()
        if more:
            self.send_ready()

    def _go_on(self, key: str, *, confirmed: bool) -> None:
        chain = self._chains[key]
        if not confirmed:
            self._broken.add(key)
            self._unsent += self._chains.pop(key)
        elif chain:
            self._ready.appendleft(chain.popleft())
        else:
            del self._chains[key]

    def _drop(self, row: OutboxRow) -> None:
        key = self._chain_of(row)
        self._unsent += [row, *self._chains.pop(key, ())]
        if key:
            self._broken.add(key)

    def _chain_of(self, row: OutboxRow) -> str:
        return _ALONE if self._one_by_one else row.message.order_key

    def _note_idle(self) -> None:
        if not self._ready and not self._in_flight:
            self._idle.set()
