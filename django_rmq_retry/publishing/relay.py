"""The relay sends the outbox rows that the committing process did not send, in batches, in a thread of its own."""

import logging
import queue
import selectors
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import accumulate
from typing import Any, TypeAlias

from django.db import Error, OperationalError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Exists, Min, OuterRef, Q, QuerySet

from django_rmq_retry import server
from django_rmq_retry.amqp.contracts import Outcome
from django_rmq_retry.conf import settings
from django_rmq_retry.models import OutboxMessage
from django_rmq_retry.publishing import broker_connections, faults, outbox_rows
from django_rmq_retry.publishing.faults import Denied, Fault
from django_rmq_retry.publishing.outbox import Batch, lease, touched
from django_rmq_retry.publishing.outbox_rows import CHANNEL, READ, Row, RowResult, row_of
from django_rmq_retry.statements import write_first

log = logging.getLogger("django_rmq_retry")

MOST = 500
MOST_ALONE = 100
"""Rows that are sent one by one before other rows have their turn."""
MOST_BYTES = 16 * 1024 * 1024
"""Bytes of bodies in one batch."""
Sized: TypeAlias = tuple[int, str, int]
"""The id of a row, its ordering key, and the bytes of its body."""

RELAYED = {"event": "relayed"}

LOSSES = 3
GRACE = 2.0
"""Seconds after its deadline within which a publish has ended, and seconds to wait for confirms when stopping."""

POLL = 1.0
"""Seconds between polls of a database without notifications."""
LISTENING_POLL = 3.0
SOONEST = 0.05
AGAIN = 1.0
"""Seconds after which an unreachable broker or database is tried again."""
UNKNOWN_DATABASES = "The relay cannot read from the database routers which outboxes it serves"
PATIENCE = 30.0
"""Seconds without a finished round and without a sent message after which `empty` stops waiting for a round."""

ContextFactory = Callable[[], AbstractContextManager[object]]
Report = Callable[[bool], None]


