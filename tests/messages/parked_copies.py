"""Copies in parked queues and copies of requeues, as consumers and operators make them."""

from collections.abc import Mapping
from functools import lru_cache

from django_rmq_retry import Delivery, Message, RetryThenPark
from django_rmq_retry.handlers import Subscription, WorkQueue, settlement
from django_rmq_retry.handlers.settlement import Case
from django_rmq_retry.messages import Settlement
from django_rmq_retry.messages.parked_copy import Original, ParkedCopy, read_parked, requeued
from django_rmq_retry.policies import Verdict
from tests.handlers.factories import NOW, arrived, subscription

HOMES = {"payments.parked": "payments"}
"""The work queue of each parked queue."""


def copy_of(ended: Settlement | None) -> Message:
    """The copy that a settlement publishes; there must be one."""
    assert ended is not None
    assert ended.copy is not None
    return ended.copy


@lru_cache
def charge(name: str) -> Subscription:
    return subscription(RetryThenPark(), name=name)


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
    case = Case(delivery=failed, subscription=charge(handler), parked_queue=park, now=now, nonce=nonce)
    return settlement.parked_copy(verdict, case)


def unhandled_copy(verdict: Verdict, arrival: Delivery, work_queue: WorkQueue, *, nonce: int = 0) -> Message:
    """The copy that a consumer sends to the parked queue when no handler takes a message."""
    case = Case(delivery=arrival, subscription=None, parked_queue=work_queue.park, now=NOW, nonce=nonce)
    return settlement.parked_copy(verdict, case)


def read_back(copy: Message | Delivery, homes: Mapping[str, str] = HOMES) -> ParkedCopy:
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
