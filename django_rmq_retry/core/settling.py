"""From a verdict to its settlement: pure, prepared by a worker thread, carried out by the I/O thread."""

import zlib
from dataclasses import replace

from django_rmq_retry.core.carriers import Hop
from django_rmq_retry.core.deaths import BROKERS_OWN, brokers_part, rejections
from django_rmq_retry.core.encoding import encode_entry
from django_rmq_retry.core.errors import UndecodableHeaders
from django_rmq_retry.core.headers import Headers
from django_rmq_retry.core.message import Delivery, Message
from django_rmq_retry.core.properties import Properties, lasting
from django_rmq_retry.core.settlement import DONE, Settlement, Tell, copy_of
from django_rmq_retry.core.stamps import BROKERS, MARK, MOST, OURS, PREFIX, Stamp, parked_headers, story
from django_rmq_retry.core.subscription import SUSPECTS, Intake, Subscription
from django_rmq_retry.core.verdict import ErrorNote, Kind, Reason, Verdict, park

KEPT_RAW = PREFIX + "properties"
"""Properties that cannot be read, or leave no room for ours, travel to the parked queue as bytes under this name."""
KEPT_PACKED = PREFIX + "properties-zlib"
KEPT_LEADING = PREFIX + "properties-leading"
"""So many bytes at the beginning of the body are the properties."""
KEPT = frozenset({KEPT_RAW, KEPT_PACKED, KEPT_LEADING})
ROOM = 120_000
"""Of the 131 072 bytes of a frame; more than this leaves no room for headers of ours."""


HELD = 1.0
"""Seconds for which what is to go back in its place stays in hand; as its line is paused, it goes back at once."""


def settle(verdict: Verdict, delivery: Delivery, subscription: Subscription, *, now: int, nonce: int = 0) -> Settlement:
    """How this verdict is carried out for a delivery that a subscription took; now in milliseconds of the epoch.

    The nonce tells a parked message without an id from the next one with the same bytes.
    """
    if verdict.kind is Kind.RETRY and not verdict.counted and not verdict.after:
        return put_back(delivery, subscription, in_place=False)
    verdict = feasible(verdict, delivery, subscription)
    if verdict.kind is Kind.ACK or verdict.kind is Kind.DISCARD:
        return DONE
    if verdict.kind is Kind.HALT:
        return Settlement(tell=Tell.AGAIN, hold=verdict.after if verdict.counted else verdict.after or HELD)
    if verdict.kind is Kind.PARK:
        return parked(verdict, delivery, subscription.park, handler=subscription.name, now=now, nonce=nonce)
    try:
        return _retried(verdict, delivery, subscription, now=now)
    except UndecodableHeaders as error:
        unreadable = park(Reason.UNDECODABLE_HEADERS, str(error), ErrorNote.of(error))
        return settle(unreadable, delivery, subscription, now=now, nonce=nonce)


def feasible(verdict: Verdict, delivery: Delivery, subscription: Subscription) -> Verdict:
    """The verdict as it can be carried out: headers that fill the frame leave no room to count attempts in."""
    if verdict.kind is not Kind.RETRY or len(delivery.raw) <= ROOM or not subscription.policy.via.stamps:
        return verdict
    said = f"Its headers of {len(delivery.raw)} bytes leave no room to count attempts"
    return park(Reason.PERMANENT, f"{said}: {verdict.error or verdict.detail}", verdict.error)


def _retried(verdict: Verdict, delivery: Delivery, subscription: Subscription, *, now: int) -> Settlement:
    stamp = _story(delivery).after(verdict, attempt=delivery.attempt, now=now)
    return subscription.policy.via.carry(subscription.route, delivery, Hop(delay=verdict.after, stamp=stamp))


def waits_on(delivery: Delivery, subscription: Subscription) -> Settlement | None:
    """The next hop of a message that has not waited long enough yet; no attempt is made or counted."""
    if MARK not in delivery.raw or len(delivery.raw) > ROOM or not subscription.policy.via.stamps:
        # What cannot be copied could not take the note off again: the message would wait for ever.
        return None
    stamp = story(delivery)
    if not stamp.wait:
        return None
    hop = Hop(delay=stamp.wait / 1000, stamp=replace(stamp, wait=0))
    return subscription.policy.via.carry(subscription.route, delivery, hop)


