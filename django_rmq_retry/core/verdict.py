"""What becomes of a delivery: a value, carried out elsewhere."""

from dataclasses import dataclass
from enum import StrEnum

TEXT_LIMIT = 300


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorNote:
    """The short form of an exception: short enough for a header, whatever the exception does."""

    kind: str
    text: str

    @classmethod
    def of(cls, error: BaseException) -> "ErrorNote":
        try:
            text = str(error)
        except Exception as broken:
            text = f"(its text cannot be made: {type(broken).__name__})"
        # A lone surrogate or a NUL in the text must not keep a message from being parked.
        text = text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")
        if len(text) > TEXT_LIMIT:
            text = text[: TEXT_LIMIT - 1] + "…"
        return cls(kind=type(error).__name__, text=text)

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


ACK = Verdict(kind=Kind.ACK)


def retry(after: float, error: ErrorNote | None = None, *, detail: str = "") -> Verdict:
    return Verdict(kind=Kind.RETRY, after=after, error=error, detail=detail)


def park(reason: Reason, detail: str, error: ErrorNote | None = None) -> Verdict:
    return Verdict(kind=Kind.PARK, reason=reason, detail=detail, error=error)


def discard(detail: str, error: ErrorNote | None = None) -> Verdict:
    return Verdict(kind=Kind.DISCARD, detail=detail, error=error)


def halt(after: float, error: ErrorNote | None = None, *, detail: str = "") -> Verdict:
    return Verdict(kind=Kind.HALT, after=after, error=error, detail=detail)
