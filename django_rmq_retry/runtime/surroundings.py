"""What attempts need from outside, handed in by whoever builds a consumer."""

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from django_rmq_retry.core.message import Delivery
from django_rmq_retry.core.subscription import Subscription
from django_rmq_retry.core.verdict import Verdict, retry
from django_rmq_retry.runtime.gating import Gate
from django_rmq_retry.runtime.journal import Journal

log = logging.getLogger("django_rmq_retry")


class Instead(Exception):
    """Raised by ``once`` where the handler is not to be run: the verdict that stands instead of its policy's."""

    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict
        super().__init__(verdict.detail)


class Unready(Exception):
    """Raised by ``once`` where nothing can be attempted now: the message stays in hand, and no attempt is counted."""


def left_unready(gate: Gate | None, delivery: Delivery, subscription: Subscription, unready: Unready) -> Unready:
    """To be raised, once the gate that let the delivery in has heard of it."""
    if gate is not None:
        gate.leave(delivery, subscription, retry(0.0, detail=str(unready), counted=False), unready)
    return unready


def tell_mishap(mishap: BaseException, seconds: float) -> None:
    """Something other than the handler has failed, and its message is attempted again after so many seconds."""
    if isinstance(mishap, Unready):
        log.warning("%s The message stays in hand for %s s.", mishap, seconds, extra={"event": "unready"})
    else:
        log.error("The attempt itself failed; the message stays in hand for %s s", seconds, exc_info=mishap)


def no_inbox(subscription: Subscription, _delivery: Delivery) -> object:
    """Where no inbox is wired in, a handler that asks for it must not run as if it had one."""
    raise RuntimeError(f"Handler {subscription.name} runs once for each message, and there is no inbox here.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What an attempt needs from outside: clocks, chance, and the two openings to the project."""

    around: Callable[[], AbstractContextManager[object]]
    journal: Journal
    clock: Callable[[], float]
    """Seconds that only go forward."""
    today: Callable[[], int]
    """Milliseconds of the epoch."""
    chance: Callable[[], float]
    crash_limit: int | None = 5
    """So often a message may come back from a worker that went away; then it is parked unseen."""
    reply_to: Sequence[str] = ("amq.rabbitmq.reply-to.*", "amq.gen-*")
    """Queues that may be answered, as patterns: a sender must not choose where we write with our rights."""
    gate: Gate | None = None
    """Asked before each run of a subscription that is gated."""
    once: Callable[[Subscription, Delivery], object] = no_inbox
    """Runs the handlers that ask for ``once``; raises what they raise, or Instead, or Unready."""
