"""The consuming processes as their heartbeats report them, from starting to vanished."""

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from statistics import median_high
from typing import Any, NamedTuple

from django.db import router
from django.db.models import Q
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_rmq_retry import database_clock
from django_rmq_retry.amqp.levels import Level
from django_rmq_retry.attempts.since_then import Later, attempts_with, later
from django_rmq_retry.breakers.queue_state import QueueState
from django_rmq_retry.conf import settings
from django_rmq_retry.health.begun import Begun, begun_by, in_words, time_in
from django_rmq_retry.health.handled_again import delivered_again, handlers_that_repeat_nothing, may_have_had, reads
from django_rmq_retry.health.process_place import has_ended, machine, own_host
from django_rmq_retry.models import ConsumerProcess, ParkedMessage, State
from django_rmq_retry.models.controls import IS_GONE, has_vanished
from django_rmq_retry.parked.checked import mark
from django_rmq_retry.topology.declarations import Role, work_queue
from django_rmq_retry.wording import listed, number

LOOP_DEATHS, LOOP_SPAN = 3, timedelta(minutes=30)
"""So many processes that replaced one another and vanished within this time need somebody, although the last lives, for
as long after the last death. Two are no loop: an operator may end one, and then all of them."""
LOOP_OVER_AFTER, LOOP_OVER_BY = timedelta(minutes=2), 1.5
"""A crash loop seems over once its last process has run for longer than this, and so many times as long as any other:
what ends each after five minutes ends the next one not to the second."""
KILLS_AT_ONCE, LIVED = timedelta(seconds=10), timedelta(seconds=30)
"""If most processes of a loop died so soon after their start, one that lived for longer than the second began it."""
TAKEN_OVER_AFTER = timedelta(minutes=10)
"""The time for which a vanished process needs somebody although others read all its queues: it may be missed."""
MAY_GO_ON_FOR = timedelta(hours=1)
"""The time for which a process that nobody has seen to end is told of while others got its messages: it may be frozen,
with its host, and go on."""
TWO_LOOKS = timedelta(seconds=2)
"""The time in which a consumer sees by two looks that a queue is empty."""
KEPT_EMPTY, KEPT = MAY_GO_ON_FOR, timedelta(days=1)
"""The ages at which the row of a vanished process is deleted: without messages in flight, and with some."""
MOST_SURVEYED_PROCESSES = 1000
"""The most processes that are examined: those with the latest heartbeats."""
MOST_LISTED_PROCESSES = 200
"""The most of them that a page or command shows."""
NOTED_WITHIN = timedelta(seconds=30)
"""The time in which a process that runs has noted which others of its machine are gone."""
MOST_LOOKED_UP = 200
"""The most messages of dead processes whose records are looked up."""

Reading = tuple[ConsumerProcess, frozenset[str]]
"""A process with the queues that it reads."""


class ProcessState(StrEnum):
    """The state of a process, for machines; labels for users are translated elsewhere."""

    RUNNING = "running"
    STARTING = "starting"
    STOPPING = "stopping"
    NO_BROKER = "no broker"
    CUT_OFF = "cut off"
    """The broker has no consumer of a queue that it reads by its last heartbeat: it was killed, or has lost it."""
    SILENT = "silent"
    """Its last heartbeat is missing."""
    VANISHED = "vanished"
    REPLACED = "replaced"
    """Vanished, and a process that was started later took its queues over."""
    TAKEN_OVER = "taken over"
    """Vanished, and the others read all its queues: it was told to end, or has not been missed for a while."""


