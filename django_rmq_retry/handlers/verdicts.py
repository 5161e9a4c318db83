"""The verdicts that do not come from a policy: on messages that are not attempted, or whose verdict is not feasible."""

import re

from django_rmq_retry.errors import UndecodableHeaders
from django_rmq_retry.handlers.subscription import Subscription, WorkQueue
from django_rmq_retry.messages.deaths import all_rejections, counts_losses_only, returns
from django_rmq_retry.messages.message import Delivery
from django_rmq_retry.messages.parked_copy import ROOM_BYTES
from django_rmq_retry.messages.reasons import Reason
from django_rmq_retry.messages.stamp import tells_of_unacked
from django_rmq_retry.messages.texts import ErrorNote
from django_rmq_retry.policies.verdict import Kind, Verdict, lost, park, retry

SUSPICIOUS_RETURNS = 3
"""Returns after which a message goes to quarantine; before RabbitMQ 4.3 a worker's orderly stop counts as one too."""
STOPS_FACTOR = 4
"""Factor on the crash limit where returns include orderly stops and the message cannot be quarantined."""
_CAME_BACK = "Redelivered {} times after its workers stopped or lost their connection"


def crashed(delivery: Delivery, subscription: Subscription, limit: int | None, *, movable: bool) -> Verdict | None:
    """Return the verdict on a message that may have killed its worker: park or quarantine; None for any other message.

    All unacked messages of a crashed worker return to the queue with the same count. Therefore a message that can be
    moved goes to quarantine at its third return, and is parked after CRASH_LIMIT returns there.
    """
    came_back = returns(delivery.headers, redelivered=delivery.redelivered)
    # A halted strict-order queue returns its message repeatedly; these returns are no reason to park it.
    if limit is None or not came_back or subscription.policy.ordered:
        return None
    # The copy in quarantine is counted anew.
    before = min(SUSPICIOUS_RETURNS, limit) if delivery.quarantined else 0
    detail = _CAME_BACK.format(before + came_back)
    if movable and len(delivery.raw) <= ROOM_BYTES:
        if came_back < min(SUSPICIOUS_RETURNS, limit):
            return None
        return retry(0.0, detail=f"{detail}; next it is attempted in quarantine.", counted=False)
    own = subscription.policy.via.returns(subscription.route, delivery)
    # With order_by, the consumer returns messages by closing its channel; every RabbitMQ version counts that as a loss.
    if not delivery.quarantined and (subscription.order_by is not None or not counts_losses_only(delivery.headers)):
        limit *= STOPS_FACTOR
    if own is None or came_back < limit + own:
        return None
    return park(Reason.CRASHED, f"{detail}.", counted=False)


def returns_told(detail: str) -> int:
    """Return how often a message came back by the detail of a verdict that says so; 0 for any other."""
    told = re.match(_CAME_BACK.format(r"(\d+)"), detail)
    return int(told[1]) if told else 0


def was_unacked(delivery: Delivery, subscription: Subscription | None) -> bool:
    """True if a consumer had the message and did not acknowledge it, as one that is killed: it may have done its work.

    Prefetched messages of a consumer that stops come back like this too, except from a queue that counts its losses.
    RabbitMQ 4 marks and counts what was rejected and came back by a dead-letter exchange in the same way.
    """
    if delivery.quarantined:
        return True
    if not delivery.redelivered or (subscription is not None and subscription.policy.via.redelivers):
        return False
    try:
        headers = delivery.headers
        came_back, rejected = returns(headers, redelivered=True), all_rejections(headers)
        return came_back > rejected if rejected else came_back > 0 or not counts_losses_only(headers)
    except UndecodableHeaders:
        # No handler is called with such a message.
        return False


def had_before(delivery: Delivery, subscription: Subscription | None) -> bool:
    """True if a consumer had the message, or the one of which it is a retry, and did not acknowledge it."""
    return was_unacked(delivery, subscription) or tells_of_unacked(delivery)


def feasible(verdict: Verdict, delivery: Delivery, subscription: Subscription) -> Verdict:
    """Return the verdict, or one that parks a message whose headers leave no room for the count of attempts."""
    roomless = verdict.kind is Kind.RETRY and len(delivery.raw) > ROOM_BYTES and subscription.policy.via.stamps
    if not roomless or goes_back(verdict):
        return verdict
    detail = f"Its headers of {len(delivery.raw)} bytes leave no room to count attempts"
    return park(Reason.PERMANENT, f"{detail}: {verdict.error or verdict.detail}", verdict.error)


def goes_back(verdict: Verdict) -> bool:
    """True if the message only returns to its queue."""
    return verdict.kind is Kind.RETRY and not verdict.counted and not verdict.after


def lost_by_auto_ack(verdict: Verdict) -> Verdict:
    """Return a verdict to discard, for a message with ack="auto", which the broker has dropped already."""
    return lost(verdict.detail or verdict.error, verdict.error)


def no_handler(delivery: Delivery, work_queue: WorkQueue) -> Verdict:
    """Return the verdict on a message that no handler takes; it names what their conditions compare."""
    matches = [subscription.match for subscription in work_queue.subscriptions]
    untyped = " without a type" if any(one.type for one in matches) else ""
    kind = f" of type {delivery.type!r}" if delivery.type else untyped
    headers = delivery.headers
    names = dict.fromkeys(name for one in matches for name in one.headers)
    with_ = [f"the header {name}={headers[name]!r:.80}" if name in headers else f"no header {name}" for name in names]
    if any(one.routing_key for one in matches):
        with_.append(f"the routing key {delivery.routing_key!r}")
    text = f"{kind} with {' and '.join(with_)}" if with_ else kind
    return park(Reason.UNHANDLED, f"No handler of queue {delivery.queue!r} takes a message{text}.")


def unsettled(broken: Exception, verdict: Verdict, reason: Reason) -> Verdict:
    """Return the verdict that parks a message whose own verdict cannot be carried out."""
    wanted = verdict.error or verdict.detail or verdict.kind.value
    detail = f"It cannot be settled ({ErrorNote.of(broken)}) after: {wanted}"
    return park(reason, detail, ErrorNote.of(broken), counted=verdict.counted)
