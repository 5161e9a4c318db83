"""The stamp: headers with a message's earlier attempts. Integers and short texts only; a sender can forge it."""

import re
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from django_rmq_retry.arguments import LONGEST_WAIT_SECONDS
from django_rmq_retry.errors import UndecodableHeaders
from django_rmq_retry.messages.header_names import (
    BARE,
    BROKERS_OWN,
    KEPT,
    PARKED,
    PREFIX,
    PREFIX_BYTES,
    TICKET,
    UNRECORDED,
)
from django_rmq_retry.messages.message import Delivery, Message
from django_rmq_retry.messages.properties import SHORT_STRING_BYTES, Headers, copied_properties, milliseconds
from django_rmq_retry.messages.texts import short

TRACE_CONTEXT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-([0-9a-f]{2})")
"""The form of a W3C trace context (w3.org/TR/trace-context), with the id of the trace and its flags."""
SUMMARY_BYTES = 1000
HANDLER_BYTES = 255
HIGHEST_COUNT = 2**31 - 1
"""The largest number that an integer header, or a column, holds."""
LONGEST_WAIT_MILLISECONDS = milliseconds(LONGEST_WAIT_SECONDS)


class Stamp(NamedTuple):
    """The retry history of a message. A tuple, because one is made and changed at every failure."""

    attempts: int = 0
    """Failed attempts that count against the policy's limit."""
    since: int = 0
    """The time of the first failed attempt, in epoch milliseconds; 0 before that."""
    wait: int = 0
    """Milliseconds to wait after the present waiting queue; not a time to wait until, as workers' clocks may differ."""
    exchange: str = ""
    routing_key: str = ""
    queue: str = ""
    summary: str = ""
    traceparent: str = ""
    """The W3C trace context of the attempt that led to this copy, if a hook has set one."""
    unacked: int = 0
    """1 if a consumer had the message and did not acknowledge it, as one that is killed: it may have done its work."""

    @classmethod
    @lru_cache(maxsize=32)
    def read(cls, headers: Headers) -> "Stamp":
        """Read the stamp, once for all steps of an attempt; ignore values that this package cannot have written."""
        context = headers.get(STAMP_HEADERS["traceparent"])
        return cls(
            attempts=_number(headers, "attempts"),
            since=_number(headers, "since", most=2**62),
            wait=_number(headers, "wait", most=LONGEST_WAIT_MILLISECONDS),
            exchange=_name(headers, "exchange"),
            routing_key=_name(headers, "routing_key"),
            queue=_name(headers, "queue"),
            summary=short(_text(headers, "summary"), SUMMARY_BYTES),
            traceparent=context if isinstance(context, str) and TRACE_CONTEXT.fullmatch(context) else "",
            unacked=_number(headers, "unacked"),
        )

    def after(self, failure: str, *, attempt: int, now: int, traceparent: str = "") -> "Stamp":
        """Return the stamp with one more failed attempt, described in one line."""
        return self.noting(failure, attempt=attempt)._replace(
            # Forged x-death counts can add up to more than an integer header holds.
            attempts=min(attempt, HIGHEST_COUNT),
            since=self.since or now,
            traceparent=traceparent or self.traceparent,
        )

    def noting(self, failure: str, *, attempt: int) -> "Stamp":
        """Return the stamp with a failed attempt in its summary, which does not count."""
        line = f"#{attempt} {failure}".replace("\n", " ")
        summary = f"{self.summary}\n{line}" if self.summary else line
        # UTF-8 takes up to four bytes for each character.
        return self._replace(summary=_latest(summary) if len(summary) > SUMMARY_BYTES // 4 else summary)

    def headers(self) -> dict[str, object]:
        return {
            STAMP_HEADERS[field]: _faithful(str(value)) if field in _BROKERS_NAMES else value
            for field, value in zip(Stamp._fields, self, strict=True)
            if value
        }


STAMP_HEADERS = {field: PREFIX + field.replace("_", "-") for field in Stamp._fields}
_BROKERS_NAMES = frozenset({"exchange", "routing_key", "queue"})
STAMPED = frozenset(STAMP_HEADERS.values())
OURS = STAMPED | PARKED
"""The headers that retried and parked copies carry."""
NOT_COPIED = BROKERS_OWN | STAMPED
"""The headers that a copy for a retry omits; it carries a new stamp."""
ENDED_FIELDS = ("attempts", "since", "wait", "exchange", "routing_key", "queue", "summary", "traceparent", "unacked")
"""The fields of the stamp that end with the parking: the record has columns for them, and a requeue sets its own.

The record keeps any other field among the message's properties, so that a requeued copy carries it on.
"""
ADDED = {STAMP_HEADERS[field] for field in ENDED_FIELDS} | PARKED | KEPT | {TICKET, UNRECORDED, BARE}
"""The headers that the record's properties and a requeued copy omit."""
NOT_CONTENT = BROKERS_OWN | OURS | KEPT | {TICKET, BARE}
"""The headers that are no part of what the sender wrote."""


def stamp_of(delivery: Delivery) -> Stamp:
    """Return the stamp of a delivery. A stamp written in another queue is ignored, so attempts start again at 1."""
    if PREFIX_BYTES not in delivery.raw:
        return NO_STAMP
    stamp = Stamp.read(delivery.headers)
    return stamp if stamp.queue in {"", delivery.queue} else NO_STAMP


NO_STAMP = Stamp()


def at_origin(delivery: Delivery, *, came_by: Delivery) -> Delivery:
    """Return the delivery with the exchange and routing key to which its message was first published.

    After a wait, a message arrives by the default exchange, and only then is its stamp used. Any other message keeps
    the routing key of its delivery, because a sender must not choose another handler by a forged header.
    """
    stamp = stamp_of(delivery)
    if not stamp.queue or came_by.exchange or came_by.routing_key != came_by.queue:
        return delivery
    if (stamp.exchange, stamp.routing_key) == (delivery.exchange, delivery.routing_key):
        return delivery
    return replace(delivery, exchange=stamp.exchange, routing_key=stamp.routing_key)


def _number(headers: Headers, field: str, *, most: int = HIGHEST_COUNT) -> int:
    value = headers.get(STAMP_HEADERS[field])
    return value if type(value) is int and 0 < value <= most else 0


def _name(headers: Headers, field: str) -> str:
    """Read the name of an exchange or queue, or a routing key; empty if it is too long for AMQP, and so forged."""
    text = _text(headers, field)
    return text if len(text.encode("utf-8", "surrogateescape")) <= SHORT_STRING_BYTES else ""


def _text(headers: Headers, field: str) -> str:
    value = headers.get(STAMP_HEADERS[field])
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    return value if isinstance(value, str) else ""


def _faithful(name: str) -> str | bytes:
    """Return a name as a header value: bytes if it is not UTF-8, which the broker allows, else text."""
    if name.isascii():
        return name
    encoded = name.encode("utf-8", "surrogateescape")
    try:
        return encoded.decode()
    except UnicodeDecodeError:
        return encoded


def _latest(summary: str) -> str:
    """Return the last lines that fit SUMMARY_BYTES; a single line that is too long is cut."""
    encoded = summary.encode()
    if len(encoded) <= SUMMARY_BYTES:
        return summary
    _, newline, whole_lines = encoded[-SUMMARY_BYTES:].partition(b"\n")
    return (whole_lines if newline else encoded[:SUMMARY_BYTES]).decode("utf-8", "ignore")


def copy_of(
    delivery: Delivery, stamp: Stamp, *, exchange: str, routing_key: str, expiration: int | None = None
) -> Message:
    """Return a copy with the given stamp. Headers set by others are copied byte for byte, the broker's are dropped."""
    arrived = delivery.properties
    headers = arrived.headers.replacing(drop=NOT_COPIED, put=stamp.headers())
    properties = copied_properties(arrived, headers, expiration=None if expiration is None else str(expiration))
    return Message(body=delivery.body, exchange=exchange, routing_key=routing_key, properties=properties)


def has_history(delivery: Delivery) -> bool:
    """True if a message has failed or was requeued before: it is noted even if it now succeeds."""
    return delivery.attempt > 1 or PREFIX_BYTES in delivery.raw


def was_tried(delivery: Delivery) -> bool:
    """True if an attempt of the message failed before, counted or not; an attempt of it has a row."""
    if delivery.attempt > 1:
        return True
    try:
        return bool(stamp_of(delivery).summary)
    except UndecodableHeaders:
        return False


def tells_of_unacked(delivery: Delivery) -> bool:
    """True if the stamp of a retry, but not of a requeued copy, tells that a consumer did not acknowledge it."""
    if PREFIX_BYTES not in delivery.raw:
        return False
    try:
        return stamp_of(delivery).unacked > 0 and TICKET not in delivery.headers
    except UndecodableHeaders:
        return False


def may_be_second(delivery: Delivery) -> bool:
    """True if there may be another copy of the message: a worker died with it, it is retried, or it was requeued."""
    if delivery.redelivered or delivery.quarantined:
        return True
    # A delayed message has a stamp before its first attempt.
    return PREFIX_BYTES in delivery.raw and (stamp_of(delivery).attempts > 0 or TICKET in delivery.headers)