class Record(NamedTuple):
    """What a record tells of a message that was in flight: a page and a survey may ask for hundreds."""

    pk: int
    state: str
    parked_at: datetime
    succeeded_at: datetime | None


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
    again: bool
    """True if another consumer had it before and did not acknowledge it."""
    published: datetime | None = None
    """When it was published, if that is known."""
    blocks: int | None = None
    """Seconds for which its async handler blocks the event loop, and with it all others of the process; None if not.

    It was still blocking at the last heartbeat.
    """
    record: Record | None = None
    """Its record, if its process is not heard of any more and the message was parked at some time."""
    later: Later | None = None
    """What was made of it since, if its process is not heard of any more."""
    also: str = ""
    """Another process that has it in flight, if its own is not heard of any more: one that hangs may handle it too."""
    begun_by: tuple[Begun, ...] = ()
    """The processes that had begun it before, if its own is heard of: its work may be done already."""
    perhaps_begun: bool = False
    """True if it is only known that a lost process may have begun it."""

    @property
    def late(self) -> bool:
        """True if the handler has run for longer than its timeout."""
        return self.timeout is not None and self.length.total_seconds() > self.timeout

    @property
    def name(self) -> str:
        """Its first business key, else its id."""
        return self.key or self.message_id

    @property
    def before(self) -> str:
        """Who had begun it before, and when, or that somebody may have; empty if nobody is known to."""
        return in_words(self.begun_by) or (_("A lost consumer may have begun it.") if self.perhaps_begun else "")

    @property
    def overtaken(self) -> bool:
        """True if another process has it now, or has had it since."""
        return bool(self.also or (self.later and not self.later.own))

    @property
    def perhaps_twice_by(self) -> str:
        """The process that handled it although this one had begun; empty if none is known to have done so."""
        return self.later.process if self.later and self.later.twice else ""

    @property
    def processed_since(self) -> bool:
        """True if it is known to have been processed after this attempt began: nothing is left to do for it."""
        if self.later is not None and self.later.ended:
            return True
        known = self.record
        if known is None or known.state != State.PROCESSED or known.succeeded_at is None or self.since is None:
            return False
        return known.succeeded_at >= self.since

    def waits_since(self, lost: datetime) -> bool:
        """Return True if nobody has had it since its process was heard of last; without an id that is unknown."""
        parked = self.record is not None and self.record.parked_at >= lost
        return bool(self.message_id) and not (self.also or self.later or self.processed_since or parked)

    @classmethod
    def of(cls, entry: Mapping[str, Any], beat: datetime, now: datetime) -> "InFlight":
        since, blocks_since = time_in(entry.get("since")), time_in(entry.get("blocks_since"))
        texts: dict[str, Any] = {name: str(entry.get(name) or "") for name in ("queue", "handler", "key", "message_id")}
        return cls(
            **texts,
            attempt=int(entry.get("attempt") or 1),
            since=since,
            length=timedelta(seconds=max(beat.timestamp() - since.timestamp(), 0.0) if since else 0.0),
            seconds=_seconds(since, now),
            timeout=float(timeout) if isinstance(timeout := entry.get("timeout"), int | float) else None,
            auto_ack=entry.get("auto_ack") is True,
            again=entry.get("again") is True,
            published=time_in(entry.get("published")),
            blocks=_seconds(blocks_since, now),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashLoop:
    """Processes that replaced one another and died. Each of them is counted until none is told of any more."""

    dead: tuple[ConsumerProcess, ...]
    """The first one first."""
    last: ConsumerProcess
    """The process with which it seems over, or the last one of it, which may live."""
    over: bool
    """True if it seems over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    row: ConsumerProcess
    state: ProcessState
    in_flight: tuple[InFlight, ...]
    unheard: timedelta
    """The time since its last heartbeat."""
    loop: CrashLoop | None = None
    """The crash loop in which it vanished."""
    red_until: datetime | None = None
    """The time from which a vanished process needs nobody, because others read all its queues."""
    exists: bool = False
    """True if it vanished, and still exists: it is frozen, or does not reach the database."""
    unreported: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Messages of its queues that others got since, and that it had not reported: it may have them, too. Their names
    by their queues and ids."""

    @property
    def forgotten_at(self) -> datetime:
        """The time at which the row of a vanished process is deleted."""
        return self.row.beat_at + (KEPT if self.in_flight else KEPT_EMPTY)

    @property
    def settled_by_others(self) -> bool:
        """True if it vanished, and others do its work."""
        return self.state in (ProcessState.REPLACED, ProcessState.TAKEN_OVER)

    @property
    def may_go_on(self) -> bool:
        """True if it vanished, and may only be frozen."""
        return self.vanished and self.loop is None and _may_go_on(self.row, self.unheard)

    @property
    def reported(self) -> tuple[InFlight, ...]:
        """Those of its messages that others have got since, if it may go on."""
        return tuple(one for one in self.in_flight if one.overtaken) if self.may_go_on else ()

    @property
    def overtaken(self) -> bool:
        """True if others have got messages of its since: it does their work again if it is only frozen."""
        return bool(self.reported or self.unreported)

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
        return not (self.vanished or self.ended or self.state in (ProcessState.SILENT, ProcessState.CUT_OFF))

    @property
    def busy(self) -> int:
        """The number of its messages in flight, of which the oldest are in ``in_flight``."""
        return len(self.in_flight) + self.row.unlisted

    @property
    def settled(self) -> bool:
        """True if nothing is left to do for what it had reported: each was processed since, none of them twice."""
        known = self.in_flight and not self.row.unlisted and not self.overtaken
        return bool(known) and all(one.processed_since and not one.perhaps_twice_by for one in self.in_flight)

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
        state = ProcessState.STARTING if row.starting else state
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
            loop=dead.loop if dead else None,
            red_until=dead.red_until if dead else None,
            exists=bool(dead and dead.exists),
        )


