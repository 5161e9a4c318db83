"""The broker's record of a message's deaths, in ``x-death``, and its counts of returns. A sender can forge both."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from django_rmq_retry.errors import UndecodableHeaders
from django_rmq_retry.messages.header_names import BROKERS_OWN
from django_rmq_retry.messages.message import Delivery
from django_rmq_retry.messages.properties import SHORT_STRING_BYTES, Headers, entries, value_end
from django_rmq_retry.messages.reasons import Reason
from django_rmq_retry.messages.texts import short

_LIST = "x-death"
DEATHS_BYTES = _LIST.encode()
"""Bytes searched for in undecoded properties, so that a message without x-death costs a single search."""
_BROKER_FIELDS = (b"queue", b"reason", b"count")
"""The fields in an x-death entry that the broker itself reads."""

OLDEST_MILLISECONDS = 365 * 86_400_000
"""In milliseconds (one year). An older time in x-death is treated as forged: no message waits that long on a broker."""

MOST_DEATHS_SHOWN = 20
"""The most entries of x-death, and keys of one entry, that are shown; a forged header may have thousands."""
MOST_DEATHS_BYTES = 4096
"""In bytes. The newest entries that fit are written."""
_CUTS = ((SHORT_STRING_BYTES, 20), (100, 1))
"""Bytes of each text and number of routing keys, if the newest entry alone does not fit.

JSON writes a byte as up to six, and an entry has four texts besides its routing keys: the last cut always fits.
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
    """Return x-death as JSON, the newest entries first; a newest entry that is too long is cut, with ellipses."""
    text = ""
    for death in deaths(headers):
        longer = f"{text[:-1]}, {_as_text(death)}]" if text else _newest_as_text(death)
        if len(longer) > MOST_DEATHS_BYTES:
            break
        text = longer
    return text


def _newest_as_text(death: Death) -> str:
    text = f"[{_as_text(death)}]"
    for limit, most in _CUTS:
        if len(text) > MOST_DEATHS_BYTES:
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


def all_rejections(headers: Headers) -> int:
    """Return the number of times the message was rejected, from whichever queue."""
    return sum(death.count for death in deaths(headers) if death.reason == "rejected")


def first_rejected(delivery: Delivery, *, now: int) -> int:
    """Return the epoch milliseconds of the first rejection from its queue; 0 if x-death has no plausible time."""
    try:
        found = deaths(delivery.headers)
    except UndecodableHeaders:
        return 0
    times = (death.at for death in found if death.queue == delivery.queue and death.reason == "rejected")
    return min((at for at in times if max(now - OLDEST_MILLISECONDS, 0) < at <= now), default=0)


def reason_of(headers: Headers) -> Reason | None:
    """Return why the broker dead-lettered the message last: the first entry is the newest on every version."""
    known_deaths = deaths(headers)
    return _REASONS.get(known_deaths[0].reason, Reason.REJECTED) if known_deaths else None


def brokers_part(headers: Headers) -> bytes:
    """Return the raw bytes of the header entries whose names are in BROKERS_OWN."""
    if BROKERS_OWN.isdisjoint(headers):
        return b""
    raw = headers.raw
    return b"".join(raw[start:stop] for key, start, _, stop in entries(raw, 0, len(raw)) if key in _KEYS)


def trusted_brokers_part(value: object) -> bytes:
    """Return bytes made by `brokers_part`; nothing for forged ones, which hold other headers than BROKERS_OWN."""
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
    return whole if len(whole) == len(known_deaths) and not _ambiguous(headers) else None


def _ambiguous(headers: Headers) -> bool:
    """True if x-death or a key in one of its entries is duplicated: the broker reads the first, a dict the last."""
    raw = headers.raw
    places = [(at, stop) for key, _, at, stop in entries(raw, 0, len(raw)) if key == DEATHS_BYTES]
    at, stop = places[0]
    at += 5
    while at < stop:
        end = value_end(raw, at, stop)
        keys = [key for key, *_ in entries(raw, at + 5, end)]
        if any(keys.count(name) > 1 for name in _BROKER_FIELDS):
            return True
        at = end
    return len(places) > 1


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