def skips_locked(using: str) -> bool:
    """True if the database supports SKIP LOCKED, so that rows in flight stay locked and other relays skip them."""
    return bool(connections[using].features.has_select_for_update_skip_locked)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The selection of rows for one batch."""

    most: int = MOST
    only: Collection[int] = ()
    """The ids of the rows to select from; all rows if empty."""
    alone: bool = False
    """True for the rows that are sent one by one, False for all others; without effect if `only` names rows."""
    without: Collection[str] = ()
    """The exchanges whose rows are skipped."""


@contextmanager
def claimed(using: str, wanted: Wanted, *, lease: float) -> Iterator[list[Row]]:
    """Claim rows that no other process sends meanwhile.

    With SKIP LOCKED they are locked until the block ends or the process dies, else leased for `lease` seconds.
    """
    if skips_locked(using):
        with transaction.atomic(using=using):
            yield _taken(using, wanted, lock=True)
        return
    yield _leased(using, wanted, lease) if waiting(using) else []


def waiting(using: str) -> bool:
    """True if any row is due."""
    return _due(using, server.now(using)).exists()


def next_due(using: str) -> float | None:
    """Return the seconds until the next row becomes due; None if no row is waiting."""
    now = server.now(using)
    later = OutboxMessage.objects.using(using).filter(failed_at__isnull=True, due_at__gt=now)
    at = later.aggregate(at=Min("due_at"))["at"]
    return None if at is None else float((at - now).total_seconds())


def _due(using: str, now: datetime) -> QuerySet[OutboxMessage]:
    return OutboxMessage.objects.using(using).filter(failed_at__isnull=True, due_at__lte=now)


def _leased(using: str, wanted: Wanted, lease: float) -> list[Row]:
    with transaction.atomic(using=using):
        write_first(OutboxMessage, using)
        rows = _taken(using, wanted, lock=False)
        until = server.now(using) + timedelta(seconds=lease)
        OutboxMessage.objects.using(using).filter(pk__in=[row.id for row in rows]).update(due_at=until)
    return [replace(row, due_at=until) for row in rows]


def _taken(using: str, wanted: Wanted, *, lock: bool) -> list[Row]:
    ready = _due(using, server.now(using)).filter(
        *([Q(pk__in=wanted.only)] if wanted.only else [Q(alone=wanted.alone)]),
        *([~Q(exchange__in=wanted.without)] if wanted.without else []),
    )
    heads = _heads(using, ready, wanted, lock=lock)
    room = 0 if wanted.only or wanted.alone else wanted.most - len(heads)
    followers = _followers(using, ready, heads, room, lock=lock) if room else []
    rows = OutboxMessage.objects.using(using).filter(pk__in=_within([*heads, *followers])).order_by("pk")
    return [row_of(row) for row in rows.values_list(*READ)]


def _heads(using: str, ready: QuerySet[OutboxMessage], wanted: Wanted, *, lock: bool) -> list[Sized]:
    """Return the due rows without an ordering key, and the first row of each ordering key."""
    earlier = OutboxMessage.objects.using(using).filter(order_key=OuterRef("order_key"), pk__lt=OuterRef("pk"))
    rows = ready.filter(Q(order_key="") | ~Exists(earlier)).order_by("pk")
    return list(rows.select_for_update(skip_locked=lock).values_list("pk", "order_key", "size")[: wanted.most])


def _followers(
    using: str, ready: QuerySet[OutboxMessage], heads: Sequence[Sized], most: int, *, lock: bool
) -> list[Sized]:
    """Return the rows that follow the first rows of their ordering keys.

    Each ordering key ends at its first row that is not due or is claimed by another process.
    """
    open_keys = {key for _pk, key, _size in heads if key}
    if not open_keys:
        return []
    first, known = min(pk for pk, key, _size in heads if key), [pk for pk, _key, _size in heads]
    rows = OutboxMessage.objects.using(using).filter(order_key__in=open_keys, pk__gt=first).exclude(pk__in=known)
    listed = list(rows.order_by("pk").values_list("pk", "order_key", "size")[:most])
    mine = ready.filter(pk__in=[pk for pk, _key, _size in listed]).select_for_update(skip_locked=lock)
    free = set(mine.values_list("pk", flat=True))
    found = []
    for pk, key, size in listed:
        # A database collation may treat different ordering keys as equal, so compare again here. Rows of other keys
        # wait for a later batch.
        if pk not in free:
            open_keys.discard(key)
        elif key in open_keys:
            found.append((pk, key, size))
    return found


def _within(rows: Sequence[Sized]) -> list[int]:
    """Return the ids of the first rows that fit MOST_BYTES of a batch, at least one."""
    fitting = sum(total <= MOST_BYTES for total in accumulate(size for _pk, _key, size in rows))
    return [pk for pk, _key, _size in rows[: max(1, fitting)]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The result of one batch."""

    sent: int = 0
    failed: int = 0
    away: str = ""
    """The reason why the broker accepted nothing, so that the relay should wait; else empty."""

    @property
    def nothing(self) -> bool:
        return not (self.sent or self.failed or self.away)


