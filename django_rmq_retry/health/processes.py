"""The consuming processes as their heartbeats report them: running, stopping, without a broker, silent or vanished."""

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import islice
from typing import Any

from django.db import router
from django.db.models import Q

from django_rmq_retry import database_clock
from django_rmq_retry.conf import settings
from django_rmq_retry.models import ConsumerProcess, ParkedMessage, State
from django_rmq_retry.models.controls import VANISHED_AFTER

KEPT_EMPTY, KEPT_AFTER_A_FAULT, KEPT = timedelta(minutes=10), timedelta(hours=1), timedelta(days=1)
"""The ages at which the row of a vanished process is deleted: without messages in flight, and with some."""
LOOP_DEATHS, LOOP_SPAN = 3, timedelta(minutes=30)
"""So many processes that replaced one another and vanished within this time need somebody, although the last lives."""
TAKEN_OVER_AFTER = timedelta(minutes=10)
"""The time for which a vanished process needs somebody although others read all its queues: it may be missed."""
MOST_LISTED_PROCESSES = 200
"""The most processes that a page or command shows: those with the latest heartbeats."""
MOST_LOOKED_UP = 200
"""The most messages of dead processes whose records are looked up."""


class ProcessState(StrEnum):
    """The state of a process, for machines; labels for users are translated elsewhere."""

    RUNNING = "running"
    STOPPING = "stopping"
    NO_BROKER = "no broker"
    SILENT = "silent"
    """Its last heartbeats are missing."""
    VANISHED = "vanished"
    REPLACED = "replaced"
    """Vanished, and a process that was started later took its queues over."""
    TAKEN_OVER = "taken over"
    """Vanished, and the others read all its queues: it was told to end, or has not been missed for a while."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlight:
    """One message in a handler, as of the last heartbeat of its process."""

    queue: str
    handler: str
    key: str
    message_id: str
    attempt: int
    since: datetime | None
    length: timedelta
    """The time from the start of the attempt to the last heartbeat."""
    seconds: int | None
    """Seconds from the start of the attempt until now: it was still running at the last heartbeat."""
    timeout: float | None
    auto_ack: bool
    """True if the broker dropped the message as it sent it, so it is not delivered again."""
    blocks: int | None = None
    """Seconds for which its async handler blocks the event loop, and with it all others of the process; None if not.

    It was still blocking at the last heartbeat.
    """
    record: ParkedMessage | None = None
    """Its record, if its process is not heard of any more and the message was parked at some time."""

    @property
    def late(self) -> bool:
        """True if the handler has run for longer than its timeout."""
        return self.timeout is not None and self.length.total_seconds() > self.timeout

    @property
    def processed_since(self) -> bool:
        """True if it is known to have been processed after this attempt began: nothing is left to do for it."""
        known = self.record
        if known is None or known.state != State.PROCESSED or known.succeeded_at is None or self.since is None:
            return False
        return known.succeeded_at >= self.since

    @classmethod
    def of(cls, entry: Mapping[str, Any], beat: datetime, now: datetime) -> "InFlight":
        since, blocks_since = _time(entry.get("since")), _time(entry.get("blocks_since"))
        texts: dict[str, Any] = {name: str(entry.get(name) or "") for name in ("queue", "handler", "key", "message_id")}
        return cls(
            **texts,
            attempt=int(entry.get("attempt") or 1),
            since=since,
            length=timedelta(seconds=max(beat.timestamp() - since.timestamp(), 0.0) if since else 0.0),
            seconds=_seconds(since, now),
            timeout=float(timeout) if isinstance(timeout := entry.get("timeout"), int | float) else None,
            auto_ack=entry.get("auto_ack") is True,
            blocks=_seconds(blocks_since, now),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    row: ConsumerProcess
    state: ProcessState
    in_flight: tuple[InFlight, ...]
    unheard: timedelta
    """The time since its last heartbeat."""
    loop: bool = False
    """True if it vanished in a crash loop."""
    red_until: datetime | None = None
    """The time from which a vanished process needs nobody, because others read all its queues."""

    @property
    def forgotten_at(self) -> datetime:
        """The time at which the row of a vanished process is deleted."""
        least = KEPT_AFTER_A_FAULT if self.row.ended_at else KEPT_EMPTY
        return self.row.beat_at + (KEPT if self.in_flight else least)

    @property
    def settled_by_others(self) -> bool:
        """True if it vanished, and others do its work."""
        return self.state in (ProcessState.REPLACED, ProcessState.TAKEN_OVER)

    @property
    def vanished(self) -> bool:
        return self.state is ProcessState.VANISHED or self.settled_by_others

    @property
    def ended(self) -> bool:
        """True if it wrote the fault with which it ended, and no other process has taken its queues over."""
        return self.row.ended_at is not None and not self.settled_by_others

    @property
    def heard(self) -> bool:
        """True if its heartbeats come: of others it is only known what they did at the last one."""
        return not self.vanished and not self.ended and self.state is not ProcessState.SILENT

    @property
    def busy(self) -> int:
        """The number of its messages in flight, of which the oldest are in ``in_flight``."""
        return len(self.in_flight) + self.row.unlisted

    @property
    def settled(self) -> bool:
        """True if nothing is left to do for its messages: each is known to have been processed since."""
        return bool(self.in_flight) and all(one.processed_since for one in self.in_flight)

    @property
    def late(self) -> bool:
        """True if one of its handlers has run for longer than its timeout."""
        return any(one.late for one in self.in_flight)

    @property
    def blocked(self) -> bool:
        """True if one of its async handlers blocks the others."""
        return any(one.blocks is not None for one in self.in_flight)

    @classmethod
    def of(cls, row: ConsumerProcess, now: datetime, dead: "Dead | None") -> "Process":
        state = ProcessState.RUNNING if row.connected else ProcessState.NO_BROKER
        if dead:
            state = dead.state
        elif row.silent(now):
            state = ProcessState.SILENT
        elif row.stopping:
            state = ProcessState.STOPPING
        in_flight = tuple(InFlight.of(entry, row.beat_at, now) for entry in row.in_flight)
        return cls(
            row=row,
            state=state,
            in_flight=in_flight,
            unheard=max(now - row.beat_at, timedelta()),
            loop=dead is not None and dead.loop,
            red_until=dead.red_until if dead else None,
        )


def processes(*, most: int = MOST_LISTED_PROCESSES) -> list[Process]:
    """Return the processes: the vanished ones first, then those that are silent, without a broker, or with a handler
    that is late or blocks others.

    Vanished ones that were replaced come last. This is one query, and another one if dead processes had messages in
    flight, for what became of these.
    """
    alias = router.db_for_read(ConsumerProcess)
    rows = list(ConsumerProcess.objects.using(alias).order_by("-beat_at")[:most])
    now = database_clock.now(alias)
    dead = {one.row.pk: one for one in dead_processes(rows, now)}
    return sorted(_with_records([Process.of(row, now, dead.get(row.pk)) for row in rows]), key=_place)


def _with_records(found: list[Process]) -> list[Process]:
    """Add the latest record of each message that a process had in flight when it was last heard of."""
    gone = (one for process in found if not process.heard for one in process.in_flight if one.message_id)
    named = {one.message_id for one in islice(gone, MOST_LOOKED_UP)}
    if not named:
        return found
    rows = ParkedMessage.objects.filter(message_id__in=named).order_by("parked_at", "pk")
    facts = ("pk", "queue", "message_id", "state", "succeeded_at")
    known = {(row.queue, row.message_id): row for row in rows.only(*facts)[: MOST_LOOKED_UP * 5]}

    def recorded(process: Process) -> Process:
        each = (replace(one, record=known.get((one.queue, one.message_id))) for one in process.in_flight)
        return replace(process, in_flight=tuple(each))

    return [process if process.heard else recorded(process) for process in found]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dead:
    """A process that has vanished, and what follows from it."""

    row: ConsumerProcess
    state: ProcessState
    loop: bool = False
    red_until: datetime | None = None


def dead_processes(rows: Iterable[ConsumerProcess], now: datetime) -> list[Dead]:
    """Return the vanished processes, each with whether it still needs somebody.

    Each process replaces one that vanished before it was started and whose queues it reads, alone or with others. If
    it vanishes itself, it is the one to be replaced. One that was told to end, and was killed on its way, needs no
    successor if others read its queues. If it was not told, fewer processes may be meant, or one is missing: it is
    reported for ``TAKEN_OVER_AFTER``.
    """
    known, found = list(rows), []
    read = readers(known, now).keys()
    for line in _lines(known, now):
        gone = [row for row in line if row.vanished(now)]
        lately = [row for row in gone if now - row.beat_at < LOOP_SPAN]
        for row in gone:
            if row in lately and len(lately) >= LOOP_DEATHS:
                found.append(Dead(row=row, state=ProcessState.VANISHED, loop=True))
            elif row is not line[-1] or row.replaced:
                found.append(Dead(row=row, state=ProcessState.REPLACED))
            else:
                found.append(_without_successor(row, now, shared=bool(read) and read >= set(row.queues)))
    return found


def _without_successor(row: ConsumerProcess, now: datetime, *, shared: bool) -> Dead:
    if not shared:
        return Dead(row=row, state=ProcessState.VANISHED)
    until, told = row.beat_at + TAKEN_OVER_AFTER, row.stopping and row.ended_at is None
    if told or now > until:
        return Dead(row=row, state=ProcessState.TAKEN_OVER)
    return Dead(row=row, state=ProcessState.VANISHED, red_until=until)


def unreplaced(rows: Iterable[ConsumerProcess], now: datetime) -> list[ConsumerProcess]:
    """Return the vanished processes that need somebody."""
    return [one.row for one in dead_processes(rows, now) if one.state is ProcessState.VANISHED]


def _lines(rows: Iterable[ConsumerProcess], now: datetime) -> list[list[ConsumerProcess]]:
    """Return the processes in lines: each process of a line replaces the one before it, and all but the last vanished.

    One that is stopping replaces nobody, because it will end itself.
    """
    known = sorted((row for row in rows if row.vanished(now) or row.living(now)), key=lambda row: row.started_at)
    lines = {id(row): [row] for row in known}
    free = deque((row, frozenset(row.queues)) for row in known)
    for gone in sorted((row for row in known if row.vanished(now)), key=lambda row: row.beat_at):
        # They were started too early for all that vanished later, too.
        while free and free[0][0].started_at <= gone.beat_at:
            free.popleft()
        if heirs := _heirs(frozenset(gone.queues), free):
            free = deque(one for one in free if one[0] not in heirs)
            line = lines.pop(id(gone))
            line.append(heirs[0])
            lines[id(heirs[0])] = line
    return list(lines.values())


def _heirs(needed: frozenset[str], free: Iterable[tuple[ConsumerProcess, frozenset[str]]]) -> list[ConsumerProcess]:
    """Return the process that reads all these queues, else those that do so together; empty if some are not read."""
    for row, queues in free:
        if queues >= needed:
            return [row]
    heirs, left = [], needed
    for row, queues in free:
        if queues & left:
            heirs.append(row)
            left -= queues
    return [] if left else heirs


@dataclass(frozen=True, slots=True, kw_only=True)
class LateHandlers:
    """The messages of one queue whose handlers have run for longer than their deadline, on all processes."""

    count: int
    handlers: tuple[str, ...]
    processes: tuple[str, ...]
    timeout: float
    """The shortest of their deadlines, in seconds."""
    ends_after: float
    """The seconds after which the process of such a handler ends."""


def late_handlers(rows: Iterable[ConsumerProcess], now: datetime) -> dict[str, LateHandlers]:
    """Return the late handlers by queue; of a process that is not heard of any more nobody knows."""
    found: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    for row in rows:
        if row.ended_at is None and not row.vanished(now):
            for entry in row.late:
                found.setdefault(entry["queue"], []).append((str(row), entry))
    return {
        queue: LateHandlers(
            count=sum(entry["count"] for _row, entry in entries),
            handlers=tuple(dict.fromkeys(entry["handler"] for _row, entry in entries)),
            processes=tuple(dict.fromkeys(row for row, _entry in entries)),
            timeout=min(entry["timeout"] for _row, entry in entries),
            ends_after=min(entry["ends_after"] for _row, entry in entries),
        )
        for queue, entries in found.items()
    }


def late_handlers_now() -> dict[str, LateHandlers]:
    """Return the same by one query."""
    alias = router.db_for_read(ConsumerProcess)
    rows = ConsumerProcess.objects.using(alias).exclude(late=[]).defer("in_flight")
    return late_handlers(rows, database_clock.reckoned(alias))


def queues_read(rows: Iterable[ConsumerProcess], now: datetime) -> frozenset[str] | None:
    """Return the queues that living processes read; None if nobody knows, because no heartbeats are recorded."""
    if not settings().records:
        return None
    return frozenset(queue for row in rows if row.living(now) for queue in row.queues)


def queues_read_now() -> frozenset[str] | None:
    """Return the same by one query."""
    alias = router.db_for_read(ConsumerProcess)
    now = database_clock.reckoned(alias)
    return queues_read(ConsumerProcess.objects.using(alias).living(now).defer("in_flight"), now)


def readers(rows: Iterable[ConsumerProcess], now: datetime) -> Counter[str]:
    """Return how many processes that reach the broker read each queue."""
    return Counter(queue for row in rows if row.living(now) and row.connected for queue in row.queues)


def readers_now() -> Counter[str]:
    """Return the same by one query."""
    alias = router.db_for_read(ConsumerProcess)
    now = database_clock.reckoned(alias)
    return readers(ConsumerProcess.objects.using(alias).living(now).defer("in_flight"), now)


def lost_since(rows: Iterable[ConsumerProcess], now: datetime) -> datetime | None:
    """Return since when no process reaches the broker, by the first one that lost its connection.

    None if a living process has one, or if none had one before.
    """
    living = [row for row in rows if row.living(now)]
    if any(row.connected for row in living):
        return None
    return min((row.lost_at for row in living if row.lost_at), default=None)


def lost_since_now() -> datetime | None:
    """Return the same by one query."""
    alias = router.db_for_read(ConsumerProcess)
    now = database_clock.reckoned(alias)
    return lost_since(ConsumerProcess.objects.using(alias).living(now).defer("in_flight"), now)


def any_alive() -> bool:
    """Return True if a process takes messages."""
    alias = router.db_for_read(ConsumerProcess)
    return ConsumerProcess.objects.using(alias).living(database_clock.reckoned(alias)).exists()


def _place(one: Process) -> tuple[object, ...]:
    ill = one.late or one.blocked or one.state in (ProcessState.SILENT, ProcessState.NO_BROKER)
    troubled = bool(one.in_flight) if one.vanished else ill
    first, last = one.ended or one.state is ProcessState.VANISHED, one.settled_by_others
    return last, not first, not troubled, one.row.host, one.row.number, one.row.pid


def tidy_vanished() -> bool:
    """Delete the rows of vanished processes that are too old, and note which of the others were replaced.

    A process that is back writes its row again. What is noted stays after the successor has ended and its row is gone.
    """
    alias = router.db_for_write(ConsumerProcess)
    now = database_clock.trusted(alias)
    if now is not None:
        faulty = Q(ended_at__isnull=False, beat_at__gte=now - KEPT_AFTER_A_FAULT)
        old = Q(beat_at__lt=now - KEPT) | (Q(beat_at__lt=now - KEPT_EMPTY, in_flight=[]) & ~faulty)
        rows = ConsumerProcess.objects.using(alias)
        rows.filter(old).delete()
        known = list(rows.defer("in_flight").order_by("-beat_at")[:MOST_LISTED_PROCESSES])
        dead = dead_processes(known, now)
        replaced = [one.row.pk for one in dead if one.state is ProcessState.REPLACED and not one.row.replaced]
        rows.filter(pk__in=replaced, beat_at__lte=now - VANISHED_AFTER).update(replaced=True)
    return False


def _seconds(since: datetime | None, now: datetime) -> int | None:
    return int(max((now - since).total_seconds(), 0.0)) if since else None


def _time(text: object) -> datetime | None:
    try:
        return datetime.fromisoformat(str(text))
    except ValueError:
        return None
