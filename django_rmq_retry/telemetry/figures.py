"""The figures of database and broker for metrics, read by one thread of one process at intervals."""

import logging
import math
import mmap
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from django.db import router
from django.db.models import Count, Min

from django_rmq_retry import database_clock
from django_rmq_retry.amqp.declarer import Declarer
from django_rmq_retry.amqp.levels import Level, gauge
from django_rmq_retry.amqp.session import Session
from django_rmq_retry.breakers.halts import known_last
from django_rmq_retry.breakers.table import state_of
from django_rmq_retry.conf import settings
from django_rmq_retry.handlers import registry
from django_rmq_retry.handlers.subscription import WorkQueue
from django_rmq_retry.health.facts import Survey, survey
from django_rmq_retry.health.problems import overdue_in, stuck_processes
from django_rmq_retry.health.time_limit import in_time
from django_rmq_retry.messages.texts import one_line
from django_rmq_retry.models import ParkedMessage, RequeueRun
from django_rmq_retry.models.parked import OPEN
from django_rmq_retry.models.runs import ACTIVE
from django_rmq_retry.recurring import LastingFailures, Recurring
from django_rmq_retry.telemetry.exposition import Family, exposition_text, single
from django_rmq_retry.telemetry.meter import Board
from django_rmq_retry.topology.declarations import Role

T = TypeVar("T")

log = logging.getLogger("django_rmq_retry")

READ_EVERY_SECONDS = 15.0
"""Seconds between two readings."""
SHARE = 20
"""A reading that takes long is repeated after this many times its duration at the soonest."""
OTHERS = "other"
"""The label of queues that no handler of this project consumes, because messages from outside name such queues."""
FIGURES_PATIENCE_SECONDS = 5.0
DRAINED_IN_SECONDS = 60.0
"""Seconds in which the wanted consumers would work off the messages that are ready."""
GUESSED_SECONDS = 0.1
"""Seconds for one message, as long as none has been handled."""
STOP_SECONDS = 2.0
"""Seconds at the end in which a reading may finish."""
ROOM_BYTES = 512 * 1024
_HEAD = struct.Struct("<dQQ")


class Notice:
    """A text in memory that a supervisor shares with its children: one process writes it, each process reads it."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _HEAD.size + ROOM_BYTES)

    def write(self, text: str) -> None:
        """Replace the text. One that is too long is cut at the end of a line."""
        written = text.encode()
        if len(written) > ROOM_BYTES:
            written = written[: written.rindex(b"\n", 0, ROOM_BYTES) + 1]
        _at, _length, turn = _HEAD.unpack_from(self._memory, 0)
        # An odd turn means that the text is being replaced.
        _HEAD.pack_into(self._memory, 0, time.monotonic(), 0, turn + 1)
        self._memory[_HEAD.size : _HEAD.size + len(written)] = written
        _HEAD.pack_into(self._memory, 0, time.monotonic(), len(written), turn + 2)

    def read(self, *, newest: float = math.inf) -> str:
        """Return the text; an empty one if it is older than ``newest`` seconds, or being replaced."""
        at, length, turn = _HEAD.unpack_from(self._memory, 0)
        if not length or time.monotonic() - at > newest:
            return ""
        found = bytes(self._memory[_HEAD.size : _HEAD.size + length])
        return found.decode() if _HEAD.unpack_from(self._memory, 0)[2] == turn else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The figures of the database at one moment."""

    survey: Survey
    now: datetime
    parked: Sequence[tuple[str, str, bool, int, datetime | None]]
    """The open messages by queue, status, and whether their error group is muted: their number, and the oldest."""
    runs: Mapping[str, int]
    """Requeue runs that have not ended, by state."""