def set_apart(delivery: Delivery, suspects: str) -> Settlement:
    """A copy to where it is tried alone, with its story so far; how often it came back is counted anew there."""
    return Settlement(tell=Tell.ACK, copy=copy_of(delivery, _story(delivery), exchange="", routing_key=suspects))


def put_back(delivery: Delivery, subscription: Subscription, *, in_place: bool) -> Settlement:
    """To its queue again, with nothing counted by anybody; in its place it goes when its channel closes."""
    if in_place or len(delivery.raw) > ROOM:
        return Settlement(tell=Tell.AGAIN, hold=HELD)
    lane = subscription.queue.name + (SUSPECTS if delivery.apart else "")
    try:
        return set_apart(delivery, lane)
    except UndecodableHeaders:
        return Settlement(tell=Tell.AGAIN, hold=HELD)


def unhandled(verdict: Verdict, delivery: Delivery, intake: Intake, *, now: int, nonce: int = 0) -> Settlement:
    """Parked without a handler: none takes it, or its headers keep us from asking. No attempt was made."""
    uncounted = replace(verdict, counted=False)
    return parked(uncounted, delivery, intake.park, handler="", now=now, nonce=nonce)


def parked(verdict: Verdict, delivery: Delivery, park: str, *, handler: str, now: int, nonce: int = 0) -> Settlement:
    """A confirmed copy into the parked queue, then the ack."""
    stamp = _story(delivery).after(verdict, attempt=delivery.attempt, now=now)
    if not verdict.counted:
        # What the broker counted itself is not in its story.
        stamp = replace(stamp, attempts=ended(delivery))
    told = parked_headers(verdict, handler=handler, now=now, nonce=0 if _id(delivery) else nonce)
    put = {**replace(stamp, wait=0).headers(), **told}
    kept, leading = kept_properties(delivery.raw)
    try:
        known = delivery.properties
        # A sender's own word for properties that we keep would be believed by whoever reads the copy.
        headers = known.headers.replacing(drop=BROKERS_OWN | OURS | KEPT, put=put)
        headers = with_brokers(headers, known.headers)
        properties = lasting(known, headers)
        readable = len(headers.raw) <= ROOM
    except UndecodableHeaders:
        readable = False
    if not readable:
        properties = Properties(delivery_mode=2, message_id=_id(delivery), headers=Headers.of({**put, **kept}))
    body = delivery.body if readable else leading + delivery.body
    return Settlement(tell=Tell.ACK, copy=Message(body=body, exchange="", routing_key=park, properties=properties))


def with_brokers(made: Headers, came: Headers) -> Headers:
    """With what the broker wrote into the headers that came, as one of ours; without it where there is no room."""
    theirs = brokers_part(came)
    if not theirs:
        return made
    whole = made.raw + encode_entry(BROKERS, theirs)
    return Headers(whole) if len(whole) <= ROOM else made


def ended(delivery: Delivery) -> int:
    """How many attempts have failed before, counted by us or by the broker; none where that cannot be read."""
    try:
        return min(story(delivery).attempts + rejections(delivery.headers, delivery.queue), MOST)
    except UndecodableHeaders:
        return 0


def _id(delivery: Delivery) -> str | None:
    """By which a person finds the message again, where it can be read at all."""
    try:
        return delivery.id
    except UndecodableHeaders:
        return None


def kept_properties(raw: bytes) -> tuple[dict[str, object], bytes]:
    """Properties as one header; or, where they fit into none, as what leads the body, which no frame limits."""
    if len(raw) <= ROOM:
        return {KEPT_RAW: raw}, b""
    packed = zlib.compress(raw)
    if len(packed) <= ROOM:
        return {KEPT_PACKED: packed}, b""
    return {KEPT_LEADING: len(raw)}, raw


def _story(delivery: Delivery) -> Stamp:
    """What the message tells of itself; where it first came in is written down before the first copy."""
    try:
        stamp = story(delivery)
    except UndecodableHeaders:
        stamp = Stamp()
    if stamp.queue:
        return stamp
    # Written out: dataclasses.replace() takes three times as long, at every first failure.
    return Stamp(
        attempts=stamp.attempts,
        since=stamp.since,
        wait=stamp.wait,
        exchange=delivery.exchange,
        routing_key=delivery.routing_key,
        queue=delivery.queue,
        summary=stamp.summary,
    )
