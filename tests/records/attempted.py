"""Attempts as the recorder is told of them."""

from typing import Any

from django_rmq_retry.core.backoff import Fixed
from django_rmq_retry.core.message import Delivery
from django_rmq_retry.core.policy import RetryThenPark
from django_rmq_retry.core.subscription import Subscription
from django_rmq_retry.core.topology import Queue
from django_rmq_retry.core.verdict import ACK, ErrorNote, Verdict, retry
from django_rmq_retry.runtime.journal import Attempt
from tests.core.made import delivery
from tests.core.raising import caught, post

CHARGE = Subscription(
    name="payments.handlers.charge",
    run=print,
    queue=Queue("payments"),
    policy=RetryThenPark(attempts=3, backoff=Fixed(30)),
    park="payments.parked",
)


def failure(
    arrival: Delivery | None = None,
    *,
    error: BaseException | None = None,
    verdict: Verdict | None = None,
    subscription: Subscription | None = CHARGE,
    seconds: float = 1.5,
) -> Attempt:
    """A failed attempt, by default one that is made again after half a minute."""
    error = error or caught(post)
    return Attempt(
        delivery=arrival or delivery(message_id="m-1"),
        verdict=verdict or retry(30, ErrorNote.of(error)),
        subscription=subscription,
        seconds=seconds,
        error=error,
    )


def success(arrival: Delivery | None = None, **told: Any) -> Attempt:
    """An attempt that went well."""
    return Attempt(
        delivery=arrival or delivery(message_id="m-1"), verdict=ACK, subscription=CHARGE, seconds=0.25, **told
    )
