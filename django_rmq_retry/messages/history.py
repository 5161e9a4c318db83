"""The stamp: headers that carry the earlier attempts of a message, and the copies that carry a stamp.

A sender can forge it. It has integers and short texts only, so that a client that republishes the message does
not alter them, and so that they fit into a frame.
"""

import re
from dataclasses import replace
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from django_rmq_retry.arguments import LONGEST_WAIT_SECONDS
from django_rmq_retry.messages import header_names as names
from django_rmq_retry.messages.message import Delivery, Message
from django_rmq_retry.messages.properties import SHORT_STRING_BYTES, Headers, copied_properties, milliseconds
from django_rmq_retry.messages.texts import short

TRACE_CONTEXT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
"""The form of a W3C trace context (w3.org/TR/trace-context)."""
SUMMARY_BYTES = 1000
HANDLER_BYTES = 255
MOST_ATTEMPTS = 2**31 - 1
"""The largest number that an integer header holds."""
LONGEST_WAIT_MILLISECONDS = milliseconds(LONGEST_WAIT_SECONDS)


class Reason(StrEnum):
    """The reason for parking a message. The values are stored and compared by programs, so they are not translated."""

    EXHAUSTED = "retries_exhausted"
    PERMANENT = "permanent"
    REQUESTED = "parked_by_handler"
    UNDECODABLE_BODY = "undecodable_body"
    UNDECODABLE_HEADERS = "undecodable_headers"
    UNHANDLED = "no_handler"
    CRASHED = "worker_stopped"
    EXPIRED = "expired"
    DELIVERY_LIMIT = "delivery_limit"
    OVERFLOWN = "queue_overflow"
    REJECTED = "rejected"
    CONFLICT = "identity_conflict"
    ALIKE = "possible_duplicate"
    UNNAMED = "unnamed"
    UNSETTLED = "unsettled"


class Stamp(NamedTuple):
    """The retry history of a message. A tuple, because one is made and changed at every failure."""

    attempts: int = 0
    """Failed attempts that count against the policy's limit."""
    since: int = 0
    """The time of the first failed attempt, in epoch milliseconds; 0 before that."""
    wait: int = 0
    """Milliseconds still to wait after the current waiting queue.

    A remaining wait, not a time to wait until: the clocks of workers may differ.
    """
    exchange: str = ""
    routing_key: str = ""
    queue: str = ""
    summary: str = ""
    traceparent: str = ""
    """The W3C trace context of the attempt that led to this copy, if a hook has set one."""

    @classmethod
    @lru_cache(maxsize=32)
    def read(cls, headers: Headers) -> "Stamp":
        """Read the stamp from headers. Values that this package cannot have written are ignored.

        Cached, because several callers need it during one attempt.
        """
        context = headers.get(names.TRACEPARENT)
        return cls(
            attempts=_number(headers, names.ATTEMPTS),
            since=_number(headers, names.SINCE, most=2**62),
            wait=_number(headers, names.WAIT, most=LONGEST_WAIT_MILLISECONDS),
            exchange=_name(headers, names.EXCHANGE),
            routing_key=_name(headers, names.ROUTING_KEY),
            queue=_name(headers, names.QUEUE),
            summary=short(_text(headers, names.SUMMARY), SUMMARY_BYTES),
            traceparent=context if isinstance(context, str) and TRACE_CONTEXT.fullmatch(context) else "",
        )

    def after(self, failure: str, *, attempt: int, now: int, traceparent: str = "") -> "Stamp":
        """Return the stamp with one more failed attempt, described in one line."""
        line = f"#{attempt} {failure}".replace("\n", " ")
        summary = f"{self.summary}\n{line}" if self.summary else line
        if len(summary) > SUMMARY_BYTES // 4:
            # UTF-8 takes up to four bytes for each character.
            summary = _latest(summary)
        return self._replace(
            # Forged x-death counts can add up to more than an integer header holds.
            attempts=min(attempt, MOST_ATTEMPTS),
            since=self.since or now,
            summary=summary,
            traceparent=traceparent or self.traceparent,
        )

    def headers(self) -> dict[str, object]:
        """Return the stamp as headers, without the empty ones."""
        named = {
            names.ATTEMPTS: self.attempts,
            names.SINCE: self.since,
            names.WAIT: self.wait,
            names.EXCHANGE: _faithful(self.exchange),
            names.ROUTING_KEY: _faithful(self.routing_key),
            names.QUEUE: _faithful(self.queue),
            names.SUMMARY: self.summary,
            names.TRACEPARENT: self.traceparent,
        }
        return {name: value for name, value in named.items() if value}


def stamp_of(delivery: Delivery) -> Stamp:
    """Return the stamp of a delivery. A stamp written in another queue is ignored, so attempts start again at 1."""
    if names.PREFIX_BYTES not in delivery.raw:
        return NO_STAMP
    stamp = Stamp.read(delivery.headers)
    return stamp if stamp.queue in {"", delivery.queue} else NO_STAMP


NO_STAMP = Stamp()
"""The stamp of a message without a failed attempt."""


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


def _number(headers: Headers, name: str, *, most: int = MOST_ATTEMPTS) -> int:
    value = headers.get(name)
    return value if type(value) is int and 0 < value <= most else 0


def _name(headers: Headers, name: str) -> str:
    """Read the name of an exchange or queue, or a routing key; empty if it is too long for AMQP, and so forged."""
    text = _text(headers, name)
    return text if len(text.encode("utf-8", "surrogateescape")) <= SHORT_STRING_BYTES else ""


def _text(headers: Headers, name: str) -> str:
    value = headers.get(name)
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
    known = delivery.properties
    headers = known.headers.replacing(drop=names.NOT_COPIED, put=stamp.headers())
    properties = copied_properties(known, headers, expiration=None if expiration is None else str(expiration))
    return Message(body=delivery.body, exchange=exchange, routing_key=routing_key, properties=properties)
