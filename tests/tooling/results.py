"""Results of publishes, for publishers that answer as a test says."""

from collections.abc import Mapping

from django_rmq_retry.amqp import CONFIRMED, Cause, PublishEnd, PublishResult, Scope
from django_rmq_retry.amqp.contracts import unanswered, unsent, unwritable

RETURNED = PublishResult(kind=PublishEnd.RETURNED, cause=Cause.NO_ROUTE, code=312, text="312 NO_ROUTE")
NACKED = PublishResult(kind=PublishEnd.NACKED, cause=Cause.QUEUE_FULL)
UNKNOWN = unanswered(Cause.TIMEOUT, "no confirm in time")
UNSENT = unsent(Cause.OTHER, "connection refused")
TOO_LARGE = PublishResult(kind=PublishEnd.TOO_LARGE, cause=Cause.BODY_LIMIT, text="9 bytes are above the broker's 5")
UNWRITABLE = unwritable("its headers do not fit")
CONNECTION_LOST = unanswered(Cause.CONNECTION_LOST, "the connection was lost: 501 FRAME_ERROR", code=501)

OF_KIND: Mapping[PublishEnd, PublishResult] = {
    one.kind: one for one in (CONFIRMED, RETURNED, NACKED, UNKNOWN, UNSENT, TOO_LARGE)
}


def channel_closed_over(cause: Cause, code: int = 403) -> PublishResult:
    """Return what a closed channel says of each message that was unconfirmed on it."""
    return PublishResult(
        kind=PublishEnd.UNKNOWN, scope=Scope.CHANNEL, cause=cause, code=code, text=f"{code} {cause.value}"
    )
