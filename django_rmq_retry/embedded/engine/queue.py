"""One queue: order, limits, expiry and leases."""

from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Literal

from django_rmq_retry.embedded.engine.behaviour import Behaviour, Return
from django_rmq_retry.embedded.engine.clock import Clock, Timer
from django_rmq_retry.embedded.engine.consumers import BrokerConsumer, Roster
from django_rmq_retry.embedded.engine.entries import (
    NEVER,
    Counts,
    Delayed,
    Entry,
    begin_count,
    count,
    delivery_count,
    ready_for,
)
from django_rmq_retry.embedded.engine.envelopes import StoredMessage, with_table
from django_rmq_retry.embedded.engine.specs import QueueSpec
from django_rmq_retry.embedded.engine.store import Detail, DurableStore, MessagePlace

# Quorum queues check every five seconds (rabbit_quorum_queue's tick).
_TICK_SECONDS = 5.0

# A full quorum queue accepts messages again at 80 % of its limit (rabbit_fifo's LOW_LIMIT).
_REOPENS_AT = 0.8
Admission = Literal["take", "refuse", "bury"]

_LIMITING = ("x-max-length", "x-max-length-bytes")

_COUNTS = frozenset({"x-delivery-count", "x-acquired-count"})


class Lease:
    """The time for which a queue may stay unused; a consumer suspends it."""

    __slots__ = ("_born", "_clock", "_end", "_quorum", "_seconds", "_timer")

    def __init__(self, clock: Clock, seconds: float, *, quorum: bool, end: Callable[[], None]) -> None:
        self._clock = clock
        self._seconds = seconds
        self._quorum = quorum
        self._end = end
        self._born = clock.now
        self._timer: Timer | None = None
        self.renew()

    def renew(self) -> None:
        self.stop()
        due = self._clock.now + self._seconds
        if self._quorum:
            due = self._born - (self._born - due) // _TICK_SECONDS * _TICK_SECONDS
        self._timer = self._clock.at(due, self._end)

    def declared(self) -> None:
        """Restart the lease of a classic queue after a redeclaration; quorum queues ignore it."""
        if not self._quorum and self._timer is not None:
            self.renew()

    def fetched(self) -> None:
        if self._timer is not None:
            self.renew()

    def stop(self) -> None:
        """Suspend the lease while a consumer uses the queue."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class LengthLimits:
    """x-max-length, x-max-length-bytes and x-overflow. Unacked messages do not count."""

    __slots__ = ("_bytes", "_length", "_quorum", "_shut", "drops", "overflow")

    def __init__(self, spec: QueueSpec) -> None:
        self._length = spec.number("x-max-length")
        self._bytes = spec.number("x-max-length-bytes")
        self._quorum = spec.quorum
        self._shut = False
        self.overflow = spec.text("x-overflow") or "drop-head"
        # Quorum queues silently treat reject-publish-dlx as drop-head (docs/quorum-queues).
        self.drops = self.overflow == "drop-head" or (spec.quorum and self.overflow == "reject-publish-dlx")

    def judge(self, count: int, size: int, *, more: int) -> Admission:
        """Decide about a message of `more` bytes, with this many messages and bytes in the queue."""
        if self.drops:
            return "take"
        if self._quorum:
            return "refuse" if self._still_shut(count, size) else "take"
        if not self.over(count + 1, size + more):
            return "take"
        return "bury" if self.overflow == "reject-publish-dlx" else "refuse"

    def over(self, count: int, size: int) -> bool:
        return (self._length is not None and count > self._length) or (self._bytes is not None and size > self._bytes)

    def note(self, count: int, size: int) -> None:
        """Update the full state; a quorum queue refuses only once it exceeds its limit by one message."""
        if not self.drops and self.over(count, size):
            self._shut = True

    def _still_shut(self, count: int, size: int) -> bool:
        if self._shut and _below(count, self._length) and _below(size, self._bytes):
            self._shut = False
        return self._shut


def _below(value: int, limit: int | None) -> bool:
    return limit is None or value <= int(limit * _REOPENS_AT)


class SharedState:
    """The clock, the store and the graves that all queues of a virtual host share."""

    __slots__ = ("behaviour", "clock", "graves", "lost", "settle", "store")

    settle: Callable[[], None]
    """Dead-letter everything in `graves`; every timer calls it at its end."""

    def __init__(self, clock: Clock, behaviour: Behaviour, store: DurableStore) -> None:
        self.clock = clock
        self.behaviour = behaviour
        self.store = store
        self.graves: deque[tuple[BrokerQueue, Entry, str]] = deque()
        """Messages that died and are not dead-lettered yet: the queue, the entry and the reason."""
        self.lost: Counter[str] = Counter()
        """Messages lost without a consumer's ack, by reason."""