def processes(*, most: int = MOST_LISTED_PROCESSES) -> list[Process]:
    """Return the processes: the vanished ones first, then those that are silent, without a broker, or with a handler
    that is late or blocks others.

    Those of a crash loop come after the living ones, the last that vanished first, and vanished ones that were replaced
    come last. This is one query, two more if dead processes had messages in flight,
    for what became of these, one more if one may be frozen, and one for those that are only counted, if there are more.
    """
    alias = router.db_for_read(ConsumerProcess)
    known = ConsumerProcess.objects.using(alias).order_by("-beat_at")
    rows = list(known[:most])
    others = list(known.defer("in_flight")[most:MOST_SURVEYED_PROCESSES]) if len(rows) == most else []
    for row in others:
        row.in_flight = []
    now = database_clock.now(alias)
    dead = {one.row.pk: one for one in dead_processes([*rows, *others], now)}
    found = _with_others(_with_later([Process.of(row, now, dead.get(row.pk)) for row in rows]))
    return sorted(map(_as_told, _with_unreported(found)), key=_place)


def with_those_cut_off(known: Sequence[Process], unread: Collection[str]) -> Sequence[Process]:
    """Return the same, with those that run by their heartbeats, although the broker has no consumer of their queues:
    it knows sooner that a process is gone."""
    gone = [one.state is ProcessState.RUNNING and any(queue in unread for queue in one.row.queues) for one in known]
    if not any(gone):
        return known
    each = zip(known, gone, strict=True)
    return sorted((replace(one, state=ProcessState.CUT_OFF) if is_gone else one for one, is_gone in each), key=_place)


def begun_and_waiting(queues: Collection[str], now: datetime) -> dict[str, str]:
    """Return a sentence for each of these stopped queues on what lost processes had begun of it, and nobody has had
    since: it waits there, and may have been done.

    One query if there are queues; two more if there are such processes, for what became of their messages.
    """
    if not queues:
        return {}
    rows = ConsumerProcess.objects.exclude(in_flight=[]).filter(has_vanished(now)).order_by("-beat_at")
    found, once = defaultdict[str, list[str]](list), handlers_that_repeat_nothing()
    for process in _with_later([Process.of(row, now, None) for row in rows[:MOST_LISTED_PROCESSES]]):
        for one in process.in_flight:
            queue = work_queue(one.queue)
            if queue in queues and one.handler not in once and one.waits_since(process.row.beat_at):
                found[queue].append(one.name)
    return {queue: begun_in_stopped(sorted(set(names))) for queue, names in found.items()}


def begun_in_stopped(names: Sequence[str]) -> str:
    """Return a sentence on what lost processes had begun of a stopped queue, and nobody has had since; maybe none."""
    if not names:
        return ""
    text = ngettext(
        "%(number)s message was in a handler when its consumer was lost, and may have been done: %(names)s. Find that "
        "out before the queue resumes.",
        "%(number)s messages were in handlers when their consumers were lost, and may have been done: %(names)s. Find "
        "that out before the queue resumes.",
        len(names),
    )
    return text % {"number": number(len(names)), "names": listed(names)}


def _may_go_on(row: ConsumerProcess, unheard: timedelta) -> bool:
    """Return True if nothing says that a process has ended: one that was told to end, and is gone, was killed."""
    return row.ended_at is None and not row.stopping and unheard <= MAY_GO_ON_FOR


def _as_told(process: Process) -> Process:
    """Return the process; one that may do again what others got needs somebody, whoever reads its queues."""
    if not process.overtaken:
        return process
    return replace(process, state=ProcessState.VANISHED, red_until=process.row.beat_at + MAY_GO_ON_FOR)


def _with_others(found: list[Process]) -> list[Process]:
    """Add to each message of a process that is not heard of any more which other one has it now, and to each that is
    delivered again which lost one had begun it, or may have."""
    heard, lost = [one for one in found if one.heard], [one.row for one in found if one.vanished]
    has = {_place_of(each): str(one.row) for one in heard for each in one.in_flight if each.message_id}
    once = handlers_that_repeat_nothing()
    # One that was killed a moment ago is still heard of, while another one has its message already.
    begun, gone = begun_by([*lost, *(one.row for one in heard)]), set(map(id, lost))

    def also(process: Process) -> Process:
        names = [has.get(_place_of(one), "") for one in process.in_flight]
        if not any(names):
            return process
        each = zip(process.in_flight, names, strict=True)
        return replace(process, in_flight=tuple(replace(one, also=name) for one, name in each))

    def before(row: ConsumerProcess, one: InFlight) -> InFlight:
        place, since = _place_of(one), one.since
        if not one.again or since is None or one.handler in once:
            return one
        others = (other for other in begun.get(place, ()) if other.consumer is not row and other.at < since)
        # One that is heard of ended an earlier attempt, which its row will say in a moment.
        known = tuple(other for other in others if id(other.consumer) in gone or other.attempt >= one.attempt)
        if not (known or any(may_have_had(other, *place, published=one.published, begun=since) for other in lost)):
            return one
        return replace(one, begun_by=known, perhaps_begun=not known)

    def again(process: Process) -> Process:
        return replace(process, in_flight=tuple(before(process.row, one) for one in process.in_flight))

    return [again(process) if process.heard else also(process) for process in found]


