"""The gate of breakers and pauses before an attempt, and the exchange of their state with other processes."""

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from django_rmq_retry.breakers.local_queue import Consuming, LocalQueue, NoPauseControl, PauseControl, apply
from django_rmq_retry.breakers.log_lines import (
    announce,
    log_change,
    log_read,
    log_store_away,
    log_store_back,
    log_unread,
)
from django_rmq_retry.breakers.queue_state import QueueState
from django_rmq_retry.handlers.call import Unready
from django_rmq_retry.handlers.settlement import put_back
from django_rmq_retry.handlers.subscription import Subscription, WorkQueue
from django_rmq_retry.messages.message import Delivery, Settlement
from django_rmq_retry.messages.texts import ErrorNote, one_line, short
from django_rmq_retry.policies.breaker import Circuit, End
from django_rmq_retry.policies.policy import uncounted_retry
from django_rmq_retry.policies.verdict import Verdict

LEASE_SECONDS = 20.0
"""Seconds after which another process may probe, unless the probing process has renewed its lease."""
READ_SECONDS = 1.0
"""Seconds between two reads of the state that all processes share."""
READ_AGAIN_SECONDS = 5.0
"""Seconds between two reads while the store does not answer."""
UNREAD_LOG_SECONDS = 60.0
"""Seconds between two log lines of a process that takes no message, because the pauses were never read."""


class SharedStore(Protocol):
    def read(self, queues: Collection[str]) -> Mapping[str, QueueState]: ...

    def is_missing(self) -> bool:
        """Return True if there is no table, so that nobody can have paused a queue."""

    def put(self, queue: str, circuit: Circuit, who: str) -> None: ...

    def claim(self, queue: str, who: str, *, now: float, until: float, most: float) -> bool: ...

    def renew(self, queue: str, who: str, until: float) -> None: ...

    def release(self, who: str) -> None: ...


class LetGoStore(Protocol):
    def look(self, stopped: Iterable[str]) -> None: ...

    def takes(self, queue: str) -> None: ...


class BreakerGate:
    """The breakers and pauses of this process. ``enter`` and ``leave`` query nothing; one thread calls ``turn``."""

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
        for queue in self._pausable if store is not None else ():
            self._queues[queue].known = False
        self.unread = store is not None and bool(self._pausable)
        """True until the pauses were read once and applied; until then only queues that cannot be paused flow."""
        self._unread_since = self._unread_told = 0.0
        self._store = store
        self._now = now
        self._chance = chance
        self._who = who or "this process"
        self._store_away = False
        self._warn = warn
        """True if a store that does not answer is worth a warning."""
        self.control: PauseControl = NoPauseControl()
        self.let_go: LetGoStore | None = None
        """Where this process tells what it has left of stopped queues; None without records."""
        self.changed = threading.Event()
        """Set if ``turn`` has something to do at once."""
        self.first_read = threading.Event()
        """Set after the first attempt to read the shared state."""

    @property
    def halted(self) -> frozenset[str]:
        """The queues that some process has halted, as read last."""
        return frozenset(queue for queue, local in self._queues.items() if local.stored.halted)

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

    def hold_back(self) -> None:
        """Take nothing from the queues until their pauses were read. Called before the consumer starts."""
        self._unread_since = now = self._now()
        for local in self._queues.values():
            apply(local, now, self.control)

    def tell_unread(self, cause: str) -> None:
        """Log, once a minute, that no message is taken."""
        now = self._now()
        if self.unread and now - self._unread_told >= UNREAD_LOG_SECONDS:
            self._unread_told = now
            log_unread(cause, self._unread_since or now)

    def turn(self) -> float:
        """Exchange changes with the store, if it answers, and apply them; return the seconds until the next call."""
        rows = self._exchange()
        now = self._now()
        for local in self._queues.values():
            self._update(local, rows, now)
        if rows is not None:
            self._tell_let_go()
        # Once all are applied: until then a burst would find no queue to wait for.
        if self.unread and all(local.known for local in self._queues.values()):
            self.unread = False
            if self._unread_told:
                log_read(self._unread_since)
        self.first_read.set()
        due, look = self.next_due(), READ_AGAIN_SECONDS if self._store_away or self.unread else READ_SECONDS
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
            cause = breaker_cause(tally.failures, verdict.error or error)
            wait = breaker.wait(0, self._chance())
            return circuit.trip(handler=subscription.name, kind=_kind(verdict, error), cause=cause, now=now, wait=wait)
        if not probe:
            return circuit
        if end is End.GOOD:
            return circuit.close()
        cause = breaker_cause(1, verdict.error or error)
        return circuit.fail(cause=cause, now=now, wait=breaker.wait(circuit.failed + 1, self._chance()))

    def _exchange(self) -> Mapping[str, QueueState] | None:
        """Write pending changes to the store and return its rows; None if it does not answer."""
        store = self._store
        if store is None:
            return None
        try:
            for local in self._queues.values():
                self._write(store, local)
            rows = store.read(self._pausable)
        except Exception as error:  # noqa: BLE001 - any error of a database driver
            if self.unread and not self._is_missing(store):
                self.tell_unread(one_line(error))
                return None
            if not self._store_away:
                log_store_away(error, warn=self._warn)
            self._store_away = True
            # Without a table there are no rows, which is known then.
            return {} if self.unread else None
        if self._store_away:
            log_store_back(warn=self._warn)
        self._store_away = False
        return rows

    def _is_missing(self, store: SharedStore) -> bool:
        try:
            return store.is_missing()
        except Exception:  # noqa: BLE001 - any error of a database driver: it does not answer
            return False

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
        before, opened, known = local.stored, local.circuit.opened, local.known
        with local.lock:
            if rows is not None:
                local.known = True
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
        if rows is not None and local.mode is Consuming.NONE and local.wanted(now) is not Consuming.NONE:
            self._tell_taken(local.queue)
        mode = apply(local, now, self.control)
        if local.known:
            log_change(local, before, mode if known else Consuming.ALL, now)

    def _tell_let_go(self) -> None:
        if self.let_go is not None:
            with suppress(Exception):  # The heartbeat, which writes the same row, logs what persists.
                self.let_go.look([name for name, local in self._queues.items() if local.mode is Consuming.NONE])

    def _tell_taken(self, queue: str) -> None:
        if self.let_go is not None:
            with suppress(Exception):  # As above: no message waits for what only pages show.
                self.let_go.takes(queue)

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


def breaker_cause(failures: int, error: BaseException | ErrorNote | None) -> str:
    """Return a short text for the error that opened a breaker, with the number of failures."""
    note = ErrorNote.of(error) if isinstance(error, BaseException) else error
    text = str(note or "")
    return short(f"{text} (×{failures})" if failures > 1 else text, 600)  # noqa: RUF001 - times, not the letter