class Relay:
    """The relay of one database. Several relays, in one or more processes, may serve the same database."""

    def __init__(self, using: str, *, ended: threading.Event) -> None:
        self._using = using
        self._ended = ended
        self._ended_at = 0.0
        self._away = False
        self._in_flight: set[int] = set()
        self._confirmed: set[int] = set()
        """Ids of confirmed rows that are not deleted yet."""
        self._losses: Counter[int] = Counter()
        """The number of times a row that was sent alone had no result; confirms of other rows do not clear it."""
        self._alone_first = False
        """True if the next turn is that of the rows that are sent one by one."""
        self._denied = Denied()

    def turn(self) -> Turn:
        """Send one batch."""
        self.forget()
        probe = self._denied.next()
        if probe is not None:
            return self._batch(Wanted(most=1, only=[probe], without=self._denied.exchanges)) or Turn(failed=1)
        for alone in (self._alone_first, not self._alone_first):
            turn = self._batch(self._wanted(alone=alone))
            if turn:
                # Neither kind of rows waits for all of the other kind.
                self._alone_first = not alone
                return turn
        return Turn()

    def _batch(self, wanted: Wanted) -> Turn | None:
        """Send the rows of a selection; None if there are none."""
        try:
            with claimed(self._using, wanted, lease=lease()) as rows:
                if not rows:
                    return None
                answers = self._sent(rows, one_by_one=wanted.alone)
                turn = self._settled(rows, answers, alone=wanted.alone or len(rows) == 1)
        except OperationalError:
            # The transaction was rolled back, for example by a deadlock. Delete confirmed rows before another relay
            # sends them again.
            with suppress(Error):
                self.forget()
            raise
        self._confirmed -= {answer.row.id for answer in answers}
        return turn

    def _wanted(self, *, alone: bool) -> Wanted:
        most = 1 if self._away else MOST_ALONE if alone else MOST
        return Wanted(most=most, alone=alone, without=self._denied.exchanges)

    def forget(self) -> None:
        """Delete rows confirmed earlier, so that they are not sent again after the database was unreachable."""
        if self._confirmed:
            known = list(self._confirmed)
            outbox_rows.delete(known, using=self._using)
            self._confirmed.difference_update(known)

    def _sent(self, rows: Sequence[Row], *, one_by_one: bool) -> list[RowResult]:
        timeout = settings().publish_timeout
        until = time.monotonic() + lease() - timeout
        batch = Batch(rows, timeout=timeout, until=until, late=self._late, one_by_one=one_by_one)
        batch.begin()
        answers, self._in_flight = batch.wait(lease() - GRACE, self._must_stop)
        self._confirmed |= {answer.row.id for answer in answers if answer.result.confirmed}
        return answers

    def _late(self, answer: RowResult) -> None:
        if answer.result.confirmed:
            self._confirmed.add(answer.row.id)

    def _must_stop(self) -> bool:
        """True if the relay is stopping and GRACE seconds are over, or the broker is unreachable."""
        if not self._ended.is_set():
            return False
        self._ended_at = self._ended_at or time.monotonic()
        return self._away or time.monotonic() - self._ended_at > GRACE

    def _settled(self, rows: Sequence[Row], answers: Sequence[RowResult], *, alone: bool) -> Turn:
        sent = [answer.row.id for answer in answers if answer.result.confirmed]
        if sent:
            outbox_rows.delete(sent, using=self._using)
        away, failed, settled, suspects = "", 0, set(sent), list[int]()
        for answer in answers:
            if answer.result.confirmed:
                continue
            whose, why = self._fault(answer, alone=alone), answer.result.shown
            if whose in (Fault.BROKER, Fault.SHARED):
                away = away or (why if whose is Fault.BROKER else "")
                if faults.suspect(answer.result):
                    suspects.append(answer.row.id)
            else:
                seconds = faults.failed(answer.row, using=self._using, why=why, whose=whose)
                settled.add(answer.row.id)
                if whose is Fault.PERMISSION:
                    self._denied.note(answer.row.message.exchange, answer.row.id, seconds=seconds)
            failed += whose is not Fault.BROKER
        if suspects:
            outbox_rows.send_alone(suspects, using=self._using)
        if not skips_locked(self._using):
            self._give_back(rows, settled)
        for row in sent:
            self._losses.pop(row, None)
        self._note(sent=bool(sent), away=away)
        return Turn(sent=len(sent), failed=failed, away="" if sent or failed else away or "no publish was confirmed")

    def _fault(self, answer: RowResult, *, alone: bool) -> Fault:
        """Return the fault of a result.

        A row over which the connection was lost before, and is lost again now that it is sent alone, is the cause. A
        row that repeatedly has no result for another reason counts as FULL, and is postponed, so that it does not
        block all others; once postponed, such a row is postponed again at its first loss.
        """
        whose = faults.fault(answer.result, alone=alone)
        if alone and answer.row.alone and whose is Fault.BROKER and faults.suspect(answer.result):
            return Fault.ROW
        if alone and whose is Fault.BROKER and answer.result.kind is Outcome.UNKNOWN:
            self._losses[answer.row.id] += 1
            most = 1 if answer.row.alone and answer.row.attempts else LOSSES
            if self._losses[answer.row.id] >= most:
                del self._losses[answer.row.id]
                return Fault.FULL
        return whose

    def _give_back(self, rows: Sequence[Row], settled: set[int]) -> None:
        """End the lease of rows that were not sent, or that failed by no fault of their own."""
        free = [row for row in rows if row.id not in settled | self._in_flight]
        if free:
            # Without a wake-up: this relay would wake itself, and never pause while the broker refuses everything.
            outbox_rows.release(free, using=self._using, wake=False)

    def _note(self, *, sent: bool, away: str) -> None:
        if sent:
            self._away = False
            broker_connections.reach.found()
        elif away:
            self._away = True
            broker_connections.reach.lost(away)


def send_left() -> int:
    """For tests: send all rows, ignoring the waits after failures. Return the number of sent rows."""
    # Only the databases in which this test has written: it may have no database at all.
    for one in [one for one in touched if one[1] is not broker_connections.current.publisher]:
        touched.discard(one)
    return sum(_sent(using) for using, _publisher in list(touched))


