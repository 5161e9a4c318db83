"""Reads an arrival from a parked queue, and decides and applies its effect on the record."""

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import MAXYEAR, UTC, datetime, timedelta
from enum import Enum
from typing import Any

from django.conf import settings
from django.utils import timezone

from django_rmq_retry.handlers import registry
from django_rmq_retry.handlers.attempt import texts
from django_rmq_retry.handlers.subscription import Intake, Subscription
from django_rmq_retry.handlers.ticket import Ticket, bearer
from django_rmq_retry.messages.message import Delivery
from django_rmq_retry.messages.parked import By, Parked, read_parked
from django_rmq_retry.messages.tracebacks import Grouping, short, untraced
from django_rmq_retry.models import ParkedMessage, State
from django_rmq_retry.models.parked import OPEN, RESOLVED

NAME = 255
TEXT = 10_000
FINGERPRINT = 40
HEX = frozenset("0123456789abcdef")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Step(Enum):
    """The effect of an arriving copy on its record."""

    SAME = "the copy was recorded before"
    COPY = "one more copy, and nothing else"
    NEWER = "one more copy of what waits for a person already"
    AGAIN = "it was requeued and has failed again"
    REOPENED = "it was resolved or under way, and has come once more"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """The parsed delivery of a parked copy."""

    delivery: Delivery
    parked: Parked
    identity: str
    named: bool
    """True if the message has an ID of its own."""
    ticket: Ticket | None
    sha256: str
    group: Grouping
    at: datetime
    """Time of parking; never after now."""
    told_at: datetime | None
    """Time of parking as the message's headers have it; None if they have none."""

    @classmethod
    def read(cls, delivery: Delivery, homes: Mapping[str, str], now: datetime) -> "Arrival":
        parked = read_parked(delivery, homes)
        told_at = moment(parked.parked_at)
        return cls(
            delivery=delivery,
            parked=parked,
            identity=parked.identity,
            named=bool(parked.properties.message_id),
            ticket=_ticket(parked),
            sha256=hashlib.sha256(parked.body).hexdigest(),
            group=_group(parked),
            at=now if told_at is None else min(told_at, now),
            told_at=told_at,
        )

    @property
    def title(self) -> str:
        """The title of a group that begins with this failure."""
        return short(self.parked.error or self.parked.reason, NAME)

    def failure(self) -> dict[str, Any]:
        """Return the columns about the last failure."""
        parked = self.parked
        return {
            "parked_in": short(parked.parked_in, NAME),
            "handler": short(parked.handler, NAME),
            "by": parked.by.value,
            "reason": short(parked.reason, 64),
            "detail": short(parked.detail, TEXT),
            "error": short(parked.error, NAME),
            "error_text": short(parked.message, TEXT),
            "summary": short(parked.story.summary, TEXT),
            "attempts": parked.story.attempts,
            "failed_at": moment(parked.story.since),
            "parked_at": self.at,
        }

    def contents(self) -> dict[str, Any]:
        """Return the columns about the message itself."""
        parked, said = self.parked, self.parked.properties
        return {
            "message_id": short(said.message_id or "", NAME),
            "correlation_id": short(said.correlation_id or "", NAME),
            "type": short(said.type or "", NAME),
            "queue": short(parked.queue, NAME),
            "exchange": short(parked.exchange, NAME),
            "routing_key": short(parked.routing_key, NAME),
            "body": parked.body,
            "size": len(parked.body),
            "sha256": self.sha256,
            "properties": parked.raw,
            "content_type": short(said.content_type or "", NAME),
            "content_encoding": short(said.content_encoding or "", NAME),
            "published_at": moment((said.timestamp or 0) * 1000),
        }


def step(record: ParkedMessage, arrival: Arrival, *, ticket: Ticket | None, now: datetime) -> Step:
    """Return the effect of an arrival on its record, which was found by ticket or by identity."""
    if arrival.parked.copy == record.copy and _delivered_twice(record, arrival):
        return Step.SAME
    if ticket is not None and ticket.cycle < record.cycle:
        return Step.COPY
    if record.state in OPEN:
        return Step.AGAIN if ticket is not None and record.unconfirmed else Step.NEWER
    if ticket is not None and record.state not in RESOLVED:
        return Step.AGAIN
    return Step.COPY if _stale(record, arrival, now) else Step.REOPENED


