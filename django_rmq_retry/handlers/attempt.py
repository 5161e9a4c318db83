"""A finished attempt, and the protocols of gates and journals around it."""

import logging
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Protocol

from django_rmq_retry.errors import UndecodableBody
from django_rmq_retry.handlers.subscription import Subscription
from django_rmq_retry.messages.message import Delivery, Message, Settlement
from django_rmq_retry.messages.stamp import MARK
from django_rmq_retry.messages.tracebacks import Cause, Grouping, named, projects_own, short, trace, traced, untraced
from django_rmq_retry.policies.policy import Verdict

log = logging.getLogger("django_rmq_retry")


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedAttempt:
    """One run of a handler, or the decision not to run one."""

    delivery: Delivery
    verdict: Verdict
    subscription: Subscription | None
    seconds: float
    error: BaseException | None = None


class Journal(Protocol):
    """Told of every attempt, on the worker's thread, before the broker is."""

    @property
    def notes_acks(self) -> bool:
        """Whether first attempts that succeeded are wanted as well: nothing is made of them otherwise."""
        ...

    def note(self, attempt: FinishedAttempt) -> None: ...


def tell_each(observers: Iterable[Callable[[FinishedAttempt], None]], attempt: FinishedAttempt) -> None:
    """Call each observer. What one of them raises is logged, and fails neither the attempt nor the others."""
    for observer in observers:
        try:
            observer(attempt)
        except BaseException:  # noqa: BLE001 - such as a logging filter of the project's
            tell_failed("An attempt could not be noted; its message is settled all the same")


def tell_failed(what: str, error: BaseException | None = None) -> None:
    """Log an error beside an attempt; on stderr, if the project's logging fails as well."""
    try:
        log.error(what, exc_info=error or True)
    except BaseException:  # noqa: BLE001 - no log line is worth a message
        with suppress(BaseException):
            traceback.print_exc()


def storied(delivery: Delivery) -> bool:
    """Whether a message has failed or was requeued before: told of even if it now succeeds."""
    return delivery.attempt > 1 or MARK in delivery.raw


@dataclass(frozen=True, slots=True, kw_only=True)
class Halt:
    """An ordered line that stands still."""

    queue: str
    since: float
    attempt: int
    error: str
    message_id: str | None


def message_id(attempt: FinishedAttempt) -> str | None:
    """The message's own id, if its properties can be read at all."""
    try:
        return attempt.delivery.id
    except Exception:  # noqa: BLE001 - a log line is written of every message, however broken
        return None


class Gate(Protocol):
    """Called on the worker's thread, inside ``around``, for subscriptions that are ``gated``, and for no other."""

    def enter(self, delivery: Delivery, subscription: Subscription) -> Settlement | None:
        """How the delivery is settled instead of being run now, which is no attempt; None where it may run.

        What is raised keeps the message in hand, and no attempt is counted.
        """
        ...

    def leave(
        self, delivery: Delivery, subscription: Subscription, verdict: Verdict, error: BaseException | None
    ) -> Verdict:
        """Told of every run that was let in, before the journal and the broker are; the verdict that counts.

        A run that could not begin is told as a retry that is not counted; its message stays in hand.

        What is raised keeps the message in hand, as above.
        """
        ...


def grouped(
    verdict: Verdict, delivery: Delivery, subscription: Subscription | None, error: BaseException | None
) -> Verdict:
    """A verdict to park, with the group; nothing that goes wrong here keeps a message from being parked."""
    reason = verdict.reason.value if verdict.reason else ""
    kind = verdict.error.kind if verdict.error else ""
    found = ruled(() if error is None else trace(error, projects_own), reason=reason, kind=kind, queue=delivery.queue)
    own = None if error is None or subscription is None else named_by_handler(delivery, subscription, error)
    return replace(verdict, fingerprint=own or found.fingerprint, culprit=found.culprit)


def ruled(causes: Sequence[Cause], *, reason: str, kind: str, queue: str) -> Grouping:
    """The group by the rule; kind is the name of the error, for one that came through no code of the project's."""
    return traced(causes, reason=reason) or untraced(kind, reason=reason, queue=queue)


