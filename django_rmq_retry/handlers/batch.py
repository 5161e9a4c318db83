"""Batches: how many messages a handler takes in one call."""

from dataclasses import dataclass

from django_rmq_retry.arguments import check_seconds
from django_rmq_retry.errors import ConfigurationError

LEAST_MESSAGES, MOST_MESSAGES = 2, 1000
LONGEST_SECONDS = 60.0
"""The longest wait for a batch to fill: a message must not stay unacked for long without anybody working on it."""


@dataclass(frozen=True, slots=True)
class Batch:
    """``batch=Batch(100, wait=0.05)``: the handler gets a list of up to 100 messages."""

    size: int
    """The most messages of one call."""
    wait: float = 0.05
    """Seconds that the first message of a batch waits for the others."""

    def __post_init__(self) -> None:
        if type(self.size) is not int or not LEAST_MESSAGES <= self.size <= MOST_MESSAGES:
            raise ConfigurationError(
                f"Batch(size) takes a whole number from {LEAST_MESSAGES} to {MOST_MESSAGES}, not {self.size!r}."
            )
        check_seconds("Batch(wait=…)", self.wait)
        if self.wait > LONGEST_SECONDS:
            raise ConfigurationError(
                f"Batch(wait={self.wait:g}) keeps messages waiting for too long: give it at most {LONGEST_SECONDS:g} s."
            )
