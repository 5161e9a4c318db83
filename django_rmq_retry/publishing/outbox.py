"""The outbox inside a transaction: rows are inserted, sent at commit, and deleted after their confirms."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Min

from django_rmq_retry.amqp.contracts import Cause, Publisher, PublishResult, unsent, unwritable
from django_rmq_retry.amqp.frames import check_writable
from django_rmq_retry.conf import settings
from django_rmq_retry.messages.message import Message
from django_rmq_retry.models import OutboxMessage
from django_rmq_retry.publishing import broker_connections, faults, outbox_rows
from django_rmq_retry.publishing.broker_connections import reach
from django_rmq_retry.publishing.faults import Fault, fault
from django_rmq_retry.publishing.outbox_rows import Answer, Row, insert, stored_name

LOOK = 0.2
"""Seconds between two looks at whether waiting makes sense."""


Late = Callable[[Answer], None]


@dataclass(slots=True)
class _Line:
    """What is sent one after the other: all rows of a key, or one row without."""

    rows: deque[Row] = field(default_factory=deque)
    busy: bool = False
    again: bool = False


class Posting:
    """One batch. ``late`` is told, on the I/O thread, of what is answered when nobody waits any longer."""

    def __init__(self, rows: Sequence[Row], *, timeout: float, until: float = float("inf"), late: Late) -> None:
        self._timeout = timeout
        self._until = until
        """Monotonic: nothing is begun after it."""
        self._late = late
        self._lock = threading.Lock()
        self._under_way: set[int] = set()
        self._answers: list[Answer] = []
        self._waited_for = True
        self._left = len(rows)
        self._over = threading.Event()
        self._lines = _lines(rows)

    def begin(self) -> None:
        """Hand them over; what cannot be written is answered at once."""
        for line in self._lines:
            self._go(line)

    def wait(self, seconds: float, enough: Callable[[], bool] = lambda: False) -> list[Answer]:
        """The answers within so many seconds; what comes after that is late, and nothing more is begun."""
        deadline = time.monotonic() + seconds
        while not self._over.wait(min(LOOK, max(0.0, deadline - time.monotonic()))):
            if time.monotonic() >= deadline or enough():
                break
        with self._lock:
            self._waited_for = False
            return list(self._answers)

    def under_way(self) -> set[int]:
        """The rows that were begun and are not answered."""
        with self._lock:
            return set(self._under_way)

    def _go(self, line: _Line) -> None:
        """Send the next one of a line. A publisher may answer within the call: no call goes deeper for it."""
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
            self._under_way.add(row.id)
            return row

    def _send(self, row: Row, line: _Line) -> None:
        try:
            publisher = broker_connections.publisher()
        except Exception as error:  # noqa: BLE001 - whatever is wrong with the settings: the row stays
            self._answered(Answer(row=row, result=unsent(Cause.OTHER, str(error))), line)
            return

        def told(result: PublishResult) -> None:
            self._answered(Answer(row=row, result=result), line)

        try:
            publisher.send(row.message, told, timeout=self._timeout)
        except Exception as error:  # noqa: BLE001 - as above
            told(unwritable(str(error)))

    def _answered(self, answer: Answer, line: _Line) -> None:
        with self._lock:
            self._under_way.discard(answer.row.id)
            in_time = self._waited_for
            if in_time:
                self._answers.append(answer)
            if not answer.result.confirmed:
                # Whatever comes after it in its line must not pass it.
                self._drop(line)
            self._count(1)
            more = bool(line.rows)
        if not in_time:
            self._late(answer)
        if more:
            self._go(line)

    def _drop(self, line: _Line) -> None:
        self._count(len(line.rows))
        line.rows.clear()

    def _count(self, ended: int) -> None:
        self._left -= ended
        if not self._left:
            self._over.set()


def _lines(rows: Sequence[Row]) -> list[_Line]:
    lines: list[_Line] = []
    keyed: dict[str, _Line] = {}
    for row in rows:
        line = keyed.get(row.order_key) if row.order_key else None
        if line is None:
            line = _Line()
            lines.append(line)
            if row.order_key:
                keyed[row.order_key] = line
        line.rows.append(row)
    return lines


log = logging.getLogger("django_rmq_retry")

SPARE = 10.0
"""Seconds beyond the longest publish for which rows are their writer's."""


def lease() -> float:
    """Seconds for which nobody but its writer sends a row."""
    return settings().publish_timeout + SPARE