def _with_unreported(found: list[Process]) -> list[Process]:
    """Add to each process that may go on what others got since of its queues, and it had not reported.

    What it took after its last heartbeat is in no report, and the broker gives all of it to others.
    """
    beats = [one.row.beat_at for one in found if one.may_go_on]
    if not beats:
        return found
    once = handlers_that_repeat_nothing()
    held = (each for one in found if one.heard for each in one.in_flight if each.again and each.handler not in once)
    again = [(_place_of(each), each.name, each.since) for each in held if each.since is not None]
    again += [((one.queue, one.message_id or one.identity), name, at) for one, name, at in delivered_again(min(beats))]

    def unreported(process: Process) -> dict[tuple[str, str], str]:
        had = set(map(_place_of, process.in_flight))
        since = [one for one in again if one[2] > process.row.beat_at and reads(process.row, one[0][0])]
        return {place: name for place, name, _at in since if place not in had}

    return [replace(one, unreported=unreported(one)) if one.may_go_on else one for one in found]


def _place_of(one: InFlight) -> tuple[str, str]:
    """Return by what a message is recognized, also if it was moved to quarantine since."""
    return work_queue(one.queue), one.message_id


def _with_later(found: list[Process]) -> list[Process]:
    """Add to each message of a process that is not heard of any more its record, and what was made of it since."""
    beats = ((process.row.beat_at, one) for process in found if not process.heard for one in process.in_flight)
    gone = [(one.message_id, min(beat, one.since or beat)) for beat, one in beats if one.message_id]
    named = {message_id for message_id, _began in gone[:MOST_LOOKED_UP]}
    if not named:
        return found
    began = min(began for message_id, began in gone if message_id in named)
    records, tried = _records(named), attempts_with(named, began)

    def known(process: Process, one: InFlight) -> InFlight:
        record = records.get(_place_of(one))
        own = str(process.row), one.since
        then = later(tried, one.queue, one.message_id, process.row.beat_at, own=own)
        return replace(one, record=record, later=then) if record or then else one

    def since(process: Process) -> Process:
        return replace(process, in_flight=tuple(known(process, one) for one in process.in_flight))

    return [process if process.heard else since(process) for process in found]


def _records(named: Collection[str]) -> dict[tuple[str, str], Record]:
    """Return the latest record of each message with one of these ids, by its queue and id."""
    rows = ParkedMessage.objects.filter(message_id__in=named).order_by("parked_at", "pk")
    found = rows.values_list("queue", "message_id", *Record._fields)[: MOST_LOOKED_UP * 5]
    return {(queue, message_id): Record(*facts) for queue, message_id, *facts in found}


@dataclass(frozen=True, slots=True, kw_only=True)
class Dead:
    """A process that has vanished, and what follows from it."""

    row: ConsumerProcess
    state: ProcessState
    loop: CrashLoop | None = None
    red_until: datetime | None = None
    exists: bool = False
    """True if its end would have been noted."""

    @property
    def replaced(self) -> bool:
        """True if another process took its queues over; of a crash loop only the last one is, once that is over."""
        if self.loop is None:
            return self.state is ProcessState.REPLACED
        return self.loop.over and self.row is self.loop.dead[-1]


def dead_processes(rows: Iterable[ConsumerProcess], now: datetime) -> list[Dead]:
    """Return the vanished processes, each with whether it still needs somebody.

    Each process replaces one that vanished before it was started and whose queues it reads, alone or with others. If
    it vanishes itself, it is the one to be replaced. One that was told to end, and was killed on its way, needs no
    successor if others read its queues. If it was not told, fewer processes may be meant, or one is missing: it is
    reported for ``TAKEN_OVER_AFTER``. One that is known to exist goes on with what it took after its last heartbeat,
    whoever reads its queues.
    """
    known, found = list(rows), []
    read, frozen = readers(known, now).keys(), _known_to_exist(known, now)
    for line in _lines(known, now):
        looping = _in_loops(line, now, read, frozen)
        for row in line:
            if not row.vanished(now):
                continue
            if id(row) in looping:
                found.append(Dead(row=row, state=ProcessState.VANISHED, loop=looping[id(row)]))
            elif id(row) in frozen:
                found.append(Dead(row=row, state=ProcessState.VANISHED, exists=True))
            elif row is not line[-1] or row.replaced:
                found.append(Dead(row=row, state=ProcessState.REPLACED))
            else:
                found.append(_without_successor(row, now, shared=_reads_all(read, row)))
    return found


