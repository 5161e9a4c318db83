"""Reads an arrival from a parked queue, and decides and applies its effect on the record."""

import hashlib
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any

from django_rmq_retry.database_clock import published_at, stated_time
from django_rmq_retry.errors import UndecodableBody, UndecodableHeaders
from django_rmq_retry.handlers.business_keys import business_keys
from django_rmq_retry.handlers.subscription import Subscription, WorkQueue
from django_rmq_retry.handlers.ticket import Ticket
from django_rmq_retry.messages.codecs import decoded
from django_rmq_retry.messages.identity import message_identity
from django_rmq_retry.messages.message import Delivery
from django_rmq_retry.messages.parked_copy import By, ParkedCopy, read_parked
from django_rmq_retry.messages.reasons import Reason
from django_rmq_retry.messages.texts import COLUMN_BYTES, short
from django_rmq_retry.messages.tracebacks import Grouping, untraced
from django_rmq_retry.models import ParkedMessage, State
from django_rmq_retry.models.parked import OPEN, RESOLVED

log = logging.getLogger("django_rmq_retry")

TEXT_LIMIT = 10_000
"""The longest text of a copy that another program wrote. Our own error texts are shorter: see messages.texts."""
FINGERPRINT_LENGTH = 40
HEX = frozenset("0123456789abcdef")


class Step(Enum):
    """The effect of an arriving copy on its record."""

    SAME = "recorded before"
    COPY = "counted as a copy"
    NEWER = "counted as a copy of an open record, which takes over its failure if that is the latest"
    AGAIN = "failed again after a requeue"
    REOPENED = "reopened after it was resolved or requeued"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """The parsed delivery of a parked copy."""

    delivery: Delivery
    parked: ParkedCopy
    identity: str
    named: bool
    """True if the message has an ID of its own."""
    redelivered: bool
    """True if an earlier delivery, or an earlier attempt to store this one, may have been recorded."""
    ticket: Ticket | None
    sha256: str
    group: Grouping
    at: datetime
    """Time of parking; never after now."""
    stated_at: datetime | None
    """Time of parking as the message's headers have it; None if they have none."""

    @classmethod
    def read(cls, delivery: Delivery, homes: Mapping[str, str], waiting: Collection[str], now: datetime) -> "Arrival":
        parked = read_parked(delivery, homes, waiting)
        stated_at = stated_time(parked.parked_at)
        return cls(
            delivery=delivery,
            parked=parked,
            identity=parked.identity,
            named=bool(parked.properties.message_id),
            redelivered=delivery.redelivered,
            # Most messages have no ticket, and are not hashed to check it.
            ticket=_ticket(parked) if parked.ticket else None,
            sha256=hashlib.sha256(parked.body).hexdigest(),
            group=_group(parked),
            at=now if stated_at is None else min(stated_at, now),
            stated_at=stated_at,
        )

    @property
    def title(self) -> str:
        """The title of a group that begins with this failure."""
        return short(self.parked.error or self.parked.reason, COLUMN_BYTES)

    @property
    def unacked(self) -> bool:
        """True if a consumer had the message before, and did not acknowledge it."""
        return self.parked.stamp.unacked > 0

    def failure(self) -> dict[str, Any]:
        parked = self.parked
        return {
            "parked_in": short(parked.parked_in, COLUMN_BYTES),
            "handler": short(parked.handler, COLUMN_BYTES),
            "by": parked.by.value,
            "reason": short(parked.reason, 64),
            "detail": short(parked.detail, TEXT_LIMIT),
            "error": short(parked.error, COLUMN_BYTES),
            "error_text": short(parked.error_text, TEXT_LIMIT),
            "summary": short(parked.stamp.summary, TEXT_LIMIT),
            "attempts": parked.stamp.attempts,
            "traceparent": parked.stamp.traceparent,
            "failed_at": stated_time(parked.stamp.since),
            "parked_at": self.at,
            # Its handler succeeded in the very attempt that ended here.
            **({"succeeded_at": self.at} if parked.reason == Reason.HANDLED else {}),
        }

    def contents(self) -> dict[str, Any]:
        parked, properties = self.parked, self.parked.properties
        return {
            "message_id": short(properties.message_id or "", COLUMN_BYTES),
            "correlation_id": short(properties.correlation_id or "", COLUMN_BYTES),
            "type": short(properties.type or "", COLUMN_BYTES),
            "queue": short(parked.queue, COLUMN_BYTES),
            "exchange": short(parked.exchange, COLUMN_BYTES),
            "routing_key": short(parked.routing_key, COLUMN_BYTES),
            "body": parked.body,
            "size": len(parked.body),
            "sha256": self.sha256,
            "properties": parked.raw,
            "content_type": short(properties.content_type or "", COLUMN_BYTES),
            "content_encoding": short(properties.content_encoding or "", COLUMN_BYTES),
            "published_at": published_at(properties),
        }


