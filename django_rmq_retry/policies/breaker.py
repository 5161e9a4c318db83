"""Circuit breakers as pure values: the rules for opening, probing and closing."""

from collections import deque
from dataclasses import dataclass, replace
from enum import Enum

from django_rmq_retry.arguments import NUMBER, check, check_seconds
from django_rmq_retry.errors import ConfigurationError
from django_rmq_retry.messages.reasons import Reason
from django_rmq_retry.policies.backoff import Exponential
from django_rmq_retry.policies.verdict import Discard, Errors, Kind, Park, Verdict, error_types

MOST_ATTEMPTS_LOOKED_AT = 10_000
JITTER = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaker:
    """``Breaker(on=BankDown)`` opens at the first error of that kind; ``Breaker(share=0.5)`` when half of all fail."""

    on: Errors = ()
    """Errors that open the breaker at once, because they show that a service the handler needs is down."""
    share: float | None = None
    """The share of failed attempts, among the last ones of a process, at which it opens. Any error counts."""
    of: int = 20
    """The number of last attempts to which `share` applies."""
    probe_after: float = 30.0
    """Seconds until the first probe. Doubled after each failed probe."""
    longest: float = 600.0
    """The longest interval between probes in seconds, to which a jitter of up to a fifth is added."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "on", error_types("Breaker(on=…)", self.on))
        check(self, share=NUMBER.optional)
        if not self.on and self.share is None:
            raise ConfigurationError(
                "A Breaker without errors and share would never open. Name the errors that show an outage, "
                "as in Breaker(on=BankDown), or a share of failures, as in Breaker(share=0.5)."
            )
        if self.share is not None and not 0 < self.share <= 1:
            raise ConfigurationError(f"Breaker(share=…) takes a share above 0 and at most 1, not {self.share!r}.")
        if type(self.of) is not int or not 1 <= self.of <= MOST_ATTEMPTS_LOOKED_AT:
            raise ConfigurationError(
                f"Breaker(of=…) takes a whole number from 1 to {MOST_ATTEMPTS_LOOKED_AT}, not {self.of!r}."
            )
        check_seconds("Breaker(probe_after=…)", self.probe_after)
        check_seconds("Breaker(longest=…)", self.longest)
        if self.longest < self.probe_after:
            raise ConfigurationError(
                f"Breaker(longest={self.longest:g}) is below probe_after={self.probe_after:g}. Raise it."
            )

    def names(self, error: BaseException | None) -> bool:
        """True if this error, or its ``__cause__``, is one of the errors in `on`."""
        kinds = tuple(self.on) if not isinstance(self.on, type) else (self.on,)
        return error is not None and (isinstance(error, kinds) or isinstance(error.__cause__, kinds))

    def end(self, verdict: Verdict, error: BaseException | None) -> "End":
        """Classify an attempt: whether the service that the handler needs is up, may be down, or was not tested."""
        if error is None:
            # If the handler did not run (for a duplicate, or because its worker stops), the service was not tested.
            return End.GOOD if verdict.kind is Kind.ACK and verdict.counted else End.NEITHER
        if isinstance(error, (Park, Discard)):
            return End.NEITHER
        if self.names(error):
            return End.BAD
        # Parked or discarded before its attempts were used up: the message itself is at fault, not the service.
        own = verdict.kind is Kind.DISCARD or (verdict.kind is Kind.PARK and verdict.reason is not Reason.EXHAUSTED)
        return End.NEITHER if own or self.share is None else End.BAD

    def wait(self, failed: int, chance: float) -> float:
        """Return the seconds until the next probe, after `failed` failed probes in a row."""
        growing = Exponential(self.probe_after, factor=2, cap=self.longest, jitter=JITTER)
        return growing.delay(failed + 1, chance)


class End(Enum):
    """The result of an attempt, from the point of view of a breaker."""

    GOOD = "the service is available"
    BAD = "the service may be down"
    NEITHER = "the service was not tested"


class FailureTally:
    """The last results of a handler here; failures count against ``of``, so it can open before any success."""

    def __init__(self, breaker: Breaker) -> None:
        self._breaker = breaker
        self._failed: deque[bool] = deque(maxlen=breaker.of)

    def add(self, end: End) -> None:
        if end is not End.NEITHER:
            self._failed.append(end is End.BAD)

    def clear(self) -> None:
        self._failed.clear()

    @property
    def failures(self) -> int:
        return sum(self._failed)

    @property
    def full(self) -> bool:
        """True if enough attempts have failed to reach the share, even if all attempts missing to `of` succeeded."""
        share = self._breaker.share
        return share is not None and self.failures >= max(share * self._breaker.of, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Circuit:
    """The state of the breaker of one queue, shared by all processes. Times are seconds of the epoch."""

    opened: bool = False
    handler: str = ""
    """The name of the handler whose breaker opened."""
    kind: str = ""
    """The class of the error that opened it."""
    cause: str = ""
    """The error for display: ``BankDown: timeout``, and how often it occurred."""
    since: float = 0.0
    failed: int = 0
    """The number of consecutive failed probes."""
    probe_at: float = 0.0
    prober: str = ""
    """The process that runs a probe now."""
    probe_until: float = 0.0
    """The end of the prober's lease. If it is not renewed by then, another process may probe."""

    def trip(self, *, handler: str, kind: str, cause: str, now: float, wait: float) -> "Circuit":
        """Return the circuit opened. A circuit that is open already stays unchanged."""
        if self.opened:
            return self
        return Circuit(opened=True, handler=handler, kind=kind, cause=cause, since=now, probe_at=now + wait)

    def due(self, now: float) -> bool:
        """True if a process may start a probe now."""
        return self.opened and now >= self.probe_at and (not self.prober or now >= self.probe_until)

    def with_plausible_times(self, now: float, most: float) -> "Circuit":
        """Return the circuit due now if its times are over `most` seconds ahead, from a wrong clock; else unchanged."""
        if max(self.probe_at, self.probe_until) <= now + most:
            return self
        return replace(self, probe_at=now, prober="", probe_until=0.0)

    def claim(self, who: str, *, now: float, lease: float) -> "Circuit":
        """Return the circuit with this process as prober until its lease ends; unchanged if no probe is due."""
        if not self.due(now):
            return self
        return replace(self, prober=who, probe_until=now + lease)

    def fail(self, *, cause: str, now: float, wait: float) -> "Circuit":
        """Return the circuit after a failed probe: still open, with a later next probe."""
        if not self.opened:
            return self
        return replace(self, cause=cause, failed=self.failed + 1, probe_at=now + wait, prober="", probe_until=0.0)

    def close(self) -> "Circuit":
        return CLOSED


CLOSED = Circuit()