def _sent(using: str) -> int:
    if connections[using].needs_rollback or not outbox_rows.allowed(using) or not outbox_rows.table_exists(using):
        return 0
    # Other rows are still leased to their writers: inside a TestCase their transaction has not committed.
    left = Q(attempts__gt=0) | Q(due_at__lte=server.now(using))
    rows = OutboxMessage.objects.using(using).filter(left, failed_at__isnull=True)
    if not rows.exists():
        return 0
    rows.update(due_at=server.now(using))
    relay, sent = Relay(using, ended=threading.Event()), 0
    while (turn := relay.turn()).sent:
        sent += turn.sent
    return sent


class WakeUps:
    """Waits for wake-up signals from this process and from PostgreSQL.

    One thread uses it; any thread may call ``wake``.
    """

    def __init__(self) -> None:
        self._near, self._far = socket.socketpair()
        self._near.setblocking(False)  # noqa: FBT003 - Python's own signature
        self._far.setblocking(False)  # noqa: FBT003 - Python's own signature
        self._woken = threading.Event()
        """Replaces the sockets after an error."""
        self._listening: dict[str, BaseDatabaseWrapper] = {}

    def wake(self) -> None:
        self._woken.set()
        with suppress(OSError):
            self._far.send(b"!")

    def listens(self, using: str) -> bool:
        """True if notifications of this database are received; opens a separate connection for them if needed."""
        if connections[using].vendor != "postgresql":
            return False
        if using not in self._listening:
            try:
                self._listening[using] = _listening(using)
            except Exception as error:  # noqa: BLE001 - on any driver error the relay polls more often instead
                text = "The relay cannot receive notifications of database %r, and polls it: %s"
                log.debug(text, using, error, extra={"event": "relay_polls", "database": using})
        return using in self._listening

    def wait(self, seconds: float) -> None:
        """Wait until a signal arrives or the time is over; after an error at most AGAIN seconds."""
        seconds = max(0.0, seconds)
        try:
            signalled = self._signalled(seconds)
        except Exception as error:  # noqa: BLE001 - a driver's connection that was closed raises errors of its own
            text = "The relay cannot watch its connections, and polls its databases: %s"
            log.debug(text, error, extra={"event": "relay_polls"})
            self.stop_listening()
            # Without this wait an error that remains would make the relay ask its databases without a pause.
            self._woken.wait(min(seconds, AGAIN))
            signalled = []
        self._woken.clear()
        for using in signalled:
            self._read_notifications(using)

    def _signalled(self, seconds: float) -> list[str]:
        """Return the databases that sent notifications."""
        # `select` refuses descriptors above 1023.
        with selectors.DefaultSelector() as watched:
            watched.register(self._near, selectors.EVENT_READ)
            for using, one in self._listening.items():
                watched.register(one.connection, selectors.EVENT_READ, using)
            ready = [key.data for key, _events in watched.select(seconds)]
        _drain(self._near)
        return [using for using in ready if using is not None]

    def stop_listening(self) -> None:
        """Close the listening connections. `listens` opens them again."""
        for using in list(self._listening):
            self._drop(using)

    def close(self) -> None:
        self.stop_listening()
        self._near.close()
        self._far.close()

    def _read_notifications(self, using: str) -> None:
        raw: Any = self._listening[using].connection
        try:
            if hasattr(raw, "pgconn"):
                raw.pgconn.consume_input()
                while raw.pgconn.notifies():
                    pass
            else:
                raw.poll()
                raw.notifies.clear()
        except Exception:  # noqa: BLE001 - the connection was lost
            self._drop(using)

    def _drop(self, using: str) -> None:
        with suppress(Exception):
            self._listening.pop(using).close()


def _listening(using: str) -> BaseDatabaseWrapper:
    connection = connections[using].copy()
    with connection.cursor() as cursor:
        cursor.execute(f"LISTEN {CHANNEL}")
    return connection


def _drain(near: socket.socket) -> None:
    with suppress(BlockingIOError):
        while near.recv(4096):
            pass