def step_for(record: ParkedMessage, arrival: Arrival, *, ticket: Ticket | None, now: datetime) -> Step:
    """Return the effect of an arrival on its record, which was found by ticket or by identity."""
    if arrival.parked.copy_digest == record.copy and _delivered_twice(record, arrival):
        return Step.SAME
    if ticket is not None and ticket.cycle < record.cycle:
        return Step.COPY
    if record.state in OPEN:
        return Step.AGAIN if ticket is not None and record.unconfirmed else Step.NEWER
    if ticket is not None and record.state not in RESOLVED:
        return Step.AGAIN
    return Step.COPY if _stale(record, arrival, now) else Step.REOPENED


def apply_step(record: ParkedMessage, arrival: Arrival, step: Step) -> bool:
    """Change the record according to the step; return True if it takes over the arrival's failure and group."""
    record.copies += 1
    record.copy = arrival.parked.copy_digest
    # Whatever a requeue made of it since, that consumer may have done its work.
    record.unacked = record.unacked or arrival.unacked
    if step is Step.COPY or (step is Step.NEWER and arrival.at <= record.parked_at):
        return False
    if step is Step.REOPENED:
        # A copy in flight may still succeed or fail; both outcomes find the record by their ticket.
        record.unconfirmed = record.state not in RESOLVED
        record.resolved_at, record.resolution, record.restored = None, "", False
    if step is Step.AGAIN:
        record.unconfirmed = False
    if step is not Step.NEWER:
        # A hold stays, because the operator set it after the requeue.
        record.state = record.state if record.state == State.ON_HOLD else State.PARKED
        record.claimed_until = None
    # A copy that a requeue sent has a ticket: one without counts its attempts like those before the first requeue.
    record.published_again = arrival.ticket is None and record.cycle > 1
    for name, value in arrival.failure().items():
        setattr(record, name, value)
    return True


def _group(parked: ParkedCopy) -> Grouping:
    """Return the group that the worker found; for a copy that no worker parked, one made from the known facts."""
    if len(parked.fingerprint) == FINGERPRINT_LENGTH and HEX.issuperset(parked.fingerprint):
        return Grouping(fingerprint=parked.fingerprint, culprit=short(parked.culprit, COLUMN_BYTES))
    return untraced(parked.error, reason=parked.reason, queue=parked.queue or parked.parked_in)


def _ticket(parked: ParkedCopy) -> Ticket | None:
    """Return the ticket of a requeued copy, if this project signed it."""
    return Ticket.read(parked.ticket, message_identity(parked.queue, parked.properties.message_id, parked.body))


def _delivered_twice(record: ParkedMessage, arrival: Arrival) -> bool:
    """True if exactly this copy was recorded before; two copies parked by another service may look alike."""
    return arrival.redelivered or arrival.parked.by is By.CONSUMER or record.state in OPEN


def _stale(record: ParkedMessage, arrival: Arrival, now: datetime) -> bool:
    """True if the copy was parked before the record was requeued or resolved."""
    if arrival.stated_at is None and arrival.redelivered:
        return True
    if record.state == State.REQUEUEING:
        return True
    reference = record.resolved_at if record.state in RESOLVED else record.requeued_at
    return reference is not None and (arrival.stated_at or now) <= reference


class BusinessKeyReader:
    """Calls the handlers' functions for business keys; their errors never prevent a message from being recorded."""

    def __init__(self, work_queues: Sequence[WorkQueue]) -> None:
        self._work_queues: Mapping[str, WorkQueue] = {work_queue.queue.name: work_queue for work_queue in work_queues}
        self._named: Mapping[str, Subscription] = {
            one.name: one for work_queue in work_queues for one in work_queue.subscriptions
        }
        self._any = any(one.keys for one in self._named.values())
        self._logged: set[tuple[str, type[BaseException]]] = set()
        """The handlers and error types that were logged as a warning already."""

    def of(self, parked: ParkedCopy) -> list[str]:
        """Return up to 20 distinct business keys; none if the body cannot be decoded."""
        if not self._any:
            return []
        named, work_queue = self._named.get(parked.handler), self._work_queues.get(parked.queue)
        message = Delivery(
            queue=parked.queue,
            body=parked.body,
            raw=parked.raw,
            exchange=parked.exchange,
            routing_key=parked.routing_key,
        )
        name = parked.handler or parked.queue
        try:
            subscription = named or (None if work_queue is None else work_queue.choose(message))
            if subscription is None or subscription.keys is None:
                return []
            name = subscription.name
            data = decoded(message, subscription.codec, subscription.limits)
            return business_keys(subscription, message.for_attempt(attempt=message.attempt, data=data))
        except (UndecodableBody, UndecodableHeaders):
            # The message itself is the cause, and its record shows that.
            return []
        except BaseException as error:  # noqa: BLE001 - a function of the project, called with an arbitrary body
            self._log(name, error)
            return []

    def _log(self, name: str, error: BaseException) -> None:
        """Log an error as a warning once per handler and type: thousands of messages may be parked for one cause."""
        first = (name, type(error)) not in self._logged
        self._logged.add((name, type(error)))
        log.log(
            logging.WARNING if first else logging.DEBUG,
            "The keys function of handler %r raised %s: the parked message has no business keys. Correct the function; "
            "further errors of this type are logged at level debug.",
            name,
            type(error).__name__,
            exc_info=error,
            extra={"event": "keys_failed", "handler": name},
        )
