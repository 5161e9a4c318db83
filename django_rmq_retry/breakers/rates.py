"""Rates: how many attempts of a handler all processes may start in a second."""

import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

from django_rmq_retry.breakers.queue_state import CLOCK_SKEW_SECONDS
from django_rmq_retry.handlers.settlement import put_back
from django_rmq_retry.handlers.subscription import Subscription, WorkQueue
from django_rmq_retry.messages.message import Delivery, Instruction, Settlement
from django_rmq_retry.messages.texts import one_line
from django_rmq_retry.policies.verdict import Verdict

log = logging.getLogger("django_rmq_retry")

RESERVED_SECONDS = 0.25
"""Seconds' worth of start times that a process reserves at once: at a rate of 1000 it does so four times a second."""
AHEAD_SECONDS = 1.0
"""The most seconds ahead of now for which start times are reserved; those of a killed process are lost."""
EXPIRY_SECONDS = 0.5
"""Seconds after which an unused start time expires; this bounds the burst."""
RESERVE_AGAIN_SECONDS = 5.0
"""The most seconds until a message tries again to reserve its start time."""
PUT_BACK_SECONDS = 600.0
"""Seconds after which an unacked waiting message is put back; the broker takes it back after 1800 by default."""
FORGET_SECONDS = 60.0
MANY_WAITING = 100


class Meters(Protocol):
    """The store of a handler's start times."""

    def take(self, handler: str, count: int, rate: float, now: float) -> float:
        """Reserve ``count`` start times in a row; return the first, or minus the next if it is too far ahead."""


def first_free(next_at: float, rate: float, now: float) -> float:
    """Return the first free start time; one too far ahead, from a wrong clock or an earlier rate, is ignored."""
    latest = now + AHEAD_SECONDS + max(1 / rate, RESERVED_SECONDS) + CLOCK_SKEW_SECONDS
    return now if next_at > latest else max(next_at, now)


class OwnMeters:
    """Start times of this process alone."""

    def __init__(self) -> None:
        self._next: dict[str, float] = {}

    def take(self, handler: str, count: int, rate: float, now: float) -> float:
        first = first_free(self._next.get(handler, now), rate, now)
        if first > now + AHEAD_SECONDS:
            return -first
        self._next[handler] = first + count / rate
        return first


@dataclass(slots=True)
class _Pending:
    since: float
    again: float
    start: float | None = None


class Pacer:
    """The rate of one handler in this process; used by all its worker threads."""

    def __init__(self, handler: str, rate: float, take: Callable[[str, int, float, float], float]) -> None:
        self._handler = handler
        self._rate = rate
        self._take = take
        self._lock = threading.Lock()
        self._starts: deque[float] = deque()
        self._waiting: dict[Hashable, _Pending] = {}
        self._batch = 1
        self._last = 0.0

    def wait(self, delivery: Delivery, now: float) -> tuple[float, float]:
        """Return the seconds to wait, 0 for none, and the time since when the message has no reserved start time."""
        with self._lock:
            known = self._waiting.pop(delivery.token, None)
            start = known.start if known is not None else None
            if start is None or not _usable(start, now):
                start = self._next(now)
            if 0 <= start <= now:
                return 0.0, now
            since = known.since if known is not None else now
            later = min(max(-start - now - AHEAD_SECONDS / 2, RESERVED_SECONDS), RESERVE_AGAIN_SECONDS)
            again = start if start > 0 else now + later
            self._waiting[delivery.token] = _Pending(since, again, start if start > 0 else None)
            return again - now, now if start > 0 else since

    def forget(self, delivery: Delivery) -> None:
        with self._lock:
            self._waiting.pop(delivery.token, None)

    def _next(self, now: float) -> float:
        while self._starts and not _usable(self._starts[0], now):
            self._starts.popleft()
        if self._starts:
            return self._starts.popleft()
        self._forget_lost(now)
        # A busy process reserves more start times at once; an idle one leaves them to the other processes.
        most = max(1, math.floor(self._rate * RESERVED_SECONDS))
        busy = now - self._last < 2 * RESERVED_SECONDS + self._batch / self._rate
        self._batch = min(self._batch * 2, most) if busy else 1
        first = self._take(self._handler, self._batch, self._rate, now)
        if first < 0:
            return first
        self._last = now
        self._starts.extend(first + number / self._rate for number in range(1, self._batch))
        return first

    def _forget_lost(self, now: float) -> None:
        """Forget messages whose channel was closed while they waited: they never return here."""
        if len(self._waiting) > MANY_WAITING:
            self._waiting = {one: it for one, it in self._waiting.items() if it.again > now - FORGET_SECONDS}


def _usable(start: float, now: float) -> bool:
    """Return True unless the start time has expired, or is too far ahead because a clock was set back."""
    return now - EXPIRY_SECONDS <= start <= now + AHEAD_SECONDS + 2 * RESERVED_SECONDS


class RateGate:
    """A gate that keeps a message unacked until its start time; it blocks no thread meanwhile."""

    def __init__(self, work_queues: Sequence[WorkQueue], meters: Meters | None, *, now: Callable[[], float]) -> None:
        self._now = now
        self._meters = meters
        self._own = OwnMeters()
        self._database_away = False
        rates = {one.name: one.rate for work_queue in work_queues for one in work_queue.subscriptions}
        self._pacers = {name: Pacer(name, rate, self._take) for name, rate in rates.items() if rate is not None}
        self._in_place = {
            one.name: work_queue.in_place for work_queue in work_queues for one in work_queue.subscriptions
        }

    def enter(self, delivery: Delivery, subscription: Subscription) -> Settlement | None:
        pacer = self._pacers.get(subscription.name)
        if pacer is None:
            return None
        now = self._now()
        wait, since = pacer.wait(delivery, now)
        if not wait:
            return None
        if now + wait - since > PUT_BACK_SECONDS and not self._in_place[subscription.name]:
            pacer.forget(delivery)
            return put_back(delivery, subscription, in_place=False)
        return Settlement(instruction=Instruction.KEEP, hold=wait)

    def leave(
        self, delivery: Delivery, subscription: Subscription, verdict: Verdict, error: BaseException | None
    ) -> Verdict:
        return verdict

    def _take(self, handler: str, count: int, rate: float, now: float) -> float:
        if self._meters is None:
            return self._own.take(handler, count, rate, now)
        try:
            first = self._meters.take(handler, count, rate, now)
        except Exception as error:  # noqa: BLE001 - any error of a database driver
            if not self._database_away:
                text = "Processes cannot share the rate (%s). Until they can, each process uses the whole rate"
                log.warning(text, one_line(error), extra={"event": "unshared", "handler": handler})
            self._database_away = True
            return self._own.take(handler, count, rate, now)
        if self._database_away:
            log.info("The rate is shared by all processes again", extra={"event": "shared"})
        self._database_away = False
        return first