class Figures(Recurring):
    """Reads the figures in a thread of its own, so that a database or broker that is away delays nothing else."""

    def __init__(
        self,
        notice: Notice,
        board: Board,
        work_queues: Sequence[WorkQueue],
        *,
        threads: int,
        asynchronous: int = 0,
        with_connections: Callable[[], AbstractContextManager[object]],
    ) -> None:
        super().__init__("rmq-figures")
        self._notice = notice
        self._board = board
        self._work_queues = tuple(work_queues)
        self._threads = threads
        self._asynchronous = asynchronous or settings().async_handlers
        self._side_by_side = frozenset(one.queue.name for one in work_queues if one.asynchronous)
        self._with_connections = with_connections
        self._failures = LastingFailures()

    def stop(self, timeout: float | None = STOP_SECONDS) -> bool:
        return super().stop(timeout)

    def turn(self) -> float:
        began = time.monotonic()
        self._notice.write(exposition_text(self.read()))
        return max(READ_EVERY_SECONDS, SHARE * (time.monotonic() - began))

    def read(self) -> list[Family]:
        reading = self._try("database", self._in_time) if settings().records else None
        levels = self._try("broker", _gauged)
        found: list[Family] = []
        if settings().records:
            found.append(single("database_up", "1 if the database answered.", reading is not None))
        found.append(single("broker_up", "1 if the broker answered.", levels is not None))
        if reading is not None:
            found += self._of_database(reading)
        if levels is not None:
            found += self._of_broker(levels, reading)
        return found

    def _try(self, what: str, read: Callable[[], T]) -> T | None:
        """Return what was read. A failure is logged once, until the next reading that succeeds."""
        try:
            found = read()
        except Exception as error:  # noqa: BLE001 - a driver may raise anything, and a broker may be away
            if self._failures.begins(what):
                text = "The figures of the %s for metrics cannot be read; they are read again later: %s"
                log.warning(text, what, one_line(error), extra={"event": "figures"})
            return None
        self._failures.ends(what)
        return found

    def _in_time(self) -> Reading:
        alias = router.db_for_read(ParkedMessage)
        return in_time(self._reading, alias, FIGURES_PATIENCE_SECONDS, purpose="metrics")

    def _reading(self) -> Reading:
        with self._with_connections():
            found = survey()
            open_ones = ParkedMessage.objects.filter(state__in=OPEN).order_by()
            rows = open_ones.values_list("queue", "state", "group__muted")
            runs = RequeueRun.objects.filter(state__in=ACTIVE).order_by().values_list("state")
            return Reading(
                survey=found,
                now=database_clock.now(found.alias),
                parked=list(rows.annotate(n=Count("pk"), oldest=Min("parked_at"))),
                runs=dict(runs.annotate(n=Count("pk"))),
            )

    def _of_database(self, reading: Reading) -> Iterator[Family]:
        counts: dict[tuple[str, str, str], int] = {
            (one.queue.name, state.value, "active"): 0 for one in self._work_queues for state in OPEN
        }
        oldest: dict[str, float] = {one.queue.name: 0.0 for one in self._work_queues}
        for name, status, muted, number, since in reading.parked:
            queue = name if name in oldest else OTHERS
            key = queue, status, "muted" if muted else "active"
            counts[key] = counts.get(key, 0) + number
            oldest[queue] = max(oldest.get(queue, 0.0), _age(since, reading.now))
        yield Family(
            name="parked_messages",
            kind="gauge",
            about="Messages that wait for an operator, by queue, status, and whether their error group is muted.",
            samples=tuple(
                ({"queue": queue, "status": state, "group": group}, float(count))
                for (queue, state, group), count in counts.items()
            ),
        )
        yield _by("parked_oldest_seconds", "Age of the message that has been parked for longest.", "queue", oldest)
        yield from self._of_late(reading)
        yield from self._of_outbox(reading)
        yield from self._of_stops(reading.survey)

    def _of_late(self, reading: Reading) -> Iterator[Family]:
        stuck = len(stuck_processes(reading.survey.processes, reading.now))
        yield single("processes_stuck", "Processes whose threads all run handlers beyond their deadline.", stuck)
        about = "Requeued messages without an outcome for an hour, up to 1,001."
        yield single("requeued_without_outcome", about, reading.survey.silent.count)

    def _of_outbox(self, reading: Reading) -> Iterator[Family]:
        outbox, blocked = reading.survey.outbox, reading.survey.blocked
        states = {"waiting": float(outbox.waiting), "failed": float(outbox.failed)}
        yield _by("outbox_messages", "Messages in the outbox; failed ones need an operator.", "state", states)
        oldest = _age(outbox.oldest, reading.now)
        yield single("outbox_oldest_seconds", "Age of the oldest message that waits in the outbox.", oldest)
        yield single("blocked_keys", "Ordering keys blocked by a failed message.", blocked.keys)
        yield single("blocked_messages", "Messages that wait behind blocked keys.", blocked.messages)
        runs = {state.value: float(reading.runs.get(state.value, 0)) for state in ACTIVE}
        yield _by("requeue_runs", "Requeue runs that have not ended, by state.", "state", runs)

    def _of_stops(self, survey: Survey) -> Iterator[Family]:
        now = survey.at.timestamp()
        paused = {one.queue for one in survey.stopped if state_of(one).is_paused(now)}
        opened = {one.queue for one in survey.stopped if one.opened}
        halted = {one.queue for one in survey.halted}
        queues = [one.queue.name for one in self._work_queues]
        for name, about, stopped in (
            ("queue_paused", "1 if an operator has paused the queue.", paused),
            ("queue_breaker_open", "1 if a breaker has stopped the queue.", opened),
            ("queue_halted", "1 if a strict-order queue is halted by its first message.", halted),
        ):
            yield _by(name, about, "queue", {queue: float(queue in stopped) for queue in queues})

    def _of_broker(self, levels: Sequence[Level], reading: Reading | None) -> Iterator[Family]:
        ready = [(level, float(level.ready)) for level in levels if level.ready is not None]
        yield Family(
            name="queue_messages",
            kind="gauge",
            about="Messages that are ready in a queue. In a parked queue they are not recorded yet.",
            samples=tuple(({"queue": level.queue, "role": level.role.value}, count) for level, count in ready),
        )
        consumers = {one.queue: float(one.consumers) for one in levels if one.consumers is not None}
        yield _by("queue_consumers", "Consumers of a queue, on all hosts.", "queue", consumers)
        survey = reading.survey if reading else None
        if survey is not None:
            late = {one.queue: float(one.count) for one in overdue_in(levels, survey)}
            overdue = {one.queue.name: late.get(one.queue.name, 0.0) for one in self._work_queues}
            yield _by("retries_overdue", "Retries that were due ten minutes ago and have not come.", "queue", overdue)
        halted = [one for one in survey.halted if not known_last(one, survey.at)] if survey else []
        stopped = {one.queue for one in (*survey.stopped, *halted)} if survey else set()
        work = {level.queue: count for level, count in ready if level.role is Role.WORK}
        wanted = {queue: 0.0 if queue in stopped else self._wanted(queue, count) for queue, count in work.items()}
        about = "Processes that would work off the ready messages in a minute; 0 while the queue is stopped."
        yield _by("wanted_consumers", about, "queue", wanted)

    def _wanted(self, queue: str, ready: float) -> float:
        histograms = [self._board.seconds(at) for at, labels in enumerate(self._board.labels) if labels.queue == queue]
        count, total = sum(one.count for one in histograms), sum(one.total for one in histograms)
        each = total / count if count else GUESSED_SECONDS
        at_once = self._asynchronous if queue in self._side_by_side else self._threads
        return math.ceil(ready * each / (at_once * DRAINED_IN_SECONDS))


def _gauged() -> Sequence[Level]:
    with Session(settings().access(), purpose="metrics", patience=FIGURES_PATIENCE_SECONDS) as session:
        return gauge(Declarer(session), registry.topology()).levels


def _by(name: str, about: str, label: str, values: Mapping[str, float]) -> Family:
    samples = tuple(({label: key}, value) for key, value in values.items())
    return Family(name=name, kind="gauge", about=about, samples=samples)


def _age(since: datetime | None, now: datetime) -> float:
    return 0.0 if since is None else max(0.0, (now - since).total_seconds())
