"""Verdicts, and the policies that return them: ``judge`` is a pure function from a failure to a verdict."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum

from django_rmq_retry.arguments import FLAG, FUNCTION, check
from django_rmq_retry.arguments import Kind as Argument
from django_rmq_retry.errors import ConfigurationError
from django_rmq_retry.messages.deaths import Reason
from django_rmq_retry.messages.message import Delivery
from django_rmq_retry.messages.seconds import LONGEST, check_seconds
from django_rmq_retry.messages.tracebacks import ErrorNote, short
from django_rmq_retry.policies.backoff import BACKOFF, Backoff, Exponential, Fixed
from django_rmq_retry.policies.carriers import Carrier, InPlace, Ladder
from django_rmq_retry.policies.carriers.carrier import CARRIER

DETAIL_LIMIT = 600
"""In bytes. With this limit all headers that parking adds to a message stay under 4 kB."""


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


class Overrule(Exception):
    """The base of the exceptions by which a handler decides itself what happens to its message."""

    reason: str = ""
    """The default for a subclass that does not call this ``__init__``."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class Retry(Overrule):
    """Try again, after the given number of seconds or by the policy's back-off: ``raise Retry(after=30)``."""

    after: float | None = None

    def __init__(self, reason: str = "", *, after: float | timedelta | None = None) -> None:
        seconds: object = after.total_seconds() if isinstance(after, timedelta) else after
        if seconds is not None and not (isinstance(seconds, (int, float)) and 0 <= seconds <= LONGEST):
            raise ValueError(f"Retry(after=…) takes seconds from 0 to ten years, or a timedelta, not {after!r}.")
        super().__init__(reason)
        self.after = seconds


class Park(Overrule):
    """Set the message aside for an operator: ``raise Park("The account is frozen")``."""


class Discard(Overrule):
    """Drop the message on purpose; the log keeps the reason: ``raise Discard("Superseded")``."""


