"""The gate of breakers and pauses: the state of each queue in this process, with its log lines and signals."""

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import Enum
from typing import Protocol

from django.utils import timezone
from django.utils.formats import date_format
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_rmq_retry import signals
from django_rmq_retry.handlers.call import Unready
from django_rmq_retry.handlers.settlement import put_back
from django_rmq_retry.handlers.subscription import Subscription, WorkQueue
from django_rmq_retry.messages.message import Delivery, Settlement
from django_rmq_retry.messages.texts import ErrorNote, short
from django_rmq_retry.policies.breaker import CLOSED, JITTER, Circuit, End, FailureTally
from django_rmq_retry.policies.policy import uncounted_retry
from django_rmq_retry.policies.verdict import Verdict

log = logging.getLogger("django_rmq_retry")

FLOWING, PAUSED, OPEN, PROBING = "flowing", "paused", "open", "probing"

CLOCK_SKEW_SECONDS = 60.0
"""Seconds by which the clocks of hosts may differ."""
LONGEST_PROBE_SECONDS = 600.0
"""The most seconds between two probes, if no handler of the queue has a breaker."""

LEASE_SECONDS = 20.0
"""Seconds after which another process may probe, unless the probing process has renewed its lease."""
READ_SECONDS = 1.0
"""Seconds between two reads of the state that all processes share."""
READ_AGAIN_SECONDS = 5.0
"""Seconds between two reads while the store does not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueState:
    """The pause and breaker of one work queue; times are seconds since the epoch."""

    queue: str
    paused: bool = False
    """True if an operator paused it, even if the pause has ended since."""
    by: str = ""
    reason: str = ""
    since: float = 0.0
    until: float | None = None
    circuit: Circuit = CLOSED

    def is_paused(self, now: float) -> bool:
        """Return True while an operator's pause keeps the queue from being consumed."""
        return self.paused and (self.until is None or now < self.until)

    def state(self, now: float) -> str:
        """Return ``flowing``, ``paused``, ``open`` (by its breaker) or ``probing``."""
        if self.is_paused(now):
            return PAUSED
        if not self.circuit.opened:
            return FLOWING
        return PROBING if self.circuit.prober and now < self.circuit.probe_until else OPEN

    def resumes_at(self, now: float) -> float | None:
        """Return the time of the next automatic change, the end of the pause or the next probe; None without one."""
        state = self.state(now)
        return self.until if state == PAUSED else self.circuit.probe_at if state == OPEN else None

    def overdue(self, now: float) -> float:
        """Return the seconds since the next probe was due; near 0 while a consumer reads an open breaker's queue."""
        return now - max(self.circuit.probe_at, self.circuit.probe_until if self.circuit.prober else 0.0)

    def explanation(self, now: float) -> str:
        """Return a sentence for users with the reason that the queue does not flow; empty if it flows."""
        state = self.state(now)
        if state == PAUSED:
            return self._why_paused()
        return "" if state == FLOWING else self._why_open(probing=state == PROBING)

    def _why_paused(self) -> str:
        text = _("Paused by %(name)s since %(time)s.") % {"name": self.by or "?", "time": _clock(self.since)}
        if self.reason:
            text += " " + _("Reason: %(reason)s.") % {"reason": self.reason.rstrip(".")}
        if self.until is not None:
            text += " " + _("It resumes automatically at %(time)s.") % {"time": _clock(self.until)}
        if self.circuit.opened:
            text += " " + _("Its breaker is open as well.")
        return text

    def _why_open(self, *, probing: bool) -> str:
        circuit = self.circuit
        facts = {"handler": circuit.handler, "cause": circuit.cause.rstrip("."), "time": _clock(circuit.since)}
        text = _("The breaker of %(handler)s is open since %(time)s: %(cause)s.") % facts
        if circuit.failed:
            failed = ngettext("%(count)d probe has failed.", "%(count)d probes have failed.", circuit.failed)
            text += " " + failed % {"count": circuit.failed}
        if probing:
            return text + " " + _("A probe is in flight now.")
        return text + " " + _("Next probe at %(time)s.") % {"time": _clock(circuit.probe_at)}


