"""From a verdict to its settlement. Pure; computed in a worker thread."""

from collections.abc import Mapping
from dataclasses import replace

from django_rmq_retry.errors import UndecodableHeaders
from django_rmq_retry.handlers.subscription import QUARANTINE, Intake, Subscription
from django_rmq_retry.messages.codecs import JSON, Codec
from django_rmq_retry.messages.deaths import BROKERS_OWN, Reason, brokers_part, first_rejected, rejections
from django_rmq_retry.messages.headers import SHORT_STRING_LIMIT, Headers, encode_entry
from django_rmq_retry.messages.message import DONE, Delivery, Message, Settlement, Tell
from django_rmq_retry.messages.parked import KEPT, ROOM, kept_properties
from django_rmq_retry.messages.properties import Properties, lasting
from django_rmq_retry.messages.stamp import (
    ANSWER,
    BROKERS,
    FAILED,
    HANDLER_LIMIT,
    MARK,
    MOST,
    OURS,
    PREFIX,
    Stamp,
    copy_of,
    story,
)
from django_rmq_retry.messages.tracebacks import ErrorNote, short
from django_rmq_retry.policies.carriers import Hop
from django_rmq_retry.policies.policy import Kind, Verdict, discard, park


def parked_headers(verdict: Verdict, *, handler: str, now: int, nonce: int) -> Mapping[str, object]:
    """Why a message is in the parked queue, beside its stamp."""
    named = {
        "reason": verdict.reason.value if verdict.reason else "",
        "detail": verdict.detail,
        "error": verdict.error.kind if verdict.error else "",
        "message": verdict.error.text if verdict.error else "",
        "handler": short(handler, HANDLER_LIMIT),
        "fingerprint": verdict.fingerprint,
        "culprit": verdict.culprit,
        "parked-at": now,
        "nonce": nonce,
    }
    return {PREFIX + name: value for name, value in named.items() if value}


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
    if subscription.ack == "auto" and verdict.kind in {Kind.PARK, Kind.RETRY, Kind.HALT}:
        return lost(verdict)
    if verdict.kind is not Kind.RETRY or len(delivery.raw) <= ROOM or not subscription.policy.via.stamps:
        return verdict
    said = f"Its headers of {len(delivery.raw)} bytes leave no room to count attempts"
    return park(Reason.PERMANENT, f"{said}: {verdict.error or verdict.detail}", verdict.error)


def lost(verdict: Verdict) -> Verdict:
    """What becomes of it where the broker has forgotten the message already."""
    return discard(f"It is lost, for its handler has ack='auto': {verdict.detail or verdict.error}", verdict.error)


def _retried(verdict: Verdict, delivery: Delivery, subscription: Subscription, *, now: int) -> Settlement:
    stamp = _after(verdict, delivery, now=now)
    return subscription.policy.via.carry(subscription.route, delivery, Hop(delay=verdict.after, stamp=stamp))


def waits_on(delivery: Delivery, subscription: Subscription) -> Settlement | None:
    """The next hop of a message that has not waited long enough yet; no attempt is made or counted."""
    via = subscription.policy.via
    if MARK not in delivery.raw or len(delivery.raw) > ROOM or not via.stamps or not via.notes_rest:
        # A message that cannot be copied would wait for ever: only a copy drops the note.
        return None
    stamp = story(delivery)
    if not stamp.wait:
        return None
    hop = Hop(delay=stamp.wait / 1000, stamp=replace(stamp, wait=0))
    return via.carry(subscription.route, delivery, hop)


def set_apart(delivery: Delivery, quarantine: str) -> Settlement:
    """A copy to where it is tried alone, with its story so far; how often it came back is counted anew there."""
    return Settlement(tell=Tell.ACK, copy=copy_of(delivery, _story(delivery), exchange="", routing_key=quarantine))


