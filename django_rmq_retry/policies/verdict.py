"""The verdict on one delivery: ack, retry, park, discard or halt."""

from dataclasses import dataclass
from enum import StrEnum

from django_rmq_retry.messages.deaths import Reason
from django_rmq_retry.messages.tracebacks import ErrorNote, short

DETAIL_LIMIT = 600
"""In bytes; together with the rest of a parked message's headers they stay under 4 kB."""


class Kind(StrEnum):
    ACK = "ack"
    RETRY = "retry"
    PARK = "park"
    DISCARD = "discard"
    HALT = "halt"


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


def retry(after: float, error: ErrorNote | None = None, *, detail: str = "", counted: bool = True) -> Verdict:
    return Verdict(kind=Kind.RETRY, after=after, error=error, detail=short(detail, DETAIL_LIMIT), counted=counted)


def park(reason: Reason, detail: str, error: ErrorNote | None = None) -> Verdict:
    return Verdict(kind=Kind.PARK, reason=reason, detail=short(detail, DETAIL_LIMIT), error=error)


def discard(detail: str, error: ErrorNote | None = None) -> Verdict:
    return Verdict(kind=Kind.DISCARD, detail=short(detail, DETAIL_LIMIT), error=error)


def halt(after: float, error: ErrorNote | None = None, *, detail: str = "") -> Verdict:
    return Verdict(kind=Kind.HALT, after=after, error=error, detail=short(detail, DETAIL_LIMIT))
