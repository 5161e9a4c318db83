"""The heartbeat of a consuming process: its row in the database, with the messages that it has in flight."""

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypeAlias

from django.db import router
from django.db.models import QuerySet

from django_rmq_retry import database_clock, database_connections
from django_rmq_retry.conf import project_version, settings
from django_rmq_retry.consumer.attempt_state import AttemptState
from django_rmq_retry.consumer.consumer import Consumer
from django_rmq_retry.consumer.deadlines import HUNG_FACTOR
from django_rmq_retry.errors import UndecodableBody
from django_rmq_retry.handlers.business_keys import first_business_key
from django_rmq_retry.handlers.loop import Blocking, known_loop
from django_rmq_retry.handlers.verdicts import had_before
from django_rmq_retry.health.process_place import own_host, own_place
from django_rmq_retry.health.processes import note_gone
from django_rmq_retry.messages.message import Delivery, message_id
from django_rmq_retry.messages.texts import COLUMN_BYTES, one_line, short
from django_rmq_retry.models import ConsumerProcess
from django_rmq_retry.models.controls import SILENT_AFTER
from django_rmq_retry.recurring import LastingFailures, Recurring
from django_rmq_retry.topology.declarations import work_queue

log = logging.getLogger("django_rmq_retry")

BEAT_SECONDS = 5.0
"""Seconds between two heartbeats of an unchanged process."""
STATUS_SECONDS = 1.0
"""Seconds between two looks at the status, and at what is in handlers: a change is written at once."""
MOST_IN_FLIGHT = 100
FAULT_BYTES = 1000
Status: TypeAlias = tuple[bool, bool, int, Blocking | None]


class Heartbeat(Recurring):
    """Writes the row in a thread of its own: ``keys=`` functions may hang, and so may the database."""

    def __init__(
        self, consumer: Consumer, *, name: str, number: int, package: str, threads: int, queues: Sequence[str]
    ) -> None:
        super().__init__("rmq-heartbeat")
        self._consumer = consumer
        self._name = name
        self._facts = {
            "host": own_host(),
            "pid": os.getpid(),
            "place": own_place(),
            "number": number,
            "version": package,
            "deploy": project_version(),
            "broker": short(settings().address().shown, COLUMN_BYTES),
            "threads": threads,
            "queues": list(queues),
        }
        self._woken = threading.Event()
        self._began = time.monotonic()
        self._due = 0.0
        self._written: Status | None = None
        """The status in the row; None before the first heartbeat."""
        self._failures = LastingFailures()
        self._keys: dict[AttemptState, tuple[Delivery, str]] = {}

    def turn(self) -> float:
        now = time.monotonic()
        self._consumer.idle.look(now)
        news = not self._failures and (self._written != self._status(now) or self._lacks_one(now))
        if now >= self._due or news:
            self._due = now + BEAT_SECONDS
            first = self._written is None
            self._try(self._write)
            # What it replaces has just died: it is not to count as one that runs.
            self._try(partial(note_gone, silent_for=timedelta() if first else SILENT_AFTER))
        return STATUS_SECONDS

    def wait(self, seconds: float) -> None:
        self._woken.wait(seconds)
        self._woken.clear()

    def wake(self) -> None:
        """Look at the status now: the broker says at once that it consumes no more, and its row is to say why."""
        self._woken.set()

    def at_end(self) -> None:
        """Delete the row; keep it after a fault, or if handlers have not finished: their messages return to queues."""
        if self._written is not None:
            kept = self._consumer.in_flight or self._consumer.fault
            self._try(partial(self._write, ended=True) if kept else self._delete)

    def _try(self, write: Callable[[], None]) -> None:
        try:
            with database_connections.FreshConnections():
                write()
        except Exception as error:  # noqa: BLE001 - any error of a database driver or router
            if self._failures.begins():
                text = "The heartbeat of this process cannot be written, so pages and commands do not show it: %s"
                log.warning(text, one_line(error), extra={"event": "heartbeat"})
        else:
            self._failures.ends()

    def _status(self, now: float) -> Status:
        """Return if it is connected and stopping, how many handlers are beyond their timeout, what blocks its loop."""
        late = sum(now > state.deadline for state in self._consumer.in_flight)
        return self._consumer.online, bool(self._consumer.why), late, _blocking()

    def _lacks_one(self, now: float) -> bool:
        """True if the row lacks a message that has been in a handler for a second.

        If the process is killed, what it had begun is told by its row: somebody may have been paid.
        """
        in_flight = self._consumer.in_flight
        begun = (state not in self._keys and now - state.began >= STATUS_SECONDS for state in in_flight)
        return len(in_flight) <= MOST_IN_FLIGHT and any(begun)

    def _row(self) -> "QuerySet[ConsumerProcess]":
        return ConsumerProcess.objects.using(router.db_for_write(ConsumerProcess)).filter(name=self._name)

    def _delete(self) -> None:
        self._row().delete()

    def _write(self, *, ended: bool = False) -> None:
        now, passed = database_clock.now(router.db_for_write(ConsumerProcess)), time.monotonic()
        status = self._status(passed)
        stuck, lost = self._consumer.stuck_since, self._consumer.lost_since
        in_flight = self._consumer.in_flight
        closing = self._consumer.closing_since if ended else None
        # What it had went back to the queues then: another one may have begun it a moment before this is written.
        at = now if closing is None else database_clock.stored(now.timestamp() - passed + closing)
        columns: dict[str, object] = {
            "beat_at": at,
            "stuck_at": None if stuck is None else database_clock.stored(now.timestamp() - passed + stuck),
            "connected": status[0],
            "lost_at": None if lost is None else database_clock.stored(now.timestamp() - passed + lost),
            "stopping": status[1],
            "waiting": self._consumer.waiting,
            "idle": {
                queue: database_clock.stored(now.timestamp() - passed + at).isoformat()
                for queue, at in self._consumer.idle.at.copy().items()
            },
            "in_flight": self._entries(in_flight, now.timestamp() - passed),
            "unlisted": max(0, len(in_flight) - MOST_IN_FLIGHT),
            "late": _late(in_flight, passed),
            "replaced": False,
            "ended_at": None,
            "fault": "",
            "ended_by": "",
            "gave_back": ended and self._consumer.gave_back,
        }
        if ended and self._consumer.fault:
            columns |= {"stopping": True, "ended_at": at, "fault": short(self._consumer.fault, FAULT_BYTES)}
        if not self._row().update(**columns):
            # The first heartbeat, or the row was deleted while the process did not reach the database.
            started = database_clock.stored(now.timestamp() - passed + self._began)
            self._row().create(name=self._name, started_at=started, **self._facts, **columns)
        self._written = status

    def _entries(self, in_flight: Sequence[AttemptState], ahead: float) -> list[dict[str, object]]:
        """Return the oldest messages in flight; ``ahead`` is how far the database's clock is ahead of the monotonic."""
        blocking, known, self._keys = _blocking(), self._keys, {}
        # The message whose handler blocks the others is the last one to leave out.
        states = sorted(in_flight, key=lambda state: (not _blocks(state, blocking), state.began))[:MOST_IN_FLIGHT]
        for state in states:
            delivery, key = known.get(state, (None, ""))
            # The project's function is called once for each delivery, whatever the time that its handler takes.
            self._keys[state] = (state.delivery, key if delivery is state.delivery else _key(state))
        return [_entry(state, self._keys[state][1], ahead, blocking) for state in states]


