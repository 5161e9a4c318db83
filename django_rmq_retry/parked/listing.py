"""The listing of a requeue run: an item is written for each of its messages, at once or part by part.

The progress is stored in the run, and each part is a separate transaction, because a driver may be killed anywhere.
"""

from datetime import datetime

from django.db.models import (
    Case,
    CharField,
    DateTimeField,
    F,
    IntegerField,
    QuerySet,
    Value,
    When,
    Window,
)
from django.db.models.expressions import Combinable
from django.db.models.functions import RowNumber

from django_rmq_retry import database_clock
from django_rmq_retry.models import (
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
from django_rmq_retry.models.runs import RUN_COUNTERS
from django_rmq_retry.parked.database import records_alias, transaction_of
from django_rmq_retry.parked.findings import RequeueTerms, reasons
from django_rmq_retry.parked.items import count
from django_rmq_retry.parked.lease import run_of_driver
from django_rmq_retry.parked.selection import Selection
from django_rmq_retry.statements import insert_found

PART_ITEMS = 2000
"""Items per transaction."""
LISTED_AT_ONCE = 500
"""Largest number of messages whose items are written when the run is started."""
COLUMNS = ("run", "message", "place", "revision", "state", "cycle", "skip_code", "ended_at")
CURSOR = ("listing_limit", "listing_count", "listing_place", "listing_after_at", "listing_after_id")

Rows = QuerySet[ParkedMessage]
Mark = tuple[datetime, int]
"""The last message of a part of a listing."""


def lists_at_once(selection: Selection) -> bool:
    """True if a run's items are written when it is started; only a filter can be evaluated again later."""
    return selection.named or selection.count <= LISTED_AT_ONCE


def freeze(run: RequeueRun, selection: Selection, terms: RequeueTerms) -> int:
    """Write all items in the order of sending; skipped ones get their reason immediately. Return their number."""
    return _insert(run, selection.queryset().order_by(), selection, terms)


def postpone(run: RequeueRun, selection: Selection, _terms: RequeueTerms) -> int:
    """Count the messages, and let the run's driver write their items; messages parked later are not included."""
    run.listing_limit, run.wait = selection.queryset().count(), RunWait.LISTING
    return run.listing_limit


def add_left(run: RequeueRun, selection: Selection, left: Rows) -> None:
    """Add the messages that have left a filter since it was shown, each as left out: they were promised, too."""
    now = database_clock.now(records_alias())
    sent = When(requeued_at__gte=selection.as_of, then=Value(ItemReason.SENT_BEFORE.value))
    held = When(state=State.ON_HOLD, then=Value(ItemReason.ON_HOLD.value))
    values: dict[str, Combinable] = {
        "item_run": Value(run.pk, IntegerField()),
        "item_message": F("pk"),
        "item_place": Value(0, IntegerField()),
        "item_revision": F("revision"),
        "item_state": Value(ItemState.SKIPPED.value, CharField()),
        "item_cycle": Value(0, IntegerField()),
        "item_skip_code": Case(sent, held, default=Value(ItemReason.RESOLVED.value), output_field=CharField()),
        "item_ended": Value(now, DateTimeField()),
    }
    found = left.annotate(**values).values_list(*values)
    added = insert_found(RequeueItem, COLUMNS, found, using=records_alias(), ignore=True)
    if run.listing_limit is not None:
        run.listing_limit, run.listing_count = run.listing_limit + added, run.listing_count + added


@transaction_of(ParkedMessage)
def list_part(run_id: int, driver: str) -> None:
    """Write the next items of a run, if this driver still owns it and it was neither paused nor stopped."""
    using = records_alias()
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
        count(known)
    known.save(using=using, update_fields=[*RUN_COUNTERS, "wait", *CURSOR])


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
    return insert_found(RequeueItem, COLUMNS, chosen, using=records_alias(), ignore=True)


def _chosen(
    run: RequeueRun, rows: Rows, selection: Selection, terms: RequeueTerms, *, first: int
) -> "QuerySet[ParkedMessage, tuple[object, ...]]":
    """Return a row for each message with the values of its item, in the order of the columns."""
    objections = reasons(selection, terms)
    now = database_clock.now(records_alias())
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
