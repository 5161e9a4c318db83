"""A finished attempt, and the protocols of gates and journals around it."""

import logging
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from typing import Protocol

from django_rmq_retry import forks
from django_rmq_retry.handlers.subscription import Subscription
from django_rmq_retry.hooks import Hooks
from django_rmq_retry.messages.header_names import PREFIX_BYTES
from django_rmq_retry.messages.message import Delivery, Message, Settlement
from django_rmq_retry.messages.tracebacks import Cause, Grouping, named, projects_own, trace, traced, untraced
from django_rmq_retry.policies.verdict import Verdict
from django_rmq_retry.server import Left

log = logging.getLogger("django_rmq_retry")


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedAttempt:
    """The result of one run of a handler, or of the decision not to run it."""

    delivery: Delivery
    verdict: Verdict
    subscription: Subscription | None
    seconds: float
    error: BaseException | None = None
    traceparent: str = ""
    """The W3C trace context of the attempt, if a hook has set one."""


class Journal(Protocol):
    """Receives every attempt, on the worker's thread, before the message is settled on the broker."""

    @property
    def notes_acks(self) -> bool:
        """True if the journal also wants successful first attempts; without such a journal they are not noted."""
        ...

    def note(self, attempt: FinishedAttempt) -> None: ...


def notify_each(observers: Iterable[Callable[[FinishedAttempt], None]], attempt: FinishedAttempt) -> None:
    """Call each observer. An observer's exception is logged and fails neither the attempt nor the other observers."""
    for observer in observers:
        try:
            observer(attempt)
        except BaseException:  # noqa: BLE001 - for example, a logging filter of the project may raise anything
            log_failure("An attempt could not be recorded or announced; its message is settled anyway")


def log_failure(what: str, error: BaseException | None = None) -> None:
    """Log an error outside a handler, or print it to stderr if the project's logging fails too."""
    try:
        log.error(what, exc_info=error or True)
    except BaseException:  # noqa: BLE001 - a log line that fails must not cost a message
        with suppress(BaseException):
            traceback.print_exc()


def has_history(delivery: Delivery) -> bool:
    """True if a message has failed or was requeued before: it is noted even if it now succeeds."""
    return delivery.attempt > 1 or PREFIX_BYTES in delivery.raw


@dataclass(frozen=True, slots=True, kw_only=True)
class Halt:
    """A halted strict-order queue."""

    queue: str
    since: float
    attempt: int
    error: str
    message_id: str | None


class Gate(Protocol):
    """A check around each run of a handler, such as its breaker, rate or ordering key.

    Called on the worker's thread, inside ``around``, only for subscriptions that are ``gated``.
    """

    def enter(self, delivery: Delivery, subscription: Subscription) -> Settlement | None:
        """Return None if the handler may run now, else the settlement of the delivery, without an attempt.

        If this raises, the message stays unacked and no attempt is counted.
        """
        ...

    def leave(
        self, delivery: Delivery, subscription: Subscription, verdict: Verdict, error: BaseException | None
    ) -> Verdict:
        """Return the final verdict on a run that was admitted; called before the journals and the settlement.

        A run that never started is passed in as an uncounted retry; its message stays unacked.

        If this raises, the message stays unacked and no attempt is counted.
        """
        ...


def grouped(
    verdict: Verdict, delivery: Delivery, subscription: Subscription | None, error: BaseException | None
) -> Verdict:
    """Return a verdict to park, with the failure's group; an error in the grouping does not prevent the parking."""
    reason = verdict.reason.value if verdict.reason else ""
    kind = verdict.error.kind if verdict.error else ""
    fingerprint = ruled(
        () if error is None else trace(error, projects_own), reason=reason, kind=kind, queue=delivery.queue
    )
    own = named_by_handler(delivery, subscription, error)
    return replace(verdict, fingerprint=own or fingerprint.fingerprint, culprit=fingerprint.culprit)


def ruled(causes: Sequence[Cause], *, reason: str, kind: str, queue: str) -> Grouping:
    """Return the group by the project-wide rule.

    ``kind`` is the name of the error; it is used if the traceback holds no code of the project.
    """
    return traced(causes, reason=reason) or untraced(kind, reason=reason, queue=queue)