def _without_successor(row: ConsumerProcess, now: datetime, *, shared: bool) -> Dead:
    if not shared:
        return Dead(row=row, state=ProcessState.VANISHED)
    until = row.beat_at + TAKEN_OVER_AFTER
    if row.told_to_end or now > until:
        return Dead(row=row, state=ProcessState.TAKEN_OVER)
    return Dead(row=row, state=ProcessState.VANISHED, red_until=until)


def _in_loops(
    line: Iterable[ConsumerProcess], now: datetime, read: Collection[str], frozen: Collection[int]
) -> dict[int, CrashLoop]:
    """Return the processes of a line that vanished in a crash loop, each with that.

    A loop ends with a process that clearly outlived it, which is noted, or was started much later, or if nobody
    restarts it while others read its queues. If the one that outlived it dies too, it may hang with its messages, which
    is another thing, or begin another loop.
    """
    loops: list[CrashLoop] = []
    dead: list[ConsumerProcess] = []
    lives: list[timedelta] = []
    """Those of all but the first, which was no part of the loop."""
    for last in line:
        late = bool(dead) and last.started_at - dead[-1].beat_at > TAKEN_OVER_AFTER
        if len(dead) >= LOOP_DEATHS and (late or dead[-1].replaced or _outlived(last, lives, now)):
            loops.append(CrashLoop(dead=tuple(dead), last=last, over=True))
            dead, lives = [], []
        elif late:
            dead, lives = [], []
        # One that is frozen has not died, nor has one that gave back: they make no loop with others that were killed.
        if last.vanished(now) and not (id(last) in frozen or last.gave_back):
            lives += [last.ran(now)] if dead else []
            dead.append(last)
            outlived, slow = _last_long_life(lives), _last_slow_death(dead)
            if outlived > slow and outlived >= LOOP_DEATHS:
                loops.append(CrashLoop(dead=tuple(dead[:outlived]), last=dead[outlived], over=True))
            if first := max(outlived, slow):
                dead, lives = dead[first:], lives[first:]
    given_up = last.vanished(now) and now - last.beat_at > TAKEN_OVER_AFTER and _reads_all(read, last)
    if len(dead) >= LOOP_DEATHS and not given_up:
        loops.append(CrashLoop(dead=tuple(dead), last=last, over=dead[-1].replaced))
    return {id(row): loop for loop in loops if now < _told_until(loop, now) for row in loop.dead}


def _told_until(loop: CrashLoop, now: datetime) -> datetime:
    """Return when nobody needs to know of it any more; one that nobody has restarted is told of as long as a process.

    Its rows stay until then, so that it has as many dead processes as before.
    """
    unrestarted = loop.last.vanished(now) and not loop.over
    return loop.dead[-1].beat_at + (KEPT_EMPTY if unrestarted else LOOP_SPAN)


def _reads_all(read: Collection[str], row: ConsumerProcess) -> bool:
    return bool(read) and set(read) >= set(row.queues)


def _last_long_life(lives: Sequence[timedelta]) -> int:
    """Return the place after the last life that was clearly longer than most of the latest; 0 if there is none.

    Its death may begin a loop; what ended those before it, such as an operator, was something else.
    """
    # Mostly none is long, and a loop may have hundreds of lives, for each of which this is asked.
    if max(lives, default=LIVED) <= min(LOOP_OVER_AFTER, LIVED):
        return 0
    usual = median_high(lives[-LOOP_DEATHS:])
    least = LOOP_OVER_AFTER if usual > KILLS_AT_ONCE else LIVED
    long = max(least, usual * LOOP_OVER_BY)
    return max((place for place, life in enumerate(lives, 1) if life > long), default=0)


def _last_slow_death(dead: Sequence[ConsumerProcess]) -> int:
    """Return the place after the last death that was too early to be one of a loop with the latest ones."""
    slow = len(dead) >= LOOP_DEATHS and dead[-1].beat_at - dead[-LOOP_DEATHS].beat_at >= LOOP_SPAN
    return len(dead) - LOOP_DEATHS + 1 if slow else 0


def _outlived(row: ConsumerProcess, loop: Iterable[timedelta], now: datetime) -> bool:
    """Return True if a process has clearly outlived a loop with these lives.

    One that has lost the broker lives, and one that never reached it may hang as it starts.
    """
    lives = row.connected or row.lost_at is not None or row.vanished(now)
    ran = row.ran(now)
    return lives and ran > LOOP_OVER_AFTER and ran > max(loop) * LOOP_OVER_BY


