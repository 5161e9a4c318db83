"""The opening through which attempts are remembered. What remembers them is wired in from above."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from django_rmq_retry.core.message import Delivery
from django_rmq_retry.core.stamps import MARK
from django_rmq_retry.core.subscription import Subscription
from django_rmq_retry.core.verdict import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
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

    def note(self, attempt: Attempt) -> None: ...


class Journals:
    """Several as one."""

    def __init__(self, journals: Sequence[Journal]) -> None:
        self._journals = tuple(journals)

    @property
    def notes_acks(self) -> bool:
        # Asked at every message: a generator would take three times as long.
        for journal in self._journals:  # noqa: SIM110
            if journal.notes_acks:
                return True
        return False

    def note(self, attempt: Attempt) -> None:
        for journal in self._journals:
            journal.note(attempt)


def storied(delivery: Delivery) -> bool:
    """Whether a message has failed or was requeued before: told of even if it now succeeds."""
    return delivery.attempt > 1 or MARK in delivery.raw
