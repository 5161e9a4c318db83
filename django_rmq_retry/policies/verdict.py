"""Verdicts, and the exceptions by which a handler asks for one."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from django_rmq_retry.arguments import check_wait, seconds_of_wait
from django_rmq_retry.errors import ConfigurationError
from django_rmq_retry.messages.reasons import Reason
from django_rmq_retry.messages.texts import ErrorNote, short

DETAIL_BYTES = 600
"""In bytes. With this limit all headers that parking adds to a message stay under 4 kB."""

Errors = type[BaseException] | Iterable[type[BaseException]]


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
    """True if this attempt counts against the policy's limit."""
    fingerprint: str = ""
    """The group of the failure, for a parked message."""
    culprit: str = ""
    """The project's function nearest to the error, for a parked message."""

    @property
    def name(self) -> str:
        """The word that logs, metrics and rows of attempts have for it: its kind, or "duplicate"."""
        return "duplicate" if self is DUPLICATE else self.kind.value


ACK = Verdict(kind=Kind.ACK)

DUPLICATE = Verdict(kind=Kind.ACK, detail="It was handled before, and is not run again.", counted=False)


def retry(after: float, error: ErrorNote | None = None, *, detail: str = "", counted: bool = True) -> Verdict:
    return Verdict(kind=Kind.RETRY, after=after, error=error, detail=short(detail, DETAIL_BYTES), counted=counted)


def park(reason: Reason, detail: str, error: ErrorNote | None = None, *, counted: bool = True) -> Verdict:
    return Verdict(kind=Kind.PARK, reason=reason, detail=short(detail, DETAIL_BYTES), error=error, counted=counted)


def discard(detail: str, error: ErrorNote | None = None) -> Verdict:
    return Verdict(kind=Kind.DISCARD, detail=short(detail, DETAIL_BYTES), error=error)


def lost(cause: object, error: ErrorNote | None) -> Verdict:
    """Return the verdict on a failed message with ``ack="auto"``, which the broker deleted when it delivered it."""
    return discard(f"It is lost, because its handler has ack='auto': {cause}", error)


def halt(after: float, error: ErrorNote | None = None, *, detail: str = "", counted: bool = True) -> Verdict:
    return Verdict(kind=Kind.HALT, after=after, error=error, detail=short(detail, DETAIL_BYTES), counted=counted)


class Overrule(Exception):
    """The base of the exceptions by which a handler decides itself what happens to its message."""

    reason: str = ""
    """The default for a subclass that does not call this ``__init__``."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class Retry(Overrule):
    """Try again: ``Retry(after=30)`` in 30 seconds, ``Retry(at=moment)`` then, ``Retry()`` by the policy's back-off.

    ``after`` takes seconds or a timedelta, ``at`` a datetime with a time zone.
    """

    after: float | None = None
    at: datetime | None = None

    def __init__(self, reason: str = "", *, after: float | timedelta | None = None, at: datetime | None = None) -> None:
        check_wait("Retry(after=…)", after, "Retry(at=…)", at)
        super().__init__(reason)
        self.after = None if after is None else seconds_of_wait(after, None, 0.0)
        self.at = at

    def wait(self, now: float) -> float | None:
        """Return the seconds to wait from ``now``, in seconds since 1970; None to wait for the policy's back-off."""
        return None if self.after is None and self.at is None else seconds_of_wait(self.after, self.at, now)


class Park(Overrule):
    """Set the message aside for an operator: ``raise Park("The account is frozen")``."""


class Discard(Overrule):
    """Drop the message on purpose; the log keeps the reason: ``raise Discard("Superseded")``."""


def error_types(name: str, errors: object) -> tuple[type[BaseException], ...]:
    if isinstance(errors, (str, BaseException)) or not isinstance(errors, (type, Iterable)):
        raise ConfigurationError(f"{name} takes exception classes, not {errors!r}.")
    classes = (errors,) if isinstance(errors, type) else tuple(errors)
    for error in classes:
        if not (isinstance(error, type) and issubclass(error, BaseException)):
            raise ConfigurationError(f"{name} takes exception classes, not {error!r}.")
    return classes