DEFAULT_BACKOFF = Exponential(10, factor=3, jitter=0.2)
DEFAULT_IN_HAND = Exponential(10, factor=3, cap=750, jitter=0.2)
"""The default back-off for carriers that keep a message unacked while it waits.

With its jitter it stays within the 15 minutes for which they may keep it.
"""
Errors = type[BaseException] | Iterable[type[BaseException]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One failed attempt, as input for a policy's rule."""

    delivery: Delivery
    error: BaseException
    chance: float = 0.0
    """A number in [0, 1) for jitter."""
    age: float = 0.0
    """Seconds since the first attempt of this message failed."""

    @property
    def attempt(self) -> int:
        return self.delivery.attempt


class Policy(ABC):
    """The rule that decides what happens to a message whose handler failed."""

    __slots__ = ()

    via: Carrier
    attempts: int | None
    ordered = False
    """True if a failed message blocks all messages behind it in its queue."""
    answers = False
    """True if a caller waits, so that every attempt ends with an answer to it."""

    @property
    def waits(self) -> tuple[tuple[Backoff, int | None], ...]:
        """Each back-off with the number of attempts to which it applies."""
        return ()

    @property
    def backoffs(self) -> tuple[Backoff, ...]:
        return tuple(backoff for backoff, _ in self.waits)

    def judge(self, failure: Failure) -> Verdict:
        """Return the decision of the handler if it raised Park or Discard, else that of the rule."""
        error = failure.error
        if isinstance(error, Park):
            return park(Reason.REQUESTED, short(error.reason) or "The handler parked it.", _cause(error))
        if isinstance(error, Discard):
            return discard(short(error.reason) or "The handler discarded it.", _cause(error))
        return self.rule(failure)

    @abstractmethod
    def rule(self, failure: Failure) -> Verdict: ...


@dataclass(frozen=True, slots=True)
class Schedule:
    """The attempts and back-off of one kind of error.

    For example ``schedules={RateLimited: Schedule(attempts=20, backoff=Fixed(5))}``.
    """

    attempts: int | None
    backoff: Backoff

    def __post_init__(self) -> None:
        check_attempts(self.attempts)
        check(self, backoff=BACKOFF)


SCHEDULES = Argument(
    "a dict such as {RateLimited: Schedule(attempts=20, backoff=Fixed(5))}",
    lambda value: isinstance(value, Mapping) and all(isinstance(each, Schedule) for each in value.values()),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryThenPark(Policy):
    """Retry with back-off, and park the message after the last attempt fails."""

    attempts: int | None = 5
    backoff: Backoff | None = None
    park_on: Errors = ()
    """Non-retryable errors: the message is parked at once."""
    retry_on: Errors = (Exception,)
    """Retryable errors. Any other Exception parks the message at once."""
    retry_if: Callable[[BaseException], bool] | None = None
    schedules: Mapping[type[BaseException], Schedule] = field(default_factory=dict)
    budget: float | None = None
    """The time in seconds, from the first failure, within which the last retry must start."""
    via: Carrier = field(default_factory=Ladder)

    def __post_init__(self) -> None:
        check_attempts(self.attempts)
        object.__setattr__(self, "park_on", error_types("park_on", self.park_on))
        object.__setattr__(self, "retry_on", error_types("retry_on", self.retry_on))
        check(self, backoff=BACKOFF.optional, via=CARRIER, retry_if=FUNCTION.optional, schedules=SCHEDULES)
        error_types("schedules", self.schedules)
        if self.budget is not None:
            check_seconds("RetryThenPark(budget=…)", self.budget)
        pace = self.via.pace
        if pace is not None and (self.backoff or self.schedules):
            raise ConfigurationError(
                f"{type(self.via).__name__} waits {pace:g} s each time and knows no other wait. "
                "Leave backoff and schedules out, or use via=Ladder()."
            )
        if not self.via.stamps and (self.schedules or self.budget is not None):
            raise ConfigurationError(
                f"{type(self.via).__name__} writes nothing into a message, so nobody would know how long ago or how "
                "often it failed. Leave budget and schedules out, or use via=Ladder()."
            )
        # DEFAULT_BACKOFF was set by an earlier __post_init__ if the policy was copied with another carrier.
        if self.backoff is None or self.backoff is DEFAULT_BACKOFF:
            default = DEFAULT_IN_HAND if self.via.in_hand else DEFAULT_BACKOFF
            object.__setattr__(self, "backoff", Fixed(pace) if pace else default)

    @property
    def waits(self) -> tuple[tuple[Backoff, int | None], ...]:
        scheduled = ((schedule.backoff, schedule.attempts) for schedule in self.schedules.values())
        return ((self._backoff, self.attempts), *scheduled)

    @property
    def _backoff(self) -> Backoff:
        return self.backoff or DEFAULT_BACKOFF

    def rule(self, failure: Failure) -> Verdict:
        cause = _cause(failure.error) or ErrorNote.of(failure.error)
        if not isinstance(failure.error, Retry) and not self._mendable(failure.error):
            return park(Reason.PERMANENT, f"Not to be retried: {cause}", cause)
        attempts, backoff = self._schedule(failure.error)
        if attempts is not None and failure.attempt >= attempts:
            return park(Reason.EXHAUSTED, f"Gave up after {_times(failure.attempt)}: {cause}", cause)
        delay = _own_delay(failure.error, self.via)
        if delay is None:
            delay = backoff.delay(failure.attempt, failure.chance)
        if self.budget is not None and failure.age + delay > self.budget:
            spent = f"Gave up after {_times(failure.attempt)}, {self.budget:g} s would be over"
            return park(Reason.EXHAUSTED, f"{spent}: {cause}", cause)
        return retry(delay, cause)

    def _mendable(self, error: BaseException) -> bool:
        if _matches(error, self.park_on):
            return False
        if self.retry_if is not None and not self.retry_if(error):
            return False
        # SystemExit and other BaseExceptions are retried: they say nothing about the message.
        return _matches(error, self.retry_on) or not isinstance(error, Exception)

    def _schedule(self, error: BaseException) -> tuple[int | None, Backoff]:
        for kind, schedule in self.schedules.items():
            if isinstance(error, kind) or isinstance(error.__cause__, kind):
                return schedule.attempts, schedule.backoff
        return self.attempts, self._backoff


@dataclass(frozen=True, slots=True, kw_only=True)
class StopTheLine(Policy):
    """Keep the order of the queue: a failed message stays unacked and is attempted again before any later message."""

    backoff: Backoff = field(default_factory=lambda: Exponential(1, factor=2, cap=60))
    park_on: Errors = ()
    """Errors that park the message at once, so that the messages behind it continue."""
    attempts: int | None = None
    """The number of attempts after which the message is parked and the queue continues; None for no limit."""
    via: Carrier = field(default_factory=InPlace, init=False)

    ordered = True

    def __post_init__(self) -> None:
        check_attempts(self.attempts)
        check(self, backoff=BACKOFF)
        object.__setattr__(self, "park_on", error_types("park_on", self.park_on))

    def rule(self, failure: Failure) -> Verdict:
        cause = _cause(failure.error) or ErrorNote.of(failure.error)
        if not isinstance(failure.error, Retry) and _matches(failure.error, self.park_on):
            return park(Reason.PERMANENT, f"Not to be retried: {cause}", cause)
        if self.attempts is not None and failure.attempt >= self.attempts:
            return park(Reason.EXHAUSTED, f"Gave up after {_times(failure.attempt)}: {cause}", cause)
        delay = _own_delay(failure.error, self.via)
        if delay is None:
            delay = self.backoff.delay(failure.attempt, failure.chance)
        return halt(delay, cause)


@dataclass(frozen=True, slots=True, kw_only=True)
class OneShot(Policy):
    """One attempt and an answer to the waiting caller, without retries."""

    park: bool = False
    """True if a failed message is also parked, for analysis."""
    attempts: int | None = field(default=1, init=False)
    via: Carrier = field(default_factory=InPlace, init=False)

    answers = True

    def __post_init__(self) -> None:
        check(self, park=FLAG)

    def rule(self, failure: Failure) -> Verdict:
        cause = _cause(failure.error) or ErrorNote.of(failure.error)
        if self.park:
            return park(Reason.EXHAUSTED, f"Gave up after 1 attempt: {cause}", cause)
        return discard(f"One attempt, answered with the error: {cause}", cause)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unacked(OneShot):
    """The policy of a handler with ``ack="auto"``: the broker deletes a message when it delivers it, so no retry."""

    def rule(self, failure: Failure) -> Verdict:
        cause = _cause(failure.error) or ErrorNote.of(failure.error)
        return discard(f"It is lost, for its handler has ack='auto': {cause}", cause)


def check_attempts(attempts: object) -> None:
    if attempts is not None and (type(attempts) is not int or attempts < 1):
        raise ConfigurationError(f"attempts is a whole number from 1, or None for no end, not {attempts!r}.")


def error_types(name: str, errors: object) -> tuple[type[BaseException], ...]:
    if isinstance(errors, (str, BaseException)) or not isinstance(errors, (type, Iterable)):
        raise ConfigurationError(f"{name} takes exception classes, not {errors!r}.")
    found = (errors,) if isinstance(errors, type) else tuple(errors)
    for error in found:
        if not _is_error_type(error):
            raise ConfigurationError(f"{name} takes exception classes, not {error!r}.")
    return found


def _is_error_type(error: object) -> bool:
    return isinstance(error, type) and issubclass(error, BaseException)


def _matches(error: BaseException, kinds: Errors) -> bool:
    return isinstance(error, kinds if isinstance(kinds, type) else tuple(kinds))


def _own_delay(error: BaseException, via: Carrier) -> float | None:
    if not isinstance(error, Retry) or error.after is None or via.pace is not None:
        return None
    return min(error.after, LONGEST)


def _cause(error: BaseException) -> ErrorNote | None:
    """Return the ``__cause__`` of a Retry, Park or Discard, or a Retry's own reason; None for any other error."""
    if not isinstance(error, (Retry, Park, Discard)):
        return None
    if error.__cause__ is not None:
        return ErrorNote.of(error.__cause__)
    return ErrorNote(kind=ErrorNote.of(error).kind, text=short(error.reason)) if isinstance(error, Retry) else None


def _times(attempts: int) -> str:
    return "1 attempt" if attempts == 1 else f"{attempts} attempts"
