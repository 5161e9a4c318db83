"""Sends the project's signals of what became of each attempt; no receiver can harm a message."""

import logging
from collections.abc import Callable, Sequence

from django_rmq_retry import signals
from django_rmq_retry.core.message import Delivery
from django_rmq_retry.core.verdict import DUPLICATE, Kind
from django_rmq_retry.runtime.journal import Attempt

log = logging.getLogger("django_rmq_retry")

ALL = (signals.attempted, signals.duplicated, signals.parked, signals.halted, signals.released)


def observers() -> Sequence[Callable[[Attempt], None]]:
    """What to hand to Events; nothing where nobody listens, so that successes cost nothing."""
    return (Announcer(),) if any(signal.receivers for signal in ALL) else ()


class Announcer:
    """An observer of attempts that knows which lines stood still before."""

    def __init__(self) -> None:
        self._halted: set[str] = set()

    def __call__(self, attempt: Attempt) -> None:
        queue, kind = attempt.delivery.queue, attempt.verdict.kind
        names = {
            "delivery": attempt.delivery,
            "handler": attempt.subscription.name if attempt.subscription else "",
            "verdict": attempt.verdict,
        }
        try:
            if attempt.verdict is DUPLICATE:
                signals.duplicated.send_robust(Delivery, **names)
            elif attempt.subscription is not None:
                signals.attempted.send_robust(Delivery, error=attempt.error, seconds=attempt.seconds, **names)
            if kind is Kind.PARK:
                signals.parked.send_robust(Delivery, **names)
            if kind is Kind.HALT:
                self._halted.add(queue)
                signals.halted.send_robust(Delivery, **names)
            elif queue in self._halted:
                self._halted.discard(queue)
                signals.released.send_robust(Delivery, **names)
        except BaseException:
            # SystemExit and its like pass through send_robust; the message was handled all the same.
            log.exception("A receiver of a signal raised what it should not")
