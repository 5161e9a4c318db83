"""A message's earlier attempts: the broker's record of them in ``x-death``, and the package's own headers, the stamp.

A sender can forge both. The stamp has integers and short texts only, so that a client that republishes the message does
not alter them, and so that they fit into a frame.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache

from django_rmq_retry.arguments import LONGEST
from django_rmq_retry.errors import UndecodableHeaders
from django_rmq_retry.messages.message import Delivery, Message
from django_rmq_retry.messages.properties import SHORT_STRING_LIMIT, Headers, copied_properties, entries, milliseconds
from django_rmq_retry.messages.texts import short

_LIST = "x-death"
DEATHS_BYTES = _LIST.encode()
"""Bytes searched for in undecoded properties, so that a message without x-death costs a single search."""
_BROKER_FIELDS = tuple(bytes((len(name),)) + name for name in (b"queue", b"reason", b"count"))
"""The encoded keys of the fields in an x-death entry that the broker itself reads."""

OLDEST = 365 * 86_400_000
"""In milliseconds (one year). An older time in x-death is treated as forged: no message waits that long on a broker."""

PREFIX = "rmq-retry-"
ANSWER = PREFIX + "answer"
"""The header that marks a reply as an answer or an error, so that the data itself can have any form."""
FAILED = "error"
_STAMP_HEADERS = [
    PREFIX + name
    for name in ("attempts", "since", "wait", "exchange", "routing-key", "queue", "summary", "traceparent")
]
_ATTEMPTS, _SINCE, _WAIT, _EXCHANGE, _KEY, _QUEUE, _SUMMARY, TRACEPARENT = _STAMP_HEADERS
TRACE_CONTEXT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
"""The form of a W3C trace context (w3.org/TR/trace-context)."""
PREFIX_BYTES = PREFIX.encode()
"""Bytes searched for in undecoded properties, so that a message without our headers costs a single search."""
SUMMARY_LIMIT = 1000
HANDLER_LIMIT = 255
MOST = 2**31 - 1
LONGEST_WAIT = milliseconds(LONGEST)

_PARKED = ("reason", "detail", "error", "message", "handler", "fingerprint", "culprit", "parked-at", "nonce", "x-death")
DEATHS = PREFIX + "x-death"
"""The header with x-death as JSON, for people and other programs that read a parked queue."""
DEATHS_MOST = 4096
"""In bytes. The newest entries that fit are written."""
_CUTS = ((SHORT_STRING_LIMIT, 20), (100, 1))
"""Bytes of each text and number of routing keys, if the newest entry alone does not fit.

JSON writes a byte as up to six, and an entry has four texts besides its routing keys: the last cut always fits.
"""
BROKERS = PREFIX + "broker"
"""The header with the original's broker headers (mainly x-death), as bytes, which the broker does not interpret.

Only records show them.
"""
OURS = frozenset({*_STAMP_HEADERS, *(PREFIX + name for name in _PARKED), BROKERS})


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


BROKERS_OWN = frozenset(
    {
        "x-death",
        "x-first-death-queue",
        "x-first-death-reason",
        "x-first-death-exchange",
        "x-last-death-queue",
        "x-last-death-reason",
        "x-last-death-exchange",
        "x-delivery-count",
        "x-acquired-count",
        "x-stream-offset",
        "x-delay",
        "CC",
        "BCC",
    }
)
"""Headers that the broker sets or acts on. They are never republished.

RabbitMQ before version 4 may drop a message as a dead-letter cycle because of its x-death; CC sends copies elsewhere.
"""

_KEYS = frozenset(name.encode() for name in BROKERS_OWN)

_REASONS = {
    "expired": Reason.EXPIRED,
    "delivery_limit": Reason.DELIVERY_LIMIT,
    "maxlen": Reason.OVERFLOWN,
    "rejected": Reason.REJECTED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """One entry of x-death: the number of times a message was dead-lettered from one queue for one reason."""

    queue: str
    reason: str
    count: int
    exchange: str = ""
    keys: tuple[str, ...] = ()
    at: int = 0
    """The time of the first of these deaths, in epoch milliseconds. Brokers record whole seconds."""
    expiration: str = ""
    """The message's own expiration in milliseconds, if it had one. The broker removes it from the message."""


