"""A finished attempt, and the protocols of gates and journals around it."""

import logging
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from django_rmq_retry.handlers.subscription import Subscription
from django_rmq_retry.handlers.verdicts import had_before
from django_rmq_retry.messages.message import Delivery, Settlement
from django_rmq_retry.policies.verdict import Verdict

log = logging.getLogger("django_rmq_retry")


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedAttempt:
    """The result of one run of a handler, or of the decision not to run it."""

    delivery: Delivery
    verdict: Verdict
    subscription: Subscription | None
    seconds: float
    error: BaseException | None = None
    answer: object = None
    """What the handler returned."""
    traceparent: str = ""
    """The W3C trace context of the attempt, if a hook has set one."""
    stale: bool = False
    """True if its connection was lost when it ended. Asked once, because that may happen at any moment."""

    @property
    def redelivered(self) -> bool:
        """True if a consumer had the message before and did not acknowledge it, or another one gets it after this.

        A retry of one that a consumer had may do its work again, but what an operator requeues has been decided on
        since.
        """
        return self.stale or self.had_before

    @property
    def had_before(self) -> bool:
        """True if a consumer had the message before and did not acknowledge it."""
        return had_before(self.delivery, self.subscription)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A row about an attempt that is stored with the history, in one transaction with others of its kind."""

    store: Callable[[Sequence[Any]], None]
    """Stores rows, all or none; rows with the same function are passed together."""
    row: Any
    queue: str
    size: int
    """Approximate memory, in bytes."""


Judged = Callable[[FinishedAttempt], Kept | None]


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


class Gate(Protocol):
    """A check around each run of a ``gated`` handler: breaker, rate or key. Its worker calls it, with connections."""

    def enter(self, delivery: Delivery, subscription: Subscription) -> Settlement | Verdict | None:
        """Return None to let the handler run, else the delivery's end; an error keeps it unacked and uncounted."""
        ...

    def leave(
        self, delivery: Delivery, subscription: Subscription, verdict: Verdict, error: BaseException | None
    ) -> Verdict:
        """Return the final verdict on a run that was admitted; called before the journals and the settlement.

        A run that never started is passed in as an uncounted retry; its message stays unacked.

        If this raises, the message stays unacked and no attempt is counted.
        """
        ...
