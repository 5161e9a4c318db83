"""The page of consuming processes: their state and the messages that they have in flight."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext, pgettext_lazy

from django_rmq_retry import database_clock
from django_rmq_retry.admin import broker_look
from django_rmq_retry.admin.pages import Pages, refusal
from django_rmq_retry.conf import settings
from django_rmq_retry.health import processes
from django_rmq_retry.health.facts import killers_lately
from django_rmq_retry.health.look import merged
from django_rmq_retry.health.problems import Queues, crash_loops, in_processes, last_signs, still_at_it
from django_rmq_retry.health.processes import InFlight, Process, ProcessState
from django_rmq_retry.health.rules import Code, Problem, Severity
from django_rmq_retry.markup import counted
from django_rmq_retry.models import ConsumerProcess
from django_rmq_retry.models.parked import OPEN
from django_rmq_retry.parked.database import records_alias
from django_rmq_retry.wording import duration, listed, number, span

BADGES: Mapping[ProcessState, tuple[str, str, Any]] = {
    ProcessState.RUNNING: ("processed", "✓", pgettext_lazy("consumer", "running")),
    ProcessState.STARTING: ("requeued", "…", pgettext_lazy("consumer", "starting")),
    ProcessState.STOPPING: ("requeued", "…", pgettext_lazy("consumer", "stopping")),
    ProcessState.NO_BROKER: ("on-hold", "!", pgettext_lazy("consumer", "no broker")),
    ProcessState.SILENT: ("on-hold", "!", gettext_lazy("no heartbeat for %(span)s")),
    ProcessState.VANISHED: ("parked", "✕", pgettext_lazy("consumer", "vanished")),
    ProcessState.REPLACED: ("discarded", "↻", pgettext_lazy("consumer", "replaced")),
    ProcessState.TAKEN_OVER: ("discarded", "↻", pgettext_lazy("consumer", "taken over")),
}

LATE = ("on-hold", "!", pgettext_lazy("consumer", "handler hangs"))
"""The badge of a process with a handler beyond its deadline, or that blocks the others: green would hide it."""
ENDED = ("parked", "✕", pgettext_lazy("consumer", "ended"))


FOLDED_FROM = 3
"""So many dead processes for which nobody has anything to do are one fold below the others."""
FRESH = timedelta(minutes=5)
"""For so long a process that fell silent stands above: it may hang, and go on."""
MOST_ROWS, MOST_FOLDED_ROWS = 15, 5
"""The most processes of a table, and of a fold, unless all are asked for: in a crash loop there may be hundreds."""
MANY_RUN = 6
"""So many processes that run are one fold below those that need somebody, and tell of their messages in a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRow:
    process: Process
    kind: str
    sign: str
    label: Any
    lost: str
    """The queues whose messages in flight are not delivered again, because of ``ack="auto"``."""

    @classmethod
    def of(cls, process: Process) -> "ProcessRow":
        ill = process.state is ProcessState.RUNNING and (process.late or process.blocked)
        kind, sign, label = ENDED if process.ended else LATE if ill else BADGES[process.state]
        lost = dict.fromkeys(one.queue for one in process.in_flight if one.auto_ack)
        return cls(
            process=process,
            kind=kind,
            sign=sign,
            label=str(label) % {"span": span(process.unheard)},
            lost=", ".join(lost),
        )

    @property
    def replaced(self) -> bool:
        """True if others do its work, so that its row is grey."""
        return self.process.settled_by_others

    @property
    def gone(self) -> bool:
        """True if it vanished, or wrote the fault with which it ended."""
        return self.process.vanished or self.process.ended

    @property
    def fates(self) -> "Fates":
        return Fates.of([self])

    @property
    def later(self) -> str:
        """What is known of the messages of one that is gone, beside the list of those that it had reported."""
        process = self.process
        if not self.gone:
            return ""
        if process.row.told_all:
            return _("All its messages were processed since.") if process.settled else ""
        if process.settled:
            return _(
                "All that it had reported was processed since; Live status and the requeue run list what it may have "
                "begun later, if it was perhaps handled twice."
            )
        if process.in_flight:
            return _(
                "It may have begun others after its last heartbeat: Live status and the requeue run list what was "
                "perhaps handled twice."
            )
        if not (self.replaced or process.ended):
            # What to do about it is said above, in red.
            return ""
        return _(
            "It had reported no message in flight; Live status and the requeue run list what it may have begun later, "
            "if it was perhaps handled twice."
        )

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Fates:
    """What is known of the messages that dead processes had in flight: how many there are of each kind."""

    twice: int
    """Those of the processed ones that were perhaps done twice."""
    processed: int
    parked: int
    elsewhere: int
    tried: int
    unknown: int

    @classmethod
    def of(cls, rows: Sequence[ProcessRow]) -> "Fates":
        known = [one for row in rows for one in row.process.in_flight]
        kinds = Counter(map(_fate, known))
        kinds["unknown"] += sum(row.process.row.unlisted for row in rows)
        names = ("processed", "parked", "elsewhere", "tried", "unknown")
        return cls(twice=sum(bool(one.perhaps_twice_by) for one in known), **{name: kinds[name] for name in names})

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
            (self.tried, ngettext("%(count)d message tried again", "%(count)d messages tried again", self.tried)),
            (self.unknown, unknown),
        )
        return [counted(text, count=count) for count, text in fates if count]


def _fate(one: InFlight) -> str:
    if one.processed_since:
        return "processed"
    if one.record is not None and one.record.state in OPEN:
        return "parked"
    return "elsewhere" if one.also else "tried" if one.later else "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessTable:
    rows: Sequence[ProcessRow]
    what: str = ""
    """The kind of a fold, by which an open one stays open; empty if the rows are shown."""
    fold: str = ""
    """The line behind which the rows are folded."""
    over: bool = False
    """True if it is a crash loop that seems over."""
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
    def loops(self) -> bool:
        return self.what.startswith("loop")


