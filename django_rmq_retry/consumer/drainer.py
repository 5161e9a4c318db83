"""The drainer: moves messages from parked queues into the database."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace

from django_rmq_retry.amqp.contracts import Line, Source
from django_rmq_retry.messages.message import DONE, Delivery
from django_rmq_retry.parked.store import RecordStorage, Stored, StoreUnavailable
from django_rmq_retry.recurring import Recurring
from django_rmq_retry.topology.declarations import Server

log = logging.getLogger("django_rmq_retry")

PUT_ASIDE_AGAIN_SECONDS = 30.0
"""Seconds between two tries to put messages aside while that fails; messages in between do not try."""

MORE_WORK_SECONDS = 5.0
"""Seconds until the next part of a chore that has more to do."""

BATCH_MESSAGES = 250
"""Messages in one batch: half of a queue's prefetch, so that the next batch arrives while this one is stored."""
BATCH_BYTES = 4 * 1024 * 1024
"""Bytes of bodies in one batch: MariaDB with default settings refuses larger statements."""
COLLECT_SECONDS = 0.05
TICK_SECONDS = 1.0
FIRST_STORE_WAIT_SECONDS, LONGEST_STORE_WAIT_SECONDS = 1.0, 30.0
GIVE_UP_SECONDS = 600.0
"""Seconds without a database after which messages return to their queues; not sooner, as RabbitMQ counts returns."""
CLOSE_SECONDS = 5.0


class Aside:
    """Puts messages that cannot be stored into a queue of their own. Used only by the drainer's thread."""

    def __init__(self, put: Callable[[Delivery, str], None]) -> None:
        self._put = put
        self._until = 0.0
        self._stuck: list[tuple[int, Delivery]] = []

    @property
    def stuck(self) -> bool:
        """True if an unacked message can be neither stored nor put aside."""
        return bool(self._stuck)

    def put(self, delivery: Delivery, why: str, session: int) -> bool:
        """Put a message aside; return True once the broker has confirmed the copy."""
        reason: object = "putting another message aside has just failed"
        if time.monotonic() >= self._until:
            try:
                self._put(delivery, why)
            except Exception as error:  # noqa: BLE001 - any failure to publish leaves the message unacked
                reason = error
                self._until = time.monotonic() + PUT_ASIDE_AGAIN_SECONDS
            else:
                log.error("A message of %r was put aside: %s", delivery.queue, why, extra={"event": "aside"})
                return True
        self._stuck.append((session, delivery))
        log.error(
            "A message of %r stays unacked, because it can be neither stored (%s) nor put aside (%s)",
            *(delivery.queue, why, reason),
            extra={"event": "stuck"},
        )
        return False

    def due(self) -> list[tuple[int, Delivery]]:
        """Return the messages to try again now, and forget them here."""
        if not self._stuck or time.monotonic() < self._until:
            return []
        stuck, self._stuck = self._stuck, []
        return stuck

    def forget(self) -> None:
        """Forget all messages: the broker returns them to their queues."""
        self._stuck.clear()


@dataclass(slots=True, kw_only=True)
class Chore:
    """A recurring task of the drainer. Each process runs it, so running it twice must be harmless."""

    name: str
    every: float
    run: Callable[[], bool]
    """Does a part of the work; returns True if more is left."""
    due: float = 0.0
    failing: bool = False


def do_due(chores: Sequence[Chore], with_connections: Callable[[], AbstractContextManager[object]]) -> None:
    """Run the chores that are due; a chore that fails is run again at its next time."""
    for chore in chores:
        now = time.monotonic()
        if now < chore.due:
            continue
        chore.due = now + chore.every
        try:
            with with_connections():
                more = chore.run()
        except Exception:
            # Log only the first failure: a database that is down for hours would raise the same error each time.
            if not chore.failing:
                log.exception("%s failed; retrying every %g s", chore.name, chore.every)
            chore.failing = True
        else:
            chore.failing = False
            if more:
                chore.due = now + min(MORE_WORK_SECONDS, chore.every)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainerParts:
    source: Callable[[], Source]
    """Makes a new source, because a stopped source cannot be started again."""
    storage: RecordStorage
    aside: Callable[[Delivery, str], None]
    """Copies a delivery, with the reason, into a queue for unrecorded messages; returns once the copy is confirmed."""
    with_connections: Callable[[], AbstractContextManager[object]]
    chores: Sequence[Chore] = ()