def read_in_flight(rows: Sequence[ConsumerProcess], now: datetime) -> None:
    """Add what processes that vanished had in flight, and those that live; one query if one vanished."""
    # The first ones may do something yet.
    gone = sorted((row for row in rows if row.vanished(now)), key=lambda row: row.beat_at, reverse=True)
    if not gone:
        return
    living = [row for row in rows if not row.vanished(now)]
    held = _held_by([*gone[:MOST_LOOKED_UP], *living[:MOST_LOOKED_UP]])
    for row in (*gone, *living):
        row.in_flight = held.get(row.pk, [])


def unreplaced(dead: Iterable[Dead]) -> list[ConsumerProcess]:
    """Return the vanished processes that need somebody; each of a crash loop but the last had a successor."""
    needy = (one for one in dead if one.state is ProcessState.VANISHED)
    return [one.row for one in needy if one.loop is None or (one.row is one.loop.dead[-1] and not one.loop.over)]


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenAgain:
    """Messages of one queue that others had begun before, mostly lost ones: their work may be done already."""

    begun: tuple[str, ...]
    """Those in a handler again that another process is known to have begun."""
    perhaps: tuple[str, ...]
    """Those in a handler that a lost process may have begun."""
    waiting: tuple[str, ...]
    """Those that were in a handler when their process was heard of last, and that nobody has had since.

    Those of the process that was lost last come first: what an earlier one had is rather over.
    """
    passed: frozenset[str] = frozenset()
    """Those of them that wait in quarantine or nowhere: each consumer of the queue had nothing of it since."""

    @property
    def count(self) -> int:
        return len(self.begun) + len(self.perhaps) + len(self.waiting)


def left_by_the_lost(
    rows: Sequence[ConsumerProcess], now: datetime, dead: Iterable[Dead]
) -> tuple[list[Process], dict[str, GivenAgain]]:
    """Return the processes that may be frozen with messages that others got since, and what else of lost ones others
    are given, by queue; after ``read_in_flight``.

    One query, if one may be frozen, and two more if lost ones had messages in flight.
    """
    lost = sorted(dead, key=lambda one: one.row.beat_at, reverse=True)
    if not lost:
        return [], {}
    living = [Process.of(row, now, None) for row in rows if not row.vanished(now)]
    gone = _with_others([*living, *_with_later([Process.of(one.row, now, one) for one in lost])])
    gone = _with_unreported(gone)
    frozen = [_as_told(one) for one in gone if one.overtaken]
    return frozen, given_again(gone, now, read=readers(rows, now))


def without_passed(given: Mapping[str, GivenAgain], levels: Sequence[Level]) -> Mapping[str, GivenAgain]:
    """Return the same without what can only wait in quarantine, where that is empty: it was done before, or since."""
    return {
        queue: replace(one, waiting=tuple(name for name in one.waiting if name not in one.passed))
        if one.passed and _quarantine_is_empty(queue, levels)
        else one
        for queue, one in given.items()
    }


def _quarantine_is_empty(queue: str, levels: Sequence[Level]) -> bool:
    own = [level for level in levels if work_queue(level.queue) == queue]
    return bool(own) and all(level.ready == 0 for level in own if level.role is Role.QUARANTINE)


def with_cut_off(
    given: Mapping[str, GivenAgain],
    rows: Iterable[ConsumerProcess],
    now: datetime,
    unread: Collection[str],
    *,
    holding: Collection[str],
) -> Mapping[str, GivenAgain]:
    """Return the same with what processes of unread queues had begun, which have no consumer at the broker.

    They are gone, or cut off from it, although it is too early to miss their heartbeats. What they had of the queues
    that are ``holding`` messages waits there: that of a stopped one, too. One query if there are some.
    """
    alive = (row for row in rows if not row.vanished(now) and (row.silent(now) or not row.stopping))
    gone = [row for row in alive if any(queue in unread for queue in row.queues)][:MOST_LOOKED_UP]
    unknown = [row for row in gone if "in_flight" in row.get_deferred_fields()]
    held = _held_by(unknown) if unknown else {}
    for row in unknown:
        row.in_flight = held.get(row.pk, [])
    once, found = handlers_that_repeat_nothing() if gone else [], dict(given)
    cut_off = defaultdict[str, set[str]](set)
    for each in (each for row in gone for each in Process.of(row, now, None).in_flight):
        queue = work_queue(each.queue)
        if queue in holding and each.message_id and not (each.auto_ack or each.handler in once):
            known = found.get(queue, GivenAgain(begun=(), perhaps=(), waiting=()))
            cut_off[queue].add(each.name)
            found[queue] = replace(known, waiting=tuple(dict.fromkeys((*sorted(cut_off[queue]), *known.waiting))))
    return found


def _held_by(rows: Iterable[ConsumerProcess]) -> dict[int, list[Any]]:
    return dict(ConsumerProcess.objects.filter(pk__in=[row.pk for row in rows]).values_list("pk", "in_flight"))