class BrokerQueue:
    """A queue and its messages. It routes nothing: messages that die are left in `shared.graves`."""

    __slots__ = (
        "_arms_when_alone", "_expires_any", "_stores_all", "_timer", "closed", "counts", "delayed", "held",
        "lease", "limits", "name", "owner", "pending", "position", "ready", "roster", "shared", "spec", "stores", "ttl",
    )  # fmt: skip

    def __init__(self, spec: QueueSpec, shared: SharedState, owner: object = None) -> None:
        self.spec = spec
        self.name = spec.name
        self.shared = shared
        self.owner = owner
        """The session of an exclusive queue."""
        self.closed = False
        self.ready = ready_for(spec.number("x-max-priority"), shared.behaviour.quorum_lanes if spec.quorum else 0)
        single = spec.arguments.get("x-single-active-consumer") is True
        self.roster = Roster(shared.behaviour, single=single, quorum=spec.quorum)
        self.limits = LengthLimits(spec) if any(name in spec.arguments for name in _LIMITING) else None
        self.counts = Counts(spec, shared.behaviour) if spec.quorum else None
        ttl = spec.seconds("x-message-ttl")
        self.ttl = NEVER if ttl is None else ttl
        self.position = 0
        self.held = 0
        """The number of unacked messages."""
        self.pending = 0
        """Dead letters that no queue has accepted yet (at-least-once)."""
        self.delayed = Delayed(shared.clock, self._undelay)
        self.lease: Lease | None = None
        self.stores = spec.kept
        # A quorum queue stores messages whatever their delivery mode (docs/quorum-queues, "Feature comparison").
        self._stores_all = spec.quorum
        self._expires_any = False
        # A classic queue with priorities checks the expiry of the first message only (rabbit_amqqueue_process).
        self._arms_when_alone = not spec.quorum and "x-max-priority" in spec.arguments
        self._timer: Timer | None = None

    def bury(self, entry: Entry, reason: str) -> None:
        self.shared.graves.append((self, entry, reason))

    def note(self, entry: Entry, place: MessagePlace, detail: Detail = None) -> None:
        if self.stores and not self.closed and (self._stores_all or entry.message.persistent):
            self.shared.store.moved(self.name, entry, place, detail)

    def forget(self, entry: Entry) -> None:
        if self.stores and not self.closed and (self._stores_all or entry.message.persistent):
            self.shared.store.removed(self.name, entry.position)

    def offer(self, message: StoredMessage, *, refusable: bool = True) -> bool:
        """Accept a message; return False if the queue is full and refuses it."""
        ready = self.ready
        if refusable and self.limits is not None and not self._has_room(self.limits, message):
            return False
        self.position += 1
        entry = Entry(message, self.position, self._end_of(message))
        if message.count is not None:
            begin_count(entry, self.shared.behaviour)
        if self.stores and (self._stores_all or message.persistent):
            self.shared.store.enqueued(self.name, entry)
        ready.put(entry)
        if self.roster.members:
            # An empty queue delivers to a waiting consumer even a message with a time to live of 0.
            consumer = self.roster.next() if ready.count == 1 else None
            if consumer is not None:
                self.held += 1
                consumer.take(ready.take())
                return True
            self.dispatch()
        if entry.expires < NEVER:
            self._expires_any = True
            if ready.count == 1 or not self._arms_when_alone:
                self.watch()
        if self.limits is not None:
            self._shed(self.limits)
        return True

    def dispatch(self) -> None:
        """Deliver to every consumer with room."""
        ready, roster = self.ready, self.roster
        while ready.count and (consumer := roster.next()) is not None:
            if self._expires_any:
                self.expire()
                if not ready.count:
                    return
            self.held += 1
            consumer.take(ready.take())
        if self._expires_any:
            self.watch()

    def fetch(self) -> Entry | None:
        if self._expires_any:
            self.expire()
        if not self.ready.count:
            return None
        self.held += 1
        entry = self.ready.take()
        if self._expires_any:
            self.watch()
        return entry

    def done(self, entry: Entry) -> None:
        self.held -= 1
        if self.stores:
            self.forget(entry)

    def reject(self, entry: Entry, how: Return) -> None:
        if self.closed:
            return
        self.held -= 1
        if self.shared.behaviour.carries(how, quorum=self.counts is not None):
            entry.count += 1
        self.bury(entry, "rejected")

    def give_back(self, entries: Iterable[Entry], how: Return) -> None:
        if self.closed:
            return
        for entry in entries:
            self.held -= 1
            entry.redelivered = True
            if self.counts is None:
                if self.shared.behaviour.classic_carries:
                    count(entry, how, self.shared.behaviour)
                self.ready.restore(entry)
                self.note(entry, "back")
            else:
                self._give_back_counted(entry, how, self.counts)
        if self.limits is not None:
            self._shed(self.limits)
        self.roster.returned()
        self.dispatch()
        if self._expires_any:
            self.watch()

    def freed(self, consumer: BrokerConsumer) -> None:
        if consumer.listed:
            self.roster.settled(consumer)
            self.dispatch()

    def resume(self, held: list[Entry]) -> None:
        """Resume after a restart: the ready entries are restored; `held` were unacked."""
        self._expires_any = True
        self.held += len(held)
        self.give_back(held, "lost")

    def expire(self) -> None:
        """Dead-letter expired messages at the head; an expired message behind a younger one waits for it."""
        ready, now = self.ready, self.shared.clock.now
        stale = True
        while stale:
            stale = False
            for lane in ready.lines():
                while (head := lane.head()) is not None and head.expires <= now:
                    self.bury(ready.take_from(lane), "expired")
                    stale = True
        self.watch()

    def watch(self) -> None:
        """Set the timer for the next message that expires."""
        heads = [head.expires for lane in self.ready.lines() if (head := lane.head()) is not None]
        due = min(heads, default=NEVER)
        clock, timer = self.shared.clock, self._timer
        if due <= clock.now:
            self.expire()
        elif due < NEVER and (timer is None or timer.run is None or timer.due > due):
            if timer is not None:
                timer.cancel()
            self._timer = clock.at(due, self._on_time)

    def purge(self) -> int:
        dropped = self.ready.clear() + self.delayed.clear()
        for entry in dropped:
            self.forget(entry)
        self.shared.lost["purged"] += len(dropped)
        return len(dropped)

    def close(self) -> int:
        """Close the queue and return the number of messages deleted with it."""
        if self._timer is not None:
            self._timer.cancel()
        if self.lease is not None:
            self.lease.stop()
        self.closed = True
        return len(self.ready.clear()) + len(self.delayed.clear()) + self.pending + self.held

    def _give_back_counted(self, entry: Entry, how: Return, counts: Counts) -> None:
        if counts.exhausted(entry, how):
            self.bury(entry, "delivery_limit")
        elif (delay := counts.delay(entry, how)) > 0:
            due = self.shared.clock.now + delay
            self.delayed.put(entry, due)
            self.note(entry, "delayed", due)
        else:
            self.ready.restore(entry)
            self.note(entry, "back")

    def _on_time(self) -> None:
        self.expire()
        self.shared.settle()

    def _undelay(self, entry: Entry) -> None:
        self.ready.restore(entry)
        self.note(entry, "back")
        self.dispatch()
        self.watch()
        self.shared.settle()

    def _end_of(self, message: StoredMessage) -> float:
        ttl = self.ttl
        if message.expiration is not None:
            ttl = min(ttl, int(message.expiration) / 1000)
        return NEVER if ttl == NEVER else self.shared.clock.now + ttl

    def _has_room(self, limits: LengthLimits, message: StoredMessage) -> bool:
        verdict = limits.judge(self._count(), self.ready.bytes, more=len(message.body))
        if verdict == "bury":
            self.bury(Entry(message, 0, NEVER), "maxlen")
        return verdict == "take"

    def _shed(self, limits: LengthLimits) -> None:
        ready = self.ready
        if not limits.drops:
            limits.note(self._count(), ready.bytes)
            return
        while ready.count and limits.over(ready.count, ready.bytes):
            self.bury(ready.take(), "maxlen")

    def _count(self) -> int:
        return self.ready.count + self.pending + len(self.delayed)


def dressed(queue: BrokerQueue, entry: Entry) -> tuple[bytes, bool]:
    """Return the properties that this delivery shows, and the redelivered flag."""
    message = entry.message
    if queue.counts is None:
        marked = queue.shared.behaviour.classic_carries and bool(message.count)
        return message.raw, entry.redelivered or marked
    shown = queue.counts.headers(entry)
    if not shown and message.count:
        shown = delivery_count(message.count)
    raw = with_table(message.raw, drop=_COUNTS, add=shown) if shown else message.raw
    return raw, entry.redelivered or bool(message.count)
