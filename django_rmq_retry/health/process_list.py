"""The list of consuming processes as page and command show it: who needs somebody, who runs, what is over."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext, pgettext_lazy

from django_rmq_retry import database_clock
from django_rmq_retry.amqp.levels import Level
from django_rmq_retry.breakers.table import state_of
from django_rmq_retry.conf import settings
from django_rmq_retry.health.condition import STOPPED_BY
from django_rmq_retry.health.facts import killers_lately
from django_rmq_retry.health.handled_again import handled_again
from django_rmq_retry.health.look import MISSED, UNCONSUMED, merged, paused_before
from django_rmq_retry.health.problems import (
    LastSigns,
    Queues,
    ToldLoop,
    crash_loops,
    died_after_check,
    in_given_again,
    in_processes,
    in_stopped,
    last_signs,
    still_at_it,
    with_waiting,
    without_need,
)
from django_rmq_retry.health.processes import (
    TAKEN_OVER_AFTER,
    InFlight,
    Process,
    ProcessState,
    dead_processes,
    given_again,
    queues_read,
    read_since,
    readers,
    with_cut_off,
    with_those_cut_off,
    without_passed,
)
from django_rmq_retry.health.rules import Code, Problem, Severity
from django_rmq_retry.models import QueueControl
from django_rmq_retry.models.parked import OPEN
from django_rmq_retry.parked.checked import checked
from django_rmq_retry.parked.database import records_alias
from django_rmq_retry.topology.declarations import work_queue
from django_rmq_retry.wording import counted, duration, listed, number, span

BADGES: Mapping[ProcessState, tuple[str, str, Any]] = {
    ProcessState.RUNNING: ("processed", "✓", pgettext_lazy("consumer", "running")),
    ProcessState.STARTING: ("requeued", "…", pgettext_lazy("consumer", "starting")),
    ProcessState.STOPPING: ("requeued", "…", pgettext_lazy("consumer", "stopping")),
    ProcessState.NO_BROKER: ("on-hold", "!", pgettext_lazy("consumer", "no broker")),
    ProcessState.CUT_OFF: ("on-hold", "!", gettext_lazy("gone or cut off")),
    ProcessState.SILENT: ("on-hold", "!", gettext_lazy("no heartbeat for %(span)s")),
    ProcessState.VANISHED: ("parked", "✕", pgettext_lazy("consumer", "vanished")),
    ProcessState.REPLACED: ("discarded", "↻", pgettext_lazy("consumer", "replaced")),
    ProcessState.TAKEN_OVER: ("discarded", "↻", pgettext_lazy("consumer", "taken over")),
}

LATE = ("on-hold", "!", pgettext_lazy("consumer", "handler hangs"))
"""The badge of a process with a handler beyond its deadline, or that blocks the others: green would hide it."""
ENDED = ("parked", "✕", pgettext_lazy("consumer", "ended"))


NONE_RUNS = (Code.ALL_VANISHED, Code.ALL_UNREAD, Code.ALL_IDLE)
DIED = (Code.VANISHED, Code.ENDED)
FOLDED_FROM = 3
"""So many dead processes for which nobody has anything to do are one fold below the others."""
FRESH = timedelta(minutes=5)
"""For so long a process that fell silent stands above: it may hang, and go on."""
MOST_ROWS, MOST_FOLDED_ROWS = 15, 5
"""The most processes of a table, and of a fold, unless all are asked for: in a crash loop there may be hundreds."""
MANY_RUN = 6
"""So many processes that run are one fold below those that need somebody, and tell of their messages in a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the broker tells of the queues."""

    levels: Sequence[Level] = ()
    at: datetime | None = None
    """When it told this; None if that is now."""
    current: bool = True
    """False if it does not answer, and told this before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRow:
    process: Process
    kind: str
    sign: str
    label: str
    lost: str
    """The queues whose messages in flight are not delivered again, because of ``ack="auto"``."""
    loop: ToldLoop | None = None
    """The crash loop that tells of it."""
    new: bool = False
    """True if it died after the crash loop had been checked in which it died: it is told by itself."""
    stopped: Mapping[str, tuple[str, Any]] = field(default_factory=dict)
    """The sign and the word of each queue that a pause or a breaker stops."""

    @classmethod
    def of(
        cls, process: Process, loop: ToldLoop | None, stopped: Mapping[str, tuple[str, Any]], *, new: bool = False
    ) -> "ProcessRow":
        """Judge it; a ``new`` one died after the crash loop had been checked in which it died."""
        ill = process.state is ProcessState.RUNNING and (process.late or process.blocked)
        badge = ENDED if process.ended else LATE if ill else BADGES[process.state]
        if loop and process.row.ended_at:
            # Another one has replaced it, as each but the last of a loop.
            badge = ENDED
        if process.loop and not (loop or new):
            # It died in another loop than the last one of its service, or before what killed the others came.
            badge = BADGES[ProcessState.REPLACED]
        elif _is_done_with(process):
            badge = (BADGES[ProcessState.REPLACED][0], *badge[1:])
        kind, sign, label = badge
        lost = dict.fromkeys(one.queue for one in process.in_flight if one.auto_ack)
        return cls(
            process=process,
            kind=kind,
            sign=sign,
            label=str(label) % {"span": span(process.unheard)},
            lost=", ".join(lost),
            loop=loop,
            new=new,
            stopped=stopped if process.heard else {},
        )

    @property
    def queues(self) -> list[tuple[str, str, Any]]:
        """The queues that it reads, each with the sign and the word of what stops it: these first, as few are shown."""
        each = [(queue, *self.stopped.get(queue, ("", ""))) for queue in self.process.row.queues]
        return sorted(each, key=lambda one: not one[1])

    @property
    def replaced(self) -> bool:
        """True if others do its work, or have done all of it, so that its row is grey."""
        settled = self.process.settled_by_others or self.process.loop is not None
        return (settled and not (self.loop or self.new)) or _is_done_with(self.process)

    @property
    def gone(self) -> bool:
        """True if it vanished, or its end is known."""
        return self.process.vanished or self.process.ended

    @property
    def over(self) -> bool:
        """True if others do its work, and all of its messages are known to have been processed once.

        One that died just now may have begun some that it did not report any more.
        """
        process = self.process
        idle = not process.busy and (process.row.told_all or process.unheard >= FRESH)
        return self.replaced and (process.settled or idle)

    @property
    def brief(self) -> bool:
        """True if it had reported nothing, and its end is told with that of others: its reason is all there is."""
        return not self.process.busy and (self.replaced or self.loop is not None)

    @property
    def fates(self) -> "Fates":
        return Fates.of([self])

    @property
    def later(self) -> str:
        """What is known of the messages of one that is gone, if all that it had reported were processed."""
        if not self.gone or not self.process.settled:
            return ""
        if self.process.row.told_all:
            return _("All its messages were processed since.")
        return _("All that it had reported was processed since.")

    @property
    def running(self) -> bool:
        """True if it runs, and nothing is wrong with it."""
        return self.process.state is ProcessState.RUNNING and self.kind == BADGES[ProcessState.RUNNING][0]

    @property
    def longest(self) -> int:
        """Seconds for which its oldest message has been in flight."""
        return max((one.seconds or 0 for one in self.process.in_flight), default=0)

    @property
    def empty_handed(self) -> bool:
        """True if it vanished a while ago, had reported no message in flight, and left no fault.

        One that has just fallen silent may hang, with messages that it took since.
        """
        process = self.process
        silent = process.vanished and process.unheard >= FRESH
        return silent and not process.in_flight and not process.overtaken and process.row.ended_at is None


