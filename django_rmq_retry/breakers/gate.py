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
    """Of the runs that have opened a breaker, in a word."""
    note = ErrorNote.of(error) if isinstance(error, BaseException) else error
    said = str(note or "")
    return short(f"{said} (×{failures})" if failures > 1 else said, 600)  # noqa: RUF001 - times, not the letter


def moved(queue: str, before: Circuit, after: Circuit) -> None:
    """This process has opened or closed a breaker, or its probe has failed."""
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
    """What a person, or a breaker in another process, has switched."""
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
        # SystemExit and its like pass through send_robust.
        log.exception("A receiver of a signal raised what it should not")


def _clock(epoch: float) -> str:
    return datetime.fromtimestamp(epoch).astimezone().strftime("%H:%M:%S")


LEASE = 20.0
"""Seconds after which somebody else tries a message, if whoever does has not said that it lives."""
LOOK = 1.0
"""Seconds between two looks at what others have switched."""
LOOK_AGAIN = 5.0
"""The same while the store does not answer."""


class Store(Protocol):
    """What all processes of the project share."""

    def look(self, queues: Collection[str]) -> Mapping[str, QueueState]: ...

    def put(self, queue: str, circuit: Circuit, who: str) -> None: ...

    def claim(self, queue: str, who: str, *, now: float, until: float, most: float) -> bool: ...

    def renew(self, queue: str, who: str, until: float) -> None: ...

    def release(self, who: str) -> None: ...


class Board:
    """``enter`` and ``leave`` are called by workers and ask no database; ``turn`` is called again and again."""

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
        # A row of such a queue is of a time before it was one; to pause it would delete it.
        self._switched = [intake.queue.name for intake in intakes if not intake.queue.auto_delete]
        self._store = store
        self._now = now
        self._chance = chance
        self._who = who or "this process"
        self._alone = False
        self._loud = loud
        """Whether it is worth a warning that the store does not answer."""
        self.hands: Hands = NoHands()
        self.changed = threading.Event()
        """Set where ``turn`` has something to do at once."""
        self.looked = threading.Event()
        """Whether it was tried once to learn what is switched."""

    def enter(self, delivery: Delivery, subscription: Subscription) -> Settlement | None:
        """Where its queue is shut: how the message goes back, with nothing counted."""
        valve = self._valves[subscription.queue.name]
        if valve.mode is not Mode.SHUT:
            return None
        return put_back(delivery, subscription, in_place=valve.in_place)

    def leave(
        self, delivery: Delivery, subscription: Subscription, verdict: Verdict, error: BaseException | None
    ) -> Verdict:
        """The verdict; of a run that failed because something was down, one that counts for nothing."""
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
        """Tell the store what has changed here, learn what has changed elsewhere, and follow; seconds until the next.

        Without a store, or while it does not answer, the process goes by what it knows itself.
        """
        rows = self._exchanged()
        now = self._now()
        for valve in self._valves.values():
            self._follow(valve, rows, now)
        self.looked.set()
        due, look = self.next_due(), LOOK_AGAIN if self._alone else LOOK
        # What was due already has just been tried in vain.
        return look if due is None or due <= now else max(0.0, min(look, due - self._now()))

    def next_due(self) -> float | None:
        """When something may happen by itself, in seconds of the epoch; None: never."""
        now = self._now()
        dues = [due for valve in self._valves.values() if (due := valve.next_due(now)) is not None]
        return min(dues, default=None)

    def end(self) -> None:
        """Somebody else may try a message at once."""
        if self._store is not None and any(valve.probing for valve in self._valves.values()):
            self._store.release(self._who)

    def _moved(
        self, valve: Valve, subscription: Subscription, end: End, verdict: Verdict, error: BaseException | None
    ) -> Circuit:
        """Where its breaker stands after a run; called under the valve's lock."""
        breaker, circuit, tally = subscription.breaker, valve.circuit, valve.tallies[subscription.name]
        if breaker is None or end is End.NEITHER:
            return circuit
        # Where nobody has that name any more, any of them tells.
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
        """What the store knows, after it was told what it does not; None where it does not answer."""
        store = self._store
        if store is None:
            return None
        try:
            for valve in self._valves.values():
                self._tell(store, valve)
            rows = store.look(self._switched)
        except Exception as error:  # noqa: BLE001 - whatever a driver of a database says
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
                # What has changed here since the store was told is not there yet.
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
                # None of its handlers has a breaker any more, so that nobody could close it.
                valve.circuit, valve.pending = valve.circuit.close(), True

    def _claims(self, valve: Valve, now: float, rows: Mapping[str, QueueState] | None) -> bool:
        if rows is None or self._store is None:
            return True
        try:
            return self._store.claim(valve.queue, self._who, now=now, until=now + LEASE, most=valve.most)
        except Exception:  # noqa: BLE001 - the next look tells of it
            return False


def _kind(verdict: Verdict, error: BaseException | None) -> str:
    if verdict.error is not None:
        return verdict.error.kind
    return "" if error is None else ErrorNote.of(error).kind
