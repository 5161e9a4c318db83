"""The gate of breakers and pauses, with its log lines and signals."""

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Protocol

from django_rmq_retry import signals
from django_rmq_retry.breakers.control import Hands, Mode, NoHands, QueueState, Valve, turn
from django_rmq_retry.handlers.attempt import Unready
from django_rmq_retry.handlers.settlement import put_back
from django_rmq_retry.handlers.subscription import Intake, Subscription
from django_rmq_retry.messages.message import Delivery, Settlement
from django_rmq_retry.messages.tracebacks import ErrorNote, short
from django_rmq_retry.policies.breaker import Circuit, End, spared
from django_rmq_retry.policies.policy import Verdict

log = logging.getLogger("django_rmq_retry")


def cause_of(failures: int, error: BaseException | ErrorNote | None) -> str:
    """Return a short text for the error that opened a breaker, with the number of failures."""
    note = ErrorNote.of(error) if isinstance(error, BaseException) else error
    said = str(note or "")
    return short(f"{said} (×{failures})" if failures > 1 else said, 600)  # noqa: RUF001 - times, not the letter


def moved(queue: str, before: Circuit, after: Circuit) -> None:
    """Log a breaker that this process opened, closed or kept open after a failed probe; send the signal of a change."""
    names = {"event": "breaker", "queue": queue, "handler": after.handler or before.handler}
    if after.opened and before.opened:
        wait = after.probe_at - after.since
        log.info(
            "The breaker of %s stays open: %r; next probe at %s",
            *(after.handler, after.cause, _clock(after.probe_at)),
            extra={**names, "seconds": round(wait, 3)},
        )
    elif after.opened:
        said = "The breaker of %s has opened: %r. Queue %r waits, and no attempt is counted; next probe at %s"
        log.warning(said, *(after.handler, after.cause, queue, _clock(after.probe_at)), extra=names)
        _send(signals.breaker_opened, queue, after)
    else:
        said = "The breaker of %s has closed after %s failed probes; queue %r goes on"
        log.warning(said, *(before.handler, before.failed, queue), extra=names)
        _send(signals.breaker_closed, queue, before)


def turned(valve: Valve, before: QueueState, mode: Mode, now: float) -> None:
    """Log a change made by an operator, or by a breaker in another process."""
    extra = {"event": "switched", "queue": valve.queue}
    held = valve.known.held(now)
    if held and not (before.held(now) and mode is Mode.SHUT):
        name = valve.known.by or "?"
        log.warning("Queue %r is paused by %s: %s", valve.queue, name, valve.known.reason or "no reason", extra=extra)
    elif not held and mode is Mode.SHUT and valve.mode is Mode.OPEN:
        log.warning("Queue %r goes on", valve.queue, extra=extra)
    elif not held and mode is Mode.OPEN and valve.mode is not Mode.OPEN:
        said = "Queue %r waits: the breaker of %s was opened elsewhere: %r"
        log.warning(said, *(valve.queue, valve.circuit.handler, valve.circuit.cause), extra=extra)


def alone(error: Exception, *, loud: bool) -> None:
    said = "What is switched for all processes cannot be looked at (%s); breakers and pauses are this process's own"
    words = short(" ".join(str(error).split()) or type(error).__name__, 200)
    log.log(logging.WARNING if loud else logging.DEBUG, said, words, extra={"event": "alone"})


def together(*, loud: bool) -> None:
    level = logging.INFO if loud else logging.DEBUG
    log.log(level, "What is switched for all processes can be looked at again", extra={"event": "together"})


def _send(signal: object, queue: str, circuit: Circuit) -> None:
    try:
        signal.send_robust(Delivery, queue=queue, handler=circuit.handler, cause=circuit.cause)  # type: ignore[attr-defined]
    except BaseException:
        # send_robust does not catch SystemExit and other exceptions that are not an Exception.
        log.exception("A receiver of a signal raised what it should not")


def _clock(epoch: float) -> str:
    return datetime.fromtimestamp(epoch).astimezone().strftime("%H:%M:%S")


LEASE = 20.0
"""Seconds after which another process may probe, unless the probing process has renewed its lease."""
LOOK = 1.0
"""Seconds between two reads of the state that all processes share."""
LOOK_AGAIN = 5.0
"""Seconds between two reads while the store does not answer."""


class Store(Protocol):
    """The state that all processes of the project share."""

    def look(self, queues: Collection[str]) -> Mapping[str, QueueState]: ...

    def put(self, queue: str, circuit: Circuit, who: str) -> None: ...

    def claim(self, queue: str, who: str, *, now: float, until: float, most: float) -> bool: ...

    def renew(self, queue: str, who: str, until: float) -> None: ...

    def release(self, who: str) -> None: ...


