"""The crash rule: what becomes of a delivery that came back too often from workers that went away."""

from dataclasses import replace

from django_rmq_retry.core.deaths import counts_losses_only, returns
from django_rmq_retry.core.message import Delivery
from django_rmq_retry.core.settling import ROOM, ended
from django_rmq_retry.core.subscription import Subscription
from django_rmq_retry.core.verdict import Reason, Verdict, park, retry

SUSPICIOUS = 3
"""So often a message may come back before it is tried alone: a worker's orderly stop counts too (before 4.3)."""
STOPS = 4
"""So many returns weigh as much as one crash where stops count too and a message cannot be tried alone."""


def crashed(delivery: Delivery, subscription: Subscription, limit: int | None, *, movable: bool) -> Verdict | None:
    """To be parked, or retried where it is tried alone; None where it is attempted as any other.

    All that such a worker held comes back with the same count, so what is movable is tried alone before it is parked.
    """
    came_back = returns(delivery.headers, redelivered=delivery.redelivered)
    # A line that is halted gives its message back again and again, and never gives it up for that.
    if limit is None or not came_back or subscription.policy.ordered:
        return None
    said = f"Came back {came_back} times from workers that stopped or went away while they held it"
    if movable and len(delivery.raw) <= ROOM:
        if came_back < min(SUSPICIOUS, limit):
            return None
        return retry(0.0, detail=f"{said}; it is tried alone next.", counted=False)
    own = subscription.policy.via.returns(subscription.route, delivery)
    # A line that keeps the order of keys gives back by closing its channel, which every version counts as a loss.
    if not delivery.apart and (subscription.order_by is not None or not counts_losses_only(delivery.headers)):
        limit *= STOPS
    if own is None or came_back < limit + own:
        return None
    # Not as its carrier counts: to one that counts returns, stops and crashes are attempts.
    delivery.attempt = ended(delivery) + 1
    return replace(park(Reason.CRASHED, f"{said}."), counted=False)