def _is_done_with(process: Process) -> bool:
    """Return True if nobody has to look at a dead process again as others die: all that it had was processed since."""
    gone = process.vanished and process.loop is None and not process.exists
    return gone and process.settled and process.unheard >= TAKEN_OVER_AFTER


@dataclass(frozen=True, slots=True, kw_only=True)
class Fates:
    """What is known of the messages that dead processes had in flight: how many there are of each kind."""

    twice: int
    """Those that were perhaps done twice."""
    processed: int
    """The other ones that were processed since."""
    parked: int
    elsewhere: int
    retried: int
    unknown: int

    @classmethod
    def of(cls, rows: Sequence[ProcessRow]) -> "Fates":
        known = [one for row in rows for one in row.process.in_flight]
        kinds = Counter(map(_fate, known))
        kinds["unknown"] += sum(row.process.row.unlisted for row in rows)
        names = ("twice", "processed", "parked", "elsewhere", "retried", "unknown")
        return cls(**{name: kinds[name] for name in names})

    @property
    def words(self) -> list[str]:
        others = ngettext(
            "another process has %(count)d message", "other processes have %(count)d messages", self.elsewhere
        )
        again = ngettext("%(count)d message perhaps done twice", "%(count)d messages perhaps done twice", self.twice)
        done = ngettext("%(count)d message processed since", "%(count)d messages processed since", self.processed)
        unknown = ngettext(
            "outcome of %(count)d message unknown", "outcome of %(count)d messages unknown", self.unknown
        )
        fates = (
            (self.twice, again),
            (self.processed, done),
            (self.parked, ngettext("%(count)d message parked", "%(count)d messages parked", self.parked)),
            (self.elsewhere, others),
            (self.retried, ngettext("%(count)d message retried", "%(count)d messages retried", self.retried)),
            (self.unknown, unknown),
        )
        return [counted(text, count=count) for count, text in fates if count]


