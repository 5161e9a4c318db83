"""Halted queues in the database: written by the consumers that are stopped, read by pages, commands and metrics."""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial

from django.db import Error

from django_rmq_retry import database_clock
from django_rmq_retry.breakers.queue_state import Halt
from django_rmq_retry.breakers.table import controls_alias
from django_rmq_retry.errors import ConfigurationError
from django_rmq_retry.handlers import registry
from django_rmq_retry.messages.texts import COLUMN_BYTES, short
from django_rmq_retry.models import QueueControl
from django_rmq_retry.recurring import LastingFailures

log = logging.getLogger("django_rmq_retry")

REPORT_SECONDS = 5.0
"""Seconds after which a consumer reports again that a queue is still halted."""
ELSEWHERE_SECONDS = 3.0
"""Seconds after which a message that was returned to its queue does not come again to the consumer that had it."""
STALE_HALT = timedelta(seconds=30)
"""The time without a report after which it is only known that a queue was halted."""
_ERROR_BYTES = 600
NOT_HALTED = {"halted_at": None, "halted_seen_at": None} | dict.fromkeys(
    ("halted_message", "halted_key", "halted_error"), ""
)
"""The columns of a queue that is not halted."""


def halted(now: datetime | None = None) -> tuple[QueueControl, ...]:
    """Return the halted queues. Without a consumer that reports it, a halt lasts: its message is still the first one.

    It ends with a message of the queue that a consumer settles. If no handler reads the queue any more, none will.
    """
    alias = controls_alias()
    rows = QueueControl.objects.using(alias).filter(halted_at__isnull=False).order_by("queue")
    return halted_among(rows, now or database_clock.now(alias))


def halted_among(rows: Iterable[QueueControl], now: datetime) -> tuple[QueueControl, ...]:
    """Return the same of rows that are known."""
    read: Collection[str] | None = None
    # With handlers that do not fit, nobody knows which queues they read, so all halts are told.
    with suppress(ConfigurationError):
        read = {one.queue.name for one in registry.work_queues()}
    return tuple(
        row for row in rows if row.halted_at and (read is None or row.queue in read or not known_last(row, now))
    )


def known_last(row: QueueControl, now: datetime) -> datetime | None:
    """Return when a halt was reported last if no consumer reports it now, else None."""
    seen = row.halted_seen_at
    return None if seen and seen > now - STALE_HALT else seen or row.halted_at


class Halts:
    """The halted queues of one process; the database is queried only if one has changed or its report is due."""

    def __init__(
        self,
        halts: Callable[[], Sequence[Halt]],
        who: str,
        *,
        holds: Callable[[str], bool],
        let_go: Callable[[str], None],
        connected: Callable[[], bool] = lambda: True,
        moved_on: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self._halts = halts
        self._who = who
        self._holds = holds
        """Returns True if a message of the queue is unacked here."""
        self._let_go = let_go
        """Called with a queue whose message has gone: another process may have it."""
        self._connected = connected
        """Returns False while this process has no connection: its reports stay, as what is known last."""
        self._moved_on = moved_on
        """Returns the halted queues of which this process has settled a message since the last call."""
        self._moved: set[str] = set()
        """Those of them whose halt is not ended in the table yet."""
        self._reported: dict[str, tuple[int, float]] = {}
        self._counted: dict[str, tuple[str | None, int]] = {}
        """The message that halted each queue last, and how many of its attempts here are in the table."""
        self._unheld: dict[str, float] = {}
        """The halted queues without an unacked message here, each with the time of the first look that saw it so."""
        self._failures = LastingFailures()

    def report(self) -> None:
        """Write the changes; a failed write is retried at the next call and does not prevent the other writes."""
        self._moved.update(self._moved_on())
        now, halted_now = time.monotonic(), {halt.queue: halt for halt in self._halts()}
        errors = [_error_of(partial(self._clear, queue)) for queue in self._moved - halted_now.keys()]
        if not self._connected():
            self._unheld.clear()
            halted_now = {}
        for queue, halt in halted_now.items():
            attempt, at = self._reported.get(queue, (0, 0.0))
            if self._is_gone(queue, now):
                self._leave(queue)
            elif queue in self._moved or halt.attempt != attempt or now - at >= REPORT_SECONDS:
                errors.append(_error_of(partial(self._write, halt)))
                if errors[-1] is None:
                    self._reported[queue] = halt.attempt, now
                    self._moved.discard(queue)
        failed = [error for error in errors if error]
        if failed and self._failures.begins():
            log.warning(
                "The state of halted queues cannot be written to the database: %s", failed[0], extra={"event": "halts"}
            )
        if errors and not failed:
            self._failures.ends()

    def _is_gone(self, queue: str, now: float) -> bool:
        """Return True if the message that halts a queue went back to it, and has not come again."""
        if self._holds(queue):
            self._unheld.pop(queue, None)
            return False
        return now - self._unheld.setdefault(queue, now) >= ELSEWHERE_SECONDS

    def _leave(self, queue: str) -> None:
        """Report a queue no more: its message fails in another process next, or is settled there."""
        self._reported.pop(queue, None)
        del self._unheld[queue]
        self._let_go(queue)

    def _clear(self, queue: str) -> None:
        QueueControl.objects.using(controls_alias()).filter(queue=queue).update(**NOT_HALTED)
        self._moved.discard(queue)
        self._reported.pop(queue, None)

    def _write(self, halt: Halt) -> None:
        alias = controls_alias()
        row, _made = QueueControl.objects.using(alias).get_or_create(queue=halt.queue)
        now, message = database_clock.now(alias), short(halt.message_id or "", COLUMN_BYTES)
        since = now - timedelta(seconds=max(time.time() - halt.since, 0.0))
        same = row.halted_at is not None and message and row.halted_message == message
        # Each process counts its own attempts: those of others, and of earlier ones, are in the table.
        counted_for, counted = self._counted.get(halt.queue, (None, 0))
        counted = counted if counted_for == halt.message_id and counted <= halt.attempt else 0
        QueueControl.objects.using(alias).filter(pk=row.pk).update(
            halted_at=row.halted_at if same else since,
            halted_seen_at=now,
            halted_by=self._who,
            halted_attempt=(row.halted_attempt or 0) + halt.attempt - counted if same else halt.attempt,
            halted_error=short(halt.error, _ERROR_BYTES),
            halted_message=message,
            halted_key=halt.key,
        )
        self._counted[halt.queue] = halt.message_id, halt.attempt


def _error_of(write: Callable[[], None]) -> Exception | None:
    try:
        write()
    except (Error, ValueError) as error:
        return error
    return None