def _clock(epoch: float) -> str:
    """Return the time of day, with the date if it is not today."""
    at = timezone.localtime(datetime.fromtimestamp(epoch, UTC))
    form = "H:i:s" if at.date() == timezone.localdate() else "Y-m-d H:i:s"
    return date_format(at, form)


@dataclass(frozen=True, slots=True, kw_only=True)
class Halt:
    """A halted strict-order queue."""

    queue: str
    since: float
    attempt: int
    error: str
    message_id: str | None


class PauseControl(Protocol):
    """An object that pauses and resumes queues: a consumer, or the driver of a test."""

    def pause(self, queue: str) -> None: ...

    def resume(self, queue: str) -> None: ...

    def probe(self, queue: str) -> None:
        """Take one message at a time."""

    def able(self) -> bool:
        """Return True if messages can arrive: False without a broker connection and during shutdown."""


class NoPauseControl:
    """A placeholder that does nothing, used until a consumer starts."""

    def pause(self, queue: str) -> None: ...

    def resume(self, queue: str) -> None: ...

    def probe(self, queue: str) -> None: ...

    def able(self) -> bool:
        return True


class Consuming(Enum):
    """The degree to which this process consumes a queue."""

    ALL = "all"
    ONE = "one message at a time"
    NONE = "nothing"


@dataclass(slots=True, kw_only=True, eq=False)
class LocalQueue:
    """The state of one queue here. Its fields change under its lock; the effects are applied outside the lock."""

    queue: str
    in_place: bool
    """True if a message must return to its place in the queue, or if a copy would escape the queue's own count."""
    tallies: Mapping[str, FailureTally]
    most: float
    """The most seconds that the next probe may be ahead, with an allowance for clocks that differ."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    applying: threading.Lock = field(default_factory=threading.Lock)
    """Held while a thread pauses or resumes the queue, because ``known`` may change at the same time."""
    stored: QueueState
    """The queue's row as of the last read of the database."""
    circuit: Circuit = CLOSED
    probing: bool = False
    """True while this process probes with a message."""
    pending: bool = False
    """True if the circuit has changed here and the database does not have the change yet."""
    mode: Consuming = Consuming.ALL

    @classmethod
    def of(cls, work_queue: WorkQueue) -> "LocalQueue":
        subscriptions = work_queue.subscriptions
        queue = work_queue.queue.name
        longest = max(
            (one.breaker.longest for one in subscriptions if one.breaker is not None), default=LONGEST_PROBE_SECONDS
        )
        return cls(
            queue=queue,
            in_place=work_queue.in_place,
            most=longest * (1 + JITTER) + CLOCK_SKEW_SECONDS,
            tallies={one.name: FailureTally(one.breaker) for one in subscriptions if one.breaker is not None},
            stored=QueueState(queue=queue),
        )

    def wanted(self, now: float) -> Consuming:
        """Return the mode that follows from the known state."""
        if self.stored.is_paused(now):
            return Consuming.NONE
        if not self.circuit.opened:
            return Consuming.ALL
        return Consuming.ONE if self.probing else Consuming.NONE

    def clear_tallies(self) -> None:
        """Clear the counts of earlier attempts: attempts before an outage are no evidence for the time after it."""
        for tally in self.tallies.values():
            tally.clear()

    def next_due(self, now: float) -> float | None:
        """Return the time at which the queue may change without an outside event, or None."""
        if self.stored.is_paused(now):
            return self.stored.until
        if not self.circuit.opened or self.probing:
            return None
        return max(self.circuit.probe_at, self.circuit.probe_until if self.circuit.prober else 0.0)


