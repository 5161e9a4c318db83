"""The items of a requeue run: listed in parts, chosen in order, closed at its end.

A stopped run skips its unsent items, part by part.

The progress is stored in the run, and each part is a separate transaction, because a driver may be killed anywhere.
"""

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any

from django.db.models import (
    Case,
    CharField,
    Count,
    DateTimeField,
    Exists,
    F,
    IntegerField,
    Max,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    Value,
    When,
    Window,
)
from django.db.models.expressions import Combinable
from django.db.models.functions import RowNumber

from django_rmq_retry import database_clock
from django_rmq_retry.models import (
    ErrorGroup,
    ItemReason,
    ItemState,
    ParkedMessage,
    RequeueItem,
    RequeueRun,
    RunState,
    RunWait,
    State,
)
from django_rmq_retry.models.parked import behind
from django_rmq_retry.models.runs import ACTIVE, RUN_COUNTERS, STILL_TO_SEND
from django_rmq_retry.parked.database import database, locked_run, transaction_of
from django_rmq_retry.parked.findings import RequeueTerms, reasons
from django_rmq_retry.parked.lease import run_of_driver
from django_rmq_retry.parked.selection import Selection
from django_rmq_retry.statements import insert_found

MOST_SLICE_BYTES = 16 * 1024 * 1024
"""Largest total size of the bodies of one slice, in bytes."""
PAGE_ITEMS = 200
MOST_PAGES = 25
"""Pages that a slice searches past messages that have to wait; the next slice searches them again."""
OUTCOME_LIMIT = timedelta(hours=1)
"""Time to wait for the outcome of a sent message; then its business key counts as failed, and its run may end."""

Capacity = Callable[[str], int]
"""Returns the number of messages that a queue may receive now."""

PART_ITEMS = 2000
"""Items per transaction."""
COLUMNS = ("run", "message", "place", "revision", "state", "cycle", "skip_code", "ended_at")
LISTED_AT_ONCE = 500
"""Largest number of messages whose items are written when the run is started."""

Rows = QuerySet[ParkedMessage]
Mark = tuple[datetime, int]
"""The last message of a part of a listing."""

CURSOR = ("listing_limit", "listing_count", "listing_place", "listing_after_at", "listing_after_id")


class Choice:
    """The next items to send, and those to skip on the way to them."""

    def __init__(self, run: RequeueRun, most: int, room: Capacity) -> None:
        self.items: list[RequeueItem] = []
        self.blocked: dict[int, ItemReason] = {}
        """Items to skip, each with the reason."""
        self.waits_for_key = False
        self.waits_for_queue = False
        self._run = run
        self._most = most
        self._room = room
        self._taken: dict[str, int] = {}
        self._busy: set[str] = set()
        self._failed: set[str] = set()
        self._bytes = 0
        self._choose()

    def _choose(self) -> None:
        for page in _pages(self._run):
            if self._run.one_by_one:
                self._look_up([item.message.business_key for item in page])
            for item in page:
                if len(self.items) >= self._most or (self.items and self._bytes + item.message.size > MOST_SLICE_BYTES):
                    return
                self._judge(item)
            if len(self.items) >= self._most or (self.waits_for_queue and self._run.target):
                return

    def _judge(self, item: RequeueItem) -> None:
        key, queue = item.message.business_key, self._run.target or item.message.queue
        ordered = bool(key) and self._run.one_by_one
        if ordered and key in self._failed:
            self.blocked[item.pk] = ItemReason.KEY_FAILED
            return
        if ordered and key in self._busy:
            self.waits_for_key = True
            return
        if ordered:
            # Later items with this business key wait for this one, even if it cannot be sent now.
            self._busy.add(key)
        if self._room(queue) <= self._taken.get(queue, 0):
            self.waits_for_queue = True
            return
        self._taken[queue] = self._taken.get(queue, 0) + 1
        self._bytes += item.message.size
        self.items.append(item)

    def _look_up(self, keys: list[str]) -> None:
        """Note the keys that have a message in flight, and those that have a failed, unconfirmed or overdue one."""
        mine = RequeueItem.objects.using(database()).filter(run=self._run, message__business_key__in=set(keys) - {""})
        in_flight = mine.filter(state__in=(ItemState.CLAIMED, ItemState.SENT))
        ended = mine.filter(state__in=(ItemState.FAILED, ItemState.UNCONFIRMED))
        overdue = database_clock.now(database()) - OUTCOME_LIMIT
        for key, sent_at in in_flight.values_list("message__business_key", "sent_at"):
            (self._failed if sent_at and sent_at < overdue else self._busy).add(key)
        self._failed.update(ended.values_list("message__business_key", flat=True))


