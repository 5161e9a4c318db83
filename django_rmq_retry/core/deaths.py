"""The broker's dead-letter mechanism: its arguments, and what its x-death header tells. That header can be forged."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from django_rmq_retry.core.errors import UndecodableHeaders
from django_rmq_retry.core.fields import entries
from django_rmq_retry.core.headers import Headers
from django_rmq_retry.core.message import Delivery
from django_rmq_retry.core.verdict import Reason

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
    try:
        entries = headers.get("x-death", [])
    except UndecodableHeaders:
        return None
    found = [_death(entry) for entry in entries] if isinstance(entries, list) else [None]
    whole = tuple(death for death in found if death is not None)
    return whole if len(whole) == len(found) else None


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
    )