def _fate(one: InFlight) -> str:
    if one.perhaps_twice_by:
        return "twice"
    if one.processed_since:
        return "processed"
    if one.record is not None and one.record.state in OPEN:
        return "parked"
    return "elsewhere" if one.also else "retried" if one.later else "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessTable:
    rows: Sequence[ProcessRow]
    what: str = ""
    """The kind of a fold, by which an open one stays open; empty if the rows are shown."""
    fold: str = ""
    """The line behind which the rows are folded."""
    loop: Problem | None = None
    """The crash loop that the rows are."""
    briefly: bool = False
    """True if the messages in flight of each process are folded, because there are many processes."""

    @property
    def first(self) -> Sequence[ProcessRow]:
        """The rows that are shown unless all are asked for; many dead ones hide none that is alive."""
        if self.fold:
            return self.rows[: MOST_ROWS if self.what == "run" else MOST_FOLDED_ROWS]
        dead = [id(row) for row in self.rows if row.gone]
        return [row for row in self.rows if id(row) not in dead[MOST_ROWS:]]

    @property
    def over(self) -> bool:
        """True if nobody has anything to do for it: a crash loop that is over is told by its head."""
        return self.what == "over" or (self.loop is not None and self.loop.severity < Severity.ERROR)

    @property
    def vanished(self) -> Sequence[ProcessRow]:
        """Those that were killed, or hang, and need somebody: of several the reason and the advice are said once."""
        rows = (row for row in self.rows if row.process.vanished and not row.process.ended)
        return [row for row in rows if not (row.replaced or row.loop or row.process.settled)]

    @property
    def of_vanished(self) -> str:
        """The same of several; empty if they are not several."""
        if len(self.vanished) <= 1:
            return ""
        text = _(
            "%(names)s: each was killed, hangs, or does not reach the database. If one hangs, end it before it goes "
            "on: the broker gives others what it had, also what it took after its last heartbeat, so that may be "
            "handled twice."
        )
        return text % {"names": listed(str(row.process.row) for row in self.vanished)}

    @property
    def unknown(self) -> bool:
        """True if nobody knows what became of a message that one had, and its row does not tell that in a line."""
        return any(row.gone and not (row.replaced or row.loop) and row.fates.unknown for row in self.rows)

    @property
    def begun_later(self) -> bool:
        """True if one may have begun messages that it did not report any more."""
        return any(row.gone and not row.process.row.told_all for row in self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessList:
    """All processes, with what is wrong with them."""

    rows: Sequence[ProcessRow]
    loops: Sequence[ToldLoop]
    problems: Sequence[Problem]
    """What is wrong beside the crash loops."""

    last: LastSigns | None
    """What was heard last of them if none is alive."""

    @classmethod
    def of(cls, known: Sequence[Process], look: Callable[[], Seen]) -> "ProcessList":
        """Judge them; the broker tells which queues nobody reads, and what waits there.

        Two queries, of what was handled again and what is stopped; one for what was checked, if there is a crash loop
        or a doubt, one for what killed the processes of a loop, and a few if others have handled what a process has in
        a handler.
        """
        # A moment ago the processes were judged by the same reading of this clock.
        now, rows = database_clock.now(records_alias()), [one.row for one in known]
        again, loops = handled_again(now, rows), list[ToldLoop]()
        looping = any(one.loop for one in known)
        doubtful = any(message.perhaps_twice_by for one in known for message in one.in_flight)
        marks = checked() if looping or doubtful else {}
        if looping:
            heard = [one.row for one in known if one.heard]
            loops = crash_loops(known, now, heard, killers_lately(now), marks)
        dead = dead_processes(rows, now)
        last = last_signs(rows, now, dead)
        stopped, seen = tuple(QueueControl.objects.stopped(now).order_by("queue")), look()
        loops = [replace(one, problem=with_waiting(one.problem, seen.levels)) for one in loops]
        states, read = [state_of(one) for one in stopped], partial(read_since, rows, now, seen.at)
        queues = Queues(levels=seen.levels, excused=without_need(seen.levels, states, now.timestamp(), read))
        judged = queues.judged() if seen.current else []
        unconsumed = [problem for one in judged for problem in one.problems if problem.code in UNCONSUMED]
        overtaken = [one for one in known if one.overtaken]
        found = [*unconsumed, *in_processes(rows, now, overtaken, dead=dead, checked=marks)]
        alive = any(row.living(now) for row in rows) if settings().records else None
        found = merged(found, queues, last, alive=alive)
        found += still_at_it(again, rows, now)
        unread = {work_queue(problem.subject) for problem in unconsumed}
        holding = {work_queue(problem.subject) for problem in unconsumed if problem.count}
        holding |= {control.queue for control in stopped}
        again_given = given_again(known, now, read=readers(rows, now))
        waiting = without_passed(again_given, seen.levels if seen.current else ())
        given = with_cut_off(waiting, rows, now, unread, holding=holding)
        found += in_given_again(given, rows, now, seen.levels, stopped)
        found += in_stopped(stopped, now, queues_read(rows, now), given, seen.levels)
        found = paused_before(found)
        checked_ones = {(one.queue, one.message_id) for one in again if one.mark in marks}
        told_in = {row.pk: loop for loop in loops for row in loop.dead}
        new = {row.pk for row in died_after_check(known, loops, marks)}
        told = (one for one in found if one.code not in (Code.CRASH_LOOP, Code.CRASH_LOOP_OVER))
        words = {one.queue: STOPPED_BY[one.state(now.timestamp())] for one in states}
        shown = with_those_cut_off(_without(known, checked_ones), {one.subject for one in unconsumed})
        return cls(
            rows=[ProcessRow.of(one, told_in.get(one.row.pk), words, new=one.row.pk in new) for one in shown],
            loops=loops,
            last=last,
            problems=sorted((one for one in told if one.severity >= Severity.WARNING), key=lambda one: one.harm),
        )

    @property
    def none_runs(self) -> bool:
        """True if none takes messages, by the heartbeats or by the broker, and none is about to be restarted as those
        of a crash loop before."""
        said = NONE_RUNS if self.rows else (*NONE_RUNS, *MISSED)
        restarts = any(one.problem.values["restarts"] for one in self.loops)
        return not restarts and (self.last is not None or any(one.code in said for one in self.problems))

    def starts(self, problem: Problem) -> bool:
        """Return True if a finding ends once consumers are started."""
        died = DIED if self.last and self.none_runs else ()
        return problem.code in (*NONE_RUNS, *MISSED, *died)

    @property
    def summary(self) -> str:
        """How many processes are heard of, and how many are not."""
        stopping = sum(row.process.heard and row.process.row.stopping for row in self.rows)
        alive = sum(row.process.heard for row in self.rows) - stopping
        cut_off = sum(row.process.state is ProcessState.CUT_OFF for row in self.rows)
        silent = sum(row.process.state is ProcessState.SILENT and not row.process.ended for row in self.rows)
        gone = len(self.rows) - alive - stopping - cut_off - silent
        parts = (
            (alive, ngettext("%(count)d process is alive", "%(count)d processes are alive", alive)),
            (stopping, ngettext("%(count)d stopping", "%(count)d stopping", stopping)),
            (cut_off, ngettext("%(count)d gone or cut off", "%(count)d gone or cut off", cut_off)),
            (silent, ngettext("%(count)d without a heartbeat", "%(count)d without a heartbeat", silent)),
            (gone, ngettext("%(count)d ended or vanished", "%(count)d ended or vanished", gone)),
        )
        return " · ".join(counted(text, count=count) for count, text in parts if count)

    @property
    def tables(self) -> list[ProcessTable]:
        """The rows that are shown, with a fold for each crash loop above them.

        Below them is a fold each of those that run, vanished with nothing, were replaced, and are over. A few are shown
        like the others, but for those that are over, and all are if no other is left.
        """
        loops = [_loop(one, [row for row in self.rows if row.loop is one], n) for n, one in enumerate(self.loops)]
        left = [row for row in self.rows if row.loop is None]
        running, over = [row for row in left if row.running], [row for row in left if row.over]
        replaced = [row for row in left if row.replaced and not row.over]
        empty_handed = [row for row in left if row.empty_handed and not row.replaced]
        none_in_flight = _("%(count)d processes vanished; none had reported a message in flight")
        of_over = ngettext(
            "%(count)d that ended or vanished is over", "%(count)d that ended or vanished are over", len(over)
        )
        folds = [
            ("run", running, MANY_RUN, _("%(count)d processes run"), _at_work),
            ("empty", empty_handed, FOLDED_FROM, none_in_flight, _last_heard),
            ("replaced", replaced, FOLDED_FROM, _("%(count)d ended or vanished; others read their queues"), _became),
            ("over", over, 1, of_over, _became),
        ]
        briefly = len(running) >= MANY_RUN
        folded = [
            ProcessTable(
                rows=some, what=what, fold=" · ".join([counted(text, count=len(some)), *says(some)]), briefly=briefly
            )
            for what, some, least, text, says in folds
            if len(some) >= least
        ]
        hidden = {id(row) for one in folded for row in one.rows}
        shown = [row for row in left if id(row) not in hidden]
        if not shown and running:
            shown, folded = running, [one for one in folded if one.rows is not running]
        if not shown and not loops and not over:
            return [ProcessTable(rows=left)]
        return [*loops, *([ProcessTable(rows=shown, briefly=briefly)] if shown else []), *folded]


def _without(known: Sequence[Process], checked_ones: Collection[tuple[str, str]]) -> Sequence[Process]:
    """Return the processes without the doubts that operators have checked: of such a message the last handling counts.

    These messages are recognized by their queues and ids.
    """

    def of(message: InFlight) -> InFlight:
        later = message.later
        if later is None or (work_queue(message.queue), message.message_id) not in checked_ones:
            return message
        return replace(message, later=replace(later, twice=False))

    return [replace(one, in_flight=tuple(map(of, one.in_flight))) if checked_ones else one for one in known]


def _loop(loop: ToldLoop, rows: Sequence[ProcessRow], place: int) -> ProcessTable:
    problem = loop.problem
    return ProcessTable(rows=rows, what=f"loop {place}", fold=f"{problem.text} {problem.why}", loop=problem)


def _at_work(rows: Sequence[ProcessRow]) -> list[str]:
    """Return how much these processes do, and for how long."""
    known = [row.process for row in rows]
    busy, threads = sum(one.busy for one in known), sum(one.row.threads for one in known)
    waiting = sum(one.row.waiting for one in known)
    longest = max(row.longest for row in rows)
    oldest = max(process.row.beat_at - process.row.started_at for process in known)
    text = ngettext("%(count)d message waits for a thread", "%(count)d messages wait for a thread", waiting)
    return [
        _("%(busy)s of %(threads)s threads busy") % {"busy": number(busy), "threads": number(threads)},
        *([_("the longest for %(span)s") % {"span": duration(longest)}] if busy else []),
        *([counted(text, count=waiting)] if waiting else []),
        _("the oldest has run for %(span)s") % {"span": span(oldest)},
    ]


def _last_heard(rows: Sequence[ProcessRow]) -> list[str]:
    """Return which processes these are, and when the last of them was heard."""
    named = {
        "names": listed(str(row.process.row) for row in rows),
        "span": span(min(row.process.unheard for row in rows)),
    }
    return [_("%(names)s, last heartbeat %(span)s ago") % named]


def _became(rows: Sequence[ProcessRow]) -> list[str]:
    """Return the same, and what is known of the messages that they had in flight."""
    return [*_last_heard(rows), *Fates.of(rows).words]