def pending(run_id: int) -> QuerySet[RequeueItem]:
    return RequeueItem.objects.using(database()).filter(run=run_id, state=ItemState.PENDING).order_by("place")


def groups_of_runs(groups: Iterable[int]) -> dict[int, RequeueRun]:
    """Return those of these error groups whose messages an active run has to send, each with the latest of these runs.

    One query for each run: it looks for one message of each group, the oldest first, because a run may have a million.
    """
    asked, runs = set(groups), dict[int, RequeueRun]()
    for run in RequeueRun.objects.using(database()).filter(state__in=ACTIVE).order_by("pk"):
        mine = asked.intersection(group for group, _count in run.causes)
        # Not all items of a run that is being listed are written yet.
        runs |= dict.fromkeys(mine if run.listing or not mine else _with_unsent(run, mine), run)
    return runs


def _with_unsent(run: RequeueRun, groups: Iterable[int]) -> list[int]:
    waits = Exists(RequeueItem.objects.filter(run=run, message=OuterRef("pk"), state=ItemState.PENDING))
    waiting = ParkedMessage.objects.filter(waits, group=OuterRef("pk"), state__in=(State.PARKED, State.ON_HOLD))
    found = ErrorGroup.objects.using(database()).filter(pk__in=groups)
    # A column and no condition: a database that joins reads all messages of the groups.
    first = found.annotate(first=Subquery(waiting.order_by("parked_at").values("pk")[:1]))
    return [group.pk for group in first if group.first is not None]


def under_way(rows: Rows) -> list[tuple[RequeueRun, int]]:
    """Return the active runs that have not sent some of these messages, each with their number."""
    active = list(RequeueRun.objects.using(database()).filter(state__in=ACTIVE).order_by("pk"))
    unsent = RequeueItem.objects.using(database()).filter(state__in=STILL_TO_SEND)
    found = []
    for run in active:
        # A run that is not listed yet has no items for its rest.
        listed: Any = unsent.filter(run=run).values("message")
        chosen: Any = _stored_selection(run)[0].queryset().order_by().values("pk") if run.listing else listed
        count = rows.filter(pk__in=chosen).count()
        if count:
            found.append((run, count))
    return found


def counted_elsewhere(run: RequeueRun, *, most: int) -> int:
    """Return how many of the next unsent messages an earlier active run has too, or were sent or changed meanwhile."""
    items = RequeueItem.objects.using(database())
    earlier = items.filter(run__lt=run.pk, run__state__in=ACTIVE, message=OuterRef("message"), state__in=STILL_TO_SEND)
    rows = pending(run.pk).annotate(both=Exists(earlier), now=F("message__revision"))[:most]
    return int(rows.aggregate(count=Count("pk", filter=Q(both=True) | ~Q(now=F("revision"))))["count"])


def _pages(run: RequeueRun) -> Iterator[list[RequeueItem]]:
    columns = ("run_id", "place", "revision", "message_id", "state")
    of_message = ("message__id", "message__business_key", "message__queue", "message__size")
    after = -1
    for _ in range(MOST_PAGES):
        rows = pending(run.pk).filter(place__gt=after).select_related("message").only(*columns, *of_message)
        page = list(rows[:PAGE_ITEMS])
        if page:
            yield page
        if len(page) < PAGE_ITEMS:
            return
        after = page[-1].place


