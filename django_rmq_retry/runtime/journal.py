"""The opening through which attempts are remembered. What remembers them is wired in from above."""

from dataclasses import dataclass
from typing import Protocol

from django_rmq_retry.core.message import Delivery
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
        """Whether attempts that succeeded are wanted as well: nothing is made of them otherwise."""
        ...

    def note(self, attempt: Attempt) -> None: ...
