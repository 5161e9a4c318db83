"""Policies: ``judge`` is a pure function from a failure to a verdict."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from django_rmq_retry.arguments import FLAG, FUNCTION, LONGEST_WAIT_SECONDS, Argument, check, check_seconds, plural
from django_rmq_retry.errors import ConfigurationError
from django_rmq_retry.messages.message import Delivery
from django_rmq_retry.messages.reasons import UNEXPLAINED, Reason
from django_rmq_retry.messages.texts import ErrorNote, short
from django_rmq_retry.policies.backoff import BACKOFF, Backoff, Exponential, Fixed, check_waits
from django_rmq_retry.policies.carriers import CARRIER, Carrier, InPlace, Ladder
from django_rmq_retry.policies.verdict import (
    Discard,
    Errors,
    Park,
    Retry,
    Verdict,
    discard,
    error_types,
    halt,
    lost,
    park,
    retry,
)

DEFAULT_BACKOFF = Exponential(10, factor=3, jitter=0.2)
DEFAULT_UNACKED = Exponential(10, factor=3, cap=750, jitter=0.2)
"""The default back-off for carriers that keep a message unacked: with its jitter within their 15 minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One failed attempt, as input for a policy's rule."""

    delivery: Delivery
    error: BaseException
    chance: float = 0.0
    """A number in [0, 1) for jitter."""
    age: float = 0.0
    """Seconds since the first attempt of this message failed."""
    now: float = 0.0
    """The time of the failure, in seconds since 1970."""

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
    def written(self) -> "Policy":
        """Return the policy that the project has written, for messages and documents."""
        return self

    @property
    def waits(self) -> tuple[tuple[Backoff, int | None], ...]:
        """Each back-off with the number of attempts to which it applies."""
        return ()

    @property
    def backoffs(self) -> tuple[Backoff, ...]:
        return tuple(backoff for backoff, _ in self.waits)

    def limit_for(self, delivery: Delivery) -> int | None:
        """Return the number of attempts of this message, for logs and hooks; None for no limit."""
        return self.attempts

    def judge(self, failure: Failure) -> Verdict:
        """Return the decision of the handler if it raised Park or Discard, else that of the rule."""
        error = failure.error
        if isinstance(error, Park):
            return park(Reason.REQUESTED, short(error.reason) or UNEXPLAINED, _said(error))
        if isinstance(error, Discard):
            return discard(short(error.reason) or "The handler discarded it.", _cause(error))
        return self.rule(failure)

    @abstractmethod
    def rule(self, failure: Failure) -> Verdict: ...


@dataclass(frozen=True, slots=True)
class Schedule:
    """The attempts and back-off of one kind of error: ``schedules={RateLimited: Schedule(20, Fixed(5))}``."""

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
    backoff_in_use: Backoff = field(init=False, repr=False, compare=False)
    """The given back-off, or the default of the carrier."""

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
                f"{type(self.via).__name__} always waits {pace:g} s. Omit backoff and schedules, or use via=Ladder()."
            )
        if not self.via.keeps_unacked:
            for backoff in filter(None, (self.backoff, *(one.backoff for one in self.schedules.values()))):
                check_waits(backoff)
        if not self.via.stamps and (self.schedules or self.budget is not None):
            raise ConfigurationError(
                f"{type(self.via).__name__} writes no retry history into a message, so the age and number of its "
                "failures are unknown. Omit budget and schedules, or use via=Ladder()."
            )
        default = DEFAULT_UNACKED if self.via.keeps_unacked else DEFAULT_BACKOFF
        object.__setattr__(self, "backoff_in_use", self.backoff or (Fixed(pace) if pace else default))

    @property
    def waits(self) -> tuple[tuple[Backoff, int | None], ...]:
        scheduled = ((schedule.backoff, schedule.attempts) for schedule in self.schedules.values())
        return ((self.backoff_in_use, self.attempts), *scheduled)

    def rule(self, failure: Failure) -> Verdict:
        cause = _note_of(failure.error)
        if not isinstance(failure.error, Retry) and not self._retryable(failure.error):
            return park(Reason.PERMANENT, f"Non-retryable: {cause}", cause)
        attempts, backoff = self._schedule(failure.error)
        made = plural(failure.attempt, "attempt")
        if attempts is not None and failure.attempt >= attempts:
            return park(Reason.EXHAUSTED, f"Gave up after {made}: {cause}", cause)
        delay = _delay(failure, backoff, self.via)
        if self.budget is not None and failure.age + delay > self.budget:
            spent = f"the next one would exceed the budget of {self.budget:g} s"
            return park(Reason.EXHAUSTED, f"Gave up after {made}: {spent}: {cause}", cause)
        return retry(delay, cause)

    def _retryable(self, error: BaseException) -> bool:
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
        return self.attempts, self.backoff_in_use


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
        check_waits(self.backoff)
        object.__setattr__(self, "park_on", error_types("park_on", self.park_on))

    def rule(self, failure: Failure) -> Verdict:
        cause = _note_of(failure.error)
        if not isinstance(failure.error, Retry) and _matches(failure.error, self.park_on):
            return park(Reason.PERMANENT, f"Non-retryable: {cause}", cause)
        if self.attempts is not None and failure.attempt >= self.attempts:
            return park(Reason.EXHAUSTED, f"Gave up after {plural(failure.attempt, 'attempt')}: {cause}", cause)
        return halt(_delay(failure, self.backoff, self.via), cause)


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
        cause = _note_of(failure.error)
        if self.park:
            return park(Reason.EXHAUSTED, f"Gave up after 1 attempt: {cause}", cause)
        return discard(f"One attempt, answered with the error: {cause}", cause)


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoAck(OneShot):
    """The policy of a handler with ``ack="auto"``: the broker deletes a message when it delivers it, so no retry."""

    def rule(self, failure: Failure) -> Verdict:
        cause = _note_of(failure.error)
        return lost(cause, cause)


