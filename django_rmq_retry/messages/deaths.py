"""Dead-letter arguments and the ``x-death`` header, which a sender can forge."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from django_rmq_retry.errors import UndecodableHeaders
from django_rmq_retry.messages.headers import Headers, entries
from django_rmq_retry.messages.message import Delivery


class Reason(StrEnum):
    """Why a message is parked; machine values that stay English."""

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
"""Never republished: x-death can get a message dropped as a cycle before RabbitMQ 4, CC would send copies elsewhere."""
_KEYS = frozenset(name.encode() for name in BROKERS_OWN)
_LIST = "x-death"
_TOLD = tuple(bytes((len(name),)) + name for name in (b"queue", b"reason", b"count"))
"""The names of what the broker goes by in each entry, as they stand there."""

OLDEST = 365 * 86_400_000
"""Milliseconds: a time further back than this was not written by a broker on which the message still waits."""

_REASONS = {
    "expired": Reason.EXPIRED,
    "delivery_limit": Reason.DELIVERY_LIMIT,
    "maxlen": Reason.OVERFLOWN,
    "rejected": Reason.REJECTED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """One entry of x-death: how often a message left one queue for one reason."""

    queue: str
    reason: str
    count: int
    exchange: str = ""
    keys: tuple[str, ...] = ()
    at: int = 0
    """When it first did, in milliseconds of the epoch; brokers tell it by the second."""
    expiration: str = ""
    """In milliseconds, where the message had one of its own; the broker takes it off."""


def dead_letter(exchange: str, key: str | None = None, *, safe: bool = False) -> dict[str, object]:
    """The arguments that send what a queue gives up to an exchange; safe: at least once (quorum queues only)."""
    found: dict[str, object] = {"x-dead-letter-exchange": exchange}
    if key is not None:
        found["x-dead-letter-routing-key"] = key
    if safe:
        # Without reject-publish the broker falls back to at-most-once without a word (docs/quorum-queues).
        found |= {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
    return found


def well_formed(headers: Headers) -> bool:
    """Whether the broker can add to x-death: a malformed one crashes its queue on RabbitMQ 3."""
    return _deaths(headers) is not None


def comes_back(headers: Headers, queue: str) -> bool:
    """Whether a rejected message may expire its way back to this queue.

    RabbitMQ 3 drops it as a cycle if the first entry of x-death that names the queue is no rejection, and the order of
    the entries changes with every death: any such entry counts.
    """
    found = _deaths(headers)
    return found is not None and not any(death.queue == queue and death.reason != "rejected" for death in found)


def rejectable(delivery: Delivery) -> bool:
    """Whether it may be left to the broker: some headers make one lose or multiply what is rejected."""
    try:
        return well_formed(delivery.headers) and "CC" not in delivery.headers
    except UndecodableHeaders:
        return False


def deaths(headers: Headers) -> tuple[Death, ...]:
    """What x-death says, or nothing when it is not what a broker writes."""
    return _deaths(headers) or ()


def rejections(headers: Headers, queue: str) -> int:
    """How often this queue, and not another in x-death, gave the message back for retry."""
    return sum(death.count for death in deaths(headers) if death.queue == queue and death.reason == "rejected")


def first_rejected(headers: Headers, queue: str, *, now: int) -> int:
    """When this queue first gave the message back, in milliseconds of the epoch; 0 where no believable time says it."""
    told = (death.at for death in deaths(headers) if death.queue == queue and death.reason == "rejected")
    return min((at for at in told if max(now - OLDEST, 0) < at <= now), default=0)


def reason_of(headers: Headers) -> Reason | None:
    """Why the broker moved the message; only the first entry is the newest on every version."""
    found = deaths(headers)
    return _REASONS.get(found[0].reason, Reason.REJECTED) if found else None


def brokers_part(headers: Headers) -> bytes:
    """Those of the broker's own that are there, as the bytes they came in."""
    if BROKERS_OWN.isdisjoint(headers):
        return b""
    raw = headers.raw
    return b"".join(raw[start:stop] for key, start, _, stop in entries(raw, 0, len(raw)) if key in _KEYS)


def told_of_broker(told: object) -> bytes:
    """Such bytes read back from a header that anybody may have written: nothing where they hold anything else."""
    try:
        return told if isinstance(told, bytes) and BROKERS_OWN.issuperset(Headers(told)) else b""
    except UndecodableHeaders:
        return b""


def returns(headers: Headers, *, redelivered: bool) -> int:
    """How often the queue took the message back from a consumer that went away.

    Publishers can forge both counts on a first delivery; RabbitMQ 4.3's second count also grows when a worker that
    stops gives untouched messages back, so the lower of the two is meant.
    """
    if not redelivered:
        return 0
    counts = [headers.get(name) for name in ("x-delivery-count", "x-acquired-count") if name in headers]
    found = [count for count in counts if isinstance(count, int)]
    return min(found, default=0)


def counts_losses_only(headers: Headers) -> bool:
    """Whether these returns were none of a worker that stopped in good order: RabbitMQ 4.3 counts those apart."""
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
    """Whether a name stands twice, in the headers or in an entry: the broker goes by the first, a dict by the last."""
    raw = headers.raw
    places = [(at, stop) for key, _, at, stop in entries(raw, 0, len(raw)) if key == _LIST.encode()]
    at, stop = places[0]
    return len(places) > 1 or any(raw.count(name, at, stop) > count for name in _TOLD)


def _death(entry: object) -> Death | None:
    if not isinstance(entry, Mapping):
        return None
    queue, reason, count, keys = (entry.get(name) for name in ("queue", "reason", "count", "routing-keys"))
    # No broker counts below 0: a forged one would buy attempts without end.
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