class Leaving:
    """The rows of one transaction, or of a savepoint of it; each lives and dies with what it was written in."""

    def __init__(self, using: str, *, begun: float) -> None:
        self.rows: list[Row] = []
        self.waits_in: Sequence[Sequence[Any]] = ()
        """Django's list of what is called after the commit, as it was when this was added to it."""
        self.done = False
        self._using = using
        self._begun = begun
        self._waits_for: set[int] = set()

    def __call__(self) -> None:
        """After the commit. What was committed stays so whatever happens here: nothing is raised."""
        self.done = True
        try:
            self._leave()
        except Exception as error:  # noqa: BLE001 - the rows are there, and a relay sends them
            said = "Committed; %s messages stay in the outbox of %r and are sent by a relay: %s"
            log.warning(said, len(self.rows), self._using, error, extra={"event": "outbox waits"})

    def _leave(self) -> None:
        self.rows = self._written()
        if not self.rows:
            return
        mine = self._in_turn() if reach.worth_trying() and self._still_ours() else []
        answers = self._sent(mine) if mine else []
        confirmed = [answer.row for answer in answers if answer.result.confirmed]
        if confirmed:
            outbox_rows.delete([row.id for row in confirmed], using=self._using)
        missing = [answer for answer in answers if not answer.result.confirmed]
        if missing:
            faults.written(missing, using=self._using)
        free = self._unsent(answers)
        if free:
            outbox_rows.release(free, using=self._using)
        elif any(row.order_key for row in confirmed):
            self._call_followers([row.order_key for row in confirmed])

    def _still_ours(self) -> bool:
        """After a long transaction its rows may be in a relay's hands."""
        if time.monotonic() - self._begun < SPARE / 2:
            return True
        self._begun = time.monotonic()
        renewed = outbox_rows.renew(self.rows, using=self._using, seconds=lease())
        self.rows = renewed or self.rows
        return bool(renewed)

    def _sent(self, rows: Sequence[Row]) -> list[Answer]:
        until = self._begun + lease() - settings().publish_timeout
        told = lambda answer: faults.clerk.take(self._using, answer)  # noqa: E731 - as of a fork
        posting = Posting(rows, timeout=settings().publish_timeout, until=until, late=told)
        posting.begin()
        answers = posting.wait(reach.patience)
        self._waits_for = posting.under_way()
        if any(answer.result.confirmed for answer in answers):
            reach.found()
            return answers
        lost = next((answer.result for answer in answers if fault(answer.result, alone=False) is Fault.BROKER), None)
        if self._waits_for or lost:
            reach.lost(lost.text if lost else "no confirm in time")
        return answers

    def _unsent(self, answers: Sequence[Answer]) -> list[Row]:
        answered = {answer.row.id for answer in answers} | self._waits_for
        return [row for row in self.rows if row.id not in answered]

    def _written(self) -> list[Row]:
        """The rows that are there: what a savepoint made by hand takes back, it takes back without telling us."""
        # Whenever one is rolled back Django makes a new list; of the one that it works off we have been taken.
        same = connections[self._using].run_on_commit is self.waits_in
        if same or all(entry[1] is not self for entry in self.waits_in):
            return self.rows
        ids = [row.id for row in self.rows]
        found = OutboxMessage.objects.using(self._using).filter(pk__in=ids).values_list("id", "message_id")
        # SQLite gives a number that was taken back to another row.
        there = set(found)
        return [row for row in self.rows if (row.id, stored_name(row.message)) in there]

    def _in_turn(self) -> list[Row]:
        """All but those that have an earlier one of their key before them: these are the relay's."""
        firsts: dict[str, int] = {}
        for row in self.rows:
            firsts.setdefault(row.order_key, row.id)
        firsts.pop("", None)
        if not firsts:
            return self.rows
        found = OutboxMessage.objects.using(self._using).filter(order_key__in=firsts)
        earliest = dict(found.values_list("order_key").annotate(first=Min("id")))
        return [row for row in self.rows if not row.order_key or earliest.get(row.order_key) == firsts[row.order_key]]

    def _call_followers(self, keys: Sequence[str]) -> None:
        """What others have left behind ours may go now."""
        if outbox_rows.heard(self._using):
            left = OutboxMessage.objects.using(self._using).filter(order_key__in=set(keys))
            if left.exists():
                outbox_rows.notify(self._using)


MOST = 1000
"""Messages of one transaction that are sent by itself; what is more is left to the relays."""


touched: set[tuple[str, Publisher]] = set()
"""In tests: the databases in which rows were written while something stood in the broker's place, and what."""


class Outbox:
    """What ``publishing`` hands messages to."""

    def takes(self, using: str) -> bool:
        """Whether there is one in this database. A transaction that is bound to fail takes no statement more."""
        return not connections[using].needs_rollback and outbox_rows.takes(using)

    def keep(self, messages: Iterable[Message], *, using: str) -> int:
        """Write them, all or none; return how many."""
        given = list(messages)
        _keep(given, using=using)
        return len(given)


def keep(message: Message, *, using: str, order_key: str = "") -> None:
    """Write a message as a row of the open transaction of a database; it is sent when that has committed.

    Messages with the same ``order_key`` leave in the order in which they were written, one confirmed before the next.
    """
    _keep([replace(message, order_key=order_key) if order_key else message], using=using)


def _keep(messages: Sequence[Message], *, using: str) -> None:
    for message in messages:
        check_writable(message)
    if broker_connections.stands_in():
        touched.add((using, broker_connections.publisher()))
    leaves = reach.worth_keeping()
    # Before the rows are written: a database may keep them waiting, and their lease has begun.
    begun = time.monotonic()
    rows = insert(messages[:MOST], using=using, lease=lease() if leaves else 0.0)
    if len(messages) > MOST:
        insert(messages[MOST:], using=using, lease=0.0)
    if leaves:
        _leave(rows, using, begun)


def _leave(rows: Sequence[Row], using: str, begun: float) -> None:
    connection = connections[using]
    leaving = _last_of(connection)
    if leaving is None or len(leaving.rows) + len(rows) > MOST:
        leaving = Leaving(using, begun=begun)
        # Robust: whatever it meets, the callbacks after it are called.
        leaving.rows += rows
        transaction.on_commit(leaving, using=using, robust=True)
        leaving.waits_in = connection.run_on_commit
    else:
        leaving.rows += rows


def _last_of(connection: BaseDatabaseWrapper) -> Leaving | None:
    """Whoever leaves with the same commit or savepoint, if nothing of ours came between: they go together."""
    if not connection.in_atomic_block or getattr(connection.atomic_blocks[0], "_from_testcase", False):
        return None
    for entry in reversed(connection.run_on_commit):
        savepoints, callback = entry[:2]
        if isinstance(callback, Leaving):
            same = savepoints == set(connection.savepoint_ids) and not callback.done
            return callback if same else None
    return None
