"""What becomes of a delivery: a value, carried out elsewhere."""

from dataclasses import dataclass
from enum import StrEnum

NAME_LIMIT = 100
TEXT_LIMIT = 400
DETAIL_LIMIT = 600
"""In bytes; together with the rest of a parked message's headers they stay under 4 kB."""


class Kind(StrEnum):
    ACK = "ack"
    RETRY = "retry"
    PARK = "park"
    DISCARD = "discard"
    HALT = "halt"


class Reason(StrEnum):
    """Why a message is parked; machine values that stay English."""

    EXHAUSTED = "retries exhausted"
    PERMANENT = "permanent error"
    REQUESTED = "parked by the handler"
    UNDECODABLE_BODY = "cannot decode body"
    UNDECODABLE_HEADERS = "cannot decode headers"
    UNHANDLED = "no handler"
    CRASHED = "stopped its worker"
    EXPIRED = "expired"
    DELIVERY_LIMIT = "delivery limit"
    OVERFLOWN = "queue overflow"
    REJECTED = "rejected"
    CONFLICT = "identity conflict"
    ALIKE = "may be a duplicate"
    UNNAMED = "cannot be named"


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorNote:
    """The short form of an exception: short enough for a header, whatever the exception does."""

    kind: str
    text: str

    @classmethod
    def of(cls, error: BaseException) -> "ErrorNote":
        return cls(kind=short(type(error).__name__, NAME_LIMIT), text=short(error))

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}" if self.text else self.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The decision about one delivery."""

    kind: Kind
    after: float = 0.0
    reason: Reason | None = None
    detail: str = ""
    error: ErrorNote | None = None
    counted: bool = True
    """Whether this attempt counts against the policy's limit."""
    fingerprint: str = ""
    """Of what is parked: the group of its cause."""
    culprit: str = ""
    """Of what is parked: the project's function nearest to the error."""


ACK = Verdict(kind=Kind.ACK)
DUPLICATE = Verdict(kind=Kind.ACK, detail="It was handled before, and is not run again.", counted=False)


def short(value: object, limit: int = TEXT_LIMIT) -> str:
    """A text that any header, log and database takes: at most so many bytes of UTF-8, no NUL, no lone surrogate."""
    try:
        text = str(value)
    except BaseException as broken:  # noqa: BLE001 - whatever its __str__ does, the message must be parked
        text = f"(its text cannot be made: {type(broken).__name__})"
    if len(text) <= limit and text.isascii() and "\0" not in text:
        return text
    encoded = text[: limit + 1].encode("utf-8", "backslashreplace").replace(b"\0", b"\\x00")
    if len(encoded) <= limit:
        return encoded.decode()
    return encoded[: limit - 3].decode("utf-8", "ignore") + "…"


def retry(after: float, error: ErrorNote | None = None, *, detail: str = "", counted: bool = True) -> Verdict:
    return Verdict(kind=Kind.RETRY, after=after, error=error, detail=short(detail, DETAIL_LIMIT), counted=counted)


def park(reason: Reason, detail: str, error: ErrorNote | None = None) -> Verdict:
    return Verdict(kind=Kind.PARK, reason=reason, detail=short(detail, DETAIL_LIMIT), error=error)


def discard(detail: str, error: ErrorNote | None = None) -> Verdict:
    return Verdict(kind=Kind.DISCARD, detail=short(detail, DETAIL_LIMIT), error=error)


def halt(after: float, error: ErrorNote | None = None, *, detail: str = "") -> Verdict:
    return Verdict(kind=Kind.HALT, after=after, error=error, detail=short(detail, DETAIL_LIMIT))
