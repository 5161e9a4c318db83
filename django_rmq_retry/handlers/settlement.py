"""The settlement that carries out a verdict. Pure functions, called in a worker thread."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from django_rmq_retry.errors import UndecodableHeaders
from django_rmq_retry.handlers.subscription import Subscription
from django_rmq_retry.handlers.verdicts import goes_back, was_unacked
from django_rmq_retry.messages.codecs import JSON, Codec
from django_rmq_retry.messages.deaths import DEATHS_BYTES, brokers_part, deaths_as_text, first_rejected, rejections
from django_rmq_retry.messages.header_names import (
    ANSWER,
    BROKERS,
    BROKERS_OWN,
    DEATHS,
    FAILED,
    KEPT,
    PREFIX,
    PREFIX_BYTES,
)
from django_rmq_retry.messages.message import DONE, Delivery, Instruction, Message, Settlement, message_id
from django_rmq_retry.messages.parked_copy import ROOM_BYTES, kept_properties
from django_rmq_retry.messages.properties import (
    SHORT_STRING_BYTES,
    Headers,
    Properties,
    copied_properties,
    encode_entry,
)
from django_rmq_retry.messages.stamp import HANDLER_BYTES, HIGHEST_COUNT, OURS, Stamp, copy_of, stamp_of
from django_rmq_retry.messages.texts import ErrorNote, short
from django_rmq_retry.policies.carriers import Hop
from django_rmq_retry.policies.verdict import Kind, Verdict
from django_rmq_retry.topology.declarations import QUARANTINE

RETURN_SECONDS = 1.0
"""Seconds for which a message that must return in place stays unacked; pausing its queue returns it immediately."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A delivery on which there is a verdict, with what its copy needs to know."""

    delivery: Delivery
    subscription: Subscription | None
    """None if the message was not attempted."""
    parked_queue: str
    now: int
    """In milliseconds since the epoch."""
    nonce: int = 0
    """Distinguishes a parked message without an id from another one with the same bytes."""
    traceparent: str = ""
    """The trace context of the attempt, if there is one."""
    as_bytes: bool = False
    """True to park the message with its headers as bytes, which are not decoded."""


def parked_headers(verdict: Verdict, *, handler: str, now: int, nonce: int) -> Mapping[str, object]:
    """Return the headers that say why a message was parked; the stamp is not included."""
    named = {
        "reason": verdict.reason.value if verdict.reason else "",
        "detail": verdict.detail,
        "error": verdict.error.kind if verdict.error else "",
        "message": verdict.error.text if verdict.error else "",
        "handler": short(handler, HANDLER_BYTES),
        "fingerprint": verdict.fingerprint,
        "culprit": verdict.culprit,
        "parked-at": now,
        "nonce": nonce,
    }
    return {PREFIX + name: value for name, value in named.items() if value}


def settlement_of(verdict: Verdict, case: Case) -> Settlement:
    if verdict.kind is Kind.PARK:
        return Settlement(instruction=Instruction.ACK, copy=parked_copy(verdict, case))
    if verdict.kind is Kind.HALT:
        return Settlement(
            instruction=Instruction.KEEP, hold=verdict.after if verdict.counted else verdict.after or RETURN_SECONDS
        )
    subscription = case.subscription
    if verdict.kind is not Kind.RETRY or subscription is None:
        return DONE
    if goes_back(verdict):
        return put_back(case.delivery, subscription, in_place=False, failure=str(verdict.error or ""))
    hop = Hop(delay=verdict.after, stamp=_after(verdict, case))
    return subscription.policy.via.carry(subscription.route, case.delivery, hop)


def next_hop(delivery: Delivery, subscription: Subscription) -> Settlement | None:
    """Return the settlement that sends a message on its next hop; None if its wait is over, or it cannot be copied."""
    via = subscription.policy.via
    if PREFIX_BYTES not in delivery.raw or len(delivery.raw) > ROOM_BYTES or not via.stamps or not via.notes_rest:
        # A message that cannot be copied would wait forever, because only a copy removes the note of the rest.
        return None
    stamp = stamp_of(delivery)
    if not stamp.wait:
        return None
    hop = Hop(delay=stamp.wait / 1000, stamp=stamp._replace(wait=0))
    return via.carry(subscription.route, delivery, hop)


def copied_to(delivery: Delivery, queue: str, subscription: Subscription | None, *, failure: str = "") -> Settlement:
    """Copy a message, with its stamp, to its work queue or quarantine queue, where its returns count from zero.

    The stamp of one whose attempt failed, and does not count, tells that by its summary.
    """
    stamp = _with_origin(delivery, subscription)
    stamp = stamp.noting(failure, attempt=delivery.attempt) if failure else stamp
    copy = copy_of(delivery, stamp, exchange="", routing_key=queue)
    return Settlement(instruction=Instruction.ACK, copy=copy)


def put_back(delivery: Delivery, subscription: Subscription, *, in_place: bool, failure: str = "") -> Settlement:
    """Return a message to its queue, uncounted: as a copy, or by leaving it unacked until its channel closes."""
    if in_place or not subscription.queue.lasting or len(delivery.raw) > ROOM_BYTES:
        return Settlement(instruction=Instruction.KEEP, hold=RETURN_SECONDS)
    queue = subscription.queue.name + (QUARANTINE if delivery.quarantined else "")
    try:
        return copied_to(delivery, queue, subscription, failure=failure)
    except UndecodableHeaders:
        return Settlement(instruction=Instruction.KEEP, hold=RETURN_SECONDS)


