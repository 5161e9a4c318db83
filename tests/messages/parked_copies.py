"""Copies in parked queues and copies of requeues, as consumers and operators make them."""

from collections.abc import Mapping

from django_rmq_retry import Delivery, Message
from django_rmq_retry.handlers import WorkQueue
from django_rmq_retry.handlers.settlement import park_copy, unhandled
from django_rmq_retry.messages import Settlement
from django_rmq_retry.messages.parked_copy import Original, Parked, read_parked, requeued
from django_rmq_retry.policies import Verdict
from tests.handlers.factories import NOW, arrived

HOMES = {"payments.parked": "payments"}
"""The work queue of each parked queue."""


def copy_of(settlement: Settlement | None) -> Message:
    """The copy that a settlement publishes; there must be one."""
    assert settlement is not None
    assert settlement.copy is not None
    return settlement.copy


def parked_copy(
    verdict: Verdict,
    failed: Delivery,
    *,
    park: str = "payments.parked",
    handler: str = "payments.handlers.charge",
    now: int = NOW,
    nonce: int = 0,
) -> Message:
    """The copy that a consumer sends to the parked queue when a handler has failed."""
    return copy_of(park_copy(verdict, failed, park, handler=handler, now=now, nonce=nonce))


def unhandled_copy(verdict: Verdict, arrival: Delivery, work_queue: WorkQueue, *, nonce: int = 0) -> Message:
    """The copy that a consumer sends to the parked queue when no handler takes a message."""
    return copy_of(unhandled(verdict, arrival, work_queue, now=NOW, nonce=nonce))


def read_back(copy: Message | Delivery, homes: Mapping[str, str] = HOMES) -> Parked:
    """The facts that the drainer reads in a copy that is delivered from its parked queue."""
    return read_parked(copy if isinstance(copy, Delivery) else arrived(copy, queue=copy.routing_key), homes)


def requeued_copy(
    *,
    body: bytes,
    raw: bytes,
    exchange: str = "",
    routing_key: str = "payments",
    queue: str = "payments",
    ticket: str = "7.2:signature",
    message_id: str = "",
) -> Message:
    """The copy that a requeue sends to a work queue."""
    original = Original(body=body, raw=raw, exchange=exchange, routing_key=routing_key, message_id=message_id)
    return requeued(original, queue=queue, ticket=ticket)
