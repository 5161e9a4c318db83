"""From a verdict to its settlement: pure, so that a worker thread prepares it and the I/O thread only carries it out."""

from dataclasses import replace

from django_rmq_retry.core.carriers import Hop
from django_rmq_retry.core.deaths import BROKERS_OWN
from django_rmq_retry.core.errors import UndecodableHeaders
from django_rmq_retry.core.headers import Headers
from django_rmq_retry.core.message import Delivery, Message
from django_rmq_retry.core.properties import Properties
from django_rmq_retry.core.settlement import DONE, Settlement, Tell
from django_rmq_retry.core.stamps import OURS, PREFIX, Stamp, parked_headers
from django_rmq_retry.core.subscription import Intake, Subscription
from django_rmq_retry.core.verdict import Kind, Verdict

KEPT_RAW = PREFIX + "properties"
"""Properties that cannot be read travel to the parked queue as bytes under this name."""
RAW_LIMIT = 64 * 1024


def settle(verdict: Verdict, delivery: Delivery, subscription: Subscription, *, now: int) -> Settlement:
    """How this verdict is carried out for a delivery that a subscription took; now in milliseconds of the epoch."""
    if verdict.kind is Kind.ACK or verdict.kind is Kind.DISCARD:
        return DONE
    if verdict.kind is Kind.HALT:
        return Settlement(tell=Tell.AGAIN, hold=verdict.after)
    if verdict.kind is Kind.PARK:
        return parked(verdict, delivery, subscription.park, handler=subscription.name, now=now)
    stamp = _story(delivery).after(verdict, attempt=delivery.attempt, now=now)
    return subscription.policy.via.carry(subscription.route, delivery, Hop(delay=verdict.after, stamp=stamp))


def waits_on(delivery: Delivery, subscription: Subscription) -> Settlement | None:
    """The next hop of a message that has not waited long enough yet; no attempt is made or counted."""
    stamp = Stamp.read(delivery.headers)
    if not stamp.wait:
        return None
    hop = Hop(delay=stamp.wait / 1000, stamp=replace(stamp, wait=0))
    return subscription.policy.via.carry(subscription.route, delivery, hop)


def unhandled(verdict: Verdict, delivery: Delivery, intake: Intake, *, now: int) -> Settlement:
    """Parked without a handler: none takes it, or its headers keep us from asking."""
    return parked(verdict, delivery, intake.park, handler="", now=now)


def parked(verdict: Verdict, delivery: Delivery, park: str, *, handler: str, now: int) -> Settlement:
    """A confirmed copy into the parked queue, then the ack."""
    stamp = _story(delivery).after(verdict, attempt=delivery.attempt, now=now)
    put = {**replace(stamp, wait=0).headers(), **parked_headers(verdict, handler=handler, now=now)}
    try:
        known = delivery.properties
        headers = known.headers.replacing(drop=BROKERS_OWN | OURS, put=put)
        properties = replace(known, delivery_mode=2, user_id=None, expiration=None, headers=headers)
    except UndecodableHeaders:
        raw = {KEPT_RAW: delivery.raw} if len(delivery.raw) <= RAW_LIMIT else {}
        properties = Properties(delivery_mode=2, headers=Headers.of({**put, **raw}))
    return Settlement(
        tell=Tell.ACK, copy=Message(body=delivery.body, exchange="", routing_key=park, properties=properties)
    )


def _story(delivery: Delivery) -> Stamp:
    """What the message tells of itself; where it first came in is written down before the first copy."""
    try:
        stamp = Stamp.read(delivery.headers)
    except UndecodableHeaders:
        stamp = Stamp()
    if stamp.queue:
        return stamp
    return replace(stamp, exchange=delivery.exchange, routing_key=delivery.routing_key, queue=delivery.queue)
