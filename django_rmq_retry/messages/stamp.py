"""The package's own headers, carried by a message from attempt to attempt and into the parked queue.

All are integers or short texts, so that a client that republishes the message does not alter them, and so that they
fit into a frame.
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
"""The header that marks a reply as an answer or an error, so that the data itself can have any form."""
FAILED = "error"
_STORY = [PREFIX + name for name in ("attempts", "since", "wait", "exchange", "routing-key", "queue", "summary")]
_ATTEMPTS, _SINCE, _WAIT, _EXCHANGE, _KEY, _QUEUE, _SUMMARY = _STORY
MARK = PREFIX.encode()
"""Bytes searched for in undecoded properties, so that a message without our headers costs a single search."""
SUMMARY_LIMIT = 1000
HANDLER_LIMIT = 255
MOST = 2**31 - 1
LONGEST_WAIT = milliseconds(LONGEST)


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

    @classmethod
    def read(cls, headers: Headers) -> "Stamp":
        """Read the stamp from headers. Values that this package cannot have written are ignored."""
        return _read(headers)

    def after(self, failure: str, *, attempt: int, now: int) -> "Stamp":
        """Return the stamp with one more failed attempt, described in one line."""
        line = f"#{attempt} {failure}".replace("\n", " ")
        summary = _latest(f"{self.summary}\n{line}" if self.summary else line)
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
        }
        return {name: value for name, value in named.items() if value}


@lru_cache(maxsize=32)
def _read(headers: Headers) -> Stamp:
    """Read the stamp, cached because several callers need it during one attempt."""
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
    """Return the stamp of a delivery. A stamp written in another queue is ignored, so attempts start again at 1."""
    if MARK not in delivery.raw:
        return UNTOLD
    stamp = Stamp.read(delivery.headers)
    return stamp if stamp.queue in {"", delivery.queue} else UNTOLD


UNTOLD = Stamp()
"""The stamp of a message without a failed attempt."""


_PARKED = ("reason", "detail", "error", "message", "handler", "fingerprint", "culprit", "parked-at", "nonce")
BROKERS = PREFIX + "broker"
"""The header with the original's broker headers (mainly x-death), as bytes, which the broker does not interpret.

Only records show them.
"""
OURS = frozenset({*_STORY, *(PREFIX + name for name in _PARKED), BROKERS})


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
    properties = lasting(known, headers, expiration=None if expiration is None else str(expiration))
    return Message(body=delivery.body, exchange=exchange, routing_key=routing_key, properties=properties)


STAMPED = frozenset(Stamp(attempts=1, since=1, wait=1, exchange="-", routing_key="-", queue="-", summary="-").headers())
NOT_COPIED = BROKERS_OWN | STAMPED
