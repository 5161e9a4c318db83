"""Copies that waited while their message was parked, handled or discarded: they are not run again.

A worker that dies between publishing the copy of a retry and the ack leaves two copies of a message. One of them may be
parked, and even be done by hand, while the other waits in quarantine, for its retry, or in a queue that is paused.
"""

import os
import socket
import threading

from django.db import Error, connections, transaction
from django.db.models import F

from django_rmq_retry import database_clock
from django_rmq_retry.attempts.history import WITHHELD
from django_rmq_retry.handlers.ticket import Ticket, ticket_of
from django_rmq_retry.messages.identity import message_identity
from django_rmq_retry.messages.message import Delivery
from django_rmq_retry.messages.reasons import Reason
from django_rmq_retry.messages.stamp import stamp_of
from django_rmq_retry.messages.texts import COLUMN_BYTES, short
from django_rmq_retry.models import Attempt, ParkedMessage, State
from django_rmq_retry.models.parked import RESOLVED
from django_rmq_retry.parked.database import records_alias
from django_rmq_retry.parked.outcomes import IN_FLIGHT
from django_rmq_retry.policies.verdict import Verdict, discard, park
from django_rmq_retry.statements import missing_tables


def withheld(delivery: Delivery) -> Verdict | None:
    """Return the verdict on a copy that must not be run; None for a message that nobody decides on.

    The copy is dropped if the record still has the message, or if what was decided on it was about this copy too. From
    quarantine, a copy that may be newer than the decision is parked: an operator decides again. From elsewhere it is
    run like any new message, and so is every copy while the database does not answer.
    """
    ticket = ticket_of(delivery)
    try:
        record = _record_of(delivery, ticket)
    except Error:
        if not delivery.quarantined:
            # The handler may need no database, and gets a connection that works if it does.
            connections[records_alias()].close_if_unusable_or_obsolete()
            return None
        # Asked of the database itself: one that is away must not look like one without records.
        if not missing_tables([ParkedMessage], records_alias()):
            raise
        return None
    if record is None or (ticket is not None and _sent_last(record, ticket)):
        return None
    known = ticket is not None or _is_older(delivery, record) or (delivery.quarantined and record.open)
    if not known and not delivery.quarantined:
        return None
    if not known:
        text = f"It waited in quarantine, and message #{record.pk} with its id and body is {record.state} by now"
        return park(Reason.CRASHED, f"{text}: it was not handled.", counted=False)
    _note(record, delivery, ticket)
    return discard(f"It is a copy of message #{record.pk}, which is {record.state}: it is dropped.")


def _record_of(delivery: Delivery, ticket: Ticket | None) -> ParkedMessage | None:
    """Return the record by a requeue's ticket or by identity; None without an id, by which it could be recognized."""
    rows = ParkedMessage.objects.using(records_alias()).defer("body", "properties")
    if ticket is not None and (record := rows.filter(pk=ticket.record).first()):
        return record
    if not delivery.id:
        return None
    return rows.filter(identity=message_identity(delivery.queue, delivery.id, delivery.body)).first()


def _sent_last(record: ParkedMessage, ticket: Ticket) -> bool:
    """True for the copy of the last requeue, as long as its outcome is not known: nothing else sends the message."""
    unknown = record.state in IN_FLIGHT or (record.state == State.PARKED and record.unconfirmed)
    return unknown and ticket.record == record.pk and ticket.cycle >= record.cycle


def _is_older(delivery: Delivery, record: ParkedMessage) -> bool:
    """True if the copy is certainly no new message, which a sender has published with the same id and body."""
    decided = record.parked_at if record.open else record.requeued_at
    if record.state in RESOLVED:
        decided = record.resolved_at
    failed = database_clock.stated_time(stamp_of(delivery).since)
    if failed is not None and decided is not None and failed <= decided:
        return True
    return record.published_at is not None and database_clock.published_at(delivery.properties) == record.published_at


def _note(record: ParkedMessage, delivery: Delivery, ticket: Ticket | None) -> None:
    """Tell in the history of the message that a copy came and was dropped, before the copy is acked."""
    using = records_alias()
    with transaction.atomic(using=using):
        Attempt.objects.using(using).create(
            identity=record.identity,
            queue=record.queue,
            message_id=record.message_id,
            cycle=ticket.cycle if ticket else 1,
            number=delivery.attempt,
            started_at=database_clock.now(using),
            seconds=0,
            verdict=WITHHELD,
            reason=record.state,
            host=short(socket.gethostname(), COLUMN_BYTES),
            pid=os.getpid(),
            thread=short(threading.current_thread().name, 100),
        )
        if record.open:
            ParkedMessage.objects.using(using).filter(pk=record.pk).update(copies=F("copies") + 1)