def given_again(found: Sequence[Process], now: datetime, *, read: Collection[str]) -> dict[str, GivenAgain]:
    """Return what is given again of the processes that are lost, but for what one that may be frozen had.

    What waits in a queue that is read is gone for by then, or it had been done before the process was lost.
    """
    lost = [one for one in found if one.vanished]
    told = {place for one in lost if one.overtaken for place in (*map(_place_of, one.reported), *one.unreported)}
    once = handlers_that_repeat_nothing()
    again, waiting = defaultdict[str, list[InFlight]](list), defaultdict[str, dict[str, bool]](dict)
    for each in (each for one in found if one.heard for each in one.in_flight):
        if (each.begun_by or each.perhaps_begun) and _place_of(each) not in told:
            again[work_queue(each.queue)].append(each)
    for one in sorted(lost, key=lambda one: one.row.beat_at, reverse=True):
        passed_in = dict[str, bool]()
        for each in sorted(one.in_flight, key=lambda each: each.name):
            queue = work_queue(each.queue)
            late = queue in read and one.unheard > MAY_GO_ON_FOR
            if not (late or each.auto_ack or each.handler in once) and each.waits_since(one.row.beat_at):
                if queue not in passed_in:
                    passed_in[queue] = _had_none_since(found, one.row, queue)
                waiting[queue][each.name] = passed_in[queue] and waiting[queue].get(each.name, True)
    for known in again.values():
        known.sort(key=lambda each: each.since or now)
    return {
        queue: GivenAgain(
            begun=tuple(dict.fromkeys(each.name for each in again[queue] if each.begun_by)),
            perhaps=tuple(dict.fromkeys(each.name for each in again[queue] if each.perhaps_begun)),
            waiting=tuple(waiting[queue]),
            passed=frozenset(name for name, passed in waiting[queue].items() if passed),
        )
        for queue in dict.fromkeys((*again, *waiting))
    }


def _had_none_since(found: Iterable[Process], lost: ConsumerProcess, queue: str) -> bool:
    """Return True if each other reader of a queue had nothing of it once, after what a lost one had has returned there.

    It returns as a process ends whose end was seen. Of one that may only miss its database, or has ended as an operator
    says, the broker may know later. A reader that was lost since counts, too: it may have had it.
    """
    ended = None if lost.ended_by else lost.ended_at
    if ended is None:
        return False
    others = [one.row for one in found if one.row is not lost and reads(one.row, queue) and one.row.beat_at > ended]
    idle = [row.idle_in(queue) for row in others]
    return bool(idle) and all(at is not None and at > ended + TWO_LOOKS for at in idle)


def _lines(rows: Iterable[ConsumerProcess], now: datetime) -> list[list[ConsumerProcess]]:
    """Return the processes in lines: each process of a line replaces the one before it, and all but the last vanished.

    A process replaces the one that vanished last before it was started: after the end of several, one that dies again
    and again replaces itself. One that is stopping replaces nobody, because it will end itself.
    """
    known = sorted((row for row in rows if row.vanished(now) or row.living(now)), key=lambda row: row.started_at)
    lines = {id(row): [row] for row in known}
    earlier, free = [(row, frozenset(row.queues)) for row in known], deque[Reading]()
    for gone in sorted((row for row in known if row.vanished(now)), key=lambda row: row.beat_at, reverse=True):
        while earlier and earlier[-1][0].started_at > gone.beat_at:
            free.appendleft(earlier.pop())
        if heirs := _heirs(frozenset(gone.queues), free):
            for heir in heirs:
                free.remove(heir)
            lines[id(gone)] += lines.pop(id(heirs[0][0]))
    return list(lines.values())


def _heirs(needed: frozenset[str], free: Iterable[Reading]) -> list[Reading]:
    """Return the process that reads all these queues, else those that do so together; empty if some are not read."""
    heirs, left = [], needed
    for one in free:
        if one[1] >= needed:
            return [one]
        if one[1] & left:
            heirs.append(one)
            left -= one[1]
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


def read_if_open(states: Iterable[QueueState]) -> frozenset[str] | None:
    """Return the same; without an open breaker nobody has to know."""
    return queues_read_now() if any(one.circuit.opened for one in states) else None


def read_since(rows: Iterable[ConsumerProcess], now: datetime, looked_at: datetime | None) -> frozenset[str]:
    """Return the queues that have a consumer although a look at the broker, of this time or of now, saw none.

    A process was heard of since the look, or is about to take a queue again that was stopped a moment ago.
    """
    heard = [row for row in rows if row.connected and row.living(now) and not row.silent(now)]
    since = (row.queues for row in heard if looked_at and row.beat_at > looked_at)
    return frozenset(queue for queues in (*since, *(row.let_go or () for row in heard)) for queue in queues)