@transaction_of(ParkedMessage)
def advance(run_id: int, driver: str) -> str:
    """Update the state of a run without items to send: waiting, finished, or running if items came back. Return it.

    The state is empty if this driver has nothing more to do.
    """
    using, now = database(), database_clock.now(database())
    known = run_of_driver(run_id, driver, RunState.RUNNING, RunState.WAITING)
    if known is None:
        return ""
    items, before = known.parts.using(using), known.state
    if items.filter(state=ItemState.PENDING).exists():
        known.state = RunState.RUNNING
    elif items.filter(state=ItemState.CLAIMED).exists():
        known.state = RunState.WAITING
    else:
        waiting = items.filter(state=ItemState.SENT).aggregate(count=Count("pk"), last=Max("sent_at"))
        overdue = waiting["last"] is not None and waiting["last"] < now - OUTCOME_LIMIT
        over = not waiting["count"] or overdue
        known.state = RunState.FINISHED if over else RunState.WAITING
        known.wait = RunWait.NO_OUTCOME if overdue else ""
    if known.state == RunState.FINISHED:
        known.finished_at, known.leased_until = now, None
    if known.state != before:
        count(known)
    known.save(using=using, update_fields=[*RUN_COUNTERS, "state", "wait", "finished_at", "leased_until"])
    return known.state


@transaction_of(ParkedMessage)
def skip_unsent(run_id: int) -> bool:
    """Skip the next unsent items of a stopped run; return True if there may be more of them."""
    using, now = database(), database_clock.now(database())
    known = locked_run(run_id)
    if known is None or known.state != RunState.STOPPED or known.finished_at is not None:
        return False
    unsent = pending(run_id)
    mark = unsent.values_list("place", flat=True)[PART_ITEMS - 1 : PART_ITEMS].first()
    part = unsent if mark is None else unsent.filter(place__lte=mark)
    known.skipped += part.update(state=ItemState.SKIPPED, skip_code=ItemReason.STOPPED, ended_at=now)
    if mark is None:
        known.finished_at = now
        count(known)
    known.save(using=using, update_fields=["skipped", "finished_at"])
    return mark is not None


@transaction_of(ParkedMessage)
def recount(run_id: int) -> None:
    known = locked_run(run_id)
    if known is not None:
        count(known)
        known.save(using=database(), update_fields=RUN_COUNTERS)


def count(run: RequeueRun) -> None:
    counts = dict(run.parts.using(database()).order_by().values_list("state").annotate(count=Count("pk")))
    for state in (ItemState.PROCESSED, ItemState.FAILED, ItemState.UNCONFIRMED):
        setattr(run, state.value, counts.get(state, 0))
    run.sent = counts.get(ItemState.SENT, 0) + run.processed + run.failed
    run.skipped = counts.get(ItemState.SKIPPED, 0) + run.not_taken


def lists_at_once(selection: Selection) -> bool:
    """True if a run's items are written when it is started; only a filter can be evaluated again later."""
    return selection.named or selection.count <= LISTED_AT_ONCE


def freeze(run: RequeueRun, selection: Selection, terms: RequeueTerms) -> None:
    """Write all items in the order of sending; skipped ones get their reason immediately."""
    _insert(run, selection.queryset().order_by(), selection, terms)
    run.total = run.items.count()
    count(run)
    run.save(update_fields=["total", *RUN_COUNTERS])


def postpone(run: RequeueRun, selection: Selection, _terms: RequeueTerms) -> None:
    """Count the messages, and let the run's driver write their items; messages parked later are not included."""
    run.total = run.listing_limit = selection.queryset().count()
    run.wait = RunWait.LISTING
    run.save(update_fields=["total", "wait", "listing_limit"])


