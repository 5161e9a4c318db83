"""Dead-letter queue arguments, and the broker's ``x-death`` header, which a sender can forge."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from django_rmq_retry.errors import UndecodableHeaders
from django_rmq_retry.messages.headers import Headers, entries
from django_rmq_retry.messages.message import Delivery


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
_LIST = "x-death"
_TOLD = tuple(bytes((len(name),)) + name for name in (b"queue", b"reason", b"count"))
"""The encoded keys of the fields in an x-death entry that the broker itself reads."""

OLDEST = 365 * 86_400_000
"""In milliseconds (one year). An older time in x-death is treated as forged: no message waits that long on a broker."""

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
    found: dict[str, object] = {"x-dead-letter-exchange": exchange}
    if key is not None:
        found["x-dead-letter-routing-key"] = key
    if safe:
        # Without reject-publish the broker silently falls back to at-most-once (rabbitmq.com/docs/quorum-queues).
        found |= {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
    return found


def well_formed(headers: Headers) -> bool:
    """True if x-death is absent or valid. On RabbitMQ 3, adding to a malformed x-death crashes the queue."""
    return _deaths(headers) is not None


def comes_back(headers: Headers, queue: str) -> bool:
    """True if a rejected message can return to this queue after expiring in a waiting queue.

    RabbitMQ 3 drops the message as a cycle if the first x-death entry for the queue has another reason than
    "rejected". Every death reorders the entries, so one such entry in any place makes this False.
    """
    found = _deaths(headers)
    return found is not None and not any(death.queue == queue and death.reason != "rejected" for death in found)


def rejectable(delivery: Delivery) -> bool:
    """True if the message can be rejected safely: with some headers the broker loses or multiplies it."""
    try:
        return well_formed(delivery.headers) and "CC" not in delivery.headers
    except UndecodableHeaders:
        return False


def deaths(headers: Headers) -> tuple[Death, ...]:
    """Return the entries of x-death, or no entries if the header is not in the form that a broker writes."""
    return _deaths(headers) or ()


def rejections(headers: Headers, queue: str) -> int:
    """Return the number of times the message was rejected from this queue, ignoring other queues in x-death."""
    return sum(death.count for death in deaths(headers) if death.queue == queue and death.reason == "rejected")


def first_rejected(headers: Headers, queue: str, *, now: int) -> int:
    """Return the epoch milliseconds of the first rejection from this queue; 0 if x-death has no plausible time."""
    told = (death.at for death in deaths(headers) if death.queue == queue and death.reason == "rejected")
    return min((at for at in told if max(now - OLDEST, 0) < at <= now), default=0)


def reason_of(headers: Headers) -> Reason | None:
    """Return the reason why the broker dead-lettered the message last, or None.

    Only the first entry is read: it is the newest on every RabbitMQ version; the order of the others differs.
    """
    found = deaths(headers)
    return _REASONS.get(found[0].reason, Reason.REJECTED) if found else None


def brokers_part(headers: Headers) -> bytes:
    """Return the raw bytes of the header entries whose names are in BROKERS_OWN."""
    if BROKERS_OWN.isdisjoint(headers):
        return b""
    raw = headers.raw
    return b"".join(raw[start:stop] for key, start, _, stop in entries(raw, 0, len(raw)) if key in _KEYS)


def told_of_broker(told: object) -> bytes:
    """Return bytes made by `brokers_part` and read back from a header.

    The header can be forged: the result is empty unless the bytes hold only headers named in BROKERS_OWN.
    """
    try:
        return told if isinstance(told, bytes) and BROKERS_OWN.issuperset(Headers(told)) else b""
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
    found = [count for count in counts if isinstance(count, int)]
    return min(found, default=0)


def counts_losses_only(headers: Headers) -> bool:
    """True if `returns` excludes workers that stopped cleanly: RabbitMQ 4.3 counts those in x-acquired-count."""
    return "x-acquired-count" in headers


def _deaths(headers: Headers) -> tuple[Death, ...] | None:
    if _LIST not in headers:
        return ()
    try:
        told = headers[_LIST]
    except UndecodableHeaders:
        return None
    found = [_death(entry) for entry in told] if isinstance(told, list) else [None]
    whole = tuple(death for death in found if death is not None)
    return whole if len(whole) == len(found) and not _ambiguous(headers, len(found)) else None


def _ambiguous(headers: Headers, count: int) -> bool:
    """True if x-death or a key in one of its entries is duplicated: the broker reads the first, a dict the last."""
    raw = headers.raw
    places = [(at, stop) for key, _, at, stop in entries(raw, 0, len(raw)) if key == _LIST.encode()]
    at, stop = places[0]
    return len(places) > 1 or any(raw.count(name, at, stop) > count for name in _TOLD)


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
