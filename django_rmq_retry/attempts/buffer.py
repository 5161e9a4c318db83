"""Writes the history of attempts in a separate thread."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import islice
from typing import Any, Protocol, cast

from django.db import DataError, IntegrityError, OperationalError, connections, router, transaction

from django_rmq_retry import database_connections
from django_rmq_retry.attempts.rows import AttemptDraft, AttemptRow, RowBuilder
from django_rmq_retry.handlers.contracts import Kept
from django_rmq_retry.messages.texts import ErrorNote
from django_rmq_retry.models import Attempt, ParkedMessage
from django_rmq_retry.statements import BulkInsert

log = logging.getLogger("django_rmq_retry")

DRAFTS_AT_ONCE = 400
WRITE_SECONDS = 0.2
"""Seconds within which a draft is written; a full batch is written sooner."""
MOST_DRAFTS, MOST_DRAFT_BYTES = 10_000, 64 * 1024 * 1024
"""Limits of the waiting drafts, in rows and in bytes."""
FIRST_REWRITE_SECONDS, LONGEST_REWRITE_SECONDS = 1.0, 60.0
BAD_TEXT = 1366
"""MySQL's error number for a character that the table's character set does not have."""
OUTCOME_REFUSED = "An outcome cannot be stored. The state of its parked message does not change."
CORRECTION_REFUSED = "An attempt cannot be corrected. Its history says that the message was parked, but it was not."
OutcomeUpdate = Callable[[], None]
Draft = AttemptDraft | Kept
insert = BulkInsert(Attempt, AttemptRow._fields)


class Write(Protocol):
    """Adds drafts to the table, all or none; ``plain`` replaces characters that some databases cannot store."""

    def __call__(self, drafts: Sequence[Any], *, plain: bool = False) -> None: ...


class Buffer:
    """Queues drafts and outcomes of the workers without making them wait. Its thread starts with the first entry."""

    def __init__(self, write: Write, *, most: int = MOST_DRAFTS, room: int = MOST_DRAFT_BYTES) -> None:
        self._write = write
        self._most, self._room = most, room
        self._drafts: deque[Draft] = deque()
        self._outcomes: deque[OutcomeUpdate] = deque()
        self._corrections: deque[OutcomeUpdate] = deque()
        self._size = 0
        self._dropped = 0
        self._lock = threading.Lock()
        self._some, self._full, self._closing = threading.Event(), threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self.away = False
        """True if the last write to the database failed."""

    def __len__(self) -> int:
        return len(self._drafts) + len(self._outcomes) + len(self._corrections)

    def add(self, draft: Draft) -> None:
        """Add a draft; in a full buffer, the oldest drafts are dropped."""
        with self._lock:
            self._drafts.append(draft)
            self._size += draft.size
            self._make_room()
        self._wake()

    def add_outcome(self, outcome: OutcomeUpdate) -> None:
        """Add an outcome, which must not be lost: it is retried until the database stores or refuses it."""
        with self._lock:
            self._outcomes.append(outcome)
        self._wake()

    def add_correction(self, correction: OutcomeUpdate) -> None:
        """Add a change of a row that was added before; it is made once that row is written."""
        with self._lock:
            self._corrections.append(correction)
        self._wake()

    def flush(self) -> None:
        """Write all entries that wait now, in the calling thread; errors of the database are raised.

        Later entries wait for the next turn: under load some arrive during each commit, and the loop would not end.
        """
        _update(self._outcomes, len(self._outcomes), OUTCOME_REFUSED)
        corrections, left = len(self._corrections), len(self._drafts)
        while left > 0:
            some = self._take(left)
            if not some:
                break
            left -= len(some)
            try:
                self._write_some(some)
            except BaseException:
                self._put_back(some)
                raise
        _update(self._corrections, corrections, CORRECTION_REFUSED)

    def close(self, timeout: float) -> None:
        """Write the waiting entries if that takes at most ``timeout`` seconds, and end the thread."""
        thread = self._thread
        for event in (self._closing, self._some, self._full):
            event.set()
        if thread is not None:
            thread.join(timeout)
        left = len(self)
        if left or self._dropped:
            log.error(
                "%s attempts and outcomes were not recorded, because the database was unavailable.",
                left + self._dropped,
                extra={"event": "attempts_lost"},
            )
        self._dropped = 0

    def _wake(self) -> None:
        if self._thread is None:
            self._begin()
        if not self._some.is_set():
            self._some.set()
        if len(self._drafts) >= DRAFTS_AT_ONCE and not self._full.is_set():
            self._full.set()

    def _begin(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="rmq-recorder", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        wait = 0.0
        try:
            while not (self._closing.is_set() and (wait or not len(self))):
                wait = self._step(wait)
        finally:
            connections.close_all()

    def _step(self, wait: float) -> float:
        """Write one batch; return the seconds to wait after a failure, 0 after a success."""
        if wait:
            self._closing.wait(wait)
        else:
            self._some.wait()
            self._full.wait(WRITE_SECONDS)
        self._some.clear()
        if not self._closing.is_set():
            self._full.clear()
        try:
            self.flush()
        except Exception as error:  # noqa: BLE001 - any error is logged, and the write retried
            return self._failed(error, wait)
        if self.away:
            self.away = False
            log.warning("Attempts are recorded again%s", self._dropped_text(), extra={"event": "recorded"})
        database_connections.renew_connections()
        return 0.0

    def _failed(self, error: Exception, wait: float) -> float:
        self.away = True
        following = min(wait * 2 or FIRST_REWRITE_SECONDS, LONGEST_REWRITE_SECONDS)
        log.warning(
            "Attempts cannot be recorded (%r). %s are buffered%s; next write in %.0f s.",
            str(ErrorNote.of(error)),
            len(self),
            self._dropped_text(),
            following,
            extra={"event": "unrecorded"},
        )
        connections.close_all()
        return following

    def _dropped_text(self) -> str:
        with self._lock:
            dropped, self._dropped = self._dropped, 0
        return f", {dropped} dropped" if dropped else ""

    def _take(self, most: int) -> list[Draft]:
        with self._lock:
            some = list(islice(self._drafts, min(most, DRAFTS_AT_ONCE)))
            for draft in some:
                self._drafts.popleft()
                self._size -= draft.size
        return some

    def _put_back(self, some: Iterable[Draft]) -> None:
        with self._lock:
            for draft in reversed(list(some)):
                self._drafts.appendleft(draft)
                self._size += draft.size
            self._make_room()

    def _make_room(self) -> None:
        while len(self._drafts) > self._most or (self._size > self._room and len(self._drafts) > 1):
            self._size -= self._drafts.popleft().size
            self._dropped += 1

    def _write_some(self, some: list[Draft]) -> None:
        """Write the drafts together; if the database refuses one for its contents, write them one by one."""
        try:
            self._write(some)
        except Exception as error:
            if not _refused(error):
                raise
            while some:
                self._write_one(some[0])
                some.pop(0)

    def _write_one(self, draft: Draft) -> None:
        for plain in (False, True):
            try:
                self._write([draft], plain=plain)
            except Exception as error:
                if not _refused(error):
                    raise
                problem = str(ErrorNote.of(error))
            else:
                return
        log.error("An attempt of queue %r cannot be stored: %r", draft.queue, problem, extra={"event": "unrecorded"})


def _update(updates: deque[OutcomeUpdate], most: int, refused: str) -> None:
    """Make the first of these changes; one that the database refuses is left out, and logged in these words."""
    for _ in range(most):
        try:
            updates[0]()
        except Exception as error:
            if not _refused(error):
                raise
            log.exception(refused, extra={"event": "unrecorded"})
        updates.popleft()


def _refused(error: Exception) -> bool:
    """True if a row caused the error, and not an outage of the database."""
    if isinstance(error, OperationalError):
        return error.args[:1] == (BAD_TEXT,)
    return isinstance(error, (DataError, IntegrityError, ValueError, TypeError, OverflowError))


class Writer:
    """Makes rows from drafts, and adds them to the table; what handlers keep is stored in the same transaction."""

    def __init__(self, builder: RowBuilder) -> None:
        self._builder = builder

    def __call__(self, drafts: Sequence[Draft], *, plain: bool = False) -> None:
        kept = [draft for draft in drafts if isinstance(draft, Kept)]
        attempts = [draft for draft in drafts if isinstance(draft, AttemptDraft)] if kept else drafts
        rows = self._rows(cast("Sequence[AttemptDraft]", attempts), plain=plain)
        if not kept:
            write(rows)
            return
        with transaction.atomic(using=router.db_for_write(Attempt)):
            if rows:
                write(rows)
            for store in dict.fromkeys(one.store for one in kept):
                store([one.row for one in kept if one.store == store])

    def mark_interrupted(self, draft: AttemptDraft) -> None:
        """Note in the row of this draft that its message was not parked."""
        [row] = self._rows([draft], plain=False)
        written = Attempt.objects.using(router.db_for_write(Attempt)).filter(
            identity=row.identity, started_at=row.started_at, cycle=row.cycle, number=row.number, thread=row.thread
        )
        written.filter(pid=row.pid, host=row.host).update(interrupted=True)

    def _rows(self, drafts: Sequence[AttemptDraft], *, plain: bool) -> list[AttemptRow]:
        rows = [self._builder.row(draft) for draft in drafts]
        records = {draft.ticket.record for draft in drafts if draft.ticket}
        if records:
            rows = _known(drafts, rows, records)
        return [_plain(row) for row in rows] if plain else rows


def _plain(row: AttemptRow) -> AttemptRow:
    values = (value.encode("ascii", "replace").decode() if isinstance(value, str) else value for value in row)
    return AttemptRow._make(values)


def _known(drafts: Sequence[AttemptDraft], rows: list[AttemptRow], records: Collection[int]) -> list[AttemptRow]:
    """Give requeued messages the identity of their record: they may have been edited or sent to another queue."""
    messages = ParkedMessage.objects.using(router.db_for_write(ParkedMessage)).filter(pk__in=records)
    names = dict(messages.values_list("pk", "identity"))
    known = (names.get(draft.ticket.record) if draft.ticket else None for draft in drafts)
    return [row._replace(identity=name) if name else row for row, name in zip(rows, known, strict=True)]


def write(rows: Sequence[AttemptRow]) -> None:
    alias = router.db_for_write(Attempt)
    with transaction.atomic(using=alias):
        insert(rows, using=alias)
