"""Version 1 reads a message in flight by pika's own decoder: frozen, never changed together with the product."""

from dataclasses import dataclass
from typing import Any

from pika.spec import BasicProperties

LIMITS = {"attempts": 2**31 - 1, "since": 2**62, "wait": 315_360_000_000}
NAMES = ("exchange", "routing-key", "queue", "summary")
PARKED = ("reason", "detail", "error", "message", "handler", "fingerprint", "culprit")
KNOWN = frozenset(
    f"rmq-retry-{name}"
    for name in (
        *LIMITS, *NAMES, *PARKED, "parked-at", "nonce", "broker", "ticket", "answer", "unrecorded", "expiration",
        "properties", "properties-zlib", "properties-leading",
    )
)  # fmt: skip
"""All headers of ours that it knows. One that it does not know stays on the message wherever it goes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """The message as version 1 reads it."""

    attempts: int
    """Failed so far; the next one is one more."""
    wait: int
    came_by: tuple[str, str]
    told_in: str
    """The work queue to which the stamp belongs; in another queue, attempts are counted from the start."""
    lines: int
    """Of the summary."""
    why: tuple[str, str, str]
    """Reason, error and its text; empty unless it is parked."""
    ticket: str
    message_id: str | None
    foreign: dict[str, Any]
    unknown: frozenset[str]


def read(properties: bytes) -> Read:
    """Whatever is of the wrong type or out of its bounds counts as nothing."""
    decoded = BasicProperties()
    decoded.decode(properties)
    headers = decoded.headers or {}
    ours = {name: value for name, value in headers.items() if name.startswith("rmq-retry-")}
    summary = _text(ours, "summary")
    return Read(
        attempts=_number(ours, "attempts"),
        wait=_number(ours, "wait"),
        came_by=(_text(ours, "exchange"), _text(ours, "routing-key")),
        told_in=_text(ours, "queue"),
        lines=len(summary.splitlines()),
        why=(_text(ours, "reason"), _text(ours, "error"), _text(ours, "message")),
        ticket=_text(ours, "ticket"),
        message_id=decoded.message_id,
        foreign={name: value for name, value in headers.items() if name not in ours},
        unknown=frozenset(ours) - KNOWN,
    )


def _number(ours: dict[str, Any], name: str) -> int:
    value = ours.get(f"rmq-retry-{name}")
    return value if type(value) is int and 0 < value <= LIMITS[name] else 0


def _text(ours: dict[str, Any], name: str) -> str:
    value = ours.get(f"rmq-retry-{name}")
    return value if isinstance(value, str) else ""