class Drainer(Recurring):
    """Moves parked messages into the database on a thread of its own; several processes may drain the same queues."""

    def __init__(self, lines: Sequence[Line], parts: DrainerParts) -> None:
        super().__init__("rmq-drainer")
        self._lines = tuple(lines)
        self._parts = parts
        self._arrived: queue.SimpleQueue[tuple[int, Delivery] | None] = queue.SimpleQueue()
        self._session = 0
        """Grows when the connection is lost: the broker then redelivers the messages of earlier sessions."""
        self._aside = Aside(parts.aside)
        self._source: Source | None = None
        self._away = False
        self._source_closed = threading.Event()

    @property
    def queues(self) -> tuple[str, ...]:
        return tuple(line.queue for line in self._lines)

    def wake(self) -> None:
        self._arrived.put(None)

    def report_emptiness(self, answer: Callable[[bool], None]) -> None:
        """Pass True to the callback if no message is left to drain or no message can be stored, else False."""
        source = self._source
        if self._away or not self._thread.is_alive():
            answer(True)  # noqa: FBT003 - the answer
        elif source is None:
            answer(False)  # noqa: FBT003 - the answer
        else:
            source.report_emptiness(lambda empty: answer(empty or self._aside.stuck))

    def arrived(self, delivery: Delivery) -> None:
        self._arrived.put((self._session, delivery))

    def connected(self, server: Server) -> None:
        log.debug("The drainer is connected to %s", server, extra={"event": "drainer_connected", "broker": str(server)})

    def lost(self, reason: str, retry_in: float) -> None:
        self._session += 1

    def failed(self, error: BaseException) -> None:
        log.error("The drainer cannot consume parked messages: %s", error, extra={"event": "undrained"})

    def closed(self) -> None:
        self._source_closed.set()

    def turn(self) -> float:
        try:
            self._work()
        except BaseException:
            # No error may end the draining while the consumer still runs.
            log.exception("The drainer failed; it restarts in %g s", LONGEST_STORE_WAIT_SECONDS)
            self._close()
            return LONGEST_STORE_WAIT_SECONDS
        return 0.0

    def at_end(self) -> None:
        self._close()
        self._parts.storage.close()

    def _work(self) -> None:
        """Wait for the database, then drain until stop() is called or the database is down for too long."""
        if not self._ready():
            return
        self._source_closed.clear()
        self._source = self._parts.source()
        self._source.start(self._lines, self)
        while not self.stopping.is_set():
            batch = self._gather() + self._aside.due()
            if not self._store(batch):
                log.error("Parked messages return to their queues: no database for %g s", GIVE_UP_SECONDS)
                break
            do_due(self._parts.chores, self._parts.with_connections)
        self._close()

    def _ready(self) -> bool:
        """Wait until the database can store messages, before any is consumed; return False if stopped meanwhile."""
        wait = FIRST_STORE_WAIT_SECONDS
        while not self.stopping.is_set():
            with self._parts.with_connections():
                why = self._parts.storage.outage()
            if not why:
                self._away = False
                return True
            self._away = True
            log.warning("Parked messages stay in their queues: %s", why, extra={"event": "undrained"})
            self.stopping.wait(wait)
            wait = min(wait * 2, LONGEST_STORE_WAIT_SECONDS)
        return False

    def _gather(self) -> list[tuple[int, Delivery]]:
        """Return the messages that arrive shortly after the first one, within the limits of one batch."""
        batch: list[tuple[int, Delivery]] = []
        size, end = 0, time.monotonic() + TICK_SECONDS
        while len(batch) < BATCH_MESSAGES and size < BATCH_BYTES:
            with suppress(queue.Empty):
                one = self._arrived.get(timeout=max(0.0, end - time.monotonic()))
                if one is None:
                    break
                if not batch:
                    end = time.monotonic() + COLLECT_SECONDS
                batch.append(one)
                size += len(one[1].body)
                continue
            break
        return batch

    def _store(self, batch: Sequence[tuple[int, Delivery]]) -> bool:
        """Store a batch, with retries; return False if the database was down for too long."""
        since, wait = time.monotonic(), FIRST_STORE_WAIT_SECONDS
        left = self._ours(batch)
        while left and not self.stopping.is_set():
            try:
                with self._parts.with_connections():
                    stored = self._parts.storage.store(left)
            except StoreUnavailable as outage:
                self._settle(outage.done)
                left = [one for one in left if one not in outage.done]
                why = outage.reason
            else:
                self._away = False
                self._settle(dict(zip(left, stored, strict=True)))
                return True
            if time.monotonic() - since > GIVE_UP_SECONDS:
                return False
            self._away = True
            log.warning(
                "%s parked messages stay unacked, storing them again in %g s: %s",
                *(len(left), wait, why),
                extra={"event": "away"},
            )
            self.stopping.wait(wait)
            wait = min(wait * 2, LONGEST_STORE_WAIT_SECONDS)
            left = self._again(batch, left)
        return True

    def _again(self, batch: Sequence[tuple[int, Delivery]], left: Sequence[Delivery]) -> list[Delivery]:
        """Return what is left and still unacked, as redelivered: the database may have stored it before it failed."""
        waiting = {one.token for one in left}
        return [replace(one, redelivered=True) for one in self._ours(batch) if one.token in waiting]

    def _ours(self, batch: Sequence[tuple[int, Delivery]]) -> list[Delivery]:
        return [delivery for session, delivery in batch if session == self._session]

    def _settle(self, stored: Mapping[Delivery, Stored]) -> None:
        """Ack the messages whose records are committed; put aside those that cannot be stored."""
        source = self._source
        for delivery, one in stored.items():
            settled = not one.problem or self._aside.put(delivery, one.problem, self._session)
            if settled and source is not None:
                source.settle(delivery, DONE)

    def _close(self) -> None:
        """Flush the acks to the broker and close; unacked messages return to their queues."""
        source, self._source = self._source, None
        if source is None:
            return
        source.stop()
        if not self._source_closed.wait(CLOSE_SECONDS):
            log.error("The connection of the drainer did not close in time; messages without an ack are redelivered")
        self._session += 1
        self._aside.forget()