def check_attempts(attempts: object) -> None:
    if attempts is not None and (type(attempts) is not int or attempts < 1):
        raise ConfigurationError(f"attempts is a whole number from 1, or None for no limit, not {attempts!r}.")


def _matches(error: BaseException, kinds: Errors) -> bool:
    return isinstance(error, kinds if isinstance(kinds, type) else tuple(kinds))


def _delay(failure: Failure, backoff: Backoff, via: Carrier) -> float:
    """Return the wait that a Retry asks for, unless the carrier sets its own pace; else that of the back-off."""
    error = failure.error
    if isinstance(error, Retry) and via.pace is None and (wait := error.wait(failure.now)) is not None:
        return min(wait, LONGEST_WAIT_SECONDS)
    return backoff.delay(failure.attempt, failure.chance)


def _note_of(error: BaseException) -> ErrorNote:
    return _cause(error) or ErrorNote.of(error)


def _said(error: Park) -> ErrorNote | None:
    """Return the cause with the handler's own words before its text: an operator reads these first."""
    cause, words = _cause(error), short(error.reason)
    if cause is None or not words or words in cause.text:
        return cause
    return ErrorNote(kind=cause.kind, text=short(f"{words}: {cause.text}" if cause.text else words))


def _cause(error: BaseException) -> ErrorNote | None:
    """Return the ``__cause__`` of a Retry, Park or Discard, or a Retry's own reason; None for any other error."""
    if not isinstance(error, (Retry, Park, Discard)):
        return None
    if error.__cause__ is not None:
        return ErrorNote.of(error.__cause__)
    return ErrorNote(kind=ErrorNote.of(error).kind, text=short(error.reason)) if isinstance(error, Retry) else None


def uncounted_retry(verdict: Verdict, policy: Policy) -> Verdict:
    """Return the verdict for an attempt that failed because a service is down: an uncounted retry."""
    detail = "it is attempted again when the breaker closes"
    if policy.ordered:
        return halt(0.0, verdict.error, detail=f"{verdict.error}; {detail}", counted=False)
    return retry(0.0, verdict.error, detail=f"{verdict.error}; {detail}", counted=False)


def unbreakable(policy: Policy) -> str | None:
    """Return the reason why a breaker cannot work with this policy, as a sentence; None if it can."""
    if policy.answers:
        return (
            f"A breaker makes messages wait, and with {type(policy.written).__name__} a caller waits for each answer. "
            "Omit breaker: the caller receives each error at once."
        )
    if not policy.via.quarantines:
        return (
            f"With via={type(policy.via).__name__} the queue itself counts returned messages, so waiting for a breaker "
            "would use up attempts. Use via=Ladder(), or omit breaker."
        )
    return None