def apply(record: ParkedMessage, arrival: Arrival, found: Step) -> bool:
    """Change the record according to the step; return True if it takes over the arrival's failure and group."""
    record.copies += 1
    record.copy = arrival.parked.copy
    if found is Step.COPY or (found is Step.NEWER and arrival.at <= record.parked_at):
        return False
    if found is Step.REOPENED:
        # A copy in flight may still succeed or fail; both outcomes find the record by their ticket.
        record.unconfirmed = record.state not in RESOLVED
        record.resolved_at, record.resolution = None, ""
    if found is Step.AGAIN:
        record.unconfirmed = False
    if found is not Step.NEWER:
        # A hold stays, because the operator set it after the requeue.
        record.state = record.state if record.state == State.ON_HOLD else State.PARKED
        record.claimed_until = None
    for name, value in arrival.failure().items():
        setattr(record, name, value)
    return True


def moment(milliseconds: int) -> datetime | None:
    """Return the time that a message states; None if it states none, or one outside the calendar."""
    if milliseconds <= 0:
        return None
    try:
        told = EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None
    # Exclude the last year: in another time zone it may already be the next one.
    if told.year == MAXYEAR:
        return None
    return told if settings.USE_TZ else timezone.make_naive(told)


def _group(parked: Parked) -> Grouping:
    """Return the group that the worker found; for a copy that no worker parked, one made from the known facts."""
    if len(parked.fingerprint) == FINGERPRINT and HEX.issuperset(parked.fingerprint):
        return Grouping(fingerprint=parked.fingerprint, culprit=short(parked.culprit, NAME))
    return untraced(parked.error, reason=parked.reason, queue=parked.queue or parked.parked_in)


def _ticket(parked: Parked) -> Ticket | None:
    """Return the ticket of a requeued copy. Most messages have none, and are not hashed to check it."""
    if not parked.ticket:
        return None
    return Ticket.read(parked.ticket, bearer(parked.queue, parked.properties.message_id, parked.body))


def _delivered_twice(record: ParkedMessage, arrival: Arrival) -> bool:
    """True if exactly this copy was recorded before; two copies parked by another service may look alike."""
    return arrival.delivery.redelivered or arrival.parked.by is By.CONSUMER or record.state in OPEN


def _stale(record: ParkedMessage, arrival: Arrival, now: datetime) -> bool:
    """True if the copy was parked before the record was requeued or resolved."""
    if arrival.told_at is None and arrival.delivery.redelivered:
        return True
    if record.state == State.REQUEUEING:
        return True
    reference = record.resolved_at if record.state in RESOLVED else record.requeued_at
    return reference is not None and (arrival.told_at or now) <= reference


log = logging.getLogger("django_rmq_retry")


class Keys:
    """Calls the handlers' functions for business keys; their errors never prevent a message from being recorded."""

    def __init__(self) -> None:
        intakes = registry.intakes()
        self._intakes: Mapping[str, Intake] = {intake.queue.name: intake for intake in intakes}
        self._named: Mapping[str, Subscription] = {one.name: one for intake in intakes for one in intake.subscriptions}
        self._any = any(one.keys for one in self._named.values())

    def of(self, parked: Parked) -> list[str]:
        """Return up to 20 distinct business keys; none if the body cannot be decoded."""
        if not self._any:
            return []
        message = Delivery(
            queue=parked.queue,
            body=parked.body,
            raw=parked.raw,
            exchange=parked.exchange,
            routing_key=parked.routing_key,
        )
        try:
            subscription = self._named.get(parked.handler) or self._chosen(message)
            if subscription is None or subscription.keys is None:
                return []
            data = subscription.codec.decode(message.body, message.properties)
            return texts(subscription.keys(message.ready(attempt=message.attempt, data=data)))
        except BaseException as error:  # noqa: BLE001 - a function of the project, called with an arbitrary body
            log.info("No business keys of a message of %r: %s", parked.queue, type(error).__name__)
            return []

    def _chosen(self, message: Delivery) -> Subscription | None:
        intake = self._intakes.get(message.queue)
        return None if intake is None else intake.choose(message)
