"""The one place that writes the log of attempts, and remembers which ordered lines are halted."""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from django_rmq_retry.core.verdict import DUPLICATE, Kind
from django_rmq_retry.runtime.journal import Attempt
from django_rmq_retry.runtime.keying import key_of

log = logging.getLogger("django_rmq_retry")

_LEVELS = {
    Kind.ACK: logging.INFO,
    Kind.RETRY: logging.INFO,
    Kind.HALT: logging.WARNING,
    Kind.DISCARD: logging.WARNING,
    Kind.PARK: logging.ERROR,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Halt:
    """An ordered line that stands still."""

    queue: str
    since: float
    attempt: int
    error: str
    message_id: str | None


class Events:
    """A journal that logs one line per verdict and tells observers."""

    def __init__(self, clock: Callable[[], float], observers: Sequence[Callable[[Attempt], None]] = ()) -> None:
        self._clock = clock
        self._observers = tuple(observers)
        self._halts: dict[str, Halt] = {}
        self._lock = threading.Lock()
        self.counts: dict[Kind, int] = dict.fromkeys(Kind, 0)
        self.counts_acks = False
        """Whether successes are counted although nobody hears of each."""
        self.duplicates = 0
        """So many of those acknowledged were not run, for they had been handled before."""

    @property
    def notes_acks(self) -> bool:
        return self.counts_acks or bool(self._observers or self._halts) or log.isEnabledFor(logging.INFO)

    @property
    def halts(self) -> tuple[Halt, ...]:
        """The lines that stand still now."""
        with self._lock:
            return tuple(self._halts.values())

    def note(self, attempt: Attempt) -> None:
        with self._lock:
            self.counts[attempt.verdict.kind] += 1
            self.duplicates += attempt.verdict is DUPLICATE
            self._mark_halt(attempt)
        _write(attempt)
        for observer in self._observers:
            observer(attempt)

    def _mark_halt(self, attempt: Attempt) -> None:
        queue = attempt.delivery.queue
        if attempt.verdict.kind is not Kind.HALT:
            if self._halts.pop(queue, None) is not None:
                log.warning("The line %r goes on", queue, extra={"event": "released", "queue": queue})
            return
        known = self._halts.get(queue)
        self._halts[queue] = Halt(
            queue=queue,
            since=known.since if known else self._clock(),
            attempt=attempt.delivery.attempt,
            error=str(attempt.verdict.error or ""),
            message_id=message_id(attempt),
        )


def message_id(attempt: Attempt) -> str | None:
    """The message's own id, if its properties can be read at all."""
    try:
        return attempt.delivery.id
    except Exception:  # noqa: BLE001 - a log line is written of every message, however broken
        return None


def _write(attempt: Attempt) -> None:
    verdict, delivery = attempt.verdict, attempt.delivery
    level = _LEVELS[verdict.kind]
    if not log.isEnabledFor(level):
        return
    handler = attempt.subscription.name if attempt.subscription else "-"
    number = delivery.attempt if attempt.subscription else 0
    limit = attempt.subscription.policy.attempts if attempt.subscription else None
    event = "duplicate" if verdict is DUPLICATE else verdict.kind.value
    fields = {
        "event": event,
        "queue": delivery.queue,
        "handler": handler,
        "key": key_of(attempt),
        "message_id": message_id(attempt),
        "attempt": number,
        "attempts": limit,
        "seconds": round(attempt.seconds, 6),
        "after": verdict.after,
        "reason": verdict.reason.value if verdict.reason else None,
        "error": verdict.error.kind if verdict.error else None,
        "detail": verdict.detail or (str(verdict.error) if verdict.error else ""),
    }
    # %r: whatever a sender or an exception put into these texts stays on one line.
    log.log(
        level,
        "%s %s%s id=%r attempt=%s/%s ms=%.1f%s%s",
        event,
        handler if attempt.subscription else delivery.queue,
        f" key={fields['key']!r}" if fields["key"] else "",
        fields["message_id"],
        number,
        limit or "∞",
        attempt.seconds * 1000,
        f" after={verdict.after:.3g}s" if verdict.after else "",
        f" {fields['detail']!r}" if fields["detail"] else "",
        extra=fields,
    )