def _late(in_flight: Sequence[AttemptState], now: float) -> list[dict[str, object]]:
    """Return the handlers with messages beyond their deadline, each with their number and when its process ends."""
    found: dict[tuple[str, str], dict[str, object]] = {}
    counts = Counter[tuple[str, str]]()
    for state in in_flight:
        subscription = state.subscription
        if subscription is not None and subscription.timeout is not None and now > state.deadline:
            place = short(work_queue(state.arrival.queue), COLUMN_BYTES), subscription.name
            counts[place] += 1
            found[place] = {"timeout": subscription.timeout, "ends_after": HUNG_FACTOR * subscription.timeout}
    return [
        {"queue": queue, "handler": short(handler, COLUMN_BYTES), "count": count, **found[queue, handler]}
        for (queue, handler), count in counts.items()
    ]


def _key(state: AttemptState) -> str:
    unreadable = state.unreadable if isinstance(state.unreadable, UndecodableBody) else None
    return first_business_key(state.subscription, state.delivery, unreadable)


def _blocking() -> Blocking | None:
    """Return the message whose handler blocks the event loop; None if none does."""
    loop = known_loop()
    return None if loop is None else loop.blocked_by


def _blocks(state: AttemptState, blocking: Blocking | None) -> bool:
    return blocking is not None and state.arrival.token is blocking.token


def _entry(state: AttemptState, key: str, ahead: float, blocking: Blocking | None) -> dict[str, object]:
    subscription = state.subscription

    def text(monotonic: float) -> str:
        moment = datetime.fromtimestamp(ahead + monotonic, UTC)
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    return {
        "queue": short(state.arrival.queue, COLUMN_BYTES),
        "handler": "" if subscription is None else short(subscription.name, COLUMN_BYTES),
        "key": key,
        "message_id": short(message_id(state.arrival) or "", COLUMN_BYTES),
        "attempt": state.number,
        "since": text(state.began),
        "timeout": None if subscription is None else subscription.timeout,
        # Written here, because the process that reads the row may know other handlers.
        "auto_ack": subscription is not None and subscription.ack == "auto",
        "again": had_before(state.delivery, subscription),
        "published": _published(state.arrival),
        "blocks_since": text(blocking.since) if blocking is not None and _blocks(state, blocking) else None,
    }


def _published(arrival: Delivery) -> str | None:
    at = database_clock.published_at(arrival.properties)
    return None if at is None else at.isoformat()
