"""Writes the history of attempts in a separate thread."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, Protocol, TypeVar, cast

from django.db import connections, router, transaction
from django.db.models import Q

from django_rmq_retry import database_connections
from django_rmq_retry.attempts.doubtful import Doubtful, refused
from django_rmq_retry.attempts.rows import AttemptDraft, AttemptRow, NameRow, RowBuilder, names_of
from django_rmq_retry.database_errors import away
from django_rmq_retry.handlers.contracts import Kept
from django_rmq_retry.messages.texts import ErrorNote
from django_rmq_retry.models import Attempt, AttemptName, ParkedMessage
from django_rmq_retry.statements import BulkInsert, with_one_of, writing

log = logging.getLogger("django_rmq_retry")

DRAFTS_AT_ONCE = 400
WRITE_SECONDS = 0.2
"""Seconds within which a draft is written; a full batch is written sooner."""
MOST_DRAFTS, MOST_DRAFT_BYTES = 10_000, 64 * 1024 * 1024
"""Limits of the waiting drafts, in rows and in bytes."""
FIRST_REWRITE_SECONDS, LONGEST_REWRITE_SECONDS = 1.0, 60.0
OUTCOME_REFUSED = "An outcome cannot be stored. The state of its parked message does not change."
CORRECTION_REFUSED = "An attempt cannot be corrected. Its history says that the message was parked, but it was not."
OutcomeUpdate = Callable[[], None]
Written = Callable[[Sequence[AttemptRow]], None]
"""Takes the rows of attempts once they are stored."""
Draft = AttemptDraft | Kept
R = TypeVar("R", AttemptRow, NameRow)
insert = BulkInsert(Attempt, AttemptRow._fields)
insert_names = BulkInsert(AttemptName, NameRow._fields)


class Write(Protocol):
    """Adds drafts to the table, all or none; ``plain`` replaces characters that some databases cannot store."""

    def __call__(self, drafts: Sequence[Any], *, plain: bool = False) -> None: ...


class Buffer:
    """Queues drafts and outcomes of the workers without making them wait. Its thread starts with the first entry."""

    def __init__(self, write: Write, *, most: int = MOST_DRAFTS, room: int = MOST_DRAFT_BYTES) -> None:
        self._write = write
        self._most, self._room = most, room
        self._drafts: deque[Draft] = deque()
        self._doubtful = Doubtful()
        self._outcomes, self._corrections = _Updates(OUTCOME_REFUSED), _Updates(CORRECTION_REFUSED)
        self._size = 0
        self._dropped = 0
        self._lock = threading.Lock()
        self._some, self._full, self._closing = threading.Event(), threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self.away = False
        """True if the last write to the database failed."""

    def __len__(self) -> int:
        return len(self._drafts) + len(self._doubtful) + len(self._outcomes) + len(self._corrections)

    def add(self, draft: Draft) -> None:
        """Add a draft; in a full buffer, the oldest drafts are dropped."""
        with self._lock:
            self._drafts.append(draft)
            self._size += draft.size
            self._make_room()
        self._wake()

    def write(self, draft: Draft) -> None:
        """Write a draft in the calling thread; add it if the database is away, or refuses it."""
        # What fails here is written again by the thread, which logs an error that persists.
        with suppress(Exception):
            if not self.away:
                self._write([draft])
                return
        self.add(draft)

    def add_outcome(self, outcome: OutcomeUpdate) -> None:
        """Add an outcome, which must not be lost: it is retried until the database stores or refuses it."""
        self._outcomes.add(outcome)
        self._wake()

    def add_correction(self, correction: OutcomeUpdate) -> None:
        """Add a change of a row that was added before; it is made once that row is written."""
        self._corrections.add(correction)
        self._wake()

    def flush(self) -> None:
        """Write all entries that wait now, in the calling thread; raise the error of those that could not be written.

        Later entries wait for the next turn: under load some arrive during each commit, and the loop would not end.
        """
        corrections = self._corrections.waiting
        try:
            self._outcomes.write(self._outcomes.waiting)
        except Exception as error:
            # Of a database that answers, the outcomes may be what fails: the history does not wait for them.
            if not away(error):
                self._write_drafts()
            raise
        self._write_drafts()
        # They change rows of drafts, so they come after all of them.
        self._corrections.write(corrections)

    def _write_drafts(self) -> None:
        self._doubtful.begin()
        left = len(self._drafts)
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
        self._doubtful.write_again()

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
        """Write the drafts together, or one by one if one of them may be the reason why that fails."""
        try:
            self._write(some)
        except Exception as error:
            if away(error) and not refused(error):
                raise
            while some:
                self._doubtful.write(partial(self._write_one, some[0]), partial(_give_up, some[0]))
                some.pop(0)
        else:
            self._doubtful.note_written()

    def _write_one(self, draft: Draft) -> None:
        try:
            self._write([draft])
        except Exception as error:
            if not refused(error):
                raise
            self._write([draft], plain=True)


def _give_up(draft: Draft, error: Exception) -> None:
    problem = str(ErrorNote.of(error))
    log.error("An attempt of queue %r cannot be stored: %r", draft.queue, problem, extra={"event": "unrecorded"})


class _Updates:
    """Changes of rows, made in their order; one that the database refuses is left out, and logged in these words."""

    def __init__(self, refusal: str) -> None:
        self._refusal = refusal
        self._updates: deque[OutcomeUpdate] = deque()
        self._doubtful = Doubtful()

    def __len__(self) -> int:
        return self.waiting + len(self._doubtful)

    @property
    def waiting(self) -> int:
        """Return how many have not been tried."""
        return len(self._updates)

    def add(self, update: OutcomeUpdate) -> None:
        self._updates.append(update)

    def write(self, most: int) -> None:
        """Make the first of these changes, then those that failed before."""
        self._doubtful.begin()
        for _ in range(most):
            self._doubtful.write(self._updates[0], self._give_up)
            self._updates.popleft()
        self._doubtful.write_again()

    def _give_up(self, error: Exception) -> None:
        log.error(self._refusal, exc_info=error, extra={"event": "unrecorded"})


class Writer:
    """Makes rows from drafts, and adds them to the table; what handlers keep is stored in the same transaction."""

    def __init__(self, builder: RowBuilder, written: Written = lambda _rows: None) -> None:
        self._builder = builder
        self._written = written

    def __call__(self, drafts: Sequence[Draft], *, plain: bool = False) -> None:
        kept = [draft for draft in drafts if isinstance(draft, Kept)]
        attempts = [draft for draft in drafts if isinstance(draft, AttemptDraft)] if kept else drafts
        rows, names = self._rows(cast("Sequence[AttemptDraft]", attempts), plain=plain)
        if kept:
            with writing(Attempt, using=router.db_for_write(Attempt)):
                if rows:
                    write(rows, names)
                for store in dict.fromkeys(one.store for one in kept):
                    store([one.row for one in kept if one.store == store])
        else:
            write(rows, names)
        if rows:
            self._written(rows)

    def mark_interrupted(self, draft: AttemptDraft) -> None:
        """Note in the row of this draft that its message was not parked."""
        [row] = self._rows([draft], plain=False)[0]
        written = Attempt.objects.using(router.db_for_write(Attempt)).filter(
            identity=row.identity, started_at=row.started_at, cycle=row.cycle, number=row.number, thread=row.thread
        )
        written.filter(pid=row.pid, host=row.host).update(interrupted=True)

    def _rows(self, drafts: Sequence[AttemptDraft], *, plain: bool) -> tuple[list[AttemptRow], list[NameRow]]:
        rows = [self._builder.row(draft) for draft in drafts]
        records = {draft.ticket.record for draft in drafts if draft.ticket}
        if records:
            rows = _known(drafts, rows, records)
        names = _names(drafts, rows)
        return ([_plain(row) for row in rows], [_plain(name) for name in names]) if plain else (rows, names)


def _plain(row: R) -> R:
    values: Any = (value.encode("ascii", "replace").decode() if isinstance(value, str) else value for value in row)
    return type(row)(*values)


def _names(drafts: Sequence[AttemptDraft], rows: Sequence[AttemptRow]) -> list[NameRow]:
    """Return the names of the messages that are to be tried again, or were delivered more than once.

    An earlier attempt may have written them; the first one may have written none, such as one whose process was killed.
    """
    pairs = zip(drafts, rows, strict=True)
    tried = {(row.identity, row.cycle): (draft, row) for draft, row in pairs if row.next_at or row.redelivered}
    again = {row.identity for _draft, row in tried.values() if row.number > 1 or row.redelivered}
    if again:
        written = Q(next_at__isnull=False) | Q(redelivered=True)
        earlier = Attempt.objects.using(router.db_for_write(Attempt)).filter(written)
        for some in with_one_of(earlier, "identity", again):
            for known in some.values_list("identity", "cycle"):
                tried.pop(known, None)
    return [name for draft, row in tried.values() for name in names_of(draft, row)]


def _known(drafts: Sequence[AttemptDraft], rows: list[AttemptRow], records: Collection[int]) -> list[AttemptRow]:
    """Give requeued messages the identity of their record: they may have been edited or sent to another queue."""
    messages = ParkedMessage.objects.using(router.db_for_write(ParkedMessage)).filter(pk__in=records)
    names = dict(messages.values_list("pk", "identity"))
    known = (names.get(draft.ticket.record) if draft.ticket else None for draft in drafts)
    return [row._replace(identity=name) if name else row for row, name in zip(rows, known, strict=True)]


def write(rows: Sequence[AttemptRow], names: Sequence[NameRow] = ()) -> None:
    alias = router.db_for_write(Attempt)
    with transaction.atomic(using=alias):
        insert(rows, using=alias)
        if names:
            insert_names(names, using=alias)