def read_since_now(looked_at: datetime) -> frozenset[str]:
    """Return the same by one query."""
    alias = router.db_for_read(ConsumerProcess)
    now = database_clock.reckoned(alias)
    return read_since(ConsumerProcess.objects.using(alias).living(now).defer("in_flight"), now, looked_at)


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
    if one.loop is not None:
        # Each but the last was restarted: there may be hundreds, and what they say, they say together.
        return False, True, one.unheard
    ill = one.late or one.blocked or one.state in (ProcessState.CUT_OFF, ProcessState.SILENT, ProcessState.NO_BROKER)
    troubled = bool(one.in_flight) if one.vanished else ill
    first, last = one.ended or one.state is ProcessState.VANISHED, one.settled_by_others
    return last, False, not first, not troubled, one.row.host, one.row.number, one.row.pid


def note_gone(*, silent_for: timedelta) -> None:
    """Note which processes of this machine, silent for so long, are gone: nobody looks for one that may be frozen.

    One query. Of processes in other containers and on other machines nobody can tell.
    """
    try:
        here = machine()
    except OSError:
        return
    alias = router.db_for_write(ConsumerProcess)
    now = database_clock.trusted(alias)
    if now is None:
        return
    rows = ConsumerProcess.objects.using(alias).filter(ended_at=None, beat_at__lt=now - silent_for)
    silent = rows.filter(place__startswith=here, stopping=False).defer("in_flight").order_by("-beat_at")
    gone = [row.pk for row in silent[:MOST_LISTED_PROCESSES] if has_ended(row.place, row.pid)]
    if gone:
        rows.filter(pk__in=gone).update(ended_at=now, fault=IS_GONE, stopping=True)


def note_end_of(pid: int, ending: str) -> None:
    """Note how a child has ended, as its supervisor saw; not if it wrote that itself, or was told to end."""
    alias = router.db_for_write(ConsumerProcess)
    rows = ConsumerProcess.objects.using(alias).filter(host=own_host(), pid=pid)
    for row in rows.defer("in_flight").order_by("-started_at")[:1]:
        note = {"ended_at": database_clock.now(alias), "fault": ending, "stopping": True}
        rows.filter(Q(ended_at=None, stopping=False) | Q(fault=IS_GONE), pk=row.pk).update(**note)


def mark_of(row: ConsumerProcess) -> str:
    """Return the digest of the doubt whether a process has ended; after another heartbeat it is another one."""
    return mark("process", row.name, row.beat_at)


def note_ended(marks: Collection[str], by: str) -> int:
    """Note that these processes have ended, as an operator says, unless they were heard of since; return how many.

    A process that goes on all the same takes the note away with its next heartbeat.
    """
    alias = router.db_for_write(ConsumerProcess)
    now = database_clock.now(alias)
    rows = ConsumerProcess.objects.using(alias).filter(ended_at=None)
    said = [row for row in rows.defer("in_flight") if mark_of(row) in marks]
    note = {"ended_at": now, "ended_by": by, "stopping": True}
    return sum(rows.filter(pk=row.pk, beat_at=row.beat_at).update(**note) for row in said)


def _known_to_exist(rows: Iterable[ConsumerProcess], now: datetime) -> set[int]:
    """Return the identities of silent processes whose end another one of their machine would have noted: these are
    frozen, or do not reach the database."""
    known = list(rows)
    watched = {row.machine for row in known if not row.silent(now) and row.ran(now) > NOTED_WITHIN}
    return {id(row) for row in known if row.machine and row.machine in watched and row.ended_at is None}


def tidy_vanished() -> bool:
    """Delete the rows of vanished processes that are too old, and note which of the others were replaced.

    A process that is back writes its row again. What is noted stays after the successor has ended and its row is gone.
    Those of a crash loop stay as long as that is told of.
    """
    alias = router.db_for_write(ConsumerProcess)
    now = database_clock.trusted(alias)
    if now is not None:
        rows = ConsumerProcess.objects.using(alias)
        known = list(rows.defer("in_flight").order_by("-beat_at")[:MOST_SURVEYED_PROCESSES])
        dead = dead_processes(known, now)
        old = Q(beat_at__lt=now - KEPT) | Q(beat_at__lt=now - KEPT_EMPTY, in_flight=[])
        rows.filter(old).exclude(pk__in=[one.row.pk for one in dead if one.loop]).delete()
        replaced = [one.row.pk for one in dead if one.replaced and not one.row.replaced]
        rows.filter(has_vanished(now), pk__in=replaced).update(replaced=True)
    return False


def _seconds(since: datetime | None, now: datetime) -> int | None:
    return int(max((now - since).total_seconds(), 0.0)) if since else None
