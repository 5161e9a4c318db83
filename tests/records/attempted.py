"""Attempts as the recorder receives them."""

from typing import Any

from django_rmq_retry import Delivery, Fixed, Queue, RetryThenPark
from django_rmq_retry.handlers import Subscription
from django_rmq_retry.handlers.attempt import FinishedAttempt
from django_rmq_retry.messages import ErrorNote
from django_rmq_retry.policies import ACK, Verdict, retry
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
) -> FinishedAttempt:
    """A failed attempt, by default one that is made again after half a minute."""
    error = error or caught(post)
    return FinishedAttempt(
        delivery=arrival or delivery(message_id="m-1"),
        verdict=verdict or retry(30, ErrorNote.of(error)),
        subscription=subscription,
        seconds=seconds,
        error=error,
    )


def success(arrival: Delivery | None = None, **told: Any) -> FinishedAttempt:
    """An attempt that went well."""
    return FinishedAttempt(
        delivery=arrival or delivery(message_id="m-1"), verdict=ACK, subscription=CHARGE, seconds=0.25, **told
    )
