"""Events of a consumer: counters, log lines and signals."""

import logging
import re
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from django_rmq_retry import forks, signals
from django_rmq_retry.breakers.queue_state import Halt
from django_rmq_retry.handlers.business_keys import first_business_key
from django_rmq_retry.handlers.contracts import FinishedAttempt, notify_each
from django_rmq_retry.messages.message import Delivery, message_id
from django_rmq_retry.policies.verdict import DUPLICATE, Kind

log = logging.getLogger("django_rmq_retry")

_LEVELS = {
    Kind.ACK: logging.INFO,
    Kind.RETRY: logging.INFO,
    Kind.HALT: logging.WARNING,
    Kind.DISCARD: logging.WARNING,
    Kind.PARK: logging.ERROR,
}

MOST_PATTERNS = 100
"""Limit on logged patterns of refused addresses: senders choose the addresses, so their number is unbounded."""

# A part of a name that contains a digit is treated as a number or an id; adjacent parts of that kind count as one.
_NUMBERED = re.compile(r"[^.:/_-]*\d[^.:/_-]*(?:[.:/_-][^.:/_-]*\d[^.:/_-]*)*")

ALL = (signals.attempted, signals.duplicated, signals.parked, signals.halted, signals.resumed)


def pattern_of(address: str) -> str:
    """Return the REPLY_TO pattern that allows this address and others that differ only in numbers and ids."""
    literal = re.sub(r"[*?[]", lambda special: f"[{special[0]}]", address)
    return _NUMBERED.sub("*", literal)


class Events:
    """A journal that counts verdicts, logs one line for each and calls observers."""

    def __init__(
        self,
        clock: Callable[[], float],
        observers: Sequence[Callable[[FinishedAttempt], None]] = (),
        *,
        counts_acks: bool = False,
    ) -> None:
        self._clock = clock
        self._observers = tuple(observers)
        self._notified = (self._count, _write, *self._observers)
        self._halts: dict[str, Halt] = {}
        self._halted_elsewhere: frozenset[str] = frozenset()
        self._moved_on: set[str] = set()
        """The halted queues of which a message was settled here."""
        self._lock = threading.Lock()
        self.counts: dict[Kind, int] = dict.fromkeys(Kind, 0)
        self._counts_acks = counts_acks
        """True if successes are counted even if no observer or log line needs them."""
        self.duplicates = 0
        """Number of acknowledged messages that were not run because they had been handled before."""
        self.unanswered = 0
        """Number of answers that were not sent because REPLY_TO does not allow their address."""
        self._patterns: set[str] = set()

    @property
    def notes_acks(self) -> bool:
        watched = self._observers or self._halts or self._halted_elsewhere
        return self._counts_acks or bool(watched) or log.isEnabledFor(logging.INFO)

    @property
    def halts(self) -> tuple[Halt, ...]:
        """The strict-order queues that are halted now."""
        with self._lock:
            return tuple(self._halts.values())

    def let_go(self, queue: str) -> None:
        """Forget that a queue is halted: its message went back, and another process may have it."""
        with self._lock:
            self._halts.pop(queue, None)

    def moved_on(self, halted: Collection[str]) -> set[str]:
        """Return the queues that were halted, here or as the last call told, and have settled a message here since."""
        with self._lock:
            moved, self._moved_on = self._moved_on, set()
            self._halted_elsewhere = frozenset(halted) - self._halts.keys()
        return moved

    def note(self, attempt: FinishedAttempt) -> None:
        notify_each(self._notified, attempt)

    def _count(self, attempt: FinishedAttempt) -> None:
        queue, resumed = attempt.delivery.queue, False
        # Before the lock, for which all threads wait: the project's own function tells the key.
        halt = self._halt_of(attempt) if attempt.verdict.kind is Kind.HALT else None
        with self._lock:
            self.counts[attempt.verdict.kind] += 1
            self.duplicates += attempt.verdict is DUPLICATE
            if halt is not None:
                known = self._halts.get(queue)
                self._halts[queue] = replace(halt, since=known.since) if known else halt
            else:
                resumed = self._halts.pop(queue, None) is not None
                if resumed or queue in self._halted_elsewhere:
                    self._moved_on.add(queue)
        if resumed:
            log.warning("Queue %r has resumed", queue, extra={"event": "resumed", "queue": queue})

    def refuse_answer(self, address: str) -> None:
        """Count an answer that the settings do not allow, and log the first one for each pattern of addresses."""
        pattern = pattern_of(address)
        with self._lock:
            self.unanswered += 1
            if pattern in self._patterns or len(self._patterns) >= MOST_PATTERNS:
                return
            self._patterns.add(pattern)
        log.warning(
            "The answer to %r was not sent: the setting REPLY_TO does not allow this queue. If callers of this project "
            "wait there, add %r to RMQ_RETRY['REPLY_TO']. Further answers to such addresses are counted, not logged.",
            # A pattern that begins with * would also allow unrelated queues.
            *(address, address if pattern.startswith("*") else pattern),
            extra={"event": "answer_refused", "reply_to": address},
        )

    def _halt_of(self, attempt: FinishedAttempt) -> Halt:
        return Halt(
            queue=attempt.delivery.queue,
            since=self._clock(),
            attempt=attempt.delivery.attempt,
            error=str(attempt.verdict.error or ""),
            message_id=message_id(attempt.delivery),
            key=first_business_key(attempt.subscription, attempt.delivery, attempt.error),
        )