def named_by_handler(delivery: Delivery, subscription: Subscription, error: BaseException) -> str | None:
    """The group that the handler names, if it names one."""
    if subscription.fingerprint is None:
        return None
    try:
        name: object = subscription.fingerprint(delivery, error)
    except BaseException as broken:  # noqa: BLE001 - a function of the project's
        log.warning(
            "fingerprint= of handler %s raised %s; the rule groups this failure",
            subscription.name,
            type(broken).__name__,
            extra={"event": "ungrouped", "handler": subscription.name},
        )
        return None
    return named(name) if isinstance(name, str) and name else None


class Instead(Exception):
    """Raised by ``once`` where the handler is not to be run: the verdict that stands instead of its policy's."""

    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict
        super().__init__(verdict.detail)


class Unready(Exception):
    """Raised by ``once`` where nothing can be attempted now: the message stays in hand, and no attempt is counted."""


@dataclass(slots=True)
class OnceState:
    """What ``once`` learns of a message that stays unacked, for its next attempt."""

    begun: bool = False
    """Whether a run of it has come to its commit."""
    losses: int = 0
    """How many runs in a row have lost a database that was there again at once."""


def tell_mishap(mishap: BaseException, seconds: float) -> None:
    """Something other than the handler has failed, and its message is attempted again after so many seconds."""
    if isinstance(mishap, Unready):
        log.warning("%s The message stays in hand for %s s.", mishap, seconds, extra={"event": "unready"})
    else:
        tell_failed(f"The attempt itself failed; the message stays in hand for {seconds} s", mishap)


def machine_fails(error: BaseException) -> bool:
    """Whether it tells of what surrounds an attempt; no message is to blame for it."""
    return isinstance(error, Unready | OSError)


def no_inbox(subscription: Subscription, _delivery: Delivery, _state: OnceState) -> object:
    """Where no inbox is wired in, a handler that asks for it must not run as if it had one."""
    raise RuntimeError(f"Handler {subscription.name} runs once for each message, and there is no inbox here.")


def unheard(_address: str) -> None:
    """Where nobody counts the answers that were not allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What an attempt needs from outside: clocks, chance, and the two openings to the project."""

    around: Callable[[], AbstractContextManager[object]]
    journals: Sequence[Journal]
    clock: Callable[[], float]
    """Seconds that only go forward."""
    today: Callable[[], int]
    """Milliseconds of the epoch."""
    chance: Callable[[], float]
    check: Callable[[Message], None] = lambda _message: None
    """Raises where the broker could not be sent such a copy."""
    away: Callable[[BaseException], bool] = machine_fails
    """Whether what failed beside a handler would fail with any other message: then no message is given up for it."""
    crash_limit: int | None = 5
    """So often a message may come back from a worker that went away; then it is parked unseen."""
    reply_to: Sequence[str] = ("amq.rabbitmq.reply-to.*", "amq.gen-*")
    """Queues that may be answered, as patterns: a sender must not choose where we write with our rights."""
    refused: Callable[[str], None] = unheard
    """Called with each address that an answer would have gone to, were it allowed."""
    gates: Sequence[Gate] = ()
    """Asked in their order before each run of a subscription that is gated."""
    interrupted: Callable[[], None] = lambda: None
    """Called in the thread of a handler that its deadline has interrupted: its connections may be in any state."""
    once: Callable[[Subscription, Delivery, OnceState], object] = no_inbox
    """Runs the handlers that ask for ``once``; raises what they raise, or Instead, or Unready."""


MOST = 20
LIMIT = 255


def texts(told: str | Iterable[object]) -> list[str]:
    """At most 20, each once."""
    named = [told] if isinstance(told, str) else islice(told, MOST)
    return list(dict.fromkeys(short(key, LIMIT) for key in named if key not in (None, "")))


def key_of(attempt: FinishedAttempt) -> str:
    """The first; none where the handler names none, or its function fails."""
    subscription = attempt.subscription
    if subscription is None or subscription.keys is None or isinstance(attempt.error, UndecodableBody):
        return ""
    try:
        return next(iter(texts(subscription.keys(attempt.delivery))), "")
    except BaseException:  # noqa: BLE001 - a function of the project's: a log line is written of every message
        return ""