def dead_letter(exchange: str, key: str | None = None, *, safe: bool = False) -> dict[str, object]:
    """Return the queue arguments that dead-letter to an exchange.

    `safe` selects the at-least-once strategy, which only quorum queues support.
    """
    arguments: dict[str, object] = {"x-dead-letter-exchange": exchange}
    if key is not None:
        arguments["x-dead-letter-routing-key"] = key
    if safe:
        # Without reject-publish the broker silently falls back to at-most-once (rabbitmq.com/docs/quorum-queues).
        arguments |= {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
    return arguments


def well_formed(headers: Headers) -> bool:
    """True if x-death is absent or valid. On RabbitMQ 3, adding to a malformed x-death crashes the queue."""
    return _deaths(headers) is not None


def comes_back(headers: Headers, queue: str) -> bool:
    """True if a rejected message can return to this queue after expiring in a waiting queue.

    RabbitMQ 3 drops the message as a cycle if the first x-death entry for the queue has another reason than
    "rejected". Every death reorders the entries, so one such entry in any place makes this False.
    """
    known_deaths = _deaths(headers)
    return known_deaths is not None and not any(
        death.queue == queue and death.reason != "rejected" for death in known_deaths
    )


def rejectable(delivery: Delivery) -> bool:
    """True if the message can be rejected safely: with some headers the broker loses or multiplies it."""
    try:
        return well_formed(delivery.headers) and "CC" not in delivery.headers
    except UndecodableHeaders:
        return False


def deaths(headers: Headers) -> tuple[Death, ...]:
    """Return the entries of x-death, or no entries if the header is not in the form that a broker writes."""
    return _deaths(headers) or ()


def deaths_as_text(headers: Headers) -> str:
    """Return x-death as JSON, the newest entries first; empty if there is none in the form that a broker writes.

    A newest entry that is too long is cut: a shortened text or list ends with an ellipsis.
    """
    text = ""
    for death in deaths(headers):
        longer = f"{text[:-1]}, {_as_text(death)}]" if text else _newest_as_text(death)
        if len(longer) > DEATHS_MOST:
            break
        text = longer
    return text


def _newest_as_text(death: Death) -> str:
    text = f"[{_as_text(death)}]"
    for limit, most in _CUTS:
        if len(text) > DEATHS_MOST:
            text = f"[{_as_text(_cut(death, limit, most))}]"
    return text


def _cut(death: Death, limit: int, most: int) -> Death:
    keys = [short(key, limit) for key in death.keys[:most]]
    return replace(
        death,
        queue=short(death.queue, limit),
        reason=short(death.reason, limit),
        exchange=short(death.exchange, limit),
        keys=(*keys, "…") if len(death.keys) > most else tuple(keys),
        expiration=short(death.expiration, limit),
    )


def _as_text(death: Death) -> str:
    """Return one entry as JSON in ASCII, so that its characters are its bytes."""
    row: dict[str, object] = {
        "queue": death.queue,
        "reason": death.reason,
        "count": death.count,
        "exchange": death.exchange,
        "routing-keys": list(death.keys),
    }
    with suppress(ValueError, OverflowError, OSError):
        row |= {"time": datetime.fromtimestamp(death.at // 1000, UTC).isoformat()} if death.at else {}
    if death.expiration:
        row["original-expiration"] = death.expiration
    return json.dumps(row)


def rejections(headers: Headers, queue: str) -> int:
    """Return the number of times the message was rejected from this queue, ignoring other queues in x-death."""
    return sum(death.count for death in deaths(headers) if death.queue == queue and death.reason == "rejected")


def first_rejected(delivery: Delivery, *, now: int) -> int:
    """Return the epoch milliseconds of the first rejection from its queue; 0 if x-death has no plausible time."""
    try:
        found = deaths(delivery.headers)
    except UndecodableHeaders:
        return 0
    times = (death.at for death in found if death.queue == delivery.queue and death.reason == "rejected")
    return min((at for at in times if max(now - OLDEST, 0) < at <= now), default=0)


def reason_of(headers: Headers) -> Reason | None:
    """Return the reason why the broker dead-lettered the message last, or None.

    Only the first entry is read: it is the newest on every RabbitMQ version; the order of the others differs.
    """
    known_deaths = deaths(headers)
    return _REASONS.get(known_deaths[0].reason, Reason.REJECTED) if known_deaths else None


def brokers_part(headers: Headers) -> bytes:
    """Return the raw bytes of the header entries whose names are in BROKERS_OWN."""
    if BROKERS_OWN.isdisjoint(headers):
        return b""
    raw = headers.raw
    return b"".join(raw[start:stop] for key, start, _, stop in entries(raw, 0, len(raw)) if key in _KEYS)


def trusted_brokers_part(value: object) -> bytes:
    """Return bytes made by `brokers_part` and read back from a header.

    The header can be forged: the result is empty unless the bytes hold only headers named in BROKERS_OWN.
    """
    try:
        return value if isinstance(value, bytes) and BROKERS_OWN.issuperset(Headers(value)) else b""
    except UndecodableHeaders:
        return b""


def returns(headers: Headers, *, redelivered: bool) -> int:
    """Return the number of times the queue took the message back from a consumer that disconnected.

    Publishers can forge both counts on a first delivery, so the result is 0 unless the message is redelivered.
    RabbitMQ 4.3 adds a second count, x-acquired-count. It also grows when a stopping worker returns messages that no
    handler has seen, so the lower of the two counts is returned.
    """
    if not redelivered:
        return 0
    counts = [headers.get(name) for name in ("x-delivery-count", "x-acquired-count") if name in headers]
    numbers = [count for count in counts if isinstance(count, int)]
    return min(numbers, default=0)


def counts_losses_only(headers: Headers) -> bool:
    """True if `returns` excludes workers that stopped cleanly: RabbitMQ 4.3 counts those in x-acquired-count."""
    return "x-acquired-count" in headers


def _deaths(headers: Headers) -> tuple[Death, ...] | None:
    if _LIST not in headers:
        return ()
    try:
        value = headers[_LIST]
    except UndecodableHeaders:
        return None
    known_deaths = [_death(entry) for entry in value] if isinstance(value, list) else [None]
    whole = tuple(death for death in known_deaths if death is not None)
    return whole if len(whole) == len(known_deaths) and not _ambiguous(headers, len(known_deaths)) else None


def _ambiguous(headers: Headers, count: int) -> bool:
    """True if x-death or a key in one of its entries is duplicated: the broker reads the first, a dict the last."""
    raw = headers.raw
    places = [(at, stop) for key, _, at, stop in entries(raw, 0, len(raw)) if key == _LIST.encode()]
    at, stop = places[0]
    return len(places) > 1 or any(raw.count(name, at, stop) > count for name in _BROKER_FIELDS)


def _death(entry: object) -> Death | None:
    if not isinstance(entry, Mapping):
        return None
    queue, reason, count, keys = (entry.get(name) for name in ("queue", "reason", "count", "routing-keys"))
    # Brokers never count below 0. A forged negative count would allow an unlimited number of attempts.
    if not isinstance(queue, str) or not isinstance(reason, str) or type(count) is not int or count < 0:
        return None
    time = entry.get("time")
    return Death(
        queue=queue,
        reason=reason,
        count=count,
        exchange=str(entry.get("exchange", "")),
        keys=tuple(str(key) for key in keys) if isinstance(keys, list) else (),
        at=int(time.timestamp() * 1000) if isinstance(time, datetime) else 0,
        expiration=str(entry.get("original-expiration", "")),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """The retry history of a message."""

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
        context = headers.get(TRACEPARENT)
        return cls(
            attempts=_number(headers, _ATTEMPTS),
            since=_number(headers, _SINCE, most=2**62),
            wait=_number(headers, _WAIT, most=LONGEST_WAIT),
            exchange=_name(headers, _EXCHANGE),
            routing_key=_name(headers, _KEY),
            queue=_name(headers, _QUEUE),
            summary=short(_text(headers, _SUMMARY), SUMMARY_LIMIT),
            traceparent=context if isinstance(context, str) and TRACE_CONTEXT.fullmatch(context) else "",
        )

    def after(self, failure: str, *, attempt: int, now: int, traceparent: str = "") -> "Stamp":
        """Return the stamp with one more failed attempt, described in one line."""
        line = f"#{attempt} {failure}".replace("\n", " ")
        summary = f"{self.summary}\n{line}" if self.summary else line
        if len(summary) > SUMMARY_LIMIT // 4:
            # UTF-8 takes up to four bytes for each character.
            summary = _latest(summary)
        # Not dataclasses.replace(): it takes three times as long, and this runs at every failure.
        return Stamp(
            # Forged x-death counts can add up to more than an integer header holds.
            attempts=min(attempt, MOST),
            since=self.since or now,
            wait=self.wait,
            exchange=self.exchange,
            routing_key=self.routing_key,
            queue=self.queue,
            summary=summary,
            traceparent=traceparent or self.traceparent,
        )

    def headers(self) -> dict[str, object]:
        """Return the stamp as headers, without the empty ones."""
        named = {
            _ATTEMPTS: self.attempts,
            _SINCE: self.since,
            _WAIT: self.wait,
            _EXCHANGE: _faithful(self.exchange),
            _KEY: _faithful(self.routing_key),
            _QUEUE: _faithful(self.queue),
            _SUMMARY: self.summary,
            TRACEPARENT: self.traceparent,
        }
        return {name: value for name, value in named.items() if value}


def stamp_of(delivery: Delivery) -> Stamp:
    """Return the stamp of a delivery. A stamp written in another queue is ignored, so attempts start again at 1."""
    if PREFIX_BYTES not in delivery.raw:
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


def identity(queue: str, message_id: str, body: bytes) -> str:
    """Return the identity of a message with an id in one work queue.

    It includes the body, so that two messages stay distinct if the sender uses one id for both.
    """
    named = hashlib.sha256(message_id.encode("utf-8", "surrogateescape")).digest()
    return f"message:{hashlib.sha256(_of_queue(queue) + named + hashlib.sha256(body).digest()).hexdigest()}"


@lru_cache(maxsize=256)
def _of_queue(queue: str) -> bytes:
    return hashlib.sha256(queue.encode("utf-8", "surrogateescape")).digest()


def traceparent(headers: Headers) -> str:
    """Return the trace context of the attempt before; empty without one, or if it has another form than W3C's."""
    return Stamp.read(headers).traceparent


def _number(headers: Headers, name: str, *, most: int = MOST) -> int:
    value = headers.get(name)
    return value if type(value) is int and 0 < value <= most else 0


def _name(headers: Headers, name: str) -> str:
    """Read the name of an exchange or queue, or a routing key; empty if it is too long for AMQP, and so forged."""
    text = _text(headers, name)
    return text if len(text.encode("utf-8", "surrogateescape")) <= SHORT_STRING_LIMIT else ""


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
    """Return the last lines that fit SUMMARY_LIMIT; a single line that is too long is cut."""
    encoded = summary.encode()
    if len(encoded) <= SUMMARY_LIMIT:
        return summary
    _, newline, whole_lines = encoded[-SUMMARY_LIMIT:].partition(b"\n")
    return (whole_lines if newline else encoded[:SUMMARY_LIMIT]).decode("utf-8", "ignore")


def copy_of(
    delivery: Delivery, stamp: Stamp, *, exchange: str, routing_key: str, expiration: int | None = None
) -> Message:
    """Return a copy with the given stamp. Headers set by others are copied byte for byte, the broker's are dropped."""
    known = delivery.properties
    headers = known.headers.replacing(drop=NOT_COPIED, put=stamp.headers())
    properties = copied_properties(known, headers, expiration=None if expiration is None else str(expiration))
    return Message(body=delivery.body, exchange=exchange, routing_key=routing_key, properties=properties)


STAMPED = frozenset(_STAMP_HEADERS)

NOT_COPIED = BROKERS_OWN | STAMPED
