"""The journal of attempts: it notes how each one ended, and what a requeued copy means for its record."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from weakref import WeakKeyDictionary

from django.db import connections, router

from django_rmq_retry import database_clock
from django_rmq_retry.attempts import captured_log
from django_rmq_retry.attempts.buffer import Buffer, Writer
from django_rmq_retry.attempts.rows import AttemptDraft, AttemptRow, RowBuilder, draft_of
from django_rmq_retry.conf import project_version
from django_rmq_retry.consumer.last_acks import AckedMessage
from django_rmq_retry.handlers.contracts import FinishedAttempt
from django_rmq_retry.handlers.ticket import Ticket, ticket_of
from django_rmq_retry.messages.message import Delivery, message_id
from django_rmq_retry.messages.stamp import has_history, was_tried
from django_rmq_retry.models import ParkedMessage
from django_rmq_retry.parked import early_outcomes, outcomes
from django_rmq_retry.policies.verdict import ACK, Discard, Kind

log = logging.getLogger("django_rmq_retry")

SHUTDOWN_SECONDS = 5.0
"""Seconds that a graceful shutdown waits for the database."""


class Recorder:
    """The journal of attempts, made once per consuming process. Its errors never fail an attempt."""

    notes_acks = False

    def __init__(self, buffer: Buffer | None = None) -> None:
        self._writer = Writer(RowBuilder(deploy=project_version()), self._written)
        self.buffer = Buffer(self._writer) if buffer is None else buffer
        self._parking = WeakKeyDictionary[Delivery, AttemptDraft]()
        """The attempts after which a message is to be parked, as long as its settlement is not over."""

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Capture log lines while messages are consumed, and write all entries at the end."""
        with captured_log.captured():
            try:
                yield
            finally:
                self.buffer.close(SHUTDOWN_SECONDS)

    def note(self, attempt: FinishedAttempt) -> None:
        kind, error = attempt.verdict.kind, attempt.error
        again = attempt.redelivered
        if kind is Kind.ACK and not (again or has_history(attempt.delivery)):
            return
        if attempt.subscription is None or (error is None and kind is not Kind.ACK):
            # No handler was run.
            return
        try:
            # Taken first, because the recording below takes time that is not part of the attempt.
            ended = database_clock.epoch(router.db_for_write(ParkedMessage))
            ticket = ticket_of(attempt.delivery)
            if ticket is not None and kind in (Kind.ACK, Kind.DISCARD):
                self._end(ticket, attempt, database_clock.stored(ended))
            if kind is not Kind.ACK or ticket is not None or again or was_tried(attempt.delivery):
                draft = draft_of(attempt, ticket, ended=ended)
                # If this process dies next, too, nothing else tells that the message was handled again.
                lasting = kind is Kind.ACK and again and not attempt.subscription.once and not _in_transaction()
                (self.buffer.write if lasting else self.buffer.add)(draft)
                if kind is Kind.PARK:
                    self._parking[attempt.delivery] = draft
        except BaseException:
            log.exception("An attempt could not be recorded")

    def unparked(self, delivery: Delivery) -> None:
        """Note that a message was not parked after its attempt; called on the I/O thread, which waits for nothing."""
        draft = self._parking.pop(delivery, None)
        if draft is not None:
            self.buffer.add_correction(partial(self._writer.mark_interrupted, draft))

    def acks_lost(self, messages: Sequence[AckedMessage]) -> None:
        """Store the attempts that handled messages whose acks may be lost, so that a second handling is known as one.

        Without an id it would not be: equal bodies share their attempts.
        """
        try:
            now, passed = database_clock.epoch(router.db_for_write(ParkedMessage)), time.monotonic()
            for one in messages:
                if message_id(one.arrival):
                    attempt = FinishedAttempt(
                        delivery=one.arrival, verdict=ACK, subscription=one.subscription, seconds=one.ended - one.began
                    )
                    draft = draft_of(attempt, None, ended=now - passed + one.ended)
                    self.buffer.add(
                        draft._replace(number=one.number, identity=one.identity or draft.identity, thread="")
                    )
        except BaseException:
            log.exception("Attempts whose acknowledgements may be lost could not be recorded")

    def _written(self, rows: Sequence[AttemptRow]) -> None:
        """Note what attempts mean for copies of their messages that are parked, and for retries that were sent early.

        It is called once they are stored, because they are read when a message is parked: of two copies one finds the
        other.
        """
        done = {row.identity: row for row in rows if row.verdict == ACK.name and row.cycle == 1 and row.message_id}
        if done:
            times = {row.identity: row.started_at + timedelta(seconds=row.seconds) for row in done.values()}
            alone = [partial(outcomes.handled_beside, {identity: at}) for identity, at in times.items()]
            self._update(partial(outcomes.handled_beside, times), alone)
        if tried := {row.identity for row in rows if row.number > 1}:
            alone = [partial(early_outcomes.note, [identity]) for identity in tried]
            self._update(partial(early_outcomes.note, tried), alone)

    def _update(self, update: Callable[[], None], alone: Iterable[Callable[[], None]]) -> None:
        """Make a change now, or its parts later, each by itself: one that can't be noted costs no other."""
        try:
            update()
        except Exception:  # noqa: BLE001 - it is retried, and the attempts must not be written again
            for one in alone:
                self.buffer.add_outcome(one)

    def _end(self, ticket: Ticket, attempt: FinishedAttempt, at: datetime) -> None:
        """Update the record immediately, before the delivery is settled; without a database, once it is back."""
        update: Callable[[], None]
        if attempt.error is None or isinstance(attempt.error, Discard):
            handled = attempt.verdict.name == ACK.name
            once = attempt.subscription is not None and attempt.subscription.once
            # What comes again because this one was cut off is dropped, or counts as handled twice.
            again = attempt.had_before and not once
            update = lambda: outcomes.succeeded(ticket, at, handled=handled, redelivered=again)  # noqa: E731
        else:
            note = attempt.verdict.error
            failure = {"error": note.kind if note else "", "text": note.text if note else ""}
            update = lambda: outcomes.failed(ticket, at, **failure)  # noqa: E731
        if self.buffer.away or _in_transaction():
            self.buffer.add_outcome(update)
            return
        try:
            update()
        except Exception:  # noqa: BLE001 - the buffer's thread retries it, and logs an error that persists
            self.buffer.add_outcome(update)


def _in_transaction() -> bool:
    """True if a handler has left a transaction open: a write in it might never be committed."""
    connection = connections[router.db_for_write(ParkedMessage)]
    return connection.in_atomic_block or (connection.connection is not None and not connection.get_autocommit())
