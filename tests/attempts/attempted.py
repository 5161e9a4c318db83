"""Attempts as the recorder receives them."""

from typing import Any

from django_rmq_retry import Delivery, Fixed, Queue, RetryThenPark
from django_rmq_retry.handlers import Subscription
from django_rmq_retry.messages import ErrorNote
from django_rmq_retry.policies import ACK, Verdict, retry
from tests.consumer.attempts import finished
from tests.messages.exceptions import caught, post

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
) -> Any:
    """A failed attempt, by default one that is made again after half a minute."""
    error = error or caught(post)
    judged = verdict or retry(30, ErrorNote.of(error))
    return finished(judged, arrival, handler=subscription, seconds=seconds, error=error)


def success(arrival: Delivery | None = None, **told: Any) -> Any:
    """An attempt that went well."""
    return finished(ACK, arrival, handler=CHARGE, seconds=0.25, **told)