class Board:
    """The breakers and pauses of this process's queues.

    Worker threads call ``enter`` and ``leave``, which never query the database; one thread calls ``turn`` repeatedly.
    """

    def __init__(
        self,
        intakes: Sequence[Intake],
        store: Store | None,
        *,
        now: Callable[[], float],
        chance: Callable[[], float],
        who: str = "",
        loud: bool = True,
    ) -> None:
        self._valves = {intake.queue.name: Valve.of(intake) for intake in intakes}
        # A row of an auto-delete queue is from before it became one; a pause would let the broker delete the queue.
        self._switched = [intake.queue.name for intake in intakes if not intake.queue.auto_delete]
        self._store = store
        self._now = now
        self._chance = chance
        self._who = who or "this process"
        self._alone = False
        self._loud = loud
        """True if a store that does not answer is worth a warning."""
        self.hands: Hands = NoHands()
        self.changed = threading.Event()
        """Set if ``turn`` has something to do at once."""
        self.looked = threading.Event()
        """Set after the first attempt to read the shared state."""

    def enter(self, delivery: Delivery, subscription: Subscription) -> Settlement | None:
        """If the queue is paused or its breaker is open, return the settlement that puts the message back uncounted."""
        valve = self._valves[subscription.queue.name]
        if valve.mode is not Mode.SHUT:
            return None
        return put_back(delivery, subscription, in_place=valve.in_place)

    def leave(
        self, delivery: Delivery, subscription: Subscription, verdict: Verdict, error: BaseException | None
    ) -> Verdict:
        """Return the verdict; make it uncounted if the attempt failed because of an outage that the breaker covers."""
        breaker, valve = subscription.breaker, self._valves[subscription.queue.name]
        if breaker is None or isinstance(error, Unready):
            return verdict
        end = breaker.end(verdict, error)
        if end is End.GOOD and breaker.share is None and not valve.circuit.opened:
            return verdict
        with valve.lock:
            before = valve.circuit
            after = valve.circuit = self._moved(valve, subscription, end, verdict, error)
            if after != before:
                valve.pending, valve.probing = True, False
            if after.opened != before.opened:
                valve.forget_runs()
        if after != before:
            turn(valve, self._now(), self.hands)
            moved(valve.queue, before, after)
            self.changed.set()
        spare = after.opened and (after != before or breaker.names(error) or after.kind == _kind(verdict, error))
        return spared(verdict, subscription.policy) if end is End.BAD and spare else verdict

    def turn(self) -> float:
        """Exchange changes with the store and apply them; return the seconds until the next call.

        Without a store, or while it does not answer, the process uses its own state.
        """
        rows = self._exchanged()
        now = self._now()
        for valve in self._valves.values():
            self._follow(valve, rows, now)
        self.looked.set()
        due, look = self.next_due(), LOOK_AGAIN if self._alone else LOOK
        # A change that was due already has just been attempted without success.
        return look if due is None or due <= now else max(0.0, min(look, due - self._now()))

    def next_due(self) -> float | None:
        """Return the next time at which a queue may change without an outside event, in epoch seconds, or None."""
        now = self._now()
        dues = [due for valve in self._valves.values() if (due := valve.next_due(now)) is not None]
        return min(dues, default=None)

    def end(self) -> None:
        """Give up this process's probes, so that another process may probe at once."""
        if self._store is not None and any(valve.probing for valve in self._valves.values()):
            self._store.release(self._who)

    def _moved(
        self, valve: Valve, subscription: Subscription, end: End, verdict: Verdict, error: BaseException | None
    ) -> Circuit:
        """Return the breaker's circuit after an attempt; the caller holds the valve's lock."""
        breaker, circuit, tally = subscription.breaker, valve.circuit, valve.tallies[subscription.name]
        if breaker is None or end is End.NEITHER:
            return circuit
        # If no handler with the breaker's name is left, the attempt of any handler decides.
        asked = circuit.handler == subscription.name or circuit.handler not in valve.tallies
        now, probe = self._now(), valve.probing and asked
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
            for valve in self._valves.values():
                self._tell(store, valve)
            rows = store.look(self._switched)
        except Exception as error:  # noqa: BLE001 - any error of a database driver
            if not self._alone:
                alone(error, loud=self._loud)
            self._alone = True
            return None
        if self._alone:
            together(loud=self._loud)
        self._alone = False
        return rows

    def _tell(self, store: Store, valve: Valve) -> None:
        with valve.lock:
            circuit, pending, probing = valve.circuit, valve.pending, valve.probing
            valve.pending = False
        if pending:
            try:
                store.put(valve.queue, circuit, self._who)
            except BaseException:
                valve.pending = True
                raise
        elif probing and self.hands.able():
            store.renew(valve.queue, self._who, self._now() + LEASE)

    def _follow(self, valve: Valve, rows: Mapping[str, QueueState] | None, now: float) -> None:
        before, opened = valve.known, valve.circuit.opened
        with valve.lock:
            if rows is not None:
                valve.known = rows.get(valve.queue) or QueueState(queue=valve.queue)
                # A change made here after the write to the store is not in the rows yet.
                valve.circuit = valve.circuit if valve.pending else valve.known.circuit
            valve.circuit = valve.circuit.mended(now, valve.most)
            ours = valve.circuit.opened and (rows is None or valve.circuit.prober == self._who)
            valve.probing = valve.probing and ours and not valve.known.held(now)
            if valve.circuit.opened != opened:
                valve.forget_runs()
        due = not valve.known.held(now) and valve.circuit.due(now) and not valve.probing
        if due and self.hands.able() and self._claims(valve, now, rows):
            self._try(valve, now)
        turned(valve, before, turn(valve, now, self.hands), now)

    def _try(self, valve: Valve, now: float) -> None:
        with valve.lock:
            if valve.tallies:
                valve.probing = True
                valve.circuit = replace(valve.circuit, prober=self._who, probe_until=now + LEASE)
            else:
                # None of the queue's handlers has a breaker now, so no attempt could close it.
                valve.circuit, valve.pending = valve.circuit.close(), True

    def _claims(self, valve: Valve, now: float, rows: Mapping[str, QueueState] | None) -> bool:
        if rows is None or self._store is None:
            return True
        try:
            return self._store.claim(valve.queue, self._who, now=now, until=now + LEASE, most=valve.most)
        except Exception:  # noqa: BLE001 - the next read of the store logs it
            return False


def _kind(verdict: Verdict, error: BaseException | None) -> str:
    if verdict.error is not None:
        return verdict.error.kind
    return "" if error is None else ErrorNote.of(error).kind
