"""Circuit breakers as pure values: when to open, when to probe, when to close."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from django_rmq_retry.arguments import NUMBER, check
from django_rmq_retry.errors import ConfigurationError
from django_rmq_retry.messages.deaths import Reason
from django_rmq_retry.messages.seconds import check_seconds
from django_rmq_retry.policies.backoff import Exponential
from django_rmq_retry.policies.policy import Discard, Kind, Park, Policy, Verdict, error_types, halt, retry

Errors = type[BaseException] | Iterable[type[BaseException]]
MOST_LOOKED_AT = 10_000
JITTER = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaker:
    """``Breaker(on=BankDown)`` opens at the first error of that kind; ``Breaker(share=0.5)`` when half of all fail."""

    on: Errors = ()
    """Errors that say by themselves that what the handler needs is down."""
    share: float | None = None
    """The share of failures among the last runs of a process at which it opens, whatever failed."""
    of: int = 20
    """How many runs are looked at."""
    probe_after: float = 30.0
    """Seconds until one message is tried; doubled after each that fails."""
    longest: float = 600.0
    """The most seconds between two such trials, but for a jitter of a fifth."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "on", error_types("Breaker(on=…)", self.on))
        check(self, share=NUMBER.optional)
        if not self.on and self.share is None:
            raise ConfigurationError(
                "A Breaker that is told nothing would never open. Name the errors that say that something is down, "
                "as in Breaker(on=BankDown), or a share of failures, as in Breaker(share=0.5)."
            )
        if self.share is not None and not 0 < self.share <= 1:
            raise ConfigurationError(f"Breaker(share=…) takes a share above 0 and at most 1, not {self.share!r}.")
        if type(self.of) is not int or not 1 <= self.of <= MOST_LOOKED_AT:
            raise ConfigurationError(f"Breaker(of=…) takes a whole number from 1 to {MOST_LOOKED_AT}, not {self.of!r}.")
        check_seconds("Breaker(probe_after=…)", self.probe_after)
        check_seconds("Breaker(longest=…)", self.longest)
        if self.longest < self.probe_after:
            raise ConfigurationError(
                f"Breaker(longest={self.longest:g}) is below probe_after={self.probe_after:g}. Raise it."
            )

    def names(self, error: BaseException | None) -> bool:
        """Whether this error, or what it was raised from, says by itself that something is down."""
        kinds = tuple(self.on) if not isinstance(self.on, type) else (self.on,)
        return error is not None and (isinstance(error, kinds) or isinstance(error.__cause__, kinds))

    def end(self, verdict: Verdict, error: BaseException | None) -> "End":
        """What a run says about that which the handler needs."""
        if error is None:
            # What was not run, as a duplicate or one that stops its worker, has asked nobody for anything.
            return End.GOOD if verdict.kind is Kind.ACK and verdict.counted else End.NEITHER
        if isinstance(error, (Park, Discard)):
            return End.NEITHER
        if self.names(error):
            return End.BAD
        # What no retry mends is the message's own fault.
        own = verdict.kind is Kind.DISCARD or (verdict.kind is Kind.PARK and verdict.reason is not Reason.EXHAUSTED)
        return End.NEITHER if own or self.share is None else End.BAD

    def wait(self, failed: int, chance: float) -> float:
        """Seconds until the next probe, after so many that failed."""
        growing = Exponential(self.probe_after, factor=2, cap=self.longest, jitter=JITTER)
        return growing.delay(failed + 1, chance)


class End(Enum):
    """How a run ended, as a breaker sees it."""

    GOOD = "what the handler needs is there"
    BAD = "it may be down"
    NEITHER = "the message itself was at fault, or the handler decided"


class Tally:
    """The last runs of one handler. It needs no success to compare with: what failed is counted, out of so many."""

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
        """Whether the share is reached, whatever the runs that are still missing would bring."""
        share = self._breaker.share
        return share is not None and self.failures >= max(share * self._breaker.of, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Circuit:
    """Where the breaker of one queue stands, over all processes; times are seconds of the epoch."""

    opened: bool = False
    handler: str = ""
    """Whose breaker it was."""
    kind: str = ""
    """The class of the error that opened it."""
    cause: str = ""
    """The same for people: ``BankDown: timeout``, and how often."""
    since: float = 0.0
    failed: int = 0
    """Probes that have failed, one after the other."""
    probe_at: float = 0.0
    prober: str = ""
    """The process that tries one message now."""
    probe_until: float = 0.0
    """By then it must have said that it still does, or somebody else tries."""

    def trip(self, *, handler: str, kind: str, cause: str, now: float, wait: float) -> "Circuit":
        """Opened; one that is open already stays as it is."""
        if self.opened:
            return self
        return Circuit(opened=True, handler=handler, kind=kind, cause=cause, since=now, probe_at=now + wait)

    def due(self, now: float) -> bool:
        """Whether somebody may try a message now."""
        return self.opened and now >= self.probe_at and (not self.prober or now >= self.probe_until)

    def mended(self, now: float, most: float) -> "Circuit":
        """Due now, where its times are further ahead than anybody sets them: a clock was wrong."""
        if max(self.probe_at, self.probe_until) <= now + most:
            return self
        return replace(self, probe_at=now, prober="", probe_until=0.0)

    def claim(self, who: str, *, now: float, lease: float) -> "Circuit":
        """Tried by this process, for as long as the lease is renewed; somebody else's trial is left alone."""
        if not self.due(now):
            return self
        return replace(self, prober=who, probe_until=now + lease)

    def fail(self, *, cause: str, now: float, wait: float) -> "Circuit":
        """A probe has failed: open for a longer time."""
        if not self.opened:
            return self
        return replace(self, cause=cause, failed=self.failed + 1, probe_at=now + wait, prober="", probe_until=0.0)

    def close(self) -> "Circuit":
        return CLOSED


CLOSED = Circuit()


def spared(verdict: Verdict, policy: Policy) -> Verdict:
    """The verdict of a run that failed because something was down: it comes again, and counts for nothing."""
    said = "it is tried again when the breaker closes"
    if policy.ordered:
        held = halt(0.0, verdict.error, detail=f"{verdict.error}; {said}")
        return replace(held, counted=False)
    return retry(0.0, verdict.error, detail=f"{verdict.error}; {said}", counted=False)


def unbreakable(policy: Policy) -> str | None:
    """Why a breaker makes no sense with this policy, as a sentence; None where it does."""
    if policy.answers:
        return (
            f"A breaker lets messages wait, and with {type(policy).__name__} somebody waits for each answer. Leave "
            "breaker out: its callers are told of every error at once."
        )
    if not policy.via.laned:
        return (
            f"With via={type(policy.via).__name__} the queue itself counts what comes back, so a breaker could not "
            "spare a message its attempts. Use via=Ladder(), or leave breaker out."
        )
    return None