class RelayThread:
    """The thread with the relays of all databases that have an outbox.

    An unreachable database stops its own relay only.
    """

    def __init__(self, *, around: ContextFactory = nullcontext, burst: bool = False) -> None:
        self._around = around
        self._burst = burst
        self._ended = threading.Event()
        self.over = threading.Event()
        """Set when the thread has ended, after `stop` or by itself."""
        self.away = ""
        """The reason why not all rows were sent; read after a burst."""
        self.trouble = self._trouble = ""
        """The reason why the last round, and the present one, did not send all rows that were due."""
        self._wake_ups = WakeUps()
        self._thread = threading.Thread(target=self._run, name="rmq-relay", daemon=True)
        self._relays: dict[str, Relay] = {}
        self._failing: set[str] = set()
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
        self._thread.start()

    def wake(self) -> None:
        self._wake_ups.wake()

    def empty(self, report: Report) -> None:
        """Call the given function after the next round, with True if no message was sent since the last report.

        It is called with True at once if the thread has ended, or after PATIENCE seconds without progress, because a
        database that does not respond would block the round.
        """
        now = time.monotonic()
        if not self._since or self._seen != self.sent:
            self._since, self._seen = now, self.sent
        if self.over.is_set() or now - self._since > PATIENCE:
            report(True)  # noqa: FBT003 - the answer
            return
        self._reports.put(report)
        self.wake()

    def stop(self, timeout: float | None = None) -> bool:
        """End after the current batch. True if the thread has ended within `timeout` seconds."""
        self._ended.set()
        self.wake()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        outbox_rows.wakers.add(self.wake)
        try:
            while not self._ended.is_set():
                reports = [self._reports.get() for _ in range(self._reports.qsize())]
                self._trouble = ""
                wait = self._round()
                self.trouble = self._trouble
                self._report(reports)
                if self._burst:
                    break
                self._wake_ups.wait(wait)
        finally:
            outbox_rows.wakers.discard(self.wake)
            self._wake_ups.close()
            with suppress(Exception):
                connections.close_all()
            self.over.set()

    def _report(self, reports: list[Report]) -> None:
        if not reports:
            return
        quiet, self._reported, self._since = self.sent == self._reported, self.sent, 0.0
        for report in reports:
            report(quiet)

    def _round(self) -> float:
        """Serve each database, and return the seconds until the next round."""
        waits = [LISTENING_POLL]
        try:
            served = outbox_rows.served()
        except Exception as error:  # noqa: BLE001 - a database router of the project may raise anything
            self._log_failure(UNKNOWN_DATABASES, error)
            return AGAIN
        self._failing.discard(UNKNOWN_DATABASES)
        for using in served:
            if self._ended.is_set():
                return 0.0
            failure = f"The relay cannot serve the outbox of {using!r}"
            try:
                with self._around():
                    waits.append(self._serve(using))
                self._failing.discard(failure)
            except Exception as error:  # noqa: BLE001 - the thread must survive any error
                self._log_failure(failure, error)
                _close(connections[using])
                waits.append(AGAIN)
        return min(waits)

    def _serve(self, using: str) -> float:
        if not outbox_rows.table_exists(using):
            return LISTENING_POLL
        # Start listening before reading the table, so that no notification in between is lost.
        poll = LISTENING_POLL if self._wake_ups.listens(using) else POLL
        away = self._send_all(using).away
        if away:
            self.away, self._trouble = self.away or away, away
            return AGAIN
        due = next_due(using)
        return poll if due is None else max(SOONEST, min(poll, due))

    def _send_all(self, using: str) -> Turn:
        relay = self._relays.setdefault(using, Relay(using, ended=self._ended))
        while True:
            turn = relay.turn()
            self.sent += turn.sent
            if turn.sent:
                what = "message" if turn.sent == 1 else "messages"
                log.info("The relay sent %d %s from the outbox of %r", turn.sent, what, using, extra=RELAYED)
            if turn.nothing or turn.away or self._ended.is_set():
                relay.forget()
                return turn

    def _log_failure(self, failure: str, error: Exception) -> None:
        """Log a failure once, until a round succeeds: an outage repeats the same error."""
        self.away, self._trouble = self.away or str(error), str(error)
        if failure not in self._failing:
            text = " ".join(str(error).split())
            log.warning("%s and retries every %g s: %s", failure, AGAIN, text, extra={"event": "relay"})
        self._failing.add(failure)


def _close(connection: BaseDatabaseWrapper) -> None:
    """Close a connection that failed, unless a transaction around the relay still needs it."""
    if not connection.in_atomic_block:
        with suppress(Exception):
            connection.close()