def put_back(delivery: Delivery, subscription: Subscription, *, in_place: bool) -> Settlement:
    """To its queue again, with nothing counted by anybody; in its place it goes when its channel closes."""
    if in_place or not subscription.queue.lasting or len(delivery.raw) > ROOM:
        return Settlement(tell=Tell.AGAIN, hold=HELD)
    lane = subscription.queue.name + (QUARANTINE if delivery.quarantined else "")
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
    stamp = _after(verdict, delivery, now=now)
    if not verdict.counted:
        # What the broker counted itself is not in its story.
        stamp = replace(stamp, attempts=ended(delivery))
    told = parked_headers(verdict, handler=handler, now=now, nonce=0 if _id(delivery) else nonce)
    put = {**replace(stamp, wait=0).headers(), **told}
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
        return _in_bytes(delivery, park, put)
    copy = Message(body=delivery.body, exchange="", routing_key=park, properties=properties)
    return Settlement(tell=Tell.ACK, copy=copy)


def parked_in_bytes(
    verdict: Verdict, delivery: Delivery, park: str, *, handler: str, now: int, nonce: int
) -> Settlement:
    """The same where something in the message keeps that from succeeding: none of its headers is looked into."""
    # Texts as any header takes them: where they came from is what may be wrong with the message.
    stamp = Stamp(
        attempts=min(delivery.attempt, MOST) if verdict.counted else 0,
        exchange=short(delivery.exchange, SHORT_STRING_LIMIT),
        routing_key=short(delivery.routing_key, SHORT_STRING_LIMIT),
        queue=delivery.queue,
    )
    told = parked_headers(verdict, handler=handler, now=now, nonce=0 if _id(delivery) else nonce)
    return _in_bytes(delivery, park, {**stamp.headers(), **told})


def _in_bytes(delivery: Delivery, park: str, put: Mapping[str, object]) -> Settlement:
    """A copy of which the properties that came are one value among ours."""
    kept, leading = kept_properties(delivery.raw)
    properties = Properties(delivery_mode=2, message_id=_id(delivery), headers=Headers.of({**put, **kept}))
    copy = Message(body=leading + delivery.body, exchange="", routing_key=park, properties=properties)
    return Settlement(tell=Tell.ACK, copy=copy)


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


def answer_to(delivery: Delivery, answer: object, codec: Codec) -> Message:
    """The message with the answer or the error that the caller of a delivery waits for."""
    to = delivery.reply_to or ""
    failed, content_type, body = _written(answer, codec)
    properties = Properties(
        content_type=content_type,
        correlation_id=delivery.correlation_id,
        delivery_mode=2,
        headers=Headers.of({ANSWER: FAILED if failed else "ok"}),
    )
    # Direct reply-to queues answer 'mandatory' wrongly: before RabbitMQ 4.1 they return what was delivered.
    mandatory = not to.startswith("amq.rabbitmq.reply-to.")
    return Message(body=body, routing_key=to, properties=properties, mandatory=mandatory)


def _written(answer: object, codec: Codec) -> tuple[bool, str, bytes]:
    """Whether it is an error, its content type, and its body. An error is JSON whatever codec a handler has."""
    error = answer if isinstance(answer, BaseException) else None
    if error is None:
        try:
            return False, codec.content_type, codec.encode(answer)
        except Exception as broken:  # noqa: BLE001 - the handler has done its work: it must not be done again
            error = broken
    note = ErrorNote.of(error)
    return True, JSON.content_type, JSON.encode({"error": {"type": note.kind, "message": note.text}})


def _after(verdict: Verdict, delivery: Delivery, *, now: int) -> Stamp:
    """Its story with this attempt, if that counts."""
    stamp = _failed(delivery, now=now)
    if not verdict.counted:
        return stamp
    waits = f", waits {round(verdict.after, 1):.12g} s" if verdict.after else ""
    return stamp.after(f"{verdict.error or verdict.detail}{waits}", attempt=delivery.attempt, now=now)


def _failed(delivery: Delivery, *, now: int) -> Stamp:
    """Its story; a failure that was rejected has no stamp of ours, so the broker's x-death tells when it was."""
    stamp = _story(delivery)
    if stamp.since:
        return stamp
    try:
        since = first_rejected(delivery.headers, delivery.queue, now=now)
    except UndecodableHeaders:
        return stamp
    return replace(stamp, since=since) if since else stamp


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
