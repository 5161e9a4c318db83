"""The thread that exchanges breakers, pauses and halted queues with the database."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from functools import partial

from django.db import Error, connections
from django.db.models import QuerySet

from django_rmq_retry import server
from django_rmq_retry.breakers.gate import LOOK, Board
from django_rmq_retry.breakers.table import database
from django_rmq_retry.handlers.attempt import Halt
from django_rmq_retry.messages.tracebacks import short
from django_rmq_retry.models import QueueControl

log = logging.getLogger("django_rmq_retry")

EVERY = 5.0
"""Seconds after which a consumer reports again that a queue is still halted."""
STALE = timedelta(seconds=30)
"""The time after which a consumer that has stopped reporting counts as gone."""
_TEXT, _NAME = 600, 255
_NONE = {"halted_at": None, "halted_seen_at": None, "halted_message": "", "halted_error": ""}


def halted() -> tuple[QueueControl, ...]:
    """Return the queues that are halted now, by the clock of the database."""
    alias = database()
    rows = QueueControl.objects.using(alias).filter(halted_at__isnull=False)
    return tuple(rows.filter(halted_seen_at__gt=server.now(alias) - STALE).order_by("queue"))


class Halts:
    """The halted queues of one process; the database is queried only if one has changed or its report is due."""

    def __init__(self, halts: Callable[[], Sequence[Halt]], who: str) -> None:
        self._halts = halts
        self._who = who
        self._told: dict[str, tuple[int, float]] = {}
        self._failing = False

    def tell(self) -> None:
        """Write the changes; a failed write is retried at the next call and does not prevent the other writes."""
        now, standing = time.monotonic(), {halt.queue: halt for halt in self._halts()}
        errors = [_failed(partial(self._gone, queue)) for queue in self._told.keys() - standing.keys()]
        for queue, halt in standing.items():
            attempt, at = self._told.get(queue, (0, 0.0))
            if halt.attempt != attempt or now - at >= EVERY:
                errors.append(_failed(partial(self._write, halt)))
                if errors[-1] is None:
                    self._told[queue] = halt.attempt, now
        failed = [error for error in errors if error]
        if failed and not self._failing:
            log.warning("The database does not learn which lines are halted: %s", failed[0], extra={"event": "halts"})
        if errors:
            self._failing = bool(failed)

    def _gone(self, queue: str) -> None:
        self._mine(queue).update(**_NONE)
        del self._told[queue]

    def end(self) -> None:
        """Mark the queues as no longer halted here; the start is kept in case the same message fails again."""
        for queue in self._told:
            self._mine(queue).update(halted_seen_at=None)

    def _mine(self, queue: str) -> QuerySet[QueueControl]:
        return QueueControl.objects.using(database()).filter(queue=queue, halted_by=self._who)

    def _write(self, halt: Halt) -> None:
        alias = database()
        row, _made = QueueControl.objects.using(alias).get_or_create(queue=halt.queue)
        now, message = server.now(alias), short(halt.message_id or "", _NAME)
        since = now - timedelta(seconds=max(time.time() - halt.since, 0.0))
        same = row.halted_at is not None and message and row.halted_message == message
        QueueControl.objects.using(alias).filter(pk=row.pk).update(
            halted_at=row.halted_at if same else since,
            halted_seen_at=now,
            halted_by=self._who,
            halted_attempt=halt.attempt,
            halted_error=short(halt.error, _TEXT),
            halted_message=message,
        )


def _failed(write: Callable[[], None]) -> Exception | None:
    try:
        write()
    except (Error, ValueError) as error:
        return error
    return None


PATIENCE = 2.0
"""Seconds that a consumer waits for the first read before it starts, so that it consumes no paused queue."""


class Watch:
    """The thread; it starts before the consumer. A database that is away or hangs delays nothing else."""

    def __init__(
        self,
        board: Board,
        *,
        around: Callable[[], AbstractContextManager[object]] = nullcontext,
        halts: Halts | None = None,
    ) -> None:
        self._board = board
        self._halts = halts
        self._around = around
        self._ended = threading.Event()
        self._woken = board.changed
        self._thread = threading.Thread(target=self._run, name="rmq-switches", daemon=True)

    def start(self) -> None:
        """Start the thread and return after its first read of the database, or after ``PATIENCE``."""
        self._thread.start()
        self._board.looked.wait(PATIENCE)

    def stop(self, timeout: float | None = None) -> bool:
        self._ended.set()
        self._woken.set()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                self._woken.wait(self._turn())
                self._woken.clear()
            # Changes since the last turn are written before the process ends.
            self._turn(last=True)
        finally:
            connections.close_all()

    def _turn(self, *, last: bool = False) -> float:
        try:
            with self._around():
                wait = self._board.turn()
                if self._halts is not None:
                    self._halts.tell()
                if last:
                    self._end()
        except Exception:
            log.exception("What is switched could not be followed; tried again in %g s", LOOK)
            return LOOK
        return max(wait, 0.02)

    def _end(self) -> None:
        self._board.end()
        if self._halts is not None:
            self._halts.end()