def tables_of(rows: Sequence[ProcessRow], loops_told: Mapping[int, Problem]) -> list[ProcessTable]:
    """Return the rows that are shown, with a fold for each crash loop above them.

    Below them is a fold each of those that run, vanished with nothing, and were replaced. A few are shown like the
    others, and all are if no other is left.
    """
    loops = _crash_loops(rows, loops_told)
    left = [row for row in rows if row.process.loop is None]
    running = [row for row in left if row.running]
    replaced = [row for row in left if row.replaced]
    empty_handed = [row for row in left if row.empty_handed and not row.replaced]
    none_in_flight = _("%(count)d processes vanished; none had reported a message in flight")
    folds = [
        ("run", running, MANY_RUN, _("%(count)d processes run"), at_work),
        ("empty", empty_handed, FOLDED_FROM, none_in_flight, last_heard),
        ("replaced", replaced, FOLDED_FROM, _("%(count)d vanished processes whose work others do"), what_became),
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
    if not shown and not loops:
        return [ProcessTable(rows=left)]
    return [*loops, *([ProcessTable(rows=shown, briefly=briefly)] if shown else []), *folded]


def summary_of(rows: Sequence[ProcessRow]) -> str:
    """Return how many processes are heard of, and how many are not."""
    alive = sum(row.process.heard for row in rows)
    silent = sum(row.process.state is ProcessState.SILENT and not row.process.ended for row in rows)
    replaced = sum(row.replaced for row in rows)
    gone = len(rows) - alive - silent - replaced
    parts = (
        (alive, ngettext("%(count)d process is alive", "%(count)d processes are alive", alive)),
        (silent, ngettext("%(count)d without a heartbeat", "%(count)d without a heartbeat", silent)),
        (gone, ngettext("%(count)d vanished", "%(count)d vanished", gone)),
        (replaced, ngettext("%(count)d vanished, replaced", "%(count)d vanished, replaced", replaced)),
    )
    return " · ".join(counted(text, count=count) for count, text in parts if count)


def _crash_loops(rows: Sequence[ProcessRow], told: Mapping[int, Problem]) -> list[ProcessTable]:
    """Return the processes of each crash loop as one fold."""
    found: dict[int, list[ProcessRow]] = {}
    for row in rows:
        if row.process.loop is not None:
            found.setdefault(id(told[id(row.process.loop)]), []).append(row)
    problems = {id(one): one for one in told.values()}
    return [
        ProcessTable(
            rows=some,
            what=f"loop {place}",
            fold=f"{problems[loop].text} {problems[loop].why}",
            over=problems[loop].code is Code.CRASH_LOOP_OVER,
        )
        for place, (loop, some) in enumerate(found.items())
    ]


def at_work(rows: Sequence[ProcessRow]) -> list[str]:
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


def last_heard(rows: Sequence[ProcessRow]) -> list[str]:
    """Return which processes these are, and when the last of them was heard."""
    named = {
        "names": listed(str(row.process.row) for row in rows),
        "span": span(min(row.process.unheard for row in rows)),
    }
    return [_("%(names)s, last heartbeat %(span)s ago") % named]


def what_became(rows: Sequence[ProcessRow]) -> list[str]:
    """Return the same, and what is known of the messages that they had in flight."""
    return [*last_heard(rows), *Fates.of(rows).words]


def loops_told(known: Sequence[Process]) -> dict[int, Problem]:
    """Return the crash loops as Live status tells of them; one query if there is one."""
    if not any(one.loop for one in known):
        return {}
    now = database_clock.reckoned(records_alias())
    return crash_loops(known, now, [one.row for one in known if one.heard], killers_lately(now))


def problems_of(known: Sequence[Process]) -> list[tuple[Problem, str]]:
    """Return what is wrong with the processes, each with the command that repairs it.

    One query, of what was handled again; a few more if a process has such a message in a handler yet.
    """
    now, rows = database_clock.reckoned(records_alias()), [one.row for one in known]
    dead = processes.dead_processes(rows, now)
    last = last_signs(rows, now, dead)
    seen = broker_look.look() if last else None
    # If none is alive, the broker knows which queues stand still.
    queues = Queues(levels=(seen.last or seen).levels if seen else ())
    found = merged(list(in_processes(rows, now, [one for one in known if one.overtaken], dead=dead)), queues, last)
    found += still_at_it(rows, now)
    command = "manage.py rmq_consume"
    # Its own fold below says more of a crash loop.
    told = (one for one in found if one.code not in (Code.CRASH_LOOP, Code.CRASH_LOOP_OVER))
    shown = sorted((one for one in told if one.severity >= Severity.WARNING), key=lambda one: one.harm)
    return [(one, command if last else "") for one in shown]


@admin.register(ConsumerProcess)
class ConsumerProcessAdmin(Pages):
    sees = "view_status"
    one_page = True

    def list_page(self, request: HttpRequest, **more: Any) -> HttpResponse:
        known = processes.processes()
        rows, every = [ProcessRow.of(one) for one in known], "all" in request.GET
        return self.page(
            request,
            "consumerprocess/consumers.html",
            part="parts/consumers.html",
            title=_("Consumers"),
            rows=rows,
            tables=[(one, one.rows if every else one.first) for one in tables_of(rows, loops_told(known))],
            summary=summary_of(rows),
            every=every,
            problems=problems_of(known),
            records=settings().records,
            finds=not refusal(request, "view"),
            most=processes.MOST_LISTED_PROCESSES if len(rows) == processes.MOST_LISTED_PROCESSES else 0,
        )