def named_by_handler(delivery: Delivery, subscription: Subscription | None, error: BaseException | None) -> str:
    """Return the group that the handler's ``fingerprint`` function names for a failure; else an empty text."""
    if error is None or subscription is None or subscription.fingerprint is None:
        return ""
    try:
        with forks.ending():
            name: object = subscription.fingerprint(delivery, error)
    except BaseException as broken:  # noqa: BLE001 - a function of the project may raise anything
        log.warning(
            "fingerprint= of handler %s raised %s; the default rule groups this failure",
            subscription.name,
            type(broken).__name__,
            extra={"event": "ungrouped", "handler": subscription.name},
        )
        return ""
    return named(name) if isinstance(name, str) and name else ""


class HandlerSkipped(Exception):
    """Raised by ``once`` if the handler must not be run; it carries the verdict that replaces the policy's."""

    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict
        super().__init__(verdict.detail)


class Unready(Exception):
    """Raised if no attempt is possible now: the message stays unacked, and no attempt is counted."""


@dataclass(slots=True)
class OnceState:
    """The facts that ``once`` keeps about a message that stays unacked, for its next attempt."""

    begun: bool = False
    """True if a run for the message has reached its commit."""
    losses: int = 0
    """The number of runs in a row that lost a database which was available again immediately."""


def log_outside_failure(error: BaseException, seconds: float) -> None:
    """Log a failure outside the handler; its message is attempted again after ``seconds``."""
    if isinstance(error, Unready):
        log.warning("%s The message stays unacked for %s s.", error, seconds, extra={"event": "unready"})
    else:
        log_failure(f"The attempt failed outside its handler; the message stays unacked for {seconds} s", error)


def machine_fails(error: BaseException) -> bool:
    """True if an error comes from the machine or the network: the message did not cause it."""
    return isinstance(error, Unready | OSError)


def no_inbox(subscription: Subscription, _delivery: Delivery, _state: OnceState) -> object:
    """Raise an error: without an inbox, a handler with ``once`` must not run as if there were one."""
    raise RuntimeError(f"Handler {subscription.name} has once=…, and this process has no inbox.")


def ignore_refused_answer(_address: str) -> None:
    """Do nothing: the default callback for answers that the settings do not allow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The dependencies of an attempt: clocks, random numbers, journals, gates and the inbox."""

    around: Callable[[], AbstractContextManager[object]]
    journals: Sequence[Journal]
    clock: Callable[[], float]
    """Seconds on a monotonic clock."""
    now_ms: Callable[[], int]
    """Milliseconds since the epoch."""
    chance: Callable[[], float]
    check: Callable[[Message], None] = lambda _message: None
    """Raises if the copy cannot be written to the broker."""
    away: Callable[[BaseException], bool] = machine_fails
    """True if a failure outside the handler would hit any other message too: then no message is given up for it."""
    crash_limit: int | None = 5
    """Number of returns by crashed workers after which a message is parked without another attempt."""
    reply_to: Sequence[str] = ("amq.rabbitmq.reply-to.*", "amq.gen-*")
    """Patterns of the queues that may get answers: a sender must not choose where the consumer writes."""
    refused: Callable[[str], None] = ignore_refused_answer
    """Called with the address of each answer that the settings do not allow."""
    acked: Callable[[Subscription, float, bytes], None] | None = None
    """Takes each successful first attempt that no journal wants: handler, seconds, and encoded properties."""
    hooks: Hooks | None = None
    """Entered around each attempt: the setting AROUND. None if it names no hook."""
    gates: Sequence[Gate] = ()
    """Entered in their order before each run of a gated subscription."""
    key_timeout: float | None = None
    """Seconds after which the computation of an ordering key is ended; None without a limit, such as in tests."""
    interrupted: Callable[[], None] = lambda: None
    """Called in the thread of a handler that its deadline has interrupted: database connections may be in any state."""
    tidied: Callable[[], Sequence[Left]] = lambda: ()
    """Rolls back the transactions that are open in this thread, and returns what was open. By default the thread's
    connections are not the consumer's: a test has its own transactions."""
    once: Callable[[Subscription, Delivery, OnceState], object] = no_inbox
    """Runs the handlers with ``once``; raises their exceptions, HandlerSkipped or Unready."""
