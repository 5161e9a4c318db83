"""Remembers every attempt on the virtual clock, and from them how long each retry waited."""

from collections.abc import Callable
from dataclasses import dataclass

from django_rmq_retry.core.message import Delivery
from django_rmq_retry.core.verdict import Kind, Verdict
from django_rmq_retry.runtime.events import message_id
from django_rmq_retry.runtime.journal import Attempt

Key = tuple[str, str | bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One attempt, as it was when it ended."""

    handler: str
    """Empty where no handler took the message."""
    number: int
    at: float
    """Seconds since the test began, on the virtual clock."""
    verdict: Verdict
    error: BaseException | None
    message: Delivery


class Recorder:
    """An observer of attempts."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failed: dict[Key, float] = {}
        self.attempts: list[Tried] = []
        self.waits: list[float] = []
        self.unfinished: Callable[[Key, Tried], None] = lambda _key, _tried: None
        """Told of each attempt after which another one follows."""

    def __call__(self, attempt: Attempt) -> None:
        delivery, now = attempt.delivery, self._clock()
        tried = Tried(
            handler=attempt.subscription.name if attempt.subscription else "",
            number=delivery.attempt,
            at=now,
            verdict=attempt.verdict,
            error=attempt.error,
            message=delivery,
        )
        key = (delivery.queue, message_id(attempt) or delivery.body)
        if not attempt.verdict.counted:
            if attempt.error is not None:
                self.unfinished(key, tried)
            return
        self.attempts.append(tried)
        failed = self._failed.pop(key, None)
        if failed is not None:
            self.waits.append(round(now - failed, 3))
        if attempt.verdict.kind in {Kind.RETRY, Kind.HALT}:
            self._failed[key] = now
            self.unfinished(key, tried)
