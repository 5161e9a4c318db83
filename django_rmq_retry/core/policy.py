"""The rules for failures. ``judge`` is a pure function from a failure to a Verdict; chance and age are handed in."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from django_rmq_retry.core.backoff import LONGEST, Backoff, Exponential, Fixed, check_seconds
from django_rmq_retry.core.carriers import Carrier, InPlace, Ladder
from django_rmq_retry.core.errors import ConfigurationError
from django_rmq_retry.core.message import Delivery
from django_rmq_retry.core.overrule import Discard, Park, Retry
from django_rmq_retry.core.verdict import ErrorNote, Reason, Verdict, discard, halt, park, retry, short

DEFAULT_BACKOFF = Exponential(10, factor=3, jitter=0.2)
Errors = type[BaseException] | Iterable[type[BaseException]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One failed attempt, with what a rule may want to know of it."""

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
    """What becomes of a message whose handler failed."""

    __slots__ = ()

    via: Carrier
    attempts: int | None
    ordered = False
    """Whether a message that fails holds all behind it."""
    answers = False
    """Whether somebody waits: every attempt ends in an answer to the caller."""

    @property
    def backoffs(self) -> tuple[Backoff, ...]:
        return ()

    def judge(self, failure: Failure) -> Verdict:
        """The handler's own decision where it made one, else the rule's."""
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
    """Other numbers for one kind of error: ``schedules={RateLimited: Schedule(attempts=20, backoff=Fixed(5))}``."""

    attempts: int | None
    backoff: Backoff

    def __post_init__(self) -> None:
        check_attempts(self.attempts)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryThenPark(Policy):
    """Retry with back-off, and park what never succeeds."""

    attempts: int | None = 5
    backoff: Backoff | None = None
    park_on: Errors = ()
    """Errors that no retry can mend."""
    retry_on: Errors = (Exception,)
    """All others are parked at once."""
    retry_if: Callable[[BaseException], bool] | None = None
    schedules: Mapping[type[BaseException], Schedule] = field(default_factory=dict)
    budget: float | None = None
    """Seconds after the first failure within which a next attempt must begin."""
    via: Carrier = field(default_factory=Ladder)

    def __post_init__(self) -> None:
        check_attempts(self.attempts)
        object.__setattr__(self, "park_on", error_types("park_on", self.park_on))
        object.__setattr__(self, "retry_on", error_types("retry_on", self.retry_on))
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
        if self.backoff is None:
            object.__setattr__(self, "backoff", Fixed(pace) if pace else DEFAULT_BACKOFF)

    @property
    def backoffs(self) -> tuple[Backoff, ...]:
        return (self._backoff, *(schedule.backoff for schedule in self.schedules.values()))

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
        # SystemExit and its like: the handler fell over, which says nothing about the message.
        return _matches(error, self.retry_on) or not isinstance(error, Exception)

    def _schedule(self, error: BaseException) -> tuple[int | None, Backoff]:
        for kind, schedule in self.schedules.items():
            if isinstance(error, kind) or isinstance(error.__cause__, kind):
                return schedule.attempts, schedule.backoff
        return self.attempts, self._backoff


@dataclass(frozen=True, slots=True, kw_only=True)
class StopTheLine(Policy):
    """Order matters: a message that fails stays in hand and is attempted again; nothing passes it."""

    backoff: Backoff = field(default_factory=lambda: Exponential(1, factor=2, cap=60))
    park_on: Errors = ()
    """Errors on which the line gives the message up and goes on without it."""
    attempts: int | None = None
    """After so many attempts the message is parked and the line goes on; by default it never is."""
    via: Carrier = field(default_factory=InPlace, init=False)

    ordered = True

    def __post_init__(self) -> None:
        check_attempts(self.attempts)
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
    """The caller waits: one attempt and an answer, never a retry."""

    park: bool = False
    """Whether what failed is also parked, for analysis."""
    attempts: int | None = field(default=1, init=False)
    via: Carrier = field(default_factory=InPlace, init=False)

    answers = True

    def rule(self, failure: Failure) -> Verdict:
        cause = _cause(failure.error) or ErrorNote.of(failure.error)
        if self.park:
            return park(Reason.EXHAUSTED, f"Gave up after 1 attempt: {cause}", cause)
        return discard(f"One attempt, answered with the error: {cause}", cause)


def check_attempts(attempts: object) -> None:
    if attempts is not None and (type(attempts) is not int or attempts < 1):
        raise ConfigurationError(f"attempts is a whole number from 1, or None for no end, not {attempts!r}.")


def error_types(name: str, errors: Errors) -> tuple[type[BaseException], ...]:
    if isinstance(errors, (str, BaseException)):
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
    """Of an overrule what it was raised from, or its own words."""
    if not isinstance(error, (Retry, Park, Discard)):
        return None
    if error.__cause__ is not None:
        return ErrorNote.of(error.__cause__)
    return ErrorNote(kind=ErrorNote.of(error).kind, text=short(error.reason)) if isinstance(error, Retry) else None


def _times(attempts: int) -> str:
    return "1 attempt" if attempts == 1 else f"{attempts} attempts"
