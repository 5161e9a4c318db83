"""One queue: taking messages in, giving them out in order, dropping them when their time has come."""

from collections.abc import Iterable

from django_rmq_retry.embedded.engine.arguments import QueueSpec
from django_rmq_retry.embedded.engine.behaviour import Return
from django_rmq_retry.embedded.engine.clock import Timer
from django_rmq_retry.embedded.engine.consumers import Consumer, Roster
from django_rmq_retry.embedded.engine.delaying import Delayed
from django_rmq_retry.embedded.engine.entries import NEVER, Entry, ready_for
from django_rmq_retry.embedded.engine.leasing import Lease
from django_rmq_retry.embedded.engine.limits import Limits
from django_rmq_retry.embedded.engine.messages import Message
from django_rmq_retry.embedded.engine.returning import Counts, begin, count
from django_rmq_retry.embedded.engine.standing import Standing
from django_rmq_retry.embedded.engine.surroundings import Surroundings

_LIMITING = ("x-max-length", "x-max-length-bytes")


class Queue(Standing):
    """A queue and its messages. Nothing here routes: what dies is left in `around.graves`."""

    __slots__ = (
        "_arms_when_alone", "_expires_any", "_timer", "counts", "delayed", "held", "lease", "limits", "owner",
        "position", "ready", "roster", "ttl",
    )  # fmt: skip

    def __init__(self, spec: QueueSpec, around: Surroundings, owner: object = None) -> None:
        super().__init__(spec, around)
        self.owner = owner
        """The session of an exclusive queue."""
        self.ready = ready_for(spec.number("x-max-priority"), around.behaviour.quorum_lanes if spec.quorum else 0)
        single = spec.arguments.get("x-single-active-consumer") is True
        self.roster = Roster(around.behaviour, single=single, quorum=spec.quorum)
        self.limits = Limits(spec) if any(name in spec.arguments for name in _LIMITING) else None
        self.counts = Counts(spec, around.behaviour) if spec.quorum else None
        ttl = spec.seconds("x-message-ttl")
        self.ttl = NEVER if ttl is None else ttl
        self.position = 0
        self.held = 0
        """Messages that clients hold."""
        self.delayed = Delayed(around.clock, self._undelay)
        self.lease: Lease | None = None
        self._expires_any = False
        # A classic queue with priorities looks at the time of the first message only (rabbit_amqqueue_process).
        self._arms_when_alone = not spec.quorum and "x-max-priority" in spec.arguments
        self._timer: Timer | None = None

    def offer(self, message: Message) -> bool:
        """Take a message in; False: the queue is full and refuses it."""
        ready = self.ready
        if self.limits is not None and not self._has_room(self.limits, message):
            return False
        self.position += 1
        entry = Entry(message, self.position, self._end_of(message))
        if message.count is not None:
            begin(entry, self.around.behaviour)
        self.keep(entry)
        ready.put(entry)
        if self.roster.members:
            # An empty queue gives a message to a waiting consumer even if its time is 0.
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
        """Give out what consumers can take."""
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
        """Give out one message to basic.get."""
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
        """A client has dealt with it."""
        self.held -= 1
        if self.stores:
            self.forget(entry)

    def reject(self, entry: Entry, how: Return) -> None:
        """A client wants it no more."""
        if self.closed:
            return
        self.held -= 1
        if self.around.behaviour.carries(how, quorum=self.counts is not None):
            entry.count += 1
        self.bury(entry, "rejected")

    def give_back(self, entries: Iterable[Entry], how: Return) -> None:
        """Clients did not deal with these."""
        if self.closed:
            return
        for entry in entries:
            self.held -= 1
            entry.redelivered = True
            if self.counts is None:
                if self.around.behaviour.classic_carries:
                    count(entry, how, self.around.behaviour)
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

    def freed(self, consumer: Consumer) -> None:
        """A consumer has room again."""
        if consumer.listed:
            self.roster.settled(consumer)
            self.dispatch()

    def left(self) -> None:
        """A consumer was cancelled: the next may have its turn."""
        if self.counts is not None or not self.roster.single or self.around.behaviour.cancel_hands_over:
            self.dispatch()

    def resume(self, held: list[Entry]) -> None:
        """Begin after a restart: what lies here has been put back; `held` was in clients' hands."""
        self._expires_any = True
        self.held += len(held)
        self.give_back(held, "lost")

    def expire(self) -> None:
        """Bury what is at the head and past its time; what stands behind a younger message waits for it."""
        ready, now = self.ready, self.around.clock.now
        stale = True
        while stale:
            stale = False
            for lane in ready.lines():
                while (head := lane.head()) is not None and head.expires <= now:
                    self.bury(ready.take_from(lane), "expired")
                    stale = True
        self.watch()

    def watch(self) -> None:
        """See to it that `expire` runs when the next message's time has come."""
        heads = [head.expires for lane in self.ready.lines() if (head := lane.head()) is not None]
        due = min(heads, default=NEVER)
        clock, timer = self.around.clock, self._timer
        if due <= clock.now:
            self.expire()
        elif due < NEVER and (timer is None or timer.run is None or timer.due > due):
            if timer is not None:
                timer.cancel()
            self._timer = clock.at(due, self._on_time)

    def purge(self) -> int:
        """Drop what is ready, and what is delayed."""
        dropped = self.ready.clear() + self.delayed.clear()
        for entry in dropped:
            self.forget(entry)
        self.around.lost["purged"] += len(dropped)
        return len(dropped)

    def close(self) -> int:
        """The queue is deleted; return how many messages go with it."""
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
            due = self.around.clock.now + delay
            self.delayed.put(entry, due)
            self.note(entry, "delayed", due)
        elif counts.to_back:
            self._put_last(entry)
        else:
            self.ready.restore(entry)
            self.note(entry, "back")

    def _on_time(self) -> None:
        self.expire()
        self.around.settle()

    def _put_last(self, entry: Entry) -> None:
        """Behind everything else, as if it had come only now."""
        self.forget(entry)
        self.position += 1
        entry.position = self.position
        self.keep(entry)
        self.note(entry, "fresh")
        self.ready.put(entry)

    def _undelay(self, entry: Entry) -> None:
        self.ready.restore(entry)
        self.note(entry, "back")
        self.dispatch()
        self.watch()
        self.around.settle()

    def _end_of(self, message: Message) -> float:
        ttl = self.ttl
        if message.expiration is not None:
            ttl = min(ttl, int(message.expiration) / 1000)
        return NEVER if ttl == NEVER else self.around.clock.now + ttl

    def _has_room(self, limits: Limits, message: Message) -> bool:
        verdict = limits.judge(self._count(), self.ready.bytes, more=len(message.body))
        if verdict == "bury":
            self.bury(Entry(message, 0, NEVER), "maxlen")
        return verdict == "take"

    def _shed(self, limits: Limits) -> None:
        ready = self.ready
        if not limits.drops:
            limits.note(self._count(), ready.bytes)
            return
        while ready.count and limits.over(ready.count, ready.bytes):
            self.bury(ready.take(), "maxlen")

    def _count(self) -> int:
        return self.ready.count + self.pending + len(self.delayed)
