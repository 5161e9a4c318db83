"""The journal that remembers attempts in the database; told on a worker's thread, it writes on one of its own."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from django.db import connections, router

from django_rmq_retry.conf import settings
from django_rmq_retry.core.overrule import Discard
from django_rmq_retry.core.verdict import Kind, short
from django_rmq_retry.models import ParkedMessage
from django_rmq_retry.records import capturing, outcomes
from django_rmq_retry.records.buffer import Buffer
from django_rmq_retry.records.rows import Scribe, drafted, ticket_of
from django_rmq_retry.records.tickets import Ticket
from django_rmq_retry.records.writing import Writer
from django_rmq_retry.runtime.journal import Attempt, storied

log = logging.getLogger("django_rmq_retry")

LAST_WORDS = 5.0
"""Seconds that an orderly stop waits for the database."""


class Recorder:
    """A journal; made once for each consuming process. Nothing it does can fail an attempt."""

    notes_acks = False

    def __init__(self, buffer: Buffer | None = None) -> None:
        self.buffer = Buffer(Writer(Scribe(deploy=deploy()))) if buffer is None else buffer

    @contextmanager
    def recording(self) -> Iterator[None]:
        """While messages are consumed: log lines are kept, and at the end everything is written."""
        with capturing.captured():
            try:
                yield
            finally:
                self.buffer.close(LAST_WORDS)

    def note(self, attempt: Attempt) -> None:
        try:
            self._note(attempt)
        except BaseException:
            log.exception("An attempt could not be recorded")

    def _note(self, attempt: Attempt) -> None:
        kind, error = attempt.verdict.kind, attempt.error
        if kind is Kind.ACK and not storied(attempt.delivery):
            return
        if attempt.subscription is None or (error is None and kind is not Kind.ACK):
            # Nothing was attempted.
            return
        ticket = ticket_of(attempt.delivery)
        if ticket is not None and kind in (Kind.ACK, Kind.DISCARD):
            self._end(ticket, attempt)
        if kind is not Kind.ACK or ticket is not None or attempt.delivery.attempt > 1:
            self.buffer.add(drafted(attempt, ticket))

    def _end(self, ticket: Ticket, attempt: Attempt) -> None:
        """Tell the record at once, before the broker is told; or, without a database, as soon as there is one."""
        at = datetime.now(UTC)
        tell: Callable[[], None]
        if attempt.error is None or isinstance(attempt.error, Discard):
            tell = lambda: outcomes.succeeded(ticket, at)  # noqa: E731
        else:
            note = attempt.verdict.error
            told = {"error": note.kind if note else "", "text": note.text if note else ""}
            tell = lambda: outcomes.failed(ticket, at, **told)  # noqa: E731
        if self.buffer.away or _in_transaction():
            self.buffer.add_outcome(tell)
            return
        try:
            tell()
        except Exception:  # noqa: BLE001 - the buffer's thread tells of it, if it meets it too
            self.buffer.add_outcome(tell)


def _in_transaction() -> bool:
    """Whether a handler has left one open: what is written in it may never be."""
    connection = connections[router.db_for_write(ParkedMessage)]
    return connection.in_atomic_block or (connection.connection is not None and not connection.get_autocommit())


def deploy() -> str:
    """The version of the project; without one, if it cannot be told."""
    told = settings().deploy
    try:
        return short(told() if callable(told) else told, 100)
    except Exception:
        log.exception("DEPLOY could not tell the version of the project")
        return ""
