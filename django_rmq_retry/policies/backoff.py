"""Back-offs compute the wait before the next attempt. They are pure: the caller passes the random number for jitter."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from django_rmq_retry.arguments import LONGEST_WAIT_SECONDS, NUMBER, NUMBERS, check, check_seconds, one_of
from django_rmq_retry.errors import ConfigurationError

MOST_WAITS_LOOKED_AT = 64
ENDLESS = 2**31
"""The attempt number that stands for "unlimited": higher than any real attempt reaches."""


@dataclass(frozen=True, slots=True)
class Backoff(ABC):
    """The rule for waits: ``delay(n, chance)`` follows attempt n, counted from 1, with a random chance in [0, 1)."""

    @property
    @abstractmethod
    def spread(self) -> float:
        """The jitter: the largest fraction by which chance lengthens a wait. It never shortens one."""

    @abstractmethod
    def nominal(self, attempt: int) -> float:
        """Return the wait after this attempt, without jitter, in seconds."""

    def delay(self, attempt: int, chance: float) -> float:
        return min(self.nominal(attempt) * (1 + self.spread * chance), LONGEST_WAIT_SECONDS)

    def steps(self, attempts: int | None) -> tuple[float, ...]:
        """Return the distinct waits between this many attempts, rising; only MOST_WAITS_LOOKED_AT are considered."""
        waits: list[float] = []
        last = MOST_WAITS_LOOKED_AT if attempts is None else min(attempts - 1, MOST_WAITS_LOOKED_AT)
        for attempt in range(1, last + 1):
            nominal = self.nominal(attempt)
            if nominal not in waits:
                waits.append(nominal)
        return tuple(sorted(waits))

    def longest(self, attempts: int | None) -> float:
        """Return the longest wait between this many attempts, including the largest jitter; 0 for a single attempt."""
        return 0.0 if attempts == 1 else min(self._peak(attempts) * (1 + self.spread), LONGEST_WAIT_SECONDS)

    def _peak(self, attempts: int | None) -> float:
        # The last wait is the longest, because waits never shrink.
        return self.nominal(ENDLESS if attempts is None else attempts - 1)


@dataclass(frozen=True, slots=True)
class Fixed(Backoff):
    """The same wait after each attempt: ``Fixed(30)``; ``Fixed(0)`` is for carriers that keep a message unacked."""

    seconds: float
    jitter: float = 0.0

    def __post_init__(self) -> None:
        if self.seconds != 0 or isinstance(self.seconds, bool):
            check_seconds("Fixed", self.seconds)
        _check_jitter("Fixed", self.jitter)

    @property
    def spread(self) -> float:
        return self.jitter

    def nominal(self, attempt: int) -> float:
        return float(self.seconds)


@dataclass(frozen=True, slots=True)
class Steps(Backoff):
    """A list of waits, the last of which repeats: ``Steps([10, 60, 600])``."""

    seconds: Sequence[float]
    jitter: float = 0.0

    def __post_init__(self) -> None:
        check(self, seconds=NUMBERS)
        object.__setattr__(self, "seconds", tuple(self.seconds))
        if not self.seconds:
            raise ConfigurationError("Steps needs at least one number of seconds, as in Steps([10, 60, 600]).")
        for value in self.seconds:
            check_seconds("Steps", value)
        _check_jitter("Steps", self.jitter)

    @property
    def spread(self) -> float:
        return self.jitter

    def nominal(self, attempt: int) -> float:
        return float(self.seconds[min(attempt, len(self.seconds)) - 1])

    def _peak(self, attempts: int | None) -> float:
        return float(max(self.seconds[: None if attempts is None else attempts - 1]))


@dataclass(frozen=True, slots=True)
class Exponential(Backoff):
    """Waits that grow by a factor, up to the cap: ``Exponential(10, factor=3, cap=3600, jitter=0.2)``."""

    first: float
    factor: float = 2.0
    cap: float | None = None
    jitter: float = 0.0

    def __post_init__(self) -> None:
        check_seconds("Exponential", self.first)
        check(self, factor=NUMBER, cap=NUMBER.optional)
        _check_jitter("Exponential", self.jitter)
        if not self.factor >= 1:
            raise ConfigurationError(f"Exponential's factor must be at least 1, not {self.factor!r}.")
        if self.cap is not None and not self.cap >= self.first:
            raise ConfigurationError(f"Exponential's cap {self.cap!r} is below its first wait {self.first!r}.")

    @property
    def spread(self) -> float:
        return self.jitter

    def nominal(self, attempt: int) -> float:
        top = LONGEST_WAIT_SECONDS if self.cap is None else float(self.cap)
        try:
            return min(float(self.first) * float(self.factor) ** (attempt - 1), top)
        except OverflowError:
            return top


def _check_jitter(what: str, value: object) -> None:
    if not NUMBER.fits(value) or not 0 <= value <= 1:  # type: ignore[operator]  # it is a number
        raise ConfigurationError(f"{what}'s jitter is a share of the wait from 0 to 1, not {value!r}.")


def check_waits(backoff: Backoff) -> None:
    """Refuse a back-off without a wait where every wait needs a queue, or where a line would never rest."""
    if not backoff.nominal(1):
        raise ConfigurationError(
            f"The first wait of {type(backoff).__name__}(…) is 0 s. Use it with via=Republish() or "
            "NackRequeue(), or give it a wait."
        )


BACKOFF = one_of(Backoff, "a back-off, such as Fixed(10), Steps([10, 60, 600]) or Exponential(10)")