@transaction_of(ParkedMessage)
def list_part(run_id: int, driver: str) -> None:
    """Write the next items of a run, if this driver still owns it and it was neither paused nor stopped."""
    using = database()
    known = run_of_driver(run_id, driver, RunState.PLANNED, RunState.RUNNING)
    if known is None or known.listing_limit is None:
        return
    selection, terms = _stored_selection(known)
    part, mark, more = (_next_members if selection.request else _next_matching)(known, selection)
    room, first = known.listing_limit - known.listing_count, known.listing_place
    if room < PART_ITEMS:
        # Messages that have an item already do not count against the limit.
        numbers = list(part.values_list("pk", flat=True)[:PART_ITEMS])
        part = part[: room + known.items.using(using).filter(message__in=numbers).count()]
    inserted = _insert(known, part, selection, terms, first=first)
    known.skipped += known.items.filter(state=ItemState.SKIPPED, place__gt=first).count()
    known.listing_count, known.listing_place = known.listing_count + inserted, first + PART_ITEMS
    known.listing_after_at, known.listing_after_id = mark or (None, None)
    known.wait = RunWait.LISTING
    if not more or inserted >= room:
        known.end_listing()
        known.wait = ""
    known.save(using=using, update_fields=["total", "skipped", "wait", *CURSOR])


def _next_matching(run: RequeueRun, selection: Selection) -> tuple[Rows, Mark | None, bool]:
    """Return the next messages of a filter, the last of them, and whether there are more."""
    rest = _after(run, selection.queryset())
    # Find the end of the part first: a row that is parked again meanwhile must not move the mark.
    mark = rest.values_list("parked_at", "pk")[PART_ITEMS - 1 : PART_ITEMS].first()
    part = rest if mark is None else rest.filter(~behind("parked_at", mark[0], "pk", mark[1]))
    return part, mark, mark is not None


def _next_members(run: RequeueRun, selection: Selection) -> tuple[Rows, Mark | None, bool]:
    """Return the same of the members of a request, which have their places already."""
    last = run.listing_place + PART_ITEMS
    part = selection.members.filter(place__gt=run.listing_place, place__lte=last)
    return selection.queryset(part).order_by("parked_at", "pk"), None, selection.members.filter(place__gt=last).exists()


def _stored_selection(run: RequeueRun) -> tuple[Selection, RequeueTerms]:
    terms = RequeueTerms(target=run.target, include=run.include, confirmed_permanent=run.permanent_confirmed)
    return Selection.of_facts(run.selection), terms


def _after(run: RequeueRun, rows: Rows) -> Rows:
    """Return the messages that are not listed yet, oldest first."""
    ordered = rows.order_by("parked_at", "pk")
    if run.listing_after_at is None or run.listing_after_id is None:
        return ordered
    return ordered.filter(behind("parked_at", run.listing_after_at, "pk", run.listing_after_id))


def _insert(run: RequeueRun, rows: Rows, selection: Selection, terms: RequeueTerms, *, first: int = 0) -> int:
    """Insert the items of these rows with one statement; return their number.

    A message that was parked again meanwhile already has an item, and the insert ignores it. A query without such
    messages would take longer with each item that exists.
    """
    chosen = _chosen(run, rows, selection, terms, first=first)
    return insert_found(RequeueItem, COLUMNS, chosen, using=database(), ignore=True)


def _chosen(
    run: RequeueRun, rows: Rows, selection: Selection, terms: RequeueTerms, *, first: int
) -> "QuerySet[ParkedMessage, tuple[object, ...]]":
    """Return a row for each message with the values of its item, in the order of the columns."""
    objections = reasons(selection, terms)
    now = database_clock.now(database())
    left_out = [When(condition, then=Value(code.value)) for code, condition in objections]
    ended = [When(condition, then=Value(now)) for _code, condition in objections]
    skipped = [When(condition, then=Value(ItemState.SKIPPED.value)) for _code, condition in objections]
    oldest_first = Window(RowNumber(), order_by=[F("parked_at").asc(), F("pk").asc()])
    values: dict[str, Combinable] = {
        "item_run": Value(run.pk, IntegerField()),
        "item_message": F("pk"),
        "item_place": oldest_first + Value(first, IntegerField()) if first else oldest_first,
        "item_revision": F("revision"),
        "item_state": Case(*skipped, default=Value(ItemState.PENDING.value), output_field=CharField()),
        "item_cycle": Value(0, IntegerField()),
        "item_skip_code": Case(*left_out, default=Value(""), output_field=CharField()),
        "item_ended": Case(*ended, default=Value(None), output_field=DateTimeField()),
    }
    return rows.annotate(**values).values_list(*values)
