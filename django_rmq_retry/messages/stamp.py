"""The package's own headers, which travel with a message from attempt to attempt and into the parked queue.

All are whole numbers or short texts: a client that republishes them cannot change them, and no frame overflows.
"""

from dataclasses import dataclass
from functools import lru_cache

from django_rmq_retry.messages.deaths import BROKERS_OWN
from django_rmq_retry.messages.headers import SHORT_STRING_LIMIT, Headers
from django_rmq_retry.messages.message import Delivery, Message
from django_rmq_retry.messages.properties import lasting
from django_rmq_retry.messages.seconds import LONGEST, milliseconds
from django_rmq_retry.messages.tracebacks import short

PREFIX = "rmq-retry-"
ANSWER = PREFIX + "answer"
"""Tells an answer from an error, so that data may look like either."""
FAILED = "error"
_STORY = [PREFIX + name for name in ("attempts", "since", "wait", "exchange", "routing-key", "queue", "summary")]
_ATTEMPTS, _SINCE, _WAIT, _EXCHANGE, _KEY, _QUEUE, _SUMMARY = _STORY
MARK = PREFIX.encode()
"""Looked for in undecoded properties, so that a fresh message costs one search."""
SUMMARY_LIMIT = 1000
HANDLER_LIMIT = 255
MOST = 2**31 - 1
LONGEST_WAIT = milliseconds(LONGEST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """The story of a message so far."""

    attempts: int = 0
    """Attempts that counted and failed."""
    since: int = 0
    """When the first attempt failed, in milliseconds of the epoch; 0 before that."""
    wait: int = 0
    """Milliseconds still to wait after the hop under way; no clock of a worker is trusted with a delay."""
    exchange: str = ""
    routing_key: str = ""
    queue: str = ""
    summary: str = ""

    @classmethod
    def read(cls, headers: Headers) -> "Stamp":
        """What a message carries; what nobody here can have written counts as nothing."""
        return _read(headers)

    def after(self, failure: str, *, attempt: int, now: int) -> "Stamp":
        """The story with one more failed attempt, described in one line."""
        line = f"#{attempt} {failure}".replace("\n", " ")
        summary = _latest(f"{self.summary}\n{line}" if self.summary else line)
        # Written out: dataclasses.replace() takes three times as long, at every failure.
        return Stamp(
            # A broker's forged counts add up to more than a header holds.
            attempts=min(attempt, MOST),
            since=self.since or now,
            wait=self.wait,
            exchange=self.exchange,
            routing_key=self.routing_key,
            queue=self.queue,
            summary=summary,
        )

    def headers(self) -> dict[str, object]:
        """As headers; a part that says nothing is left out."""
        named = {
            _ATTEMPTS: self.attempts,
            _SINCE: self.since,
            _WAIT: self.wait,
            _EXCHANGE: _faithful(self.exchange),
            _KEY: _faithful(self.routing_key),
            _QUEUE: _faithful(self.queue),
            _SUMMARY: self.summary,
        }
        return {name: value for name, value in named.items() if value}


@lru_cache(maxsize=32)
def _read(headers: Headers) -> Stamp:
    """Asked for several times during one attempt, by those who each need a part of it."""
    return Stamp(
        attempts=_number(headers, _ATTEMPTS),
        since=_number(headers, _SINCE, most=2**62),
        wait=_number(headers, _WAIT, most=LONGEST_WAIT),
        exchange=_name(headers, _EXCHANGE),
        routing_key=_name(headers, _KEY),
        queue=_name(headers, _QUEUE),
        summary=short(_text(headers, _SUMMARY), SUMMARY_LIMIT),
    )


def story(delivery: Delivery) -> Stamp:
    """What a message tells of itself here; what it went through in another queue counts for nothing in this one."""
    if MARK not in delivery.raw:
        return UNTOLD
    stamp = Stamp.read(delivery.headers)
    return stamp if stamp.queue in {"", delivery.queue} else UNTOLD


UNTOLD = Stamp()
"""The story of a message that comes for the first time."""


_PARKED = ("reason", "detail", "error", "message", "handler", "fingerprint", "culprit", "parked-at", "nonce")
BROKERS = PREFIX + "broker"
"""The broker's own headers, x-death above all, as bytes that it does not look into; only a record shows them."""
OURS = frozenset({*_STORY, *(PREFIX + name for name in _PARKED), BROKERS})


def _number(headers: Headers, name: str, *, most: int = MOST) -> int:
    value = headers.get(name)
    return value if type(value) is int and 0 < value <= most else 0


def _name(headers: Headers, name: str) -> str:
    """Of an exchange or a queue, or a key: what AMQP cannot carry as one was not written here."""
    text = _text(headers, name)
    return text if len(text.encode("utf-8", "surrogateescape")) <= SHORT_STRING_LIMIT else ""


def _text(headers: Headers, name: str) -> str:
    value = headers.get(name)
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    return value if isinstance(value, str) else ""


def _faithful(name: str) -> str | bytes:
    """The broker takes names that are not UTF-8; they are kept as the bytes they are."""
    if name.isascii():
        return name
    encoded = name.encode("utf-8", "surrogateescape")
    try:
        return encoded.decode()
    except UnicodeDecodeError:
        return encoded


def _latest(summary: str) -> str:
    """The last lines that fit; a single one that does not is cut."""
    encoded = summary.encode()
    if len(encoded) <= SUMMARY_LIMIT:
        return summary
    _, newline, whole_lines = encoded[-SUMMARY_LIMIT:].partition(b"\n")
    return (whole_lines if newline else encoded[:SUMMARY_LIMIT]).decode("utf-8", "ignore")


def copy_of(
    delivery: Delivery, stamp: Stamp, *, exchange: str, routing_key: str, expiration: int | None = None
) -> Message:
    """A copy that keeps every foreign header byte for byte, and none of the broker's own."""
    known = delivery.properties
    headers = known.headers.replacing(drop=NOT_COPIED, put=stamp.headers())
    properties = lasting(known, headers, expiration=None if expiration is None else str(expiration))
    return Message(body=delivery.body, exchange=exchange, routing_key=routing_key, properties=properties)


STAMPED = frozenset(Stamp(attempts=1, since=1, wait=1, exchange="-", routing_key="-", queue="-", summary="-").headers())
NOT_COPIED = BROKERS_OWN | STAMPED