def apply(local: LocalQueue, now: float, control: PauseControl) -> Consuming:
    """Apply the mode that the known state demands, unless it is already in effect; return the previous mode."""
    with local.applying:
        before, mode = local.mode, local.wanted(now)
        if mode is before:
            return before
        local.mode = mode
        if mode is Consuming.NONE:
            control.pause(local.queue)
        elif mode is Consuming.ONE:
            control.probe(local.queue)
        else:
            control.resume(local.queue)
        return before


def cause_of(failures: int, error: BaseException | ErrorNote | None) -> str:
    """Return a short text for the error that opened a breaker, with the number of failures."""
    note = ErrorNote.of(error) if isinstance(error, BaseException) else error
    text = str(note or "")
    return short(f"{text} (×{failures})" if failures > 1 else text, 600)  # noqa: RUF001 - times, not the letter


def announce(queue: str, before: Circuit, after: Circuit) -> None:
    """Log a breaker that this process opened, closed or kept open after a failed probe; send the signal of a change."""
    names = {"event": "breaker", "queue": queue, "handler": after.handler or before.handler}
    if after.opened and before.opened:
        wait = after.probe_at - after.since
        log.info(
            "The breaker of %s stays open: %r. Next probe at %s",
            *(after.handler, after.cause, _clock_time(after.probe_at)),
            extra={**names, "seconds": round(wait, 3)},
        )
    elif after.opened:
        text = "The breaker of %s has opened: %r. Queue %r is not consumed, and no attempt is counted. Next probe at %s"
        log.warning(text, *(after.handler, after.cause, queue, _clock_time(after.probe_at)), extra=names)
        _send(signals.breaker_opened, queue, after)
    else:
        text = "The breaker of %s has closed after %s failed probes. Queue %r resumes"
        log.warning(text, *(before.handler, before.failed, queue), extra=names)
        _send(signals.breaker_closed, queue, before)


def log_change(local: LocalQueue, before: QueueState, mode: Consuming, now: float) -> None:
    """Log a change made by an operator, or by a breaker in another process."""
    extra = {"event": "switched", "queue": local.queue}
    held = local.stored.is_paused(now)
    if held and not (before.is_paused(now) and mode is Consuming.NONE):
        name = local.stored.by or "?"
        log.warning("Queue %r is paused by %s: %s", local.queue, name, local.stored.reason or "no reason", extra=extra)
    elif not held and mode is Consuming.NONE and local.mode is Consuming.ALL:
        log.warning("Queue %r resumes", local.queue, extra=extra)
    elif not held and mode is Consuming.ALL and local.mode is not Consuming.ALL:
        text = "Queue %r is not consumed. Another process has opened the breaker of %s: %r"
        log.warning(text, *(local.queue, local.circuit.handler, local.circuit.cause), extra=extra)


def log_store_away(error: Exception, *, warn: bool) -> None:
    text = "The shared state of breakers and pauses cannot be read (%s). Until it can, this process uses its own state"
    words = short(" ".join(str(error).split()) or type(error).__name__, 200)
    log.log(logging.WARNING if warn else logging.DEBUG, text, words, extra={"event": "unshared"})


def log_store_back(*, warn: bool) -> None:
    level = logging.INFO if warn else logging.DEBUG
    log.log(level, "The shared state of breakers and pauses can be read again", extra={"event": "shared"})


def _send(signal: object, queue: str, circuit: Circuit) -> None:
    try:
        signal.send_robust(Delivery, queue=queue, handler=circuit.handler, cause=circuit.cause)  # type: ignore[attr-defined]
    except BaseException:
        # send_robust does not catch SystemExit and other exceptions that are not an Exception.
        log.exception("A receiver of a signal raised an exception that send_robust() does not catch")


def _clock_time(epoch: float) -> str:
    return datetime.fromtimestamp(epoch).astimezone().strftime("%H:%M:%S")


