"""The opening through which parked messages are recorded. What records them is wired in from above."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from django_rmq_retry.core.message import Delivery


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What became of one delivery."""

    problem: str = ""
    """Why it cannot be stored, although others can; empty where it is."""


class Absent(Exception):
    """Nothing can be stored for now; of the deliveries in ``done`` it is known what became of them all the same."""

    def __init__(self, why: str, done: Mapping[Delivery, Stored] | None = None) -> None:
        self.why = why
        self.done = done or {}
        super().__init__(why)


class Parker(Protocol):
    """Called on the drainer's thread only."""

    def absent(self) -> str:
        """Why nothing can be stored now, as a sentence; empty where it can."""
        ...

    def store(self, batch: Sequence[Delivery]) -> Sequence[Stored]:
        """Store a batch; when this returns, what is stored is committed."""
        ...

    def close(self) -> None:
        """Nothing more is stored by this thread."""