def _write(attempt: FinishedAttempt) -> None:
    verdict, delivery = attempt.verdict, attempt.delivery
    level = _LEVELS[verdict.kind]
    if not log.isEnabledFor(level):
        return
    handler = attempt.subscription.name if attempt.subscription else "-"
    number = delivery.attempt if attempt.subscription else 0
    limit = attempt.subscription.policy.limit_for(delivery) if attempt.subscription else None
    event = verdict.name
    fields = {
        "event": event,
        "queue": delivery.queue,
        "handler": handler,
        "key": first_business_key(attempt.subscription, delivery, attempt.error),
        "message_id": message_id(attempt.delivery),
        "attempt": number,
        "attempts": limit,
        "seconds": round(attempt.seconds, 6),
        "after": verdict.after,
        "reason": verdict.reason.value if verdict.reason else None,
        "error": verdict.error.kind if verdict.error else None,
        "detail": verdict.detail or (str(verdict.error) if verdict.error else ""),
    }
    # %r keeps text from a sender or an exception on one line.
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


def observers(*, tracebacks: bool = False) -> Sequence[Callable[[FinishedAttempt], None]]:
    """Return the observers for Events; none if no signal has a receiver, so that successes cost nothing."""
    announcers = [Announcer()] if any(signal.receivers for signal in ALL) else []
    return (*announcers, *([log_traceback] if tracebacks else []))


class Announcer:
    """An observer that sends the signals of each attempt; it remembers which strict-order queues are halted."""

    def __init__(self) -> None:
        self._halted: set[str] = set()

    def __call__(self, attempt: FinishedAttempt) -> None:
        queue, kind = attempt.delivery.queue, attempt.verdict.kind
        names = {
            "delivery": attempt.delivery,
            "handler": attempt.subscription.name if attempt.subscription else "",
            "verdict": attempt.verdict,
        }
        try:
            with forks.ending():
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
                    signals.resumed.send_robust(Delivery, **names)
        except BaseException:
            # send_robust lets SystemExit and KeyboardInterrupt through, and the message has been handled already.
            log.exception("A signal receiver raised an exception that ends a process; it is ignored")


def log_traceback(attempt: FinishedAttempt) -> None:
    """Log the traceback of a handler that failed; the line of the verdict is in the log already."""
    if attempt.error is not None:
        name = attempt.subscription.name if attempt.subscription else attempt.delivery.queue
        extra = {"event": "trace", "queue": attempt.delivery.queue}
        log.info("Traceback of %s:", name, exc_info=attempt.error, extra=extra)