class SharedStore(Protocol):
    """The state that all processes of the project share."""

    def read(self, queues: Collection[str]) -> Mapping[str, QueueState]: ...

    def put(self, queue: str, circuit: Circuit, who: str) -> None: ...

    def claim(self, queue: str, who: str, *, now: float, until: float, most: float) -> bool: ...

    def renew(self, queue: str, who: str, until: float) -> None: ...

    def release(self, who: str) -> None: ...


class BreakerGate:
    """The breakers and pauses of this process's queues.

    Worker threads call ``enter`` and ``leave``, which never query the database; one thread calls ``turn`` repeatedly.
    """

    def __init__(
        self,
        work_queues: Sequence[WorkQueue],
        store: SharedStore | None,
        *,
        now: Callable[[], float],
        chance: Callable[[], float],
        who: str = "",
        warn: bool = True,
    ) -> None:
        self._queues = {work_queue.queue.name: LocalQueue.of(work_queue) for work_queue in work_queues}
        # A row of an auto-delete queue is from before it became one; a pause would let the broker delete the queue.
        self._pausable = [work_queue.queue.name for work_queue in work_queues if not work_queue.queue.auto_delete]
        self._store = store
        self._now = now
        self._chance = chance
        self._who = who or "this process"
        self._store_away = False
        self._warn = warn
        """True if a store that does not answer is worth a warning."""
        self.control: PauseControl = NoPauseControl()
        self.changed = threading.Event()
        """Set if ``turn`` has something to do at once."""
        self.first_read = threading.Event()
        """Set after the first attempt to read the shared state."""

    def enter(self, delivery: Delivery, subscription: Subscription) -> Settlement | None:
        """If the queue is paused or its breaker is open, return the settlement that puts the message back uncounted."""
        local = self._queues[subscription.queue.name]
        if local.mode is not Consuming.NONE:
            return None
        return put_back(delivery, subscription, in_place=local.in_place)

    def leave(
        self, delivery: Delivery, subscription: Subscription, verdict: Verdict, error: BaseException | None
    ) -> Verdict:
        """Return the verdict; make it uncounted if the attempt failed because of an outage that the breaker covers."""
        breaker, local = subscription.breaker, self._queues[subscription.queue.name]
        if breaker is None or isinstance(error, Unready):
            return verdict
        end = breaker.end(verdict, error)
        if end is End.GOOD and breaker.share is None and not local.circuit.opened:
            return verdict
        with local.lock:
            before = local.circuit
            after = local.circuit = self._circuit_after(local, subscription, end, verdict, error)
            if after != before:
                local.pending, local.probing = True, False
            if after.opened != before.opened:
                local.clear_tallies()
        if after != before:
            apply(local, self._now(), self.control)
            announce(local.queue, before, after)
            self.changed.set()
        spare = after.opened and (after != before or breaker.names(error) or after.kind == _kind(verdict, error))
        return uncounted_retry(verdict, subscription.policy) if end is End.BAD and spare else verdict

    def turn(self) -> float:
        """Exchange changes with the store and apply them; return the seconds until the next call.

        Without a store, or while it does not answer, the process uses its own state.
        """
        rows = self._exchanged()
        now = self._now()
        for local in self._queues.values():
            self._update(local, rows, now)
        self.first_read.set()
        due, look = self.next_due(), READ_AGAIN_SECONDS if self._store_away else READ_SECONDS
        # A change that was due already has just been attempted without success.
        return look if due is None or due <= now else max(0.0, min(look, due - self._now()))

    def next_due(self) -> float | None:
        """Return the next time at which a queue may change without an outside event, in epoch seconds, or None."""
        now = self._now()
        dues = [due for local in self._queues.values() if (due := local.next_due(now)) is not None]
        return min(dues, default=None)

    def end(self) -> None:
        """Give up this process's probes, so that another process may probe at once."""
        if self._store is not None and any(local.probing for local in self._queues.values()):
            self._store.release(self._who)

    def _circuit_after(
        self, local: LocalQueue, subscription: Subscription, end: End, verdict: Verdict, error: BaseException | None
    ) -> Circuit:
        """Return the breaker's circuit after an attempt; the caller holds the lock of ``local``."""
        breaker, circuit, tally = subscription.breaker, local.circuit, local.tallies[subscription.name]
        if breaker is None or end is End.NEITHER:
            return circuit
        # If no handler with the breaker's name is left, the attempt of any handler decides.
        asked = circuit.handler == subscription.name or circuit.handler not in local.tallies
        now, probe = self._now(), local.probing and asked
        if not circuit.opened:
            tally.add(end)
            if end is End.GOOD or not (breaker.names(error) or tally.full):
                return circuit
            cause = cause_of(tally.failures, verdict.error or error)
            wait = breaker.wait(0, self._chance())
            return circuit.trip(handler=subscription.name, kind=_kind(verdict, error), cause=cause, now=now, wait=wait)
        if not probe:
            return circuit
        if end is End.GOOD:
            return circuit.close()
        cause = cause_of(1, verdict.error or error)
        return circuit.fail(cause=cause, now=now, wait=breaker.wait(circuit.failed + 1, self._chance()))

    def _exchanged(self) -> Mapping[str, QueueState] | None:
        """Write pending changes to the store and return its rows; None if it does not answer."""
        store = self._store
        if store is None:
            return None
        try:
            for local in self._queues.values():
                self._write(store, local)
            rows = store.read(self._pausable)
        except Exception as error:  # noqa: BLE001 - any error of a database driver
            if not self._store_away:
                log_store_away(error, warn=self._warn)
            self._store_away = True
            return None
        if self._store_away:
            log_store_back(warn=self._warn)
        self._store_away = False
        return rows

    def _write(self, store: SharedStore, local: LocalQueue) -> None:
        with local.lock:
            circuit, pending, probing = local.circuit, local.pending, local.probing
            local.pending = False
        if pending:
            try:
                store.put(local.queue, circuit, self._who)
            except BaseException:
                local.pending = True
                raise
        elif probing and self.control.able():
            store.renew(local.queue, self._who, self._now() + LEASE_SECONDS)

    def _update(self, local: LocalQueue, rows: Mapping[str, QueueState] | None, now: float) -> None:
        before, opened = local.stored, local.circuit.opened
        with local.lock:
            if rows is not None:
                local.stored = rows.get(local.queue) or QueueState(queue=local.queue)
                # A change made here after the write to the store is not in the rows yet.
                local.circuit = local.circuit if local.pending else local.stored.circuit
            local.circuit = local.circuit.with_plausible_times(now, local.most)
            ours = local.circuit.opened and (rows is None or local.circuit.prober == self._who)
            local.probing = local.probing and ours and not local.stored.is_paused(now)
            if local.circuit.opened != opened:
                local.clear_tallies()
        due = not local.stored.is_paused(now) and local.circuit.due(now) and not local.probing
        if due and self.control.able() and self._claims(local, now, rows):
            self._start_probe(local, now)
        log_change(local, before, apply(local, now, self.control), now)

    def _start_probe(self, local: LocalQueue, now: float) -> None:
        with local.lock:
            if local.tallies:
                local.probing = True
                local.circuit = replace(local.circuit, prober=self._who, probe_until=now + LEASE_SECONDS)
            else:
                # None of the queue's handlers has a breaker now, so no attempt could close it.
                local.circuit, local.pending = local.circuit.close(), True

    def _claims(self, local: LocalQueue, now: float, rows: Mapping[str, QueueState] | None) -> bool:
        if rows is None or self._store is None:
            return True
        try:
            return self._store.claim(local.queue, self._who, now=now, until=now + LEASE_SECONDS, most=local.most)
        except Exception:  # noqa: BLE001 - the next read of the store logs it
            return False


def _kind(verdict: Verdict, error: BaseException | None) -> str:
    if verdict.error is not None:
        return verdict.error.kind
    return "" if error is None else ErrorNote.of(error).kind