def parked_copy(verdict: Verdict, case: Case) -> Message:
    delivery, subscription = case.delivery, case.subscription
    if subscription is None:
        verdict = replace(verdict, counted=False)
    if case.as_bytes:
        # Shorten the texts so that they fit any header: an invalid exchange or key may be the reason for the failure.
        stamp = _with_origin(delivery, subscription)._replace(
            attempts=min(delivery.attempt, HIGHEST_COUNT) if verdict.counted else 0,
            since=0,
            wait=0,
            exchange=short(delivery.exchange, SHORT_STRING_BYTES),
            routing_key=short(delivery.routing_key, SHORT_STRING_BYTES),
            queue=delivery.queue,
            summary="",
            traceparent="",
        )
    else:
        stamp = _after(verdict, case)._replace(wait=0)
        if not verdict.counted:
            # Add the attempts that only the broker has counted: the stamp does not include them.
            stamp = stamp._replace(attempts=failed_attempts(delivery))
    handler = "" if subscription is None else subscription.name
    nonce = 0 if message_id(delivery) else case.nonce
    put = {**stamp.headers(), **parked_headers(verdict, handler=handler, now=case.now, nonce=nonce)}
    properties, leading = None if case.as_bytes else _with_parked_headers(delivery, put), b""
    if properties is None:
        # The original properties become one value of bytes.
        kept, leading = kept_properties(delivery.raw)
        properties = Properties(delivery_mode=2, message_id=message_id(delivery), headers=Headers.of({**put, **kept}))
    return Message(body=leading + delivery.body, exchange="", routing_key=case.parked_queue, properties=properties)


def _with_parked_headers(delivery: Delivery, put: dict[str, object]) -> Properties | None:
    """Return the message's properties with these headers; None if they are unreadable or leave no room for them."""
    try:
        arrived = delivery.properties
        if len(arrived.headers.raw) <= ROOM_BYTES // 2 and (died := deaths_as_text(arrived.headers)):
            put[DEATHS] = died
        # Drop headers with our names that a sender has set: readers of the copy would trust them.
        headers = arrived.headers.replacing(drop=BROKERS_OWN | OURS | KEPT, put=put)
        # The broker's own headers of the original become one header, if there is room for it.
        if theirs := brokers_part(arrived.headers):
            whole = headers.raw + encode_entry(BROKERS, theirs)
            headers = Headers(whole) if len(whole) <= ROOM_BYTES else headers
        properties = copied_properties(arrived, headers)
    except UndecodableHeaders:
        return None
    return properties if len(headers.raw) <= ROOM_BYTES else None


def failed_attempts(delivery: Delivery) -> int:
    """Return the number of failed attempts, counted in the stamp or by the broker; 0 if the headers are unreadable."""
    try:
        return min(stamp_of(delivery).attempts + rejections(delivery.headers, delivery.queue), HIGHEST_COUNT)
    except UndecodableHeaders:
        return 0


def answer_to(delivery: Delivery, answer: object, codec: Codec) -> Message:
    """Return the message with the answer or the error that the caller waits for."""
    to = delivery.reply_to or ""
    failed, content_type, body = _written(answer, codec)
    properties = Properties(
        content_type=content_type,
        correlation_id=delivery.correlation_id,
        delivery_mode=2,
        headers=Headers.of({ANSWER: FAILED if failed else "ok"}),
    )
    # Direct reply-to queues handle 'mandatory' wrongly: before RabbitMQ 4.1 they return messages that were delivered.
    mandatory = not to.startswith("amq.rabbitmq.reply-to.")
    return Message(body=body, routing_key=to, properties=properties, mandatory=mandatory)


def _written(answer: object, codec: Codec) -> tuple[bool, str, bytes]:
    """Return True if the answer is an error, its content type and its body. Errors are JSON with any codec."""
    error = answer if isinstance(answer, BaseException) else None
    if error is None:
        try:
            return False, codec.content_type, codec.encode(answer)
        except Exception as broken:  # noqa: BLE001 - the handler has run: an answer that fails must not run it again
            error = broken
    note = ErrorNote.of(error)
    return True, JSON.content_type, JSON.encode({"error": {"type": note.kind, "message": note.text}})


def _after(verdict: Verdict, case: Case) -> Stamp:
    """Return the stamp with this attempt added, if the attempt counts, and with the time of the first failure."""
    delivery, traceparent = case.delivery, case.traceparent
    stamp = _with_origin(delivery, case.subscription)
    if not stamp.since and DEATHS_BYTES in delivery.raw:
        # A delivery that was rejected carries no stamp, so that time is read from the broker's x-death header.
        since = first_rejected(delivery, now=case.now)
        stamp = stamp._replace(since=since) if since else stamp
    if not verdict.counted:
        return stamp._replace(traceparent=traceparent) if traceparent else stamp
    waits = f", waits {round(verdict.after, 1):.12g} s" if verdict.after else ""
    failure = f"{verdict.error or verdict.detail}{waits}"
    return stamp.after(failure, attempt=delivery.attempt, now=case.now, traceparent=traceparent)


def _with_origin(delivery: Delivery, subscription: Subscription | None) -> Stamp:
    """Return the stamp of the message; for its first copy, a stamp with its original exchange, key and queue.

    It remembers that a consumer had the message and did not acknowledge it, because the broker does not say so of the
    copy.
    """
    try:
        stamp = stamp_of(delivery)
    except UndecodableHeaders:
        stamp = Stamp()
    if was_unacked(delivery, subscription):
        stamp = stamp._replace(unacked=1)
    if stamp.queue:
        return stamp
    return stamp._replace(exchange=delivery.exchange, routing_key=delivery.routing_key, queue=delivery.queue)
